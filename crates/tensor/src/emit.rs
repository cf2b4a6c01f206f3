//! Emits the StableHLO statements of an expression into the body of a program or of a region.
//!
//! Out of scope: the program's signature and its whole text; see `lower.rs`. Each operation's file writes its own
//! statement.

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;
use std::panic::Location;
use std::sync::Arc;

use fulmen_pjrt::locate::Platform;

use crate::graph::{Calls, Constants, Graph, Value};
use crate::hash::{IdMap, QuickMap};
use crate::region::Region;
use crate::scope::Scope;
use crate::tensor::Kind;
use crate::{DType, DeviceArray, Error, Fault, MatmulPrecision, Mesh, Result, Sharding, Tensor, TensorType};

/// A value that an expression holds, and that the program takes as an argument.
pub(crate) enum Captured {
    Device(Arc<DeviceArray>),
    Host(TensorType, Arc<[u8]>),
}

/// The program under construction.
pub(crate) struct Program {
    pub(crate) mesh: Mesh,
    /// The platform that will run the program; `None` for a program for any platform.
    platform: Option<Platform>,
    pub(crate) precision: MatmulPrecision,
    constants_are: Constants,
    /// The number of parameters that the function declares; captured values come after them.
    pub(crate) declared: usize,
    /// Values that the expression holds, and how they are sharded over the devices.
    pub(crate) captured: Vec<(Captured, Sharding)>,
    /// The parameter name of each captured value, by the value's address.
    captured_names: HashMap<usize, String>,
    /// Private functions, in the order of their first calls.
    pub(crate) functions: Vec<Line>,
    /// The names of all functions.
    function_names: HashSet<String>,
    /// The name of each private function, by its text without name and locations.
    functions_by_text: HashMap<String, String>,
    /// The type with the most elements, and the line that recorded it.
    pub(crate) largest: Option<(TensorType, &'static Location<'static>)>,
    numbers: Numbers,
    failed: Option<Error>,
}

/// The next numbers for names of values. Each number is unique in its function, including its regions.
#[derive(Default)]
struct Numbers {
    instructions: usize,
    constants: usize,
}

/// One block of statements.
#[derive(Default)]
pub(crate) struct Body {
    pub(crate) lines: Vec<Line>,
    /// The names of the scalar constants in this block, by their statements.
    constants: HashMap<String, String>,
}

pub(crate) struct Line {
    text: String,
    /// The lines of each region of the statement, and the text that follows the region.
    blocks: Vec<(Vec<Line>, String)>,
    /// The operation's name and the user's line.
    location: Option<(&'static str, &'static Location<'static>)>,
}

impl Line {
    /// A line without a location.
    pub(crate) fn bare(text: String) -> Line {
        Line { text, blocks: vec![], location: None }
    }

    /// A function; `head` is the text before its body.
    pub(crate) fn function(head: String, body: Body) -> Line {
        Line { text: head, blocks: vec![(body.lines, "}".to_owned())], location: None }
    }

    /// Writes the line to `out`, with a reference to its location if there is a table of locations.
    pub(crate) fn write(&self, out: &mut String, indent: usize, mut locations: Option<&mut Locations>) {
        let start = |out: &mut String| out.extend(std::iter::repeat_n(' ', indent));
        start(out);
        out.push_str(&self.text);
        for (lines, after) in &self.blocks {
            out.push('\n');
            for line in lines {
                line.write(out, indent + 2, locations.as_deref_mut());
            }
            start(out);
            out.push_str(after);
        }
        if let (Some((name, location)), Some(locations)) = (self.location, locations) {
            let _ = write!(out, " loc(#loc{})", locations.alias(name, location));
        }
        out.push('\n');
    }
}

/// The locations of a module. Each is written once, and statements refer to it by an alias.
#[derive(Default)]
pub(crate) struct Locations {
    lines: QuickMap<&'static Location<'static>, usize>,
    named: QuickMap<(&'static str, usize), usize>,
    /// The definitions of the aliases, for the end of the module.
    pub(crate) definitions: String,
}

impl Locations {
    /// The alias number of an operation's name and user line. The name is needed because Shardy's passes drop the lines
    /// of unnamed locations.
    fn alias(&mut self, name: &'static str, location: &'static Location<'static>) -> usize {
        let Locations { lines, named, definitions } = self;
        let mut next = lines.len() + named.len();
        let line = *lines.entry(location).or_insert_with(|| {
            let file = location.file().replace('\\', "\\\\").replace('"', "\\\"");
            let _ = writeln!(definitions, "#loc{next} = loc(\"{file}\":{}:{})", location.line(), location.column());
            next += 1;
            next - 1
        });
        *named.entry((name, line)).or_insert_with(|| {
            let _ = writeln!(definitions, "#loc{next} = loc(\"{name}\"(#loc{line}))");
            next
        })
    }
}

impl Program {
    pub(crate) fn new(
        mesh: &Mesh,
        platform: Option<Platform>,
        precision: MatmulPrecision,
        constants_are: Constants,
        declared: usize,
    ) -> Program {
        Program {
            mesh: mesh.clone(),
            platform,
            precision,
            constants_are,
            declared,
            captured: vec![],
            captured_names: HashMap::new(),
            functions: vec![],
            function_names: HashSet::from(["main".to_owned()]),
            functions_by_text: HashMap::new(),
            largest: None,
            numbers: Numbers::default(),
            failed: None,
        }
    }

    pub(crate) fn is_partitioned(&self) -> bool {
        self.mesh.num_devices() > 1
    }

    /// Writes the statements that `results` need, and returns the names of their values. `leaves` are the names of the
    /// parameters.
    pub(crate) fn emit(&mut self, results: &[Tensor], leaves: &IdMap<String>, scope: &mut Body) -> Result<Vec<String>> {
        // Only the main function can take captured values as arguments.
        let calls = if self.constants_are == Constants::AsInputs { Calls::Inlined } else { Calls::Kept };
        let graph = Graph::new(results, self.constants_are, calls)?;
        // The name of each instruction, and whether it has several results.
        let mut names: Vec<(String, bool)> = Vec::with_capacity(graph.instructions.len());
        let name = |names: &[(String, bool)], v: Value| match &names[v.instruction] {
            (name, true) => format!("{name}#{}", v.output),
            (name, false) => name.clone(),
        };
        for instruction in &graph.instructions {
            let node = &instruction.node;
            let number = self.numbers.instructions;
            self.numbers.instructions += 1;
            for ty in &node.outputs {
                if self.largest.as_ref().is_none_or(|(l, _)| ty.shape.num_elements() >= l.shape.num_elements()) {
                    self.largest = Some((ty.clone(), node.location));
                }
            }
            let leaf = match &node.kind {
                Kind::Operation(operation) => {
                    if let Some(elements) = graph.takes(operation) {
                        // This works in bodies too: XLA passes such a value to the loop or branch as an input.
                        names.push((self.capture_host(&node.outputs[0], elements), false));
                        continue;
                    }
                    let types: Vec<_> = node.inputs.iter().map(|t| t.ty()).collect();
                    if self.is_partitioned() {
                        let checked = operation.check(&self.mesh, &types);
                        checked.map_err(|message| Fault::new(operation.name(), message, node.location))?;
                    }
                    if self.platform == Some(Platform::Cpu) {
                        let _scope = Scope::at(node.location);
                        if let Some(Region { parameters, results }) = operation.rewritten_for_cpu(&types) {
                            let operands = instruction.operands.iter().map(|&v| name(&names, v));
                            let leaves = parameters.iter().map(|p| p.node.id).zip(operands).collect();
                            let results = self.emit(&results, &leaves, scope)?;
                            names.extend(results.into_iter().map(|result| (result, false)));
                            continue;
                        }
                    }
                    let operands = instruction
                        .operands
                        .iter()
                        .map(|&v| (name(&names, v), &graph.instructions[v.instruction].node.outputs[v.output]));
                    let mut cx = Lowering {
                        operands: operands.collect(),
                        results: &node.outputs,
                        name: operation.name(),
                        location: node.location,
                        program: self,
                        scope: std::mem::take(scope),
                        blocks: vec![],
                        extra: 0,
                    };
                    let right = operation.lower(&mut cx);
                    let (blocks, count) = (cx.blocks, node.outputs.len() + cx.extra);
                    *scope = cx.scope;
                    if let Some(error) = self.failed.take() {
                        return Err(error);
                    }
                    let text = match count {
                        1 => format!("%{number} = {right}"),
                        _ => format!("%{number}:{count} = {right}"),
                    };
                    scope.lines.push(Line { text, blocks, location: Some((operation.name(), node.location)) });
                    names.push((format!("%{number}"), count > 1));
                    continue;
                }
                Kind::Placeholder { name } => match leaves.get(&node.id) {
                    Some(name) => name.clone(),
                    None => return Err(Error::unbound(name, node.location)),
                },
                Kind::Parameter { operation, name } => match leaves.get(&node.id) {
                    Some(name) => name.clone(),
                    None => return Err(leaked(operation, name, node.location).into()),
                },
                Kind::Array(array) => {
                    // A value on another mesh is copied to each device whole.
                    let replicated = Sharding::replicated();
                    let sharding = if *array.mesh() == self.mesh { array.sharding() } else { &replicated };
                    self.capture(Arc::as_ptr(array).addr(), Captured::Device(array.clone()), sharding.clone())
                }
                Kind::Host(elements) => self.capture_host(&node.outputs[0], elements),
                Kind::Poison(fault) => return Err(fault.clone().into()),
            };
            names.push((leaf, false));
        }
        Ok(graph.results.iter().map(|&v| name(&names, v)).collect())
    }

    /// Writes a private function that computes a region, unless one with the same text exists. Returns the function's
    /// name: `name`, with a number if it is taken.
    fn function(&mut self, name: &str, region: &Region) -> Result<String> {
        let numbers = std::mem::take(&mut self.numbers);
        let Region { parameters, results } = region;
        let leaves = parameters.iter().enumerate().map(|(i, p)| (p.node.id, format!("%arg{i}"))).collect();
        let mut body = Body::default();
        let names = self.emit(results, &leaves, &mut body);
        self.numbers = numbers;
        let types: Vec<_> = results.iter().map(|t| t.ty().stablehlo()).collect();
        body.lines.push(Line::bare(format!("return {} : {}", names?.join(", "), types.join(", "))));
        let arguments: Vec<_> =
            parameters.iter().enumerate().map(|(i, p)| format!("%arg{i}: {}", p.ty().stablehlo())).collect();
        let head = format!("({}) -> ({}) {{", arguments.join(", "), types.join(", "));
        let mut line = Line::function(head, body);
        let mut definition = String::new();
        line.write(&mut definition, 0, None);
        if let Some(known) = self.functions_by_text.get(&definition) {
            return Ok(known.clone());
        }
        let mut unique_name = name.to_owned();
        for number in 1.. {
            if self.function_names.insert(unique_name.clone()) {
                break;
            }
            unique_name = format!("{name}_{number}");
        }
        line.text.insert_str(0, &format!("func.func private @{unique_name}"));
        self.functions.push(line);
        self.functions_by_text.insert(definition, unique_name.clone());
        Ok(unique_name)
    }

    /// Captures a value in host memory. Returns the name of its parameter.
    fn capture_host(&mut self, ty: &TensorType, elements: &Arc<[u8]>) -> String {
        let value = Captured::Host(ty.clone(), elements.clone());
        self.capture(elements.as_ptr().addr(), value, Sharding::replicated())
    }

    /// Captures a value. Returns the name of its parameter.
    fn capture(&mut self, address: usize, value: Captured, sharding: Sharding) -> String {
        let name = format!("%arg{}", self.declared + self.captured.len());
        let captured = &mut self.captured;
        let known = self.captured_names.entry(address).or_insert_with(|| {
            captured.push((value, sharding));
            name
        });
        known.clone()
    }
}

fn leaked(operation: &str, name: &str, location: &'static Location<'static>) -> Fault {
    let message = format!(
        "{name} has a value only within the body of {operation}; return from the body what you use after it. (A Variable \
         that is set within a body holds such a value.)"
    );
    Fault::new(operation, message, location)
}

/// One operation's view of the program under construction.
pub(crate) struct Lowering<'a> {
    operands: Vec<(String, &'a TensorType)>,
    results: &'a [TensorType],
    name: &'static str,
    location: &'static Location<'static>,
    program: &'a mut Program,
    /// The block that receives statements.
    scope: Body,
    blocks: Vec<(Vec<Line>, String)>,
    extra: usize,
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

    /// The types of all results.
    pub(crate) fn results(&self) -> &[TensorType] {
        self.results
    }

    /// Whether the program is for several devices, so that shardings have an effect.
    pub(crate) fn is_partitioned(&self) -> bool {
        self.program.is_partitioned()
    }

    /// StableHLO's name for the precision of a product of `dtype`.
    pub(crate) fn precision(&self, dtype: DType) -> &'static str {
        self.program.precision.stablehlo(dtype)
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

    /// The name of a scalar constant, such as the initial value of a reduction. `literal` is the number as MLIR writes
    /// it.
    pub(crate) fn constant(&mut self, dtype: DType, literal: &str) -> String {
        let statement = format!("stablehlo.constant dense<{literal}> : {}", TensorType::scalar(dtype).stablehlo());
        if let Some(name) = self.scope.constants.get(&statement) {
            return name.clone();
        }
        let name = format!("%c{}", self.program.numbers.constants);
        self.program.numbers.constants += 1;
        self.push(format!("{name} = {statement}"));
        self.scope.constants.insert(statement, name.clone());
        name
    }

    /// Adds a statement before this operation's own, or to the open block. Returns the name of its only result.
    pub(crate) fn statement(&mut self, right: impl AsRef<str>) -> String {
        let name = self.fresh();
        self.push(format!("{name} = {}", right.as_ref()));
        name
    }

    /// A unique name within the function, for an argument of a block.
    pub(crate) fn fresh(&mut self) -> String {
        let number = self.program.numbers.instructions;
        self.program.numbers.instructions += 1;
        format!("%{number}")
    }

    /// Declares that the statement has `extra` results after those of the operation.
    pub(crate) fn extra_results(&mut self, extra: usize) {
        self.extra = extra;
    }

    /// Adds a region to this operation's statement. `write` writes its statements and returns the names and types of
    /// its results. The text `after` closes the region.
    pub(crate) fn block(&mut self, after: String, write: impl FnOnce(&mut Self) -> Vec<(String, TensorType)>) {
        let outer = std::mem::take(&mut self.scope);
        let returned = write(self);
        let names: Vec<_> = returned.iter().map(|r| r.0.as_str()).collect();
        let types: Vec<_> = returned.iter().map(|r| r.1.stablehlo()).collect();
        self.push(match returned.len() {
            0 => "stablehlo.return".to_owned(),
            _ => format!("stablehlo.return {} : {}", names.join(", "), types.join(", ")),
        });
        let inner = std::mem::replace(&mut self.scope, outer);
        self.blocks.push((inner.lines, after));
    }

    /// Writes the statements of a region; `arguments` are the names of its parameters. Returns the names and types of
    /// its results.
    pub(crate) fn region(&mut self, region: &Region, arguments: &[String]) -> Vec<(String, TensorType)> {
        self.expression(&region.parameters, arguments, &region.results)
    }

    /// Like [`Lowering::region`], for any parameters and results.
    pub(crate) fn expression(
        &mut self,
        parameters: &[Tensor],
        arguments: &[String],
        results: &[Tensor],
    ) -> Vec<(String, TensorType)> {
        let leaves = parameters.iter().zip(arguments).map(|(p, name)| (p.node.id, name.clone())).collect();
        match self.program.emit(results, &leaves, &mut self.scope) {
            Ok(names) => names.into_iter().zip(results.iter().map(|t| t.ty().clone())).collect(),
            Err(error) => {
                self.program.failed.get_or_insert(error);
                vec![]
            }
        }
    }

    /// The name of a private function that computes a region: `name`, with a number if it is taken. Regions with the
    /// same text share one function.
    pub(crate) fn function(&mut self, name: &str, region: &Region) -> String {
        self.program.function(name, region).unwrap_or_else(|error| {
            self.program.failed.get_or_insert(error);
            String::new()
        })
    }

    /// Adds the private function `name` to the module, unless it exists. `define` returns its whole text.
    pub(crate) fn helper(&mut self, name: &str, define: impl FnOnce() -> String) {
        if self.program.function_names.insert(name.to_owned()) {
            self.program.functions.push(Line::bare(define()));
        }
    }

    fn push(&mut self, text: String) {
        self.scope.lines.push(Line { text, blocks: vec![], location: Some((self.name, self.location)) });
    }
}
