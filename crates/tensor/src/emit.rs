//! Emits the StableHLO statements of an expression into the body of a program or of a region.
//!
//! Out of scope: which statements there are, see `passes/`; the program's signature and its whole text; see `lower.rs`. Each operation's file
//! writes its own statement.

mod lowering;
mod statements;

use std::collections::{HashMap, HashSet};
use std::panic::Location;
use std::sync::Arc;

use crate::axis_order::AxisOrder;
use crate::graph::{Constants, Graph, Instruction, Value};
use crate::hash::IdMap;
use crate::operation::Operation;
use crate::passes::{Orders, Pipeline};
use crate::region::Region;
use crate::stored_value::HostElements;
use crate::tensor::Kind;
use crate::whole_axes::{self, Restriction, WholeAxes};
use crate::{
    DeviceArray, Error, Fault, MatmulPrecision, Mesh, Result, Sharding, Tensor, TensorType, error,
};

pub(crate) use lowering::Lowering;
use lowering::Writer;
pub(crate) use statements::{Body, Line, Locations};

/// A value that an expression holds, and that the program takes as an argument.
pub(crate) enum Captured {
    Device(Arc<DeviceArray>),
    Host(TensorType, HostElements),
}

/// The value with the most elements in a program.
pub(crate) struct LargestValue {
    pub(crate) ty: TensorType,
    /// The line that recorded it.
    pub(crate) location: &'static Location<'static>,
}

/// The value of a parameter.
pub(crate) struct Leaf {
    pub(crate) name: String,
    /// The order of its axes; `None` for the tensor's own order.
    pub(crate) order: Option<AxisOrder>,
}

/// The program under construction.
pub(crate) struct Program {
    mesh: Mesh,
    passes: Pipeline,
    precision: MatmulPrecision,
    constants_are: Constants,
    /// The number of parameters that the function declares; captured values come after them.
    declared: usize,
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
    pub(crate) largest: Option<LargestValue>,
    numbers: Numbers,
    failed: Option<Error>,
}

/// The next numbers for names of values. Each number is unique in its function, including its
/// regions.
#[derive(Default)]
struct Numbers {
    instructions: usize,
    constants: usize,
}

impl Program {
    pub(crate) fn new(
        mesh: &Mesh,
        passes: Pipeline,
        precision: MatmulPrecision,
        constants_are: Constants,
        declared: usize,
    ) -> Program {
        Program {
            mesh: mesh.clone(),
            passes,
            precision,
            constants_are,
            declared,
            captured: Vec::new(),
            captured_names: HashMap::new(),
            functions: Vec::new(),
            function_names: HashSet::from(["main".to_owned()]),
            functions_by_text: HashMap::new(),
            largest: None,
            numbers: Numbers::default(),
            failed: None,
        }
    }

    fn is_partitioned(&self) -> bool {
        self.mesh.num_devices() > 1
    }

    /// Writes the statements that compute `results`, and returns the names of the resulting values.
    /// `leaves` maps each parameter to its name.
    fn emit(
        &mut self,
        results: &[Tensor],
        leaves: &IdMap<String>,
        scope: &mut Body,
    ) -> Result<Vec<String>> {
        let mut standard = IdMap::default();
        for (&id, name) in leaves {
            standard.insert(id, Leaf { name: name.clone(), order: None });
        }
        self.emit_in_order(results, &standard, vec![None; results.len()], scope)
    }

    /// Like [`Program::emit`], but the parameters may have their axes in any order, and each result
    /// has them in the given order.
    pub(crate) fn emit_in_order(
        &mut self,
        results: &[Tensor],
        leaves: &IdMap<Leaf>,
        orders: Vec<Option<AxisOrder>>,
        scope: &mut Body,
    ) -> Result<Vec<String>> {
        let mesh = &self.mesh;
        let of_leaf = |leaf: &Instruction| match &leaf.kind {
            Kind::Array(array) => on_mesh(array, mesh).order().cloned(),
            _ => leaves.get(&leaf.id)?.order.clone(),
        };
        let orders = Orders { of_leaf: &of_leaf, of_results: orders };
        let graph = self.passes.graph(results, self.constants_are, &orders)?;
        let mut names: Vec<Vec<String>> = Vec::with_capacity(graph.instructions.len());
        for instruction in &graph.instructions {
            self.measure(instruction);
            let outputs = self.instruction(instruction, &graph, &names, leaves, scope)?;
            names.push(outputs);
        }
        Ok(graph.results.iter().map(|v| names[v.instruction][v.output].clone()).collect())
    }

    /// Remembers the largest value of the program.
    fn measure(&mut self, instruction: &Instruction) {
        for ty in &instruction.outputs {
            let is_largest = self
                .largest
                .as_ref()
                .is_none_or(|known| ty.shape.num_elements() >= known.ty.shape.num_elements());
            if is_largest {
                let location = instruction.location;
                self.largest = Some(LargestValue { ty: ty.clone(), location });
            }
        }
    }

    /// Writes an instruction, unless it is a leaf. Returns the names of its results.
    fn instruction(
        &mut self,
        instruction: &Instruction,
        graph: &Graph,
        names: &[Vec<String>],
        leaves: &IdMap<Leaf>,
        scope: &mut Body,
    ) -> Result<Vec<String>> {
        let known = leaves.get(&instruction.id).map(|leaf| leaf.name.clone());
        let leaf = match &instruction.kind {
            Kind::Operation(operation) => match graph.constant_argument(operation) {
                // This works in bodies too: XLA passes such a value to the loop or branch as an
                // input.
                Some(elements) => {
                    let elements = HostElements::InMemory(elements.clone());
                    self.capture_host(&instruction.outputs[0], &elements)
                }
                None => {
                    let name = |v: &Value| names[v.instruction][v.output].clone();
                    let operands = instruction.operands.iter().map(|v| (name(v), graph.ty(*v)));
                    let operands = operands.collect();
                    return self.statement(operation.as_ref(), operands, instruction, scope);
                }
            },
            Kind::Placeholder { name } => {
                known.ok_or_else(|| error::unbound(name, instruction.location))?
            }
            Kind::Parameter { operation, name } => {
                known.ok_or_else(|| leak_fault(operation, name, instruction.location))?
            }
            Kind::Array(array) => {
                let sharding = on_mesh(array, &self.mesh);
                let value = Captured::Device(array.clone());
                self.capture(Arc::as_ptr(array).addr(), value, sharding)
            }
            Kind::Host(elements) => self.capture_host(&instruction.outputs[0], elements),
            Kind::Poison(fault) => return Err(fault.clone().into()),
        };
        Ok(vec![leaf])
    }

    /// Writes the statement of an operation, and returns the names of its results.
    fn statement(
        &mut self,
        operation: &dyn Operation,
        operands: Vec<(String, &TensorType)>,
        instruction: &Instruction,
        scope: &mut Body,
    ) -> Result<Vec<String>> {
        let results = &instruction.outputs[..];
        let location = instruction.location;
        let mut whole = WholeAxes::default();
        if self.is_partitioned() {
            let types: Vec<&TensorType> = operands.iter().map(|operand| operand.1).collect();
            let checked = operation.check(&self.mesh, &types);
            whole = checked.map_err(|message| Fault::new(operation.name(), message, location))?;
        }
        let mut kept_whole = Vec::with_capacity(operands.len());
        for (i, (name, ty)) in operands.into_iter().enumerate() {
            let name = self.keep_whole(name, whole.of_operand(i), ty, location, scope);
            kept_whole.push((name, ty));
        }
        let number = self.next_value();
        let name = operation.name();
        let mut cx = Lowering {
            operands: kept_whole,
            results,
            name,
            location,
            program: self,
            scope: std::mem::take(scope),
            blocks: Vec::new(),
            extra: 0,
        };
        let right = operation.lower(&mut cx);
        let blocks = cx.blocks;
        let count = results.len() + cx.extra;
        *scope = cx.scope;
        if let Some(error) = self.failed.take() {
            return Err(error);
        }
        let text = match count {
            1 => format!("%{number} = {right}"),
            _ => format!("%{number}:{count} = {right}"),
        };
        scope.lines.push(Line { text, blocks, location: Some((name, location)) });
        let name =
            |output| if count > 1 { format!("%{number}#{output}") } else { format!("%{number}") };
        let mut outputs = Vec::with_capacity(results.len());
        for (i, ty) in results.iter().enumerate() {
            outputs.push(self.keep_whole(name(i), whole.of_result(i), ty, location, scope));
        }
        Ok(outputs)
    }

    /// Writes the constraint that a value is split as it must be, if one is needed. Returns the name
    /// of the value.
    fn keep_whole(
        &mut self,
        name: String,
        restriction: Restriction<'_>,
        ty: &TensorType,
        location: &'static Location<'static>,
        scope: &mut Body,
    ) -> String {
        match whole_axes::constraint(&name, restriction, ty, &self.mesh) {
            Some(statement) => self.helper(&statement, "with_sharding", location, scope),
            None => name,
        }
    }

    /// Writes a statement that no user's code recorded, and returns the name of its result.
    fn helper(
        &mut self,
        statement: &str,
        operation: &'static str,
        location: &'static Location<'static>,
        scope: &mut Body,
    ) -> String {
        let number = self.next_value();
        let name = format!("%{number}");
        let text = format!("{name} = {statement}");
        scope.lines.push(Line { text, blocks: Vec::new(), location: Some((operation, location)) });
        name
    }

    /// Writes a private function that computes a region, unless one with the same text exists.
    /// Returns the function's name: `name`, with a number if it is taken.
    fn function(&mut self, name: &str, region: &Region) -> Result<String> {
        let numbers = std::mem::take(&mut self.numbers);
        let Region { parameters, results } = region;
        let leaves =
            parameters.iter().enumerate().map(|(i, p)| (p.node.id, format!("%arg{i}"))).collect();
        let mut body = Body::default();
        let names = self.emit(results, &leaves, &mut body);
        self.numbers = numbers;
        let types: Vec<_> = results.iter().map(|t| t.ty().stablehlo()).collect();
        body.lines.push(Line::bare(format!("return {} : {}", names?.join(", "), types.join(", "))));
        let arguments: Vec<_> = parameters
            .iter()
            .enumerate()
            .map(|(i, p)| format!("%arg{i}: {}", p.ty().stablehlo()))
            .collect();
        let head = format!("({}) -> ({}) {{", arguments.join(", "), types.join(", "));
        let mut line = Line::function(head, body);
        let mut definition = String::new();
        line.write(&mut definition, 0, None);
        if let Some(known) = self.functions_by_text.get(&definition) {
            return Ok(known.clone());
        }
        let unique_name = self.free_name(name);
        line.text.insert_str(0, &format!("func.func private @{unique_name}"));
        self.functions.push(line);
        self.functions_by_text.insert(definition, unique_name.clone());
        Ok(unique_name)
    }

    /// The name of a new function: `name`, with a number if it is taken.
    fn free_name(&mut self, name: &str) -> String {
        let mut free = name.to_owned();
        for number in 1.. {
            if self.function_names.insert(free.clone()) {
                break;
            }
            free = format!("{name}_{number}");
        }
        free
    }

    /// The value, unless an error prevents it. The first error ends the statement.
    fn or_remember<T>(&mut self, result: Result<T>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(error) => {
                self.failed.get_or_insert(error);
                None
            }
        }
    }

    /// Captures a value on the host. Returns the name of its parameter.
    fn capture_host(&mut self, ty: &TensorType, elements: &HostElements) -> String {
        let value = Captured::Host(ty.clone(), elements.clone());
        self.capture(elements.address(), value, Sharding::replicated())
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

/// How an array is split over a mesh. A value on another mesh is copied to each device whole.
fn on_mesh(array: &DeviceArray, mesh: &Mesh) -> Sharding {
    if array.mesh() == mesh { array.sharding().clone() } else { Sharding::replicated() }
}

impl Writer for Program {
    fn mesh(&self) -> &Mesh {
        &self.mesh
    }

    fn precision(&self) -> MatmulPrecision {
        self.precision
    }

    fn next_value(&mut self) -> usize {
        self.numbers.instructions += 1;
        self.numbers.instructions - 1
    }

    fn next_constant(&mut self) -> usize {
        self.numbers.constants += 1;
        self.numbers.constants - 1
    }

    fn write(
        &mut self,
        results: &[Tensor],
        leaves: &IdMap<String>,
        scope: &mut Body,
    ) -> Option<Vec<String>> {
        let names = self.emit(results, leaves, scope);
        self.or_remember(names)
    }

    fn write_function(&mut self, name: &str, region: &Region) -> String {
        let name = self.function(name, region);
        self.or_remember(name).unwrap_or_default()
    }

    fn write_helper(&mut self, name: &str, define: &dyn Fn(&str) -> String) -> String {
        let definition = define(name);
        if let Some(known) = self.functions_by_text.get(&definition) {
            return known.clone();
        }
        let unique_name = self.free_name(name);
        self.functions.push(Line::bare(define(&unique_name)));
        self.functions_by_text.insert(definition, unique_name.clone());
        unique_name
    }
}

fn leak_fault(operation: &str, name: &str, location: &'static Location<'static>) -> Fault {
    let message = format!(
        "{name} has a value only within the body of {operation}; return from the body what you use after it. (A Variable \
         that is set within a body holds such a value.)"
    );
    Fault::new(operation, message, location)
}
