//! [`Anomalies`]: a watch over every value that a program computes, to find the one that NaN or infinity came from. It looks
//! at what leaves a loop or a branch, not at what happens within.

use std::collections::HashMap;
use std::fmt;
use std::panic::Location;

use crate::graph::{inline_calls, value_id, visit};
use crate::scope::Scope;
use crate::tensor::Kind;
use crate::{DType, Tensor, TensorType};

/// What is watched: every floating-point value that some results are computed from.
///
/// ```
/// use fulmen_tensor::{Anomalies, Tensor, grad};
///
/// let x = Tensor::from_slice(&[4.0f32, 0.0], [2]);
/// let line = line!() + 1;
/// let loss = x.sqrt().sum_all();
/// let anomalies = Anomalies::watch(&grad(&loss, &[&x]));
/// let found = anomalies.origin(&anomalies.levels().eval()?.to_vec()?).ok_or("all is finite")?;
/// assert!(found.contains("infinity") && found.contains(&format!("{}:{line}:", file!())), "{found}");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Anomalies {
    watched: Vec<Watched>,
    /// Which of them are the results.
    results: Vec<usize>,
    levels: Tensor,
    found: Tensor,
}

/// A value that is watched.
struct Watched {
    source: Source,
    ty: TensorType,
    location: &'static Location<'static>,
    /// What it is computed from.
    inputs: Vec<usize>,
}

enum Source {
    Operation(&'static str),
    /// Numbers that the code gives.
    Constant,
    /// A value that is given from outside.
    Input(String),
}

/// How bad a value is.
const INFINITE: i32 = 1;
const NAN: i32 = 2;

impl Anomalies {
    /// Watches what `results` are computed from, and these themselves.
    #[track_caller]
    pub fn watch(results: &[Tensor]) -> Anomalies {
        let _scope = Scope::open();
        let results = &inline_calls(results);
        let (mut watched, mut levels, mut places) = (vec![], vec![], HashMap::new());
        visit(results, |node| {
            for (output, ty) in node.outputs.iter().enumerate() {
                if !ty.dtype.is_float() || ty.shape.num_elements() == 0 {
                    continue;
                }
                let value = Tensor { node: node.clone(), output };
                let inputs: Vec<usize> = node.inputs.iter().filter_map(|t| places.get(&value_id(t)).copied()).collect();
                let source = match &node.kind {
                    Kind::Operation(_) if node.inputs.is_empty() => Source::Constant,
                    Kind::Operation(operation) => Source::Operation(operation.name()),
                    Kind::Placeholder { name } | Kind::Parameter { name, .. } => Source::Input(name.clone()),
                    Kind::Array(_) | Kind::Host(_) | Kind::Poison(_) => Source::Input("a given value".into()),
                };
                places.insert(value_id(&value), watched.len());
                levels.push(level(&value).broadcast_to([1]));
                watched.push(Watched { source, ty: ty.clone(), location: node.location, inputs });
            }
        });
        let results: Vec<usize> = results.iter().filter_map(|t| places.get(&value_id(t)).copied()).collect();
        let joined = |levels: &[&Tensor]| match levels {
            [] => Tensor::zeros(DType::I32, [0]),
            levels => Tensor::concatenate(levels, 0),
        };
        let found = joined(&results.iter().map(|&i| &levels[i]).collect::<Vec<_>>()).gt(0.0).any(&[0]);
        Anomalies { levels: joined(&levels.iter().collect::<Vec<_>>()), watched, results, found }
    }

    /// How bad each watched value is: i32 `[n]`, for [`Anomalies::origin`].
    pub fn levels(&self) -> &Tensor {
        &self.levels
    }

    /// Whether a result has a NaN or an infinity: a boolean scalar. What a result does not show, an infinity that a
    /// selection leaves out say, is none.
    pub fn found(&self) -> &Tensor {
        &self.found
    }

    /// What made the NaN or the infinity of the first result that has one, and on which line, by the levels that were
    /// computed. `None` where all results are finite.
    pub fn origin(&self, levels: &[i32]) -> Option<String> {
        let level = |i: usize| levels.get(i).copied().unwrap_or(0);
        // From a value back to the one that its NaN or infinity came from.
        let first = |from: usize, bad: i32| {
            let mut at = from;
            while let Some(&input) = self.watched[at].inputs.iter().find(|&&input| level(input) == bad) {
                at = input;
            }
            at
        };
        let result = self.results.iter().copied().find(|&i| level(i) > 0)?;
        let made = first(result, level(result));
        // A NaN may come of an infinity that an earlier operation made; one that the code gives, for a mask say, is meant.
        let infinity = self.watched[made].inputs.iter().copied().find(|&i| level(made) == NAN && level(i) == INFINITE);
        let infinity = infinity.map(|i| first(i, INFINITE)).map(|i| &self.watched[i]);
        let kind = if level(made) == NAN { "NaN" } else { "an infinity" };
        let made = self.watched[made].made(kind);
        Some(match infinity.filter(|origin| !matches!(origin.source, Source::Constant)) {
            Some(origin) => format!("{}\nof which {made}", origin.made("an infinity")),
            None => made,
        })
    }
}

impl Watched {
    /// That it was this value which had `kind` first.
    fn made(&self, kind: &str) -> String {
        let Watched { source, ty, location, .. } = self;
        match source {
            Source::Operation(name) => format!("`{name}` made {kind}, in {ty}\n  at {location}"),
            Source::Constant => format!("a constant is {kind}, in {ty}\n  at {location}"),
            Source::Input(name) => format!("`{name}`, {ty}, came in with {kind}"),
        }
    }
}

/// 0 for a finite value, else what is worst in it: an i32 scalar.
fn level(value: &Tensor) -> Tensor {
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
