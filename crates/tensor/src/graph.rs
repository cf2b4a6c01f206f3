//! The recorded expression as a list: every node once, inputs before users, common subexpressions merged and what no
//! result needs left out.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use crate::hash::{IdMap, IdSet, QuickMap};
use crate::operation::Operation;
use crate::tensor::{Kind, Node};
use crate::{Result, Tensor};

/// Calls `f` for each node that `results` are computed from, once, inputs before users. Needs no deep stack.
pub(crate) fn visit(results: &[Tensor], f: impl FnMut(&Arc<Node>)) {
    visit_where(results, |_| true, f);
}

/// As [`visit`], for the nodes that are reached over tensors that `enter` lets pass.
pub(crate) fn visit_where(results: &[Tensor], enter: impl Fn(&Tensor) -> bool, mut f: impl FnMut(&Arc<Node>)) {
    let mut state: IdMap<usize> = IdMap::default();
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
pub(crate) fn dependents(results: &[Tensor], sources: &[&Tensor]) -> IdSet {
    let mut found: IdSet = sources.iter().map(|t| t.node.id).collect();
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
pub(crate) type ValueId = (u64, usize);

pub(crate) fn value_id(t: &Tensor) -> ValueId {
    (t.node.id, t.output)
}

/// The expressions `results` with other tensors of the same types in place of some: the same operations, recorded by the
/// same lines.
pub(crate) fn replay(results: &[Tensor], with: &HashMap<ValueId, Tensor>) -> Vec<Tensor> {
    let oldest = with.keys().map(|id| id.0).min().unwrap_or(u64::MAX);
    let mut again: IdMap<Arc<Node>> = IdMap::default();
    let look_up = |again: &IdMap<Arc<Node>>, t: &Tensor| match (with.get(&value_id(t)), again.get(&t.node.id)) {
        (Some(other), _) => other.clone(),
        (None, Some(node)) => Tensor { node: node.clone(), output: t.output },
        (None, None) => t.clone(),
    };
    visit_where(
        results,
        |t| t.node.id >= oldest && !with.contains_key(&value_id(t)),
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

/// The expressions `results` with the bodies of what they call in place of the calls.
pub(crate) fn inline_calls(results: &[Tensor]) -> Vec<Tensor> {
    let mut again: IdMap<Vec<Tensor>> = IdMap::default();
    let look_up = |again: &IdMap<Vec<Tensor>>, t: &Tensor| match again.get(&t.node.id) {
        Some(outputs) => outputs[t.output].clone(),
        None => t.clone(),
    };
    visit(results, |node| {
        let Kind::Operation(operation) = &node.kind else { return };
        let inputs: Vec<Tensor> = node.inputs.iter().map(|t| look_up(&again, t)).collect();
        if let Some(body) = operation.called() {
            let with = body.parameters.iter().map(value_id).zip(inputs).collect();
            again.insert(node.id, replay(&inline_calls(&body.results), &with));
        } else if inputs.iter().zip(&node.inputs).any(|(new, old)| !new.is(old)) {
            let node_again = node.again(operation, inputs);
            let outputs = (0..node.outputs.len()).map(|output| Tensor { node: node_again.clone(), output });
            again.insert(node.id, outputs.collect());
        }
    });
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
    calls: Calls,
}

/// What becomes of a [call](crate::call()).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Calls {
    /// It stays one instruction.
    Kept,
    /// The instructions of its body take its place.
    Inlined,
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
type Known = QuickMap<Identity, usize>;

/// The values of a node's results.
enum Values {
    /// Those of one instruction.
    Of(usize),
    /// Those of the results of a body that replaces the node.
    Each(Vec<Value>),
}

impl Values {
    fn get(&self, output: usize) -> Value {
        match self {
            Values::Of(instruction) => Value { instruction: *instruction, output },
            Values::Each(values) => values[output],
        }
    }
}

impl Graph {
    /// Lists what `results` need. Two given values that are equal are twins only where they are `constants`: the list is
    /// the same for other values otherwise.
    ///
    /// # Errors
    /// The first fault among the results.
    pub(crate) fn new(results: &[Tensor], constants: Constants, calls: Calls) -> Result<Graph> {
        for result in results {
            result.check()?;
        }
        let mut graph = Graph { instructions: vec![], results: vec![], constants, calls };
        graph.results = graph.list(results, IdMap::default(), &mut Known::default());
        Ok(graph)
    }

    /// The elements of an operation that is an argument of the program.
    pub(crate) fn takes<'a>(&self, operation: &'a Arc<dyn Operation>) -> Option<&'a Arc<[u8]>> {
        operation.given().filter(|_| self.constants == Constants::AsInputs)
    }

    /// Adds what `results` need, where the values of some nodes are in the list already.
    fn list(&mut self, results: &[Tensor], mut values: IdMap<Values>, known: &mut Known) -> Vec<Value> {
        visit(results, |node| {
            if values.contains_key(&node.id) {
                return;
            }
            let operands: Vec<Value> = node.inputs.iter().map(|t| values[&t.node.id].get(t.output)).collect();
            let identity = match &node.kind {
                Kind::Operation(operation) if self.takes(operation).is_some() => Identity::Leaf(node.id),
                Kind::Operation(operation) => {
                    let called = || operation.called().filter(|_| self.calls == Calls::Inlined);
                    if let Some(body) = operation.inlined().or_else(called) {
                        let bound = (body.parameters.iter().zip(&operands))
                            .map(|(p, &v)| (p.node.id, Values::Each(vec![v])))
                            .collect();
                        let inlined = self.list(&body.results, bound, known);
                        values.insert(node.id, Values::Each(inlined));
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
            values.insert(node.id, Values::Of(instruction));
        });
        results.iter().map(|t| values[&t.node.id].get(t.output)).collect()
    }
}

impl Tensor {
    /// Whether the value of this tensor is computed, by whatever way, from `leaf`.
    pub fn depends_on(&self, leaf: &Tensor) -> bool {
        self.depends_on_each(&[leaf])[0]
    }

    /// The same expression computed from other tensors: in it, the second of each pair replaces the first. A second one may
    /// itself be computed from the first.
    ///
    /// Poisoned if the two tensors of a pair differ in dtype or shape.
    ///
    /// ```
    /// use fulmen_tensor::Tensor;
    ///
    /// let x = Tensor::scalar(2.0f32);
    /// let y = &x * &x + 1.0;
    /// assert_eq!(y.substitute(&[(&x, &(&x + 1.0))]).eval()?.to_vec::<f32>()?, [10.0]);
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    #[track_caller]
    pub fn substitute(&self, pairs: &[(&Tensor, &Tensor)]) -> Tensor {
        Tensor::record("substitute", || {
            if let Some((old, new)) = pairs.iter().find(|(old, new)| old.ty() != new.ty()) {
                return Err(format!("{} cannot replace {}", new.ty(), old.ty()).into());
            }
            let with = pairs.iter().map(|(old, new)| (value_id(old), (*new).clone())).collect();
            Ok(replay(std::slice::from_ref(self), &with).remove(0))
        })
    }

    /// As [`Tensor::depends_on`], of each of `leaves`, in one walk over the expression.
    ///
    /// ```
    /// use fulmen_tensor::Tensor;
    ///
    /// let [a, b, c] = [1.0f32, 2.0, 3.0].map(Tensor::scalar);
    /// assert_eq!((&a + &b).depends_on_each(&[&a, &b, &c]), [true, true, false]);
    /// ```
    pub fn depends_on_each(&self, leaves: &[&Tensor]) -> Vec<bool> {
        let oldest = leaves.iter().map(|leaf| leaf.node.id).min().unwrap_or(u64::MAX);
        let mut seen = IdSet::default();
        visit_where(
            std::slice::from_ref(self),
            |t| t.node.id >= oldest,
            |node| {
                seen.insert(node.id);
            },
        );
        leaves.iter().map(|leaf| seen.contains(&leaf.node.id)).collect()
    }
}
