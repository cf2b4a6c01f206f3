//! Replaces operations by others, or by expressions of others.

use std::sync::Arc;

use super::{Replacement, Rule};
use crate::graph::{Graph, Instruction, Value};
use crate::hash::IdMap;
use crate::operation::Operation;
use crate::region::Region;
use crate::scope::Scope;
use crate::tensor::Kind;
use crate::{Result, TensorType};

/// The graph with each operation replaced as the first rule says that knows it. Operations of a
/// replacement are replaced too. Its parameters stay: each is an instruction with one operand, whose
/// value it has.
///
/// # Errors
/// A replacement is poisoned.
pub(super) fn run(graph: &Graph, rules: &[Rule]) -> Result<Graph> {
    let mut replacer = Replacer { rules, graph: graph.emptied() };
    replacer.graph.results = replacer.add(graph, &IdMap::default())?;
    Ok(replacer.graph)
}

struct Replacer<'a> {
    rules: &'a [Rule],
    /// The graph under construction.
    graph: Graph,
}

impl Replacer<'_> {
    /// Adds the instructions of a graph, and returns its results. `bound` has the values of
    /// parameters.
    fn add(&mut self, graph: &Graph, bound: &IdMap<Value>) -> Result<Vec<Value>> {
        let mut added: Vec<Vec<Value>> = Vec::with_capacity(graph.instructions.len());
        for instruction in &graph.instructions {
            let operands =
                instruction.operands.iter().map(|v| added[v.instruction][v.output]).collect();
            let outputs = match &instruction.kind {
                Kind::Operation(operation) if graph.constant_argument(operation).is_none() => {
                    self.add_operation(operation.clone(), instruction, operands)?
                }
                Kind::Parameter { .. } => {
                    let value = bound.get(&instruction.id).copied();
                    self.push(instruction.kind.clone(), instruction, value.into_iter().collect())
                }
                _ => self.push(instruction.kind.clone(), instruction, operands),
            };
            added.push(outputs);
        }
        Ok(graph.results.iter().map(|v| added[v.instruction][v.output]).collect())
    }

    /// Adds an operation, or what replaces it, and returns its results.
    fn add_operation(
        &mut self,
        mut operation: Arc<dyn Operation>,
        instruction: &Instruction,
        operands: Vec<Value>,
    ) -> Result<Vec<Value>> {
        let types: Vec<&TensorType> = operands.iter().map(|&v| self.graph.ty(v)).collect();
        let _scope = Scope::at(instruction.location);
        for rule in self.rules {
            match rule(operation.as_ref(), &types) {
                Some(Replacement::Operation(other)) => operation = other,
                Some(Replacement::Expression(Region { parameters, results })) => {
                    let expression = self.graph.of(&results)?;
                    let bound = parameters.iter().map(|p| p.node.id).zip(operands).collect();
                    return self.add(&expression, &bound);
                }
                None => {}
            }
        }
        Ok(self.push(Kind::Operation(operation), instruction, operands))
    }

    /// Adds an instruction of this kind in the place of another one, and returns its results.
    fn push(&mut self, kind: Kind, like: &Instruction, operands: Vec<Value>) -> Vec<Value> {
        self.graph.instructions.push(Instruction {
            id: like.id,
            kind,
            operands,
            outputs: like.outputs.clone(),
            location: like.location,
        });
        let instruction = self.graph.instructions.len() - 1;
        (0..like.outputs.len()).map(|output| Value { instruction, output }).collect()
    }
}
