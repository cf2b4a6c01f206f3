//! Emits the StableHLO statements of an expression into the body of a program or of a region.
//!
//! Out of scope: the program's signature and its whole text; see `lower.rs`. Each operation's file
//! writes its own statement.

mod lowering;
mod statements;

use std::collections::{HashMap, HashSet};
use std::panic::Location;
use std::sync::Arc;

use fulmen_pjrt::locate::Platform;

use crate::axis_order::AxisOrder;
use crate::graph::{Calls, Constants, Graph, Instruction, Value};
use crate::hash::IdMap;
use crate::operation::Operation;
use crate::ops::transpose::transpose_statement;
use crate::region::Region;
use crate::scope::Scope;
use crate::tensor::Kind;
use crate::whole_axes::{self, Restriction, WholeAxes};
use crate::{
    DeviceArray, Error, Fault, MatmulPrecision, Mesh, Result, Sharding, Tensor, TensorType,
};

pub(crate) use lowering::Lowering;
pub(crate) use statements::{Body, Line, Locations};

/// A value that an expression holds, and that the program takes as an argument.
pub(crate) enum Captured {
    Device(Arc<DeviceArray>),
    Host(TensorType, Arc<[u8]>),
}

/// The value with the most elements in a program.
pub(crate) struct LargestValue {
    pub(crate) ty: TensorType,
    /// The line that recorded it.
    pub(crate) location: &'static Location<'static>,
}

/// A value of the program under construction.
#[derive(Clone)]
pub(crate) struct Emitted {
    name: String,
    /// The order of its axes; `None` for the tensor's own order.
    order: Option<AxisOrder>,
    /// The name of the same value in the tensor's own order, if it was written too.
    standard: Option<String>,
}

impl Emitted {
    pub(crate) fn new(name: String, order: Option<&AxisOrder>) -> Emitted {
        Emitted { name, order: order.cloned(), standard: None }
    }

    fn standard(name: String) -> Emitted {
        Emitted::new(name, None)
    }

    /// This value as that of its tensor's transpose.
    fn transpose(&self, permutation: &[usize]) -> Emitted {
        let order = AxisOrder::after_transpose(self.order.as_ref(), permutation);
        Emitted { name: self.name.clone(), order, standard: None }
    }
}

/// The values of a list of instructions.
struct Values<'a> {
    graph: &'a Graph,
    /// The outputs of each instruction that is written.
    emitted: Vec<Vec<Emitted>>,
}

impl<'a> Values<'a> {
    fn get(&self, v: Value) -> &Emitted {
        &self.emitted[v.instruction][v.output]
    }

    fn ty(&self, v: Value) -> &'a TensorType {
        &self.graph.instructions[v.instruction].node.outputs[v.output]
    }

    /// The operation that computes this value with its axes in a different order.
    fn with_result_reordered(&self, v: Value, order: &AxisOrder) -> Option<Box<dyn Operation>> {
        match &self.graph.instructions[v.instruction].node.kind {
            Kind::Operation(operation) => operation.with_result_reordered(order),
            _ => None,
        }
    }
}

/// The type of a value whose axes are in this order.
pub(crate) fn in_order(ty: &TensorType, order: Option<&AxisOrder>) -> TensorType {
    match order {
        Some(order) => TensorType::new(ty.dtype, order.reorder(&ty.shape)),
        None => ty.clone(),
    }
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

    pub(crate) fn is_partitioned(&self) -> bool {
        self.mesh.num_devices() > 1
    }

    /// Writes the statements that compute `results`, and returns the names of the resulting values.
    /// `leaves` maps each parameter to its name.
    pub(crate) fn emit(
        &mut self,
        results: &[Tensor],
        leaves: &IdMap<String>,
        scope: &mut Body,
    ) -> Result<Vec<String>> {
        let leaves =
            leaves.iter().map(|(&id, name)| (id, Emitted::standard(name.clone()))).collect();
        let values = self.emit_values(results, &leaves, scope)?;
        let pairs = values.into_iter().zip(results);
        Ok(pairs
            .map(|(value, t)| self.in_standard_order(&value, t.ty(), t.node.location, scope))
            .collect())
    }

    /// Like [`Program::emit`], but the parameters may have their axes in any order, and each result
    /// has them in the given order.
    pub(crate) fn emit_in_order<'o>(
        &mut self,
        results: &[Tensor],
        leaves: &IdMap<Emitted>,
        orders: impl Iterator<Item = Option<&'o AxisOrder>>,
        scope: &mut Body,
    ) -> Result<Vec<String>> {
        let values = self.emit_values(results, leaves, scope)?;
        let mut names = Vec::with_capacity(results.len());
        for ((value, t), order) in values.into_iter().zip(results).zip(orders) {
            if value.order.as_ref() == order {
                names.push(value.name);
                continue;
            }
            let standard = self.in_standard_order(&value, t.ty(), t.node.location, scope);
            names.push(match order {
                Some(order) => {
                    let to = in_order(t.ty(), Some(order));
                    let statement = transpose_statement(&standard, order.axes(), t.ty(), &to);
                    self.helper(&statement, "transpose", t.node.location, scope)
                }
                None => standard,
            });
        }
        Ok(names)
    }

    /// Like [`Program::emit`], but the parameters and results may have their axes in any order.
    fn emit_values(
        &mut self,
        results: &[Tensor],
        leaves: &IdMap<Emitted>,
        scope: &mut Body,
    ) -> Result<Vec<Emitted>> {
        // Only the main function can take captured values as arguments.
        let calls =
            if self.constants_are == Constants::AsInputs { Calls::Inlined } else { Calls::Kept };
        let graph = Graph::new(results, self.constants_are, calls)?;
        let mut values =
            Values { graph: &graph, emitted: Vec::with_capacity(graph.instructions.len()) };
        for instruction in &graph.instructions {
            let node = &instruction.node;
            for ty in &node.outputs {
                if self
                    .largest
                    .as_ref()
                    .is_none_or(|known| ty.shape.num_elements() >= known.ty.shape.num_elements())
                {
                    self.largest = Some(LargestValue { ty: ty.clone(), location: node.location });
                }
            }
            let leaf = match &node.kind {
                Kind::Operation(operation) => match graph.constant_argument(operation) {
                    // This works in bodies too: XLA passes such a value to the loop or branch as an
                    // input.
                    Some(elements) => {
                        Emitted::standard(self.capture_host(&node.outputs[0], elements))
                    }
                    None => {
                        let outputs = self.operation(operation, instruction, &mut values, scope)?;
                        values.emitted.push(outputs);
                        continue;
                    }
                },
                Kind::Placeholder { name } => match leaves.get(&node.id) {
                    Some(value) => value.clone(),
                    None => return Err(Error::unbound(name, node.location)),
                },
                Kind::Parameter { operation, name } => match leaves.get(&node.id) {
                    Some(value) => value.clone(),
                    None => return Err(leak_fault(operation, name, node.location).into()),
                },
                Kind::Array(array) => {
                    // A value on another mesh is copied to each device whole.
                    let replicated = Sharding::replicated();
                    let sharding =
                        if *array.mesh() == self.mesh { array.sharding() } else { &replicated };
                    let value = Captured::Device(array.clone());
                    let name = self.capture(Arc::as_ptr(array).addr(), value, sharding.clone());
                    Emitted::new(name, sharding.order())
                }
                Kind::Host(elements) => {
                    Emitted::standard(self.capture_host(&node.outputs[0], elements))
                }
                Kind::Poison(fault) => return Err(fault.clone().into()),
            };
            values.emitted.push(vec![leaf]);
        }
        Ok(graph.results.iter().map(|&v| values.get(v).clone()).collect())
    }

    /// Writes the statement of one operation, or what replaces it, and returns its outputs.
    fn operation(
        &mut self,
        operation: &Arc<dyn Operation>,
        instruction: &Instruction,
        values: &mut Values<'_>,
        scope: &mut Body,
    ) -> Result<Vec<Emitted>> {
        let node = &instruction.node;
        let types: Vec<_> = node.inputs.iter().map(|t| t.ty()).collect();
        if self.is_partitioned() {
            let checked = operation.check(&self.mesh, &types);
            checked.map_err(|message| Fault::new(operation.name(), message, node.location))?;
        }
        if matches!(self.platform, Some(Platform::Cpu | Platform::Tpu))
            && let Some(permutation) = operation.permutation()
        {
            return Ok(vec![values.get(instruction.operands[0]).transpose(permutation)]);
        }
        let rewritten = {
            let _scope = Scope::at(node.location);
            let for_devices = self
                .is_partitioned()
                .then(|| operation.rewritten_for_several_devices(&types))
                .flatten();
            for_devices.or_else(|| operation.rewritten_for(self.platform?, &types))
        };
        if let Some(Region { parameters, results }) = rewritten {
            let _scope = Scope::at(node.location);
            let operands = instruction.operands.iter().map(|&v| values.get(v).clone());
            let leaves = parameters.iter().map(|p| p.node.id).zip(operands).collect();
            return self.emit_values(&results, &leaves, scope);
        }
        if self.platform == Some(Platform::Cpu) {
            let _scope = Scope::at(node.location);
            if let Some(value) = self.reordered_operation(operation, instruction, values, scope)? {
                return Ok(vec![value]);
            }
        }
        // The operation that takes transposed operands in their own order, where there is one.
        let mut reordered: Option<Box<dyn Operation>> = None;
        let mut operands = Vec::with_capacity(types.len());
        for (i, (&v, ty)) in instruction.operands.iter().zip(types).enumerate() {
            let value = values.get(v);
            let current = reordered.as_deref().unwrap_or(operation.as_ref());
            let order = value.order.as_ref().filter(|_| self.platform == Some(Platform::Tpu));
            operands.push(match order.and_then(|order| current.with_operand_reordered(i, order)) {
                Some(other) => {
                    reordered = Some(other);
                    (value.name.clone(), in_order(ty, value.order.as_ref()))
                }
                None => (self.standard_name(v, values, scope), ty.clone()),
            });
        }
        let operands = operands.iter().map(|(name, ty)| (name.clone(), ty)).collect();
        let operation = reordered.as_deref().unwrap_or(operation.as_ref());
        self.statement(operation, operands, &node.outputs, node.location, scope)
    }

    /// Writes an operation whose operands have their axes in a common order, without a transpose.
    /// Returns `None` if no operand is reordered, or if one would have to be transposed.
    fn reordered_operation(
        &mut self,
        operation: &Arc<dyn Operation>,
        instruction: &Instruction,
        values: &mut Values<'_>,
        scope: &mut Body,
    ) -> Result<Option<Emitted>> {
        let Some(order) = instruction.operands.iter().find_map(|&v| values.get(v).order.clone())
        else {
            return Ok(None);
        };
        let [result] = &instruction.node.outputs[..] else { return Ok(None) };
        let reordered = if operation.is_elementwise() {
            let is_same = |&v: &Value| values.ty(v).shape == result.shape;
            instruction.operands.iter().all(is_same).then(|| (None, Some(order.clone())))
        } else {
            operation
                .with_operands_reordered(&order)
                .map(|(reordered, order)| (Some(reordered), order))
        };
        let Some((reordered, result_order)) = reordered else { return Ok(None) };
        // For each operand: the operation that computes it in the common order, unless it has that
        // order already or is a scalar.
        let mut sources = Vec::with_capacity(instruction.operands.len());
        for &v in &instruction.operands {
            sources.push(match &values.get(v).order {
                Some(other) if *other != order => return Ok(None),
                Some(_) => None,
                None if values.ty(v).shape.rank() == 0 => None,
                None => match values.with_result_reordered(v, &order) {
                    Some(source) => Some(source),
                    None => return Ok(None),
                },
            });
        }
        let mut operands = Vec::new();
        for (&v, source) in instruction.operands.iter().zip(sources) {
            let value = values.get(v).clone();
            let ty = values.ty(v);
            if ty.shape.rank() == 0 {
                operands.push((value.name, ty.clone()));
                continue;
            }
            let ty = in_order(ty, Some(&order));
            let name = match source {
                Some(source) => {
                    let source_instruction = &values.graph.instructions[v.instruction];
                    let source_operands = source_instruction
                        .operands
                        .iter()
                        .map(|&v| (self.standard_name(v, values, scope), values.ty(v)))
                        .collect();
                    let outputs = self.statement(
                        source.as_ref(),
                        source_operands,
                        std::slice::from_ref(&ty),
                        source_instruction.node.location,
                        scope,
                    )?;
                    outputs[0].name.clone()
                }
                None => value.name,
            };
            operands.push((name, ty));
        }
        let operands = operands.iter().map(|(name, ty)| (name.clone(), ty)).collect();
        let results = [in_order(result, result_order.as_ref())];
        let operation = reordered.as_deref().unwrap_or(operation.as_ref());
        let mut outputs =
            self.statement(operation, operands, &results, instruction.node.location, scope)?;
        Ok(outputs.pop().map(|value| Emitted { order: result_order, ..value }))
    }

    /// Writes the statement of an operation, and returns its outputs.
    fn statement(
        &mut self,
        operation: &dyn Operation,
        operands: Vec<(String, &TensorType)>,
        results: &[TensorType],
        location: &'static Location<'static>,
        scope: &mut Body,
    ) -> Result<Vec<Emitted>> {
        let whole = if self.is_partitioned() {
            operation.whole_axes(&operands.iter().map(|o| o.1).collect::<Vec<_>>(), &self.mesh)
        } else {
            WholeAxes::default()
        };
        let mut kept_whole = Vec::with_capacity(operands.len());
        for (i, (name, ty)) in operands.into_iter().enumerate() {
            let name = self.keep_whole(name, whole.of_operand(i), ty, location, scope);
            kept_whole.push((name, ty));
        }
        let number = self.numbers.instructions;
        self.numbers.instructions += 1;
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
            let kept = self.keep_whole(name(i), whole.of_result(i), ty, location, scope);
            outputs.push(Emitted::standard(kept));
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

    /// The name of a value of the list with its axes in the tensor's order.
    fn standard_name(&mut self, v: Value, values: &mut Values<'_>, scope: &mut Body) -> String {
        let value = values.get(v).clone();
        let location = values.graph.instructions[v.instruction].node.location;
        let name = self.in_standard_order(&value, values.ty(v), location, scope);
        if value.order.is_some() {
            values.emitted[v.instruction][v.output].standard = Some(name.clone());
        }
        name
    }

    /// The name of a value with its axes in the tensor's order. Writes a transpose if it has a
    /// different order.
    fn in_standard_order(
        &mut self,
        value: &Emitted,
        ty: &TensorType,
        location: &'static Location<'static>,
        scope: &mut Body,
    ) -> String {
        let Some(order) = &value.order else { return value.name.clone() };
        if let Some(name) = &value.standard {
            return name.clone();
        }
        let statement =
            transpose_statement(&value.name, &order.positions(), &in_order(ty, Some(order)), ty);
        self.helper(&statement, "transpose", location, scope)
    }

    /// Writes a statement that no user's code recorded, and returns the name of its result.
    fn helper(
        &mut self,
        statement: &str,
        operation: &'static str,
        location: &'static Location<'static>,
        scope: &mut Body,
    ) -> String {
        let number = self.numbers.instructions;
        self.numbers.instructions += 1;
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

fn leak_fault(operation: &str, name: &str, location: &'static Location<'static>) -> Fault {
    let message = format!(
        "{name} has a value only within the body of {operation}; return from the body what you use after it. (A Variable \
         that is set within a body holds such a value.)"
    );
    Fault::new(operation, message, location)
}
