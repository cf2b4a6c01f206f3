//! [`RecordedOp`]: one recorded value of a [`Function`](crate::Function), for tools that analyze a
//! program before it runs.

use std::panic::Location;

use crate::graph::{Calls, Constants, Graph};
use crate::hash::IdMap;
use crate::tensor::Kind;
use crate::{Result, Tensor, TensorType};

/// One operation, parameter or constant of a recorded program.
#[derive(Clone, Debug)]
pub struct RecordedOp {
    /// The method that recorded the operation; `None` for parameters and for values that the
    /// expression holds.
    pub operation: Option<&'static str>,
    /// The index of a parameter.
    pub parameter: Option<usize>,
    /// The name of a parameter.
    pub name: Option<String>,
    /// The operands, as indices into the same list.
    pub operands: Vec<usize>,
    /// The types of the results.
    pub types: Vec<TensorType>,
    /// The line that recorded it.
    pub location: &'static Location<'static>,
}

/// Lists the values that `results` are computed from, each once, operands before users.
pub(crate) fn inspect(parameters: &[Tensor], results: &[Tensor]) -> Result<Vec<RecordedOp>> {
    let graph = Graph::new(results, Constants::InText, Calls::Inlined)?;
    let indices: IdMap<usize> =
        parameters.iter().enumerate().map(|(index, p)| (p.node.id, index)).collect();
    let recorded = graph.instructions.iter().map(|instruction| {
        let node = &instruction.node;
        RecordedOp {
            operation: match &node.kind {
                Kind::Operation(operation) => Some(operation.name()),
                _ => None,
            },
            parameter: indices.get(&node.id).copied(),
            name: match &node.kind {
                Kind::Placeholder { name } => Some(name.clone()),
                _ => None,
            },
            operands: instruction.operands.iter().map(|value| value.instruction).collect(),
            types: node.outputs.clone(),
            location: node.location,
        }
    });
    Ok(recorded.collect())
}
