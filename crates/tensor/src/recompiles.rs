//! Source lines whose `eval` compiles a program again and again: counted, and told of once.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::panic::Location;
use std::sync::{Mutex, PoisonError};

use crate::graph::{Calls, Constants, Graph};
use crate::notes::note;
use crate::tensor::Kind;
use crate::{Literal, Tensor, TensorType};

/// The program of a line that is told of.
const TOLD_AT: u32 = 5;

/// What each line has compiled, by file and line.
#[derive(Default)]
pub(crate) struct Recompiles(Mutex<HashMap<(&'static str, u32), Line>>);

#[derive(Default)]
struct Line {
    programs: u32,
    /// The latest program, until the line was told of.
    latest: Vec<Step>,
}

/// A value of a program, as far as it tells programs apart.
struct Step {
    /// The operation; `None` for an input.
    operation: Option<&'static str>,
    types: Vec<TensorType>,
    /// A number that is part of the program.
    number: Option<f64>,
    /// The attributes and operands, as a digest.
    rest: u64,
    location: &'static Location<'static>,
}

impl Recompiles {
    /// Counts a program that `eval` compiled for a line. Its fifth is told of, with what differs from the fourth.
    pub(crate) fn count(&self, line: &'static Location<'static>, results: &[Tensor]) {
        let Ok(graph) = Graph::new(results, Constants::AsInputs, Calls::Inlined) else { return };
        let steps: Vec<Step> = graph.instructions.iter().map(|i| Step::new(&graph, i)).collect();
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = lines.entry((line.file(), line.line())).or_default();
        entry.programs += 1;
        if entry.programs > TOLD_AT {
            return;
        }
        let before = std::mem::replace(&mut entry.latest, steps);
        if entry.programs < TOLD_AT {
            return;
        }
        let after = std::mem::take(&mut entry.latest);
        drop(lines);
        note(&format!(
            "`eval` has compiled {TOLD_AT} programs for one line, {}:{}. {}",
            line.file(),
            line.line(),
            difference(&before, &after)
        ));
    }
}

impl Step {
    fn new(graph: &Graph, instruction: &crate::graph::Instruction) -> Step {
        let node = &instruction.node;
        let operation = match &node.kind {
            Kind::Operation(operation) => Some(operation).filter(|o| graph.takes(o).is_none()),
            _ => None,
        };
        let number = operation.and_then(|operation| {
            let scalar = TensorType::scalar(node.outputs[0].dtype);
            Literal::from_bytes(scalar, operation.constant()?).ok()?.to_f64().first().copied()
        });
        let mut rest = DefaultHasher::new();
        operation.map(|operation| operation.key()).hash(&mut rest);
        instruction.operands.hash(&mut rest);
        Step {
            operation: operation.map(|operation| operation.name()),
            types: node.outputs.clone(),
            number,
            rest: rest.finish(),
            location: node.location,
        }
    }
}

/// What the later program has that the earlier one has not, first of all, and what to do about it.
fn difference(before: &[Step], after: &[Step]) -> String {
    const EXPRESSION: &str = "The last two are different expressions. Several results are one program where \
                              `Runtime::eval_many` evaluates them together; an expression that is evaluated often can be \
                              compiled once, as a `Function`";
    let same = |(a, b): &(&Step, &Step)| a.operation == b.operation && a.types == b.types && a.rest == b.rest;
    let Some((old, new)) = before.iter().zip(after).find(|pair| !same(pair)) else { return EXPRESSION.into() };
    let mut text = String::new();
    if old.operation != new.operation {
        return EXPRESSION.into();
    } else if old.types != new.types {
        let types = |step: &Step| step.types.iter().map(TensorType::to_string).collect::<Vec<_>>().join(", ");
        let _ = write!(
            text,
            "The last two differ in a shape or dtype: {} was {}, then {}. Each is a program of \
             its own; give the values one dtype, and one shape or a few, by padding",
            new.operation.map_or("an input".to_owned(), |operation| format!("the result of `{operation}`")),
            types(old),
            types(new)
        );
    } else if let (Some(a), Some(b)) = (old.number, new.number) {
        let _ = write!(
            text,
            "The last two differ in a number: it was {a}, then {b}. A number in an expression is part of the program; make \
             one that changes a tensor, with `Tensor::scalar`"
        );
    } else if new.operation.is_some_and(|_| old.location == new.location) {
        let _ = write!(
            text,
            "The last two differ in what `{}` was given, such as offsets, axes or the body of a loop. That is part of the \
             program; `dynamic_slice` and `index_select` take offsets that change as tensors",
            new.operation.unwrap_or_default()
        );
    } else {
        return EXPRESSION.into();
    }
    let _ = write!(text, "\n  recorded at {}", new.location);
    text
}
