//! The recorded expression as a list: every node once, inputs before users, common subexpressions merged and what no
//! result needs left out.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::operation::Operation;
use crate::tensor::{Kind, Node};
use crate::{Result, Tensor};

/// Calls `f` for each node that `results` are computed from, once, inputs before users. Needs no deep stack.
pub(crate) fn visit(results: &[Tensor], f: impl FnMut(&Arc<Node>)) {
    visit_where(results, |_| true, f);
}

/// As [`visit`], for the nodes that are reached over tensors that `enter` lets pass.
pub(crate) fn visit_where(results: &[Tensor], enter: impl Fn(&Tensor) -> bool, mut f: impl FnMut(&Arc<Node>)) {
    let mut state: HashMap<u64, usize> = HashMap::new();
    for result in results.iter().filter(|t| enter(t)) {
        let mut stack = vec![&result.node];
        while let Some(&node) = stack.last() {
            let next = state.entry(node.id).or_insert(0);
            let i = *next;
            *next += 1;
            match node.inputs.get(i) {
                Some(input) if !state.contains_key(&input.node.id) && enter(input) => stack.push(&input.node),
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

/// The ids of the nodes that are computed from those of `sources`, and of these themselves.
pub(crate) fn dependents(results: &[Tensor], sources: &[&Tensor]) -> HashSet<u64> {
    let mut found: HashSet<u64> = sources.iter().map(|t| t.node.id).collect();
    // Inputs are older than what is computed from them.
    let oldest = found.iter().min().copied().unwrap_or(u64::MAX);
    visit_where(
        results,
        |t| t.node.id >= oldest,
        |node| {
            if node.inputs.iter().any(|t| found.contains(&t.node.id)) {
                found.insert(node.id);
            }
        },
    );
    found
}

/// One tensor among all: its node and which of the node's results it is.
pub(crate) type Place = (u64, usize);

pub(crate) fn place(t: &Tensor) -> Place {
    (t.node.id, t.output)
}

/// The expressions `results` with other tensors of the same types in place of some: the same operations, recorded by the
/// same lines.
pub(crate) fn replay(results: &[Tensor], with: &HashMap<Place, Tensor>) -> Vec<Tensor> {
    let oldest = with.keys().map(|place| place.0).min().unwrap_or(u64::MAX);
    let mut again: HashMap<u64, Arc<Node>> = HashMap::new();
    let look_up = |again: &HashMap<u64, Arc<Node>>, t: &Tensor| match (with.get(&place(t)), again.get(&t.node.id)) {
        (Some(other), _) => other.clone(),
        (None, Some(node)) => Tensor { node: node.clone(), output: t.output },
        (None, None) => t.clone(),
    };
    visit_where(
        results,
        |t| t.node.id >= oldest && !with.contains_key(&place(t)),
        |node| {
            let Kind::Operation(operation) = &node.kind else { return };
            let inputs: Vec<Tensor> = node.inputs.iter().map(|t| look_up(&again, t)).collect();
            if inputs.iter().zip(&node.inputs).any(|(new, old)| !new.is(old)) {
                again.insert(node.id, node.again(operation, inputs));
            }
        },
    );
    results.iter().map(|t| look_up(&again, t)).collect()
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

/// A list of instructions without duplicates, and the indices of the results.
pub(crate) struct Graph {
    pub(crate) instructions: Vec<Instruction>,
    pub(crate) results: Vec<Value>,
    constants: Constants,
}

/// What a program does with small values that it was given.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Constants {
    /// It contains them.
    InText,
    /// It takes them as arguments, so that it is the same program for other values.
    AsInputs,
}

/// What makes two nodes the same value.
#[derive(PartialEq, Eq, Hash)]
enum Identity {
    Leaf(u64),
    Array(usize),
    Operation { name: &'static str, key: String, operands: Vec<Value> },
}

/// The instructions that are listed already, by what they are.
type Known = HashMap<Identity, usize>;

impl Graph {
    /// Lists what `results` need. Two given values that are equal are twins only where they are `constants`: the list is
    /// the same for other values otherwise.
    ///
    /// # Errors
    /// The first fault among the results.
    pub(crate) fn new(results: &[Tensor], constants: Constants) -> Result<Graph> {
        for result in results {
            result.check()?;
        }
        let mut graph = Graph { instructions: vec![], results: vec![], constants };
        graph.results = graph.list(results, HashMap::new(), &mut Known::new());
        Ok(graph)
    }

    /// The elements of an operation that is an argument of the program.
    pub(crate) fn takes<'a>(&self, operation: &'a Arc<dyn Operation>) -> Option<&'a Arc<[u8]>> {
        operation.given().filter(|_| self.constants == Constants::AsInputs)
    }

    /// Adds what `results` need, where the values of some nodes are in the list already.
    fn list(&mut self, results: &[Tensor], mut values: HashMap<u64, Vec<Value>>, known: &mut Known) -> Vec<Value> {
        visit(results, |node| {
            if values.contains_key(&node.id) {
                return;
            }
            let operands: Vec<Value> = node.inputs.iter().map(|t| values[&t.node.id][t.output]).collect();
            let identity = match &node.kind {
                Kind::Operation(operation) if self.takes(operation).is_some() => Identity::Leaf(node.id),
                Kind::Operation(operation) => {
                    if let Some(body) = operation.inlined() {
                        let bound = body.parameters.iter().zip(&operands).map(|(p, &v)| (p.node.id, vec![v])).collect();
                        values.insert(node.id, self.list(&body.results, bound, known));
                        return;
                    }
                    Identity::Operation { name: operation.name(), key: operation.key(), operands: operands.clone() }
                }
                Kind::Array(array) => Identity::Array(Arc::as_ptr(array).addr()),
                Kind::Host(_) | Kind::Placeholder { .. } | Kind::Parameter { .. } | Kind::Poison(_) => {
                    Identity::Leaf(node.id)
                }
            };
            let instruction = match known.entry(identity) {
                Entry::Occupied(seen) => {
                    let twin = &mut self.instructions[*seen.get()];
                    // The one with more results serves the users of both.
                    if twin.node.outputs.len() < node.outputs.len() {
                        twin.node = node.clone();
                    }
                    *seen.get()
                }
                Entry::Vacant(new) => {
                    self.instructions.push(Instruction { node: node.clone(), operands });
                    *new.insert(self.instructions.len() - 1)
                }
            };
            values.insert(node.id, (0..node.outputs.len()).map(|output| Value { instruction, output }).collect());
        });
        results.iter().map(|t| values[&t.node.id][t.output]).collect()
    }
}

impl Tensor {
    /// Whether the value of this tensor is computed, by whatever way, from `leaf`.
    pub fn depends_on(&self, leaf: &Tensor) -> bool {
        let mut found = false;
        visit(std::slice::from_ref(self), |node| found |= node.id == leaf.node.id);
        found
    }
}
