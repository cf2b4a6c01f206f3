//! The statements of an expression, in the body of the program or of a region within it.
//!
//! Not here: the program's signature and its text as a whole; see `lower.rs`. How one operation is written is with the
//! operation.

use std::collections::{HashMap, HashSet};
use std::fmt::Write as _;
use std::panic::Location;
use std::sync::Arc;

use crate::graph::{Calls, Constants, Graph, Value};
use crate::hash::{IdMap, QuickMap};
use crate::region::Region;
use crate::tensor::Kind;
use crate::{DType, DeviceArray, Error, Fault, MatmulPrecision, Mesh, Result, Sharding, Tensor, TensorType};

/// A value that an expression holds and a program takes as an argument.
pub(crate) enum Captured {
    Device(Arc<DeviceArray>),
    Host(TensorType, Arc<[u8]>),
}

/// The program that is being written.
pub(crate) struct Program {
    pub(crate) mesh: Mesh,
    pub(crate) precision: MatmulPrecision,
    constants_are: Constants,
    /// The number of parameters that the function declares; captured values come after them.
    pub(crate) declared: usize,
    /// Values that the expression holds, and how they are sharded over the devices.
    pub(crate) captured: Vec<(Captured, Sharding)>,
    /// The parameter that each captured value became, by its address.
    known: HashMap<usize, String>,
    /// Private functions, in the order of their first calls.
    pub(crate) functions: Vec<Line>,
    /// The names that functions have.
    function_names: HashSet<String>,
    /// The name of each private function, by its text without name and locations.
    function_of: HashMap<String, String>,
    /// The type with the most elements, and the line that recorded it.
    pub(crate) largest: Option<(TensorType, &'static Location<'static>)>,
    numbers: Numbers,
    failed: Option<Error>,
}

/// The next numbers of values in the function that is being written. Each is given once, in regions too.
#[derive(Default)]
struct Numbers {
    instructions: usize,
    constants: usize,
}

/// One block of statements.
#[derive(Default)]
pub(crate) struct Body {
    pub(crate) lines: Vec<Line>,
    /// The names of scalar constants in this block.
    constants: HashMap<String, String>,
}

pub(crate) struct Line {
    text: String,
    /// The contents of the statement's regions, each with what comes after it.
    blocks: Vec<(Vec<Line>, String)>,
    /// The operation's name and the user's line.
    location: Option<(&'static str, &'static Location<'static>)>,
}

impl Line {
    /// A line that no operation wrote.
    pub(crate) fn bare(text: String) -> Line {
        Line { text, blocks: vec![], location: None }
    }

    /// A function with this head, up to its body.
    pub(crate) fn function(head: String, body: Body) -> Line {
        Line { text: head, blocks: vec![(body.lines, "}".to_owned())], location: None }
    }

    /// Writes the line, with a reference to its location if there is a table of them.
    pub(crate) fn write(&self, to: &mut String, indent: usize, mut locations: Option<&mut Locations>) {
        let start = |to: &mut String| to.extend(std::iter::repeat_n(' ', indent));
        start(to);
        to.push_str(&self.text);
        for (lines, after) in &self.blocks {
            to.push('\n');
            for line in lines {
                line.write(to, indent + 2, locations.as_deref_mut());
            }
            start(to);
            to.push_str(after);
        }
        if let (Some((name, location)), Some(locations)) = (self.location, locations) {
            let _ = write!(to, " loc(#loc{})", locations.alias(name, location));
        }
        to.push('\n');
    }
}

/// The locations of a module, each written once, which statements refer to by aliases.
#[derive(Default)]
pub(crate) struct Locations {
    lines: QuickMap<&'static Location<'static>, usize>,
    named: QuickMap<(&'static str, usize), usize>,
    /// The definitions of the aliases; they stand after the module.
    pub(crate) definitions: String,
}

impl Locations {
    /// The number of the alias of a line of the user's code under an operation's name. (It has a name because Shardy's
    /// passes lose the line of a statement that has none.)
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
    pub(crate) fn new(mesh: &Mesh, precision: MatmulPrecision, constants_are: Constants, declared: usize) -> Program {
        Program {
            mesh: mesh.clone(),
            precision,
            constants_are,
            declared,
            captured: vec![],
            known: HashMap::new(),
            functions: vec![],
            function_names: HashSet::from(["main".to_owned()]),
            function_of: HashMap::new(),
            largest: None,
            numbers: Numbers::default(),
            failed: None,
        }
    }

    pub(crate) fn is_partitioned(&self) -> bool {
        self.mesh.num_devices() > 1
    }

    /// Writes the statements that `results` need and returns the names of their values. `names` are those of the leaves.
    pub(crate) fn emit(&mut self, results: &[Tensor], leaves: &IdMap<String>, scope: &mut Body) -> Result<Vec<String>> {
        // Only the main function has what the program captures.
        let calls = if self.constants_are == Constants::AsInputs { Calls::Inlined } else { Calls::Kept };
        let graph = Graph::new(results, self.constants_are, calls)?;
        // The name of each instruction, and whether it stands for several results.
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
                        // In a body too: XLA makes what it uses of the function around it an input of the loop or branch.
                        names.push((self.capture_host(&node.outputs[0], elements), false));
                        continue;
                    }
                    if self.is_partitioned() {
                        let types: Vec<_> = node.inputs.iter().map(|t| t.ty()).collect();
                        let checked = operation.check(&self.mesh, &types);
                        checked.map_err(|why| Fault::new(operation.name(), why, node.location))?;
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
                        n => format!("%{number}:{n} = {right}"),
                    };
                    scope.lines.push(Line { text, blocks, location: Some((operation.name(), node.location)) });
                    names.push((format!("%{number}"), count > 1));
                    continue;
                }
                Kind::Placeholder { name } => match leaves.get(&node.id) {
                    Some(name) => name.clone(),
                    None => return Err(Error::unbound(name, node.location)),
                },
                Kind::Parameter { of, name } => match leaves.get(&node.id) {
                    Some(name) => name.clone(),
                    None => return Err(leaked(of, name, node.location).into()),
                },
                Kind::Array(array) => {
                    // A value on another mesh is copied here whole.
                    let whole = Sharding::replicated();
                    let sharding = if *array.mesh() == self.mesh { array.sharding() } else { &whole };
                    self.capture(Arc::as_ptr(array).addr(), Captured::Device(array.clone()), sharding.clone())
                }
                Kind::Host(elements) => self.capture_host(&node.outputs[0], elements),
                Kind::Poison(fault) => return Err(fault.clone().into()),
            };
            names.push((leaf, false));
        }
        Ok(graph.results.iter().map(|&v| name(&names, v)).collect())
    }

    /// Writes a private function that computes a region, unless there is one that is written alike. Gives its name, which is
    /// `name`, with a number if another function has it.
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
        if let Some(known) = self.function_of.get(&definition) {
            return Ok(known.clone());
        }
        let mut chosen = name.to_owned();
        for number in 1.. {
            if self.function_names.insert(chosen.clone()) {
                break;
            }
            chosen = format!("{name}_{number}");
        }
        line.text.insert_str(0, &format!("func.func private @{chosen}"));
        self.functions.push(line);
        self.function_of.insert(definition, chosen.clone());
        Ok(chosen)
    }

    /// The parameter that a value in host memory becomes.
    fn capture_host(&mut self, ty: &TensorType, elements: &Arc<[u8]>) -> String {
        let value = Captured::Host(ty.clone(), elements.clone());
        self.capture(elements.as_ptr().addr(), value, Sharding::replicated())
    }

    /// The parameter that a value becomes.
    fn capture(&mut self, address: usize, value: Captured, sharding: Sharding) -> String {
        let name = format!("%arg{}", self.declared + self.captured.len());
        let captured = &mut self.captured;
        let known = self.known.entry(address).or_insert_with(|| {
            captured.push((value, sharding));
            name
        });
        known.clone()
    }
}

fn leaked(of: &str, name: &str, location: &'static Location<'static>) -> Fault {
    let message = format!(
        "{name} is a value within the body of {of} and has none outside of it; return from the body what is used after \
         it. (A Variable that is set within a body holds such a value.)"
    );
    Fault::new(of, message, location)
}

/// One operation's view of the program that is being written.
pub(crate) struct Lowering<'a> {
    operands: Vec<(String, &'a TensorType)>,
    results: &'a [TensorType],
    name: &'static str,
    location: &'static Location<'static>,
    program: &'a mut Program,
    /// The block that statements go to.
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

    /// Whether the program is for several devices, so that shardings mean something.
    pub(crate) fn is_partitioned(&self) -> bool {
        self.program.is_partitioned()
    }

    /// StableHLO's name of the precision that a product of `dtype` is asked for.
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

    /// The name of a scalar constant, e.g. where a reduction starts; `literal` is MLIR's spelling of the number.
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

    /// A statement before this operation's own, or in the block that is being written; the name of its only result.
    pub(crate) fn statement(&mut self, right: impl AsRef<str>) -> String {
        let name = self.fresh();
        self.push(format!("{name} = {}", right.as_ref()));
        name
    }

    /// A name that nothing else in the function has, for an argument of a block.
    pub(crate) fn fresh(&mut self) -> String {
        let number = self.program.numbers.instructions;
        self.program.numbers.instructions += 1;
        format!("%{number}")
    }

    /// Declares that the statement has `extra` results after those that the operation has.
    pub(crate) fn extra_results(&mut self, extra: usize) {
        self.extra = extra;
    }

    /// Adds a region to this operation's statement: what `write` writes, which gives the values that the region returns,
    /// and then the text `after`, which closes the region.
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

    /// Writes the statements of a region whose parameters have these names; its results, names and types.
    pub(crate) fn region(&mut self, region: &Region, arguments: &[String]) -> Vec<(String, TensorType)> {
        self.expression(&region.parameters, arguments, &region.results)
    }

    /// As [`Lowering::region`] for results of one's own choice.
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

    /// The name of a private function that computes a region, the same for all regions that are written alike: `name`, or
    /// that with a number.
    pub(crate) fn function(&mut self, name: &str, region: &Region) -> String {
        self.program.function(name, region).unwrap_or_else(|error| {
            self.program.failed.get_or_insert(error);
            String::new()
        })
    }

    /// Makes sure that the module has the private function `name`, whose whole text `define` gives.
    pub(crate) fn helper(&mut self, name: &str, define: impl FnOnce() -> String) {
        if self.program.function_names.insert(name.to_owned()) {
            self.program.functions.push(Line::bare(define()));
        }
    }

    fn push(&mut self, text: String) {
        self.scope.lines.push(Line { text, blocks: vec![], location: Some((self.name, self.location)) });
    }
}
