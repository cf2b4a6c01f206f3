//! [`Graph`]: the recorded expression as a list of instructions, and walks over expressions. The
//! list has each node once, inputs before users. Common subexpressions are merged, and nodes that
//! no result needs are left out.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::panic::Location;
use std::sync::Arc;

use crate::as_tensor::as_tensors;
use crate::hash::{IdMap, IdSet, QuickMap};
use crate::operation::{Contents, Operation};
use crate::tensor::{Kind, Node};
use crate::{AsTensor, Result, Tensor, TensorType};

/// Calls `f` once for each node that `results` are computed from, inputs before users. Does not
/// recurse.
pub(crate) fn visit(results: &[Tensor], f: impl FnMut(&Arc<Node>)) {
    visit_where(results, |_| true, f);
}

/// Like [`visit`], but enters only tensors for which `enter` returns true.
pub(crate) fn visit_where(
    results: &[Tensor],
    enter: impl Fn(&Tensor) -> bool,
    mut f: impl FnMut(&Arc<Node>),
) {
    let mut state: IdMap<usize> = IdMap::default();
    for result in results.iter().filter(|t| enter(t)) {
        let mut stack = vec![&result.node];
        while let Some(&node) = stack.last() {
            let next = state.entry(node.id).or_insert(0);
            let i = *next;
            *next += 1;
            match node.inputs.get(i) {
                Some(input) if !state.contains_key(&input.node.id) && enter(input) => {
                    stack.push(&input.node)
                }
                Some(_) => {}
                None => {
                    stack.pop();
                    // Only the first time: a second path can lead to the same node.
                    if i == node.inputs.len() {
                        f(node);
                    }
                }
            }
        }
    }
}

/// The ids of the nodes of `sources` and of the nodes in `results` that are computed from them.
pub(crate) fn dependents(results: &[Tensor], sources: &[&Tensor]) -> IdSet {
    let mut dependents: IdSet = sources.iter().map(|t| t.node.id).collect();
    // A node is newer than its inputs.
    let oldest = dependents.iter().min().copied().unwrap_or(u64::MAX);
    visit_where(
        results,
        |t| t.node.id >= oldest,
        |node| {
            if node.inputs.iter().any(|t| dependents.contains(&t.node.id)) {
                dependents.insert(node.id);
            }
        },
    );
    dependents
}

/// Identifies a tensor: the id of its node, and the index of the node's output.
pub(crate) type ValueId = (u64, usize);

pub(crate) fn value_id(t: &Tensor) -> ValueId {
    (t.node.id, t.output)
}

/// The expressions `results` with some tensors replaced by others of the same types. Operations are
/// recorded again at their lines.
pub(crate) fn replay(results: &[Tensor], replacements: &HashMap<ValueId, Tensor>) -> Vec<Tensor> {
    let oldest = replacements.keys().map(|id| id.0).min().unwrap_or(u64::MAX);
    let mut replayed: IdMap<Arc<Node>> = IdMap::default();
    let look_up = |replayed: &IdMap<Arc<Node>>, t: &Tensor| match (
        replacements.get(&value_id(t)),
        replayed.get(&t.node.id),
    ) {
        (Some(replacement), _) => replacement.clone(),
        (None, Some(node)) => Tensor { node: node.clone(), output: t.output },
        (None, None) => t.clone(),
    };
    visit_where(
        results,
        |t| t.node.id >= oldest && !replacements.contains_key(&value_id(t)),
        |node| {
            let Kind::Operation(operation) = &node.kind else { return };
            let inputs: Vec<Tensor> = node.inputs.iter().map(|t| look_up(&replayed, t)).collect();
            if inputs.iter().zip(&node.inputs).any(|(new, old)| !new.is(old)) {
                replayed.insert(node.id, node.with_inputs(operation, inputs));
            }
        },
    );
    results.iter().map(|t| look_up(&replayed, t)).collect()
}

/// The expressions `results` with each call replaced by the body that it calls.
pub(crate) fn inline_calls(results: &[Tensor]) -> Vec<Tensor> {
    let mut inlined: IdMap<Vec<Tensor>> = IdMap::default();
    let look_up = |inlined: &IdMap<Vec<Tensor>>, t: &Tensor| match inlined.get(&t.node.id) {
        Some(outputs) => outputs[t.output].clone(),
        None => t.clone(),
    };
    visit(results, |node| {
        let Kind::Operation(operation) = &node.kind else { return };
        let inputs: Vec<Tensor> = node.inputs.iter().map(|t| look_up(&inlined, t)).collect();
        if let Contents::Called(body) = operation.contents() {
            let replacements = body.parameters.iter().map(value_id).zip(inputs).collect();
            inlined.insert(node.id, replay(&inline_calls(&body.results), &replacements));
        } else if inputs.iter().zip(&node.inputs).any(|(new, old)| !new.is(old)) {
            let new_node = node.with_inputs(operation, inputs);
            let outputs =
                (0..node.outputs.len()).map(|output| Tensor { node: new_node.clone(), output });
            inlined.insert(node.id, outputs.collect());
        }
    });
    results.iter().map(|t| look_up(&inlined, t)).collect()
}

/// One output of one instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Value {
    pub(crate) instruction: usize,
    pub(crate) output: usize,
}

pub(crate) struct Instruction {
    /// The id of the recorded node.
    pub(crate) id: u64,
    pub(crate) kind: Kind,
    pub(crate) operands: Vec<Value>,
    /// The types of the results.
    pub(crate) outputs: Vec<TensorType>,
    pub(crate) location: &'static Location<'static>,
}

impl Instruction {
    fn new(node: &Node, operands: Vec<Value>) -> Instruction {
        Instruction {
            id: node.id,
            kind: node.kind.clone(),
            operands,
            outputs: node.outputs.clone(),
            location: node.location,
        }
    }
}

/// A list of instructions without duplicates, and the results.
pub(crate) struct Graph {
    pub(crate) instructions: Vec<Instruction>,
    pub(crate) results: Vec<Value>,
    constants: Constants,
    calls: Calls,
}

/// How a graph treats a [call](crate::call()).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Calls {
    /// A call is one instruction.
    Kept,
    /// The instructions of the body replace the call.
    Inlined,
}

/// How a program treats small constant values.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Constants {
    /// The text of the program contains them.
    InText,
    /// The program takes them as arguments, so that it need not be compiled again for other values.
    AsInputs,
}

/// Two nodes with equal identities have the same value.
#[derive(PartialEq, Eq, Hash)]
enum Identity {
    Leaf(u64),
    Array(usize),
    Operation { name: &'static str, key: String, operands: Vec<Value> },
}

/// The indices of the listed instructions, by identity.
type InstructionIndices = QuickMap<Identity, usize>;

/// The values of a node's results.
enum Values {
    /// The outputs of the instruction with this index.
    Instruction(usize),
    /// The results of a body that replaces the node.
    Inlined(Vec<Value>),
}

impl Values {
    fn get(&self, output: usize) -> Value {
        match self {
            Values::Instruction(instruction) => Value { instruction: *instruction, output },
            Values::Inlined(values) => values[output],
        }
    }
}

impl Graph {
    /// Lists the instructions that `results` need. With [`Constants::InText`], equal constants are
    /// merged. With [`Constants::AsInputs`] they are not, so that the list does not depend on the
    /// values.
    ///
    /// # Errors
    /// A result is poisoned.
    pub(crate) fn new(results: &[Tensor], constants: Constants, calls: Calls) -> Result<Graph> {
        for result in results {
            result.check()?;
        }
        let mut graph = Graph { instructions: Vec::new(), results: Vec::new(), constants, calls };
        graph.results =
            graph.add_instructions(results, IdMap::default(), &mut InstructionIndices::default());
        Ok(graph)
    }

    /// A graph without instructions, for which calls and constants are treated in the same way.
    pub(crate) fn emptied(&self) -> Graph {
        Graph {
            instructions: Vec::new(),
            results: Vec::new(),
            constants: self.constants,
            calls: self.calls,
        }
    }

    /// The graph of an expression, for which calls and constants are treated in the same way.
    pub(crate) fn of(&self, results: &[Tensor]) -> Result<Graph> {
        Graph::new(results, self.constants, self.calls)
    }

    /// The type of a value.
    pub(crate) fn ty(&self, value: Value) -> &TensorType {
        &self.instructions[value.instruction].outputs[value.output]
    }

    /// The elements of an operation, if the program takes them as an argument.
    pub(crate) fn constant_argument<'a>(
        &self,
        operation: &'a Arc<dyn Operation>,
    ) -> Option<&'a Arc<[u8]>> {
        operation.host_value().filter(|_| self.constants == Constants::AsInputs)
    }

    /// Adds the instructions that `results` need. `values` has the values of nodes that are already
    /// listed.
    fn add_instructions(
        &mut self,
        results: &[Tensor],
        mut values: IdMap<Values>,
        known: &mut InstructionIndices,
    ) -> Vec<Value> {
        visit(results, |node| {
            if values.contains_key(&node.id) {
                return;
            }
            let operands: Vec<Value> =
                node.inputs.iter().map(|t| values[&t.node.id].get(t.output)).collect();
            let identity = match &node.kind {
                Kind::Operation(operation) if self.constant_argument(operation).is_some() => {
                    Identity::Leaf(node.id)
                }
                Kind::Operation(operation) => {
                    let body = match operation.contents() {
                        Contents::Inlined(body) => Some(body),
                        Contents::Called(body) if self.calls == Calls::Inlined => Some(body),
                        _ => None,
                    };
                    if let Some(body) = body {
                        let bound = (body.parameters.iter().zip(&operands))
                            .map(|(p, &v)| (p.node.id, Values::Inlined(vec![v])))
                            .collect();
                        let inlined = self.add_instructions(&body.results, bound, known);
                        values.insert(node.id, Values::Inlined(inlined));
                        return;
                    }
                    Identity::Operation {
                        name: operation.name(),
                        key: operation.key(),
                        operands: operands.clone(),
                    }
                }
                Kind::Array(array) => Identity::Array(Arc::as_ptr(array).addr()),
                Kind::Host(_)
                | Kind::Placeholder { .. }
                | Kind::Parameter { .. }
                | Kind::Poison(_) => Identity::Leaf(node.id),
            };
            let instruction = match known.entry(identity) {
                Entry::Occupied(entry) => {
                    let instruction = &mut self.instructions[*entry.get()];
                    // Keep the node with more outputs, which has the outputs of both.
                    if instruction.outputs.len() < node.outputs.len() {
                        *instruction = Instruction::new(node, operands);
                    }
                    *entry.get()
                }
                Entry::Vacant(entry) => {
                    self.instructions.push(Instruction::new(node, operands));
                    *entry.insert(self.instructions.len() - 1)
                }
            };
            values.insert(node.id, Values::Instruction(instruction));
        });
        results.iter().map(|t| values[&t.node.id].get(t.output)).collect()
    }
}

impl Tensor {
    /// Whether this tensor is computed from `leaf`, directly or indirectly.
    pub fn depends_on(&self, leaf: &Tensor) -> bool {
        self.depends_on_each(&[leaf])[0]
    }

    /// The same expression with some tensors replaced: the second tensor of each pair replaces the
    /// first. The second tensor may itself be computed from the first.
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
    pub fn substitute(&self, pairs: &[(impl AsTensor, impl AsTensor)]) -> Tensor {
        Tensor::record("substitute", || {
            let pairs = pairs.iter().map(|(old, new)| (old.as_tensor(), new.as_tensor()));
            if let Some((old, new)) = pairs.clone().find(|(old, new)| old.ty() != new.ty()) {
                return Err(format!("{} cannot replace {}", new.ty(), old.ty()).into());
            }
            let with = pairs.map(|(old, new)| (value_id(old), new.clone())).collect();
            Ok(replay(std::slice::from_ref(self), &with).remove(0))
        })
    }

    /// Like [`Tensor::depends_on`] for each of `leaves`, in one walk over the expression.
    ///
    /// ```
    /// use fulmen_tensor::Tensor;
    ///
    /// let [a, b, c] = [1.0f32, 2.0, 3.0].map(Tensor::scalar);
    /// assert_eq!((&a + &b).depends_on_each(&[&a, &b, &c]), [true, true, false]);
    /// ```
    pub fn depends_on_each(&self, leaves: &[impl AsTensor]) -> Vec<bool> {
        let leaves = as_tensors(leaves);
        let oldest = leaves.iter().map(|leaf| leaf.node.id).min().unwrap_or(u64::MAX);
        let mut visited = IdSet::default();
        visit_where(
            std::slice::from_ref(self),
            |t| t.node.id >= oldest,
            |node| {
                visited.insert(node.id);
            },
        );
        leaves.iter().map(|leaf| visited.contains(&leaf.node.id)).collect()
    }
}
