//! [`Recompiles`]: counts the programs that `eval` compiles for each source line, and notes once
//! that a line keeps compiling.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::panic::Location;
use std::sync::{Mutex, PoisonError};

use crate::graph::{Calls, Constants, Graph};
use crate::note;
use crate::ops::constant::elements;
use crate::tensor::Kind;
use crate::{Literal, Tensor, TensorType};

/// A note appears when a line compiles this many programs.
const LIMIT: usize = 5;

/// The programs that each line has compiled, by file and line.
#[derive(Default)]
pub(crate) struct Recompiles(Mutex<HashMap<(&'static str, u32), Line>>);

#[derive(Default)]
struct Line {
    /// The hashes of its programs, up to the note. A program that was dropped and compiled again is
    /// not a new one.
    programs: Vec<u64>,
    /// The latest program, until the note about the line.
    latest: Vec<ProgramValue>,
}

/// The properties of a value in a program that distinguish programs.
struct ProgramValue {
    /// The operation; `None` for an input.
    operation: Option<&'static str>,
    types: Vec<TensorType>,
    /// The number, if the value is a constant of the program.
    number: Option<f64>,
    /// A hash of the attributes and operands.
    hash: u64,
    location: &'static Location<'static>,
}

impl Recompiles {
    /// Counts a program that `eval` compiled for a line. The fifth causes a note, which says what
    /// differs from the fourth.
    pub(crate) fn count(&self, line: &'static Location<'static>, results: &[Tensor]) {
        let Ok(graph) = Graph::new(results, Constants::AsInputs, Calls::Inlined) else { return };
        let values: Vec<ProgramValue> =
            graph.instructions.iter().map(|i| ProgramValue::new(&graph, i)).collect();
        let mut hasher = DefaultHasher::new();
        for value in &values {
            (value.operation, &value.types, value.hash).hash(&mut hasher);
        }
        let program = hasher.finish();
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let entry = lines.entry((line.file(), line.line())).or_default();
        if entry.programs.len() == LIMIT || entry.programs.contains(&program) {
            return;
        }
        entry.programs.push(program);
        let previous = std::mem::replace(&mut entry.latest, values);
        if entry.programs.len() < LIMIT {
            return;
        }
        let latest = std::mem::take(&mut entry.latest);
        drop(lines);
        note!(
            "`eval` has compiled {LIMIT} programs for one line, {}:{}. {}",
            line.file(),
            line.line(),
            difference(&previous, &latest)
        );
    }
}

impl ProgramValue {
    fn new(graph: &Graph, instruction: &crate::graph::Instruction) -> ProgramValue {
        let operation = match &instruction.kind {
            Kind::Operation(operation) => {
                Some(operation).filter(|o| graph.constant_argument(o).is_none())
            }
            _ => None,
        };
        let number = operation.and_then(|operation| {
            let scalar = TensorType::scalar(instruction.outputs[0].dtype);
            Literal::from_bytes(scalar, elements(operation.as_ref())?)
                .ok()?
                .to_f64()
                .first()
                .copied()
        });
        let mut hasher = DefaultHasher::new();
        operation.map(|operation| operation.key()).hash(&mut hasher);
        instruction.operands.hash(&mut hasher);
        ProgramValue {
            operation: operation.map(|operation| operation.name()),
            types: instruction.outputs.clone(),
            number,
            hash: hasher.finish(),
            location: instruction.location,
        }
    }
}

/// Describes the first difference between two programs, and how to avoid it.
fn difference(previous: &[ProgramValue], latest: &[ProgramValue]) -> String {
    const EXPRESSION: &str = "The last two are different expressions. To get several results from one program, use \
                              `Runtime::eval_many`. To compile an expression once and run it often, make it a `Function`";
    let same = |(a, b): &(&ProgramValue, &ProgramValue)| {
        a.operation == b.operation && a.types == b.types && a.hash == b.hash
    };
    let Some((old, new)) = previous.iter().zip(latest).find(|pair| !same(pair)) else {
        return EXPRESSION.into();
    };
    let mut text = String::new();
    if old.operation != new.operation {
        return EXPRESSION.into();
    } else if old.types != new.types {
        let types = |value: &ProgramValue| {
            value.types.iter().map(TensorType::to_string).collect::<Vec<_>>().join(", ")
        };
        let _ = write!(
            text,
            "The last two differ in a shape or dtype: {} was {}, then {}. Each combination needs its own program. Use one \
             dtype, and pad the values to one shape or a few",
            new.operation
                .map_or("an input".to_owned(), |operation| format!("the result of `{operation}`")),
            types(old),
            types(new)
        );
    } else if let (Some(a), Some(b)) = (old.number, new.number) {
        let _ = write!(
            text,
            "The last two differ in a number: it was {a}, then {b}. A number in an expression is part of the program. If it \
             changes, make it a tensor with `Tensor::scalar`"
        );
    } else if new.operation.is_some_and(|_| old.location == new.location) {
        let _ = write!(
            text,
            "The last two differ in the arguments of `{}`, such as offsets, axes or the body of a loop. These are part of the \
             program. For offsets that change, use `dynamic_slice` or `index_select`, which take them as tensors",
            new.operation.unwrap_or_default()
        );
    } else {
        return EXPRESSION.into();
    }
    let _ = write!(text, "\n  recorded at {}", new.location);
    text
}
