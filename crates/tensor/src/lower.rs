//! From a list of instructions to StableHLO text, with a `loc()` of the user's line on each statement.
//!
//! How one operation is spelled stands with the operation; here is what surrounds it.

use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;
use std::panic::Location;
use std::sync::Arc;

use crate::graph::{Graph, Value};
use crate::tensor::Kind;
use crate::{DType, DeviceArray, Error, Fault, Function, MatmulPrecision, Mesh, Result, Sharding, TensorType};

/// A program as text, and what belongs to it.
pub(crate) struct Lowered {
    /// StableHLO with locations: what is compiled.
    pub(crate) text: String,
    /// The same without locations: two programs with equal keys compute the same.
    pub(crate) key: String,
    /// The type with the most elements, and the line that recorded it.
    pub(crate) largest: Option<(TensorType, &'static Location<'static>)>,
    /// Values that the expression holds, parameters after those that the function declares, and how they are to lie over
    /// the devices.
    pub(crate) captured: Vec<(Captured, Sharding)>,
}

/// A value that an expression holds and a program takes as an argument.
pub(crate) enum Captured {
    Device(Arc<DeviceArray>),
    Host(TensorType, Arc<[u8]>),
}

/// One operation's view of the program that is being written.
pub(crate) struct Lowering<'a> {
    operands: Vec<(String, &'a TensorType)>,
    results: &'a [TensorType],
    lines: &'a mut Vec<Line>,
    name: &'static str,
    location: &'static Location<'static>,
    constants: &'a mut HashMap<String, String>,
    helpers: &'a mut BTreeMap<String, String>,
    partitioned: bool,
    precision: MatmulPrecision,
}

struct Line {
    text: String,
    /// The operation's name and the user's line.
    location: Option<(&'static str, &'static Location<'static>)>,
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

    /// Whether the program is for several devices, so that shardings mean something.
    pub(crate) fn is_partitioned(&self) -> bool {
        self.partitioned
    }

    /// StableHLO's name of the precision that a product of `dtype` is asked for.
    pub(crate) fn precision(&self, dtype: DType) -> &'static str {
        self.precision.stablehlo(dtype)
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
        self.lines.push(Line { text: format!("{name} = {statement}"), location: Some((self.name, self.location)) });
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

/// Writes the program of a function for the devices of a mesh.
pub(crate) fn lower(function: &Function, mesh: &Mesh) -> Result<Lowered> {
    let (name, parameters, results) = (function.name(), function.parameters(), function.results());
    let partitioned = mesh.num_devices() > 1;
    // What Shardy is told of a value of the program's face; nothing where there is one device.
    let face = |what: &str, ty: &TensorType, sharding: &Sharding| match partitioned {
        false => Ok(None),
        true => match sharding.shard_shape(mesh, &ty.shape) {
            Ok(_) => Ok(Some(format!("sdy.sharding = #sdy.sharding{}", sharding.attribute(ty.shape.rank())))),
            Err(why) => Err(Error::usage(format!("`{name}`: {what}, {ty}: {why}"))),
        },
    };
    let graph = Graph::new(results)?;
    let mut names: HashMap<usize, String> = HashMap::new();
    let mut arguments: Vec<Line> = vec![];
    let mut index_of = HashMap::new();
    for (i, parameter) in parameters.iter().enumerate() {
        parameter.check()?;
        let Kind::Placeholder { name: called } = &parameter.node.kind else {
            return Err(Error::not_a_parameter(name, i, "is no placeholder", parameter));
        };
        if index_of.insert(parameter.node.id, i).is_some() {
            return Err(Error::not_a_parameter(name, i, "was given before", parameter));
        }
        let sharding = &function.parameter_shardings()[i];
        let mut attributes = vec![];
        if let Some(result) = function.aliases()[i] {
            if function.result_shardings()[result] != *sharding {
                return Err(Error::usage(format!(
                    "`{name}`: parameter {i}, `{called}`, is donated to result {result}, which lies otherwise over the \
                     devices: {sharding} and {}",
                    function.result_shardings()[result]
                )));
            }
            attributes.push(format!("tf.aliasing_output = {result} : i32"));
        }
        attributes.extend(face(&format!("parameter {i}, `{called}`"), parameter.ty(), sharding)?);
        let text = format!("%arg{i}: {}{}", parameter.ty().stablehlo(), in_braces(&attributes));
        arguments.push(Line { text, location: None });
    }

    let mut captured = vec![];
    let mut capture = |ty: &TensorType, sharding: &Sharding, value| {
        let n = parameters.len() + captured.len();
        let attributes: Vec<_> = face("a captured value", ty, sharding)?.into_iter().collect();
        arguments.push(Line { text: format!("%arg{n}: {}{}", ty.stablehlo(), in_braces(&attributes)), location: None });
        captured.push((value, sharding.clone()));
        Ok::<_, Error>(format!("%arg{n}"))
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
                if partitioned {
                    let types: Vec<_> = node.inputs.iter().map(|t| t.ty()).collect();
                    let checked = operation.check(mesh, &types);
                    checked.map_err(|why| Fault::new(operation.name(), why, node.location))?;
                }
                let operands = instruction
                    .operands
                    .iter()
                    .map(|&v| (spell(&names, v), &graph.instructions[v.instruction].node.outputs[v.output]))
                    .collect();
                let mut cx = Lowering {
                    operands,
                    results: &node.outputs,
                    lines: &mut lines,
                    name: operation.name(),
                    location: node.location,
                    constants: &mut constants,
                    helpers: &mut helpers,
                    partitioned,
                    precision: function.precision(),
                };
                let right = operation.lower(&mut cx);
                let count = match node.outputs.len() {
                    1 => String::new(),
                    n => format!(":{n}"),
                };
                let location = Some((operation.name(), node.location));
                lines.push(Line { text: format!("%{i}{count} = {right}"), location });
                format!("%{i}")
            }
            Kind::Placeholder { name } => match index_of.get(&node.id) {
                Some(parameter) => format!("%arg{parameter}"),
                None => return Err(Error::unbound(name, node.location)),
            },
            Kind::Array(array) => {
                // What lies over another mesh is brought here whole.
                let whole = Sharding::replicated();
                let sharding = if array.mesh() == mesh { array.sharding() } else { &whole };
                capture(&node.outputs[0], sharding, Captured::Device(array.clone()))?
            }
            Kind::Host(elements) => {
                let value = Captured::Host(node.outputs[0].clone(), elements.clone());
                capture(&node.outputs[0], &Sharding::replicated(), value)?
            }
            Kind::Poison(fault) => return Err(fault.clone().into()),
        };
        names.insert(i, defined);
    }

    let result_types: Vec<_> = results.iter().map(|t| t.ty().stablehlo()).collect();
    let mut declared = vec![];
    for (i, (result, sharding)) in results.iter().zip(function.result_shardings()).enumerate() {
        let attributes: Vec<_> = face(&format!("result {i}"), result.ty(), sharding)?.into_iter().collect();
        declared.push(format!("{}{}", result_types[i], in_braces(&attributes)));
    }
    let result_names: Vec<_> = graph.results.iter().map(|&v| spell(&names, v)).collect();
    let returned = match results.len() {
        0 => "return".to_owned(),
        _ => format!("return {} : {}", result_names.join(", "), result_types.join(", ")),
    };
    lines.push(Line { text: returned, location: None });
    let write = |with_locations| {
        let arguments: Vec<_> = arguments.iter().map(|a| a.text.as_str()).collect();
        let mesh = if partitioned { format!("  {}\n", mesh.declaration()) } else { String::new() };
        let mut text = format!(
            "module @{} {{\n{mesh}  func.func public @main({}) -> ({}) {{\n",
            identifier(name),
            arguments.join(", "),
            declared.join(", ")
        );
        for line in &lines {
            let _ = match line.location.filter(|_| with_locations) {
                Some((name, location)) => writeln!(text, "    {} {}", line.text, spell_location(name, location)),
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

/// A dictionary of attributes behind a type; nothing where there are none.
fn in_braces(attributes: &[String]) -> String {
    if attributes.is_empty() { String::new() } else { format!(" {{{}}}", attributes.join(", ")) }
}

/// With a name, because Shardy's passes lose the line of a statement that has none.
fn spell_location(name: &str, location: &Location<'_>) -> String {
    let file = location.file().replace('\\', "\\\\").replace('"', "\\\"");
    format!("loc(\"{name}\"(\"{file}\":{}:{}))", location.line(), location.column())
}

/// A module name that MLIR takes: letters, digits and underscores.
fn identifier(name: &str) -> String {
    let clean: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    if clean.starts_with(|c: char| c.is_ascii_alphabetic()) { clean } else { format!("f_{clean}") }
}
