//! [`ModelSummary`]: a table of the parts of a module.

use std::fmt;

use fulmen_durable::messages::{memory, quantity};
use fulmen_tensor::Sharding;

use crate::{Buffer, Module, Parameter, RandomStream, TrainingMode, Visit, Visitor};

/// The most tensors whose types a row shows.
const MAX_SHOWN: usize = 4;

/// The parts of a module with their types and their parameters: dtype, shape, which are frozen, how
/// they are split over devices, and which an earlier part has too. It prints as a table. The Trainer's `fit` first prints the
/// table of the outermost parts (`enable_model_summary`).
///
/// ```
/// use fulmen_nn::{Linear, ModelSummary, Module};
///
/// #[derive(Module)]
/// struct Net {
///     hidden: Linear,
///     out: Linear,
/// }
///
/// let net = Net { hidden: Linear::new(2, 16), out: Linear::new(16, 3) };
/// net.out.set_requires_grad(false);
/// let table = ModelSummary::new(&net, 1).to_string();
/// let rows: Vec<&str> = table.lines().map(str::trim_end).collect();
/// assert_eq!(rows[0], "Name   | Type   | Parameters | Shapes");
/// assert_eq!(rows[2], "hidden | Linear |         48 | weight f32[16, 2], bias f32[16]");
/// assert_eq!(rows[3], "out    | Linear |         51 | weight f32[3, 16] frozen, bias f32[3] frozen");
/// assert_eq!(rows[5], "99 parameters, 51 of them frozen; 396 bytes");
/// ```
#[derive(Clone, Debug)]
pub struct ModelSummary {
    rows: Vec<[String; 4]>,
    parameters: usize,
    frozen: usize,
    bytes: usize,
}

impl ModelSummary {
    /// The parts whose names have at most `max_depth` components: `encoder` has one,
    /// `encoder.layers` two.
    pub fn new<M: Module + ?Sized>(module: &M, max_depth: usize) -> ModelSummary {
        ModelSummary::with_shardings(module, max_depth, |_| None)
    }

    /// Like [`new`](ModelSummary::new), with the shardings of the parameters with these names.
    ///
    /// ```
    /// use fulmen_nn::{Linear, ModelSummary, Module};
    /// use fulmen_tensor::Sharding;
    ///
    /// #[derive(Module)]
    /// struct Net(Linear);
    ///
    /// let split = |name: &str| (name == "0.weight").then(|| Sharding::new([None, Some("data")]));
    /// let table = ModelSummary::with_shardings(&Net(Linear::new(16, 2)), 1, split);
    /// assert_eq!(table.rows()[0][3], "weight f32[2, 16] split [-, data], bias f32[2]");
    /// ```
    pub fn with_shardings<M: Module + ?Sized>(
        module: &M,
        max_depth: usize,
        sharding: impl Fn(&str) -> Option<Sharding>,
    ) -> ModelSummary {
        let mut contents = Contents::default();
        module.visit(&mut Visit::new(&mut contents));
        let Contents { parts, parameters, others } = contents;
        let mut rows = Vec::new();
        for (part, type_name) in parts {
            let prefix = format!("{part}.");
            let depth = part.split('.').count();
            let within = || {
                parameters
                    .iter()
                    .filter(|(name, _)| name.starts_with(&prefix) || depth == 1 && *name == part)
            };
            let is_used =
                within().next().is_some() || others.iter().any(|name| name.starts_with(&prefix));
            if depth > max_depth || !is_used {
                continue;
            }
            let mut distinct: Vec<&(String, Parameter)> = Vec::new();
            for entry in within() {
                if !distinct.iter().any(|known| known.1.is(&entry.1)) {
                    distinct.push(entry);
                }
            }
            let count: usize = distinct.iter().map(|(_, p)| p.ty().shape.num_elements()).sum();
            let shape = |(name, p): &(String, Parameter)| {
                let own_name =
                    name.strip_prefix(&prefix).map(|name| format!("{name} ")).unwrap_or_default();
                let split = sharding(name)
                    .filter(|sharding| !sharding.is_replicated())
                    .map(|sharding| format!(" split {sharding}"))
                    .unwrap_or_default();
                let frozen = if p.requires_grad() { "" } else { " frozen" };
                let shared = parameters
                    .iter()
                    .find(|(_, first)| first.is(p))
                    .filter(|(first, _)| first != name && !first.starts_with(&prefix))
                    .map(|(first, _)| format!(" shared with {first}"))
                    .unwrap_or_default();
                format!("{own_name}{}{split}{frozen}{shared}", p.ty())
            };
            let mut shapes: Vec<String> =
                distinct.iter().take(MAX_SHOWN).map(|entry| shape(entry)).collect();
            if distinct.len() > MAX_SHOWN {
                let num_frozen = distinct.iter().filter(|entry| !entry.1.requires_grad()).count();
                let frozen =
                    if num_frozen > 0 { format!(", {num_frozen} frozen") } else { String::new() };
                shapes.push(format!("… ({} tensors{frozen})", distinct.len()));
            }
            rows.push([part, short(type_name), count.to_string(), shapes.join(", ")]);
        }
        let mut summary =
            ModelSummary { rows, parameters: module.num_parameters(), frozen: 0, bytes: 0 };
        for (_, parameter) in module.parameters() {
            let ty = parameter.ty();
            summary.bytes += ty.size_in_bytes();
            summary.frozen += if parameter.requires_grad() { 0 } else { ty.shape.num_elements() };
        }
        summary
    }

    /// The rows of the table: name, type, number of parameters, shapes.
    pub fn rows(&self) -> &[[String; 4]] {
        &self.rows
    }

    /// The line below the table.
    pub fn total(&self) -> String {
        let frozen = if self.frozen > 0 {
            format!(", {} of them frozen", self.frozen)
        } else {
            String::new()
        };
        let parameters = quantity(self.parameters, "parameter");
        format!("{parameters}{frozen}; {}", memory(self.bytes as u64))
    }
}

impl fmt::Display for ModelSummary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let header = ["Name", "Type", "Parameters", "Shapes"].map(str::to_owned);
        let width = |column: usize| {
            let cells = self.rows.iter().chain([&header]).map(|row| row[column].chars().count());
            cells.max().unwrap_or(0)
        };
        let [name, ty, count, shapes] = [0, 1, 2, 3].map(width);
        let line = "-".repeat(name + ty + count + shapes + 9);
        let row = |[a, b, c, d]: &[String; 4]| format!("{a:name$} | {b:ty$} | {c:>count$} | {d}\n");
        let rows: String = self.rows.iter().map(row).collect();
        write!(f, "{}{line}\n{rows}{line}\n{}", row(&header), self.total())
    }
}

/// The name of a type without module paths.
fn short(type_name: &str) -> String {
    let pieces = type_name.split_inclusive(|c: char| !c.is_alphanumeric() && c != '_' && c != ':');
    pieces.map(|piece| piece.rsplit("::").next().unwrap_or(piece)).collect()
}

/// The contents of a module.
#[derive(Default)]
struct Contents {
    parts: Vec<(String, &'static str)>,
    parameters: Vec<(String, Parameter)>,
    /// The names of buffers, modes and random streams.
    others: Vec<String>,
}

impl Visitor for Contents {
    fn part(&mut self, name: &str, type_name: &'static str) {
        self.parts.push((name.into(), type_name));
    }
    fn parameter(&mut self, name: &str, parameter: &Parameter) {
        self.parameters.push((name.into(), parameter.clone()));
    }
    fn buffer(&mut self, name: &str, _: &Buffer) {
        self.others.push(name.into());
    }
    fn mode(&mut self, name: &str, _: &TrainingMode) {
        self.others.push(name.into());
    }
    fn random_stream(&mut self, name: &str, _: &RandomStream) {
        self.others.push(name.into());
    }
}
