//! From a list of instructions to StableHLO text, with a `loc()` of the user's line on each statement.
//!
//! How one operation is spelled stands with the operation; here is what surrounds it.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::panic::Location;
use std::sync::Arc;

use fulmen_pjrt::Buffer;

use crate::graph::{Graph, Value};
use crate::tensor::Kind;
use crate::{DType, Error, Result, Tensor, TensorType};

/// A program as text, and what belongs to it.
pub(crate) struct Lowered {
    /// StableHLO with locations: what is compiled.
    pub(crate) text: String,
    /// The same without locations: two programs with equal keys compute the same.
    pub(crate) key: String,
    /// The type with the most elements, and the line that recorded it.
    pub(crate) largest: Option<(TensorType, &'static Location<'static>)>,
    /// Values that the expression holds: parameters after those that the function declares.
    pub(crate) captured: Vec<Captured>,
}

/// A value that an expression holds and a program takes as an argument.
pub(crate) enum Captured {
    Device(Arc<Buffer>),
    Host(TensorType, Arc<[u8]>),
}

/// One operation's view of the program that is being written.
pub(crate) struct Lowering<'a> {
    operands: Vec<(String, &'a TensorType)>,
    results: &'a [TensorType],
    lines: &'a mut Vec<Line>,
    location: &'static Location<'static>,
    constants: &'a mut HashMap<String, String>,
    helpers: &'a mut BTreeMap<String, String>,
}

struct Line {
    text: String,
    location: Option<&'static Location<'static>>,
}

impl Lowering<'_> {
    /// The name of the `i`-th operand.
    pub(crate) fn operand(&self, i: usize) -> &str {
        &self.operands[i].0
    }

    /// The type of the `i`-th operand.
    pub(crate) fn operand_type(&self, i: usize) -> &TensorType {
        self.operands[i].1
    }

    /// All operands' names, separated by commas.
    pub(crate) fn operands(&self) -> String {
        self.operands.iter().map(|o| o.0.as_str()).collect::<Vec<_>>().join(", ")
    }

    /// The type of the first result.
    pub(crate) fn result(&self) -> &TensorType {
        &self.results[0]
    }

    /// `(operand types) -> result types`.
    pub(crate) fn signature(&self) -> String {
        let operands: Vec<_> = self.operands.iter().map(|o| o.1.stablehlo()).collect();
        let results: Vec<_> = self.results.iter().map(TensorType::stablehlo).collect();
        let results = match results.as_slice() {
            [one] => one.clone(),
            many => format!("({})", many.join(", ")),
        };
        format!("({}) -> {results}", operands.join(", "))
    }

    /// The name of a scalar constant, e.g. where a reduction starts; `literal` is MLIR's spelling of the number.
    pub(crate) fn constant(&mut self, dtype: DType, literal: &str) -> String {
        let statement = format!("stablehlo.constant dense<{literal}> : {}", TensorType::scalar(dtype).stablehlo());
        if let Some(name) = self.constants.get(&statement) {
            return name.clone();
        }
        let name = format!("%c{}", self.constants.len());
        self.lines.push(Line { text: format!("{name} = {statement}"), location: Some(self.location) });
        self.constants.insert(statement, name.clone());
        name
    }

    /// Makes sure that the module has the private function `name`, whose whole text `define` gives.
    pub(crate) fn helper(&mut self, name: &str, define: impl FnOnce() -> String) {
        if !self.helpers.contains_key(name) {
            self.helpers.insert(name.to_owned(), define());
        }
    }
}

/// Writes the program that computes `results` from `parameters`. `aliases[i]` is the result that takes over the
/// memory of parameter `i`, which is donated.
pub(crate) fn lower(
    name: &str,
    parameters: &[Tensor],
    aliases: &[Option<usize>],
    results: &[Tensor],
) -> Result<Lowered> {
    let graph = Graph::new(results)?;
    let mut names: HashMap<usize, String> = HashMap::new();
    let mut arguments: Vec<Line> = vec![];
    let mut index_of = HashMap::new();
    for (i, parameter) in parameters.iter().enumerate() {
        parameter.check()?;
        if !matches!(parameter.node.kind, Kind::Placeholder { .. }) {
            return Err(Error::not_a_parameter(name, i, "is no placeholder", parameter));
        }
        if index_of.insert(parameter.node.id, i).is_some() {
            return Err(Error::not_a_parameter(name, i, "was given before", parameter));
        }
        let alias = aliases.get(i).copied().flatten();
        let attribute = alias.map_or(String::new(), |r| format!(" {{tf.aliasing_output = {r} : i32}}"));
        let text = format!("%arg{i}: {}{attribute}", parameter.ty().stablehlo());
        arguments.push(Line { text, location: None });
    }

    let mut captured = vec![];
    let mut capture = |ty: &TensorType, value| {
        let n = parameters.len() + captured.len();
        arguments.push(Line { text: format!("%arg{n}: {}", ty.stablehlo()), location: None });
        captured.push(value);
        format!("%arg{n}")
    };
    let mut lines = vec![];
    let mut constants = HashMap::new();
    let mut helpers = BTreeMap::new();
    let spell = |names: &HashMap<usize, String>, v: Value| {
        let name = &names[&v.instruction];
        let several = graph.instructions[v.instruction].node.outputs.len() > 1;
        if several { format!("{name}#{}", v.output) } else { name.clone() }
    };
    for (i, instruction) in graph.instructions.iter().enumerate() {
        let node = &instruction.node;
        let defined = match &node.kind {
            Kind::Operation(operation) => {
                let operands = instruction
                    .operands
                    .iter()
                    .map(|&v| (spell(&names, v), &graph.instructions[v.instruction].node.outputs[v.output]))
                    .collect();
                let mut cx = Lowering {
                    operands,
                    results: &node.outputs,
                    lines: &mut lines,
                    location: node.location,
                    constants: &mut constants,
                    helpers: &mut helpers,
                };
                let right = operation.lower(&mut cx);
                let count = match node.outputs.len() {
                    1 => String::new(),
                    n => format!(":{n}"),
                };
                lines.push(Line { text: format!("%{i}{count} = {right}"), location: Some(node.location) });
                format!("%{i}")
            }
            Kind::Placeholder { name } => match index_of.get(&node.id) {
                Some(parameter) => format!("%arg{parameter}"),
                None => return Err(Error::unbound(name, node.location)),
            },
            Kind::Buffer(buffer) => capture(&node.outputs[0], Captured::Device(buffer.clone())),
            Kind::Host(elements) => {
                capture(&node.outputs[0], Captured::Host(node.outputs[0].clone(), elements.clone()))
            }
            Kind::Poison(fault) => return Err(fault.clone().into()),
        };
        names.insert(i, defined);
    }

    let result_types: Vec<_> = results.iter().map(|t| t.ty().stablehlo()).collect();
    let result_names: Vec<_> = graph.results.iter().map(|&v| spell(&names, v)).collect();
    let returned = match results.len() {
        0 => "return".to_owned(),
        _ => format!("return {} : {}", result_names.join(", "), result_types.join(", ")),
    };
    lines.push(Line { text: returned, location: None });
    let write = |with_locations| {
        let arguments: Vec<_> = arguments.iter().map(|a| a.text.as_str()).collect();
        let mut text = format!(
            "module @{} {{\n  func.func public @main({}) -> ({}) {{\n",
            identifier(name),
            arguments.join(", "),
            result_types.join(", ")
        );
        for line in &lines {
            let _ = match line.location.filter(|_| with_locations) {
                Some(location) => writeln!(text, "    {} {}", line.text, spell_location(location)),
                None => writeln!(text, "    {}", line.text),
            };
        }
        text.push_str("  }\n");
        for helper in helpers.values() {
            text.push_str(helper);
        }
        text.push_str("}\n");
        text
    };
    let all = graph.instructions.iter().flat_map(|i| i.node.outputs.iter().map(|ty| (ty.clone(), i.node.location)));
    let largest = all.max_by_key(|(ty, _)| ty.shape.num_elements());
    Ok(Lowered { text: write(true), key: write(false), largest, captured })
}

fn spell_location(location: &Location<'_>) -> String {
    let file = location.file().replace('\\', "\\\\").replace('"', "\\\"");
    format!("loc(\"{file}\":{}:{})", location.line(), location.column())
}

/// A module name that MLIR takes: letters, digits and underscores.
fn identifier(name: &str) -> String {
    let clean: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    if clean.starts_with(|c: char| c.is_ascii_alphabetic()) { clean } else { format!("f_{clean}") }
}
