//! The recorded expression as a list: every node once, inputs before users, common subexpressions merged and what no
//! result needs left out.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use crate::tensor::{Kind, Node};
use crate::{Result, Tensor};

/// Calls `f` for each node that `results` are computed from, once, inputs before users. Needs no deep stack.
pub(crate) fn visit(results: &[Tensor], mut f: impl FnMut(&Arc<Node>)) {
    let mut state: HashMap<u64, usize> = HashMap::new();
    for result in results {
        let mut stack = vec![&result.node];
        while let Some(&node) = stack.last() {
            let next = state.entry(node.id).or_insert(0);
            let i = *next;
            *next += 1;
            match node.inputs.get(i) {
                Some(input) if !state.contains_key(&input.node.id) => stack.push(&input.node),
                Some(_) => {}
                None => {
                    stack.pop();
                    // One past the end: the node was handed out, when a second path leads here it is not again.
                    if i == node.inputs.len() {
                        f(node);
                    }
                }
            }
        }
    }
}

/// One result of one instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Value {
    pub(crate) instruction: usize,
    pub(crate) output: usize,
}

pub(crate) struct Instruction {
    pub(crate) node: Arc<Node>,
    pub(crate) operands: Vec<Value>,
}

/// A list of instructions without twins, and where the results stand in it.
pub(crate) struct Graph {
    pub(crate) instructions: Vec<Instruction>,
    pub(crate) results: Vec<Value>,
}

/// What makes two nodes the same value.
#[derive(PartialEq, Eq, Hash)]
enum Identity {
    Leaf(u64),
    Array(usize),
    Operation { name: &'static str, key: String, operands: Vec<Value> },
}

impl Graph {
    /// Lists what `results` need.
    ///
    /// # Errors
    /// The first fault among the results.
    pub(crate) fn new(results: &[Tensor]) -> Result<Graph> {
        for result in results {
            result.check()?;
        }
        let mut instructions: Vec<Instruction> = vec![];
        let mut known: HashMap<Identity, usize> = HashMap::new();
        let mut place: HashMap<u64, usize> = HashMap::new();
        let at = |place: &HashMap<u64, usize>, t: &Tensor| Value { instruction: place[&t.node.id], output: t.output };
        visit(results, |node| {
            let operands: Vec<Value> = node.inputs.iter().map(|t| at(&place, t)).collect();
            let identity = match &node.kind {
                Kind::Operation(operation) => {
                    Identity::Operation { name: operation.name(), key: operation.key(), operands: operands.clone() }
                }
                Kind::Array(array) => Identity::Array(Arc::as_ptr(array).addr()),
                Kind::Host(_) | Kind::Placeholder { .. } | Kind::Poison(_) => Identity::Leaf(node.id),
            };
            let index = match known.entry(identity) {
                Entry::Occupied(seen) => *seen.get(),
                Entry::Vacant(new) => {
                    instructions.push(Instruction { node: node.clone(), operands });
                    *new.insert(instructions.len() - 1)
                }
            };
            place.insert(node.id, index);
        });
        let results = results.iter().map(|t| at(&place, t)).collect();
        Ok(Graph { instructions, results })
    }
}
