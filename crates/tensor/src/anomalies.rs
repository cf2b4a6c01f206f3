//! [`Anomalies`]: watches every value that a program computes, to find the origin of a NaN or an
//! infinity. It sees the results of loops and branches, not the values within their bodies.

use std::collections::HashMap;
use std::fmt;
use std::panic::Location;

use crate::graph::{inline_calls, value_id, visit};
use crate::scope::Scope;
use crate::tensor::Kind;
use crate::{DType, Tensor, TensorType};

/// Finds the first operation that made a NaN or an infinity, among all floating-point and complex
/// values that results depend on.
///
/// ```
/// use fulmen_tensor::{Anomalies, Tensor, grad};
///
/// let x = Tensor::from_slice(&[4.0f32, 0.0], [2]);
/// let line = line!() + 1;
/// let loss = x.sqrt().sum_all();
/// let anomalies = Anomalies::watch(&grad(&loss, &[&x]));
/// let text = anomalies.origin(&anomalies.levels().eval()?.to_vec()?).ok_or("all is finite")?;
/// assert!(text.contains("infinity") && text.contains(&format!("{}:{line}:", file!())), "{text}");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Anomalies {
    watched: Vec<WatchedValue>,
    /// The indices of the results in `watched`.
    results: Vec<usize>,
    levels: Tensor,
    has_anomaly: Tensor,
}

/// One watched value.
struct WatchedValue {
    source: Source,
    ty: TensorType,
    location: &'static Location<'static>,
    /// The indices of the watched values that it is computed from.
    inputs: Vec<usize>,
}

enum Source {
    Operation(&'static str),
    /// A constant in the user's code.
    Constant,
    /// A value from outside the program.
    Input(String),
}

/// The levels of a value. A finite value has level 0.
const INFINITE: i32 = 1;
const NAN: i32 = 2;

impl Anomalies {
    /// Watches `results` and every value that they are computed from.
    #[track_caller]
    pub fn watch(results: &[Tensor]) -> Anomalies {
        let _scope = Scope::open();
        let results = &inline_calls(results);
        let mut watched = Vec::new();
        let mut levels = Vec::new();
        let mut indices = HashMap::new();
        visit(results, |node| {
            for (output, ty) in node.outputs.iter().enumerate() {
                if !ty.dtype.is_inexact() || ty.shape.num_elements() == 0 {
                    continue;
                }
                let value = Tensor { node: node.clone(), output };
                let inputs: Vec<usize> =
                    node.inputs.iter().filter_map(|t| indices.get(&value_id(t)).copied()).collect();
                let source = match &node.kind {
                    Kind::Operation(_) if node.inputs.is_empty() => Source::Constant,
                    Kind::Operation(operation) => Source::Operation(operation.name()),
                    Kind::Placeholder { name } | Kind::Parameter { name, .. } => {
                        Source::Input(name.clone())
                    }
                    Kind::Array(_) | Kind::Host(_) | Kind::Poison(_) => {
                        Source::Input("a given value".into())
                    }
                };
                indices.insert(value_id(&value), watched.len());
                levels.push(level(&value).broadcast_to([1]));
                watched.push(WatchedValue {
                    source,
                    ty: ty.clone(),
                    location: node.location,
                    inputs,
                });
            }
        });
        let results: Vec<usize> =
            results.iter().filter_map(|t| indices.get(&value_id(t)).copied()).collect();
        let concatenate = |levels: &[&Tensor]| match levels {
            [] => Tensor::zeros(DType::I32, [0]),
            levels => Tensor::concatenate(levels, 0),
        };
        let result_levels: Vec<&Tensor> = results.iter().map(|&i| &levels[i]).collect();
        let has_anomaly = concatenate(&result_levels).gt(0.0).any(0);
        Anomalies {
            levels: concatenate(&levels.iter().collect::<Vec<_>>()),
            watched,
            results,
            has_anomaly,
        }
    }

    /// The level of each watched value, as i32 `[n]`, for [`Anomalies::origin`].
    pub fn levels(&self) -> &Tensor {
        &self.levels
    }

    /// Whether a result has a NaN or an infinity: a boolean scalar. An infinity that no result
    /// shows, such as one that `select` drops, does not count.
    pub fn has_anomaly(&self) -> &Tensor {
        &self.has_anomaly
    }

    /// Says which operation made the NaN or the infinity in the first result that has one, and on
    /// which line. `levels` are the computed values of [`Anomalies::levels`]. `None` if all results
    /// are finite.
    pub fn origin(&self, levels: &[i32]) -> Option<String> {
        let level = |i: usize| levels.get(i).copied().unwrap_or(0);
        // Follows inputs of the same level back to the first value with that level. The real part
        // of a complex NaN may be infinite.
        let first = |value: usize| {
            let mut origin = value;
            let is_cause = |input: usize, bad: i32| {
                let is_complex = self.watched[input].ty.dtype.is_complex();
                level(input) == bad || is_complex && level(input) > bad
            };
            while let Some(&input) =
                self.watched[origin].inputs.iter().find(|&&input| is_cause(input, level(origin)))
            {
                origin = input;
            }
            origin
        };
        let result = self.results.iter().copied().find(|&i| level(i) > 0)?;
        let origin = first(result);
        // A NaN may come from an infinity that an earlier operation made. A constant infinity, in a
        // mask say, is intended.
        let infinite_input = self.watched[origin]
            .inputs
            .iter()
            .copied()
            .find(|&i| level(origin) == NAN && level(i) == INFINITE);
        let infinity = infinite_input.map(|i| &self.watched[first(i)]);
        let kind = if level(origin) == NAN { "NaN" } else { "an infinity" };
        let description = self.watched[origin].describe(kind);
        Some(match infinity.filter(|infinity| !matches!(infinity.source, Source::Constant)) {
            Some(infinity) => {
                format!("{}\nfrom which {description}", infinity.describe("an infinity"))
            }
            None => description,
        })
    }
}

impl WatchedValue {
    /// A message that says that a NaN or an infinity, named by `kind`, first appears in this value.
    fn describe(&self, kind: &str) -> String {
        let WatchedValue { source, ty, location, .. } = self;
        match source {
            Source::Operation(name) => format!("`{name}` made {kind}, in {ty}\n  at {location}"),
            Source::Constant => format!("a constant is {kind}, in {ty}\n  at {location}"),
            Source::Input(name) => format!("`{name}`, {ty}, is an input with {kind}"),
        }
    }
}

/// The level of the worst element, 0 if all are finite: an i32 scalar.
fn level(value: &Tensor) -> Tensor {
    if value.dtype().is_complex() {
        return level(&value.real()).maximum(&level(&value.imag()));
    }
    let zeros = value.zeros_like().to_dtype(DType::I32);
    let bad = value.eq(value).select(&(&zeros + f64::from(INFINITE)), &(&zeros + f64::from(NAN)));
    let axes: Vec<isize> = (0..value.rank() as isize).collect();
    value.is_finite().select(&zeros, &bad).max(&axes)
}

impl fmt::Debug for Anomalies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Anomalies({} values)", self.watched.len())
    }
}
