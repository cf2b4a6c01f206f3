//! The form of a kernel for TPUs: a module of Mosaic, the dialect of MLIR that libtpu compiles, as
//! Pallas writes it.
//!
//! Every operation has MLIR's generic form. The names have the prefix of the format that libtpu keeps
//! readable for later versions.

use std::fmt::Write as _;

use fulmen_tensor::DType;

use crate::index::{Arithmetic, Compare, Evaluate, Index};
use crate::program::{
    Array, Binary, Kernel, Operation, Reduction, Role, Statement, TileType, Unary,
};

/// The version of the format whose operations are written here.
const VERSION: u32 = 15;

/// The statements of a function.
struct Writer<'a> {
    kernel: &'a Kernel,
    text: String,
    indent: usize,
    /// The number of the next name.
    next: usize,
    /// The names of the values, by their numbers.
    values: Vec<String>,
}

/// The module of a kernel. The error is a message.
pub(crate) fn module(kernel: &Kernel) -> Result<String, String> {
    let arrays = kernel.arrays.iter().map(|array| array.ty.dtype);
    let values = kernel.values.iter().map(|value| value.ty.dtype);
    if let Some(dtype) = arrays.chain(values).find(|&dtype| element(dtype).is_none()) {
        return Err(format!("a kernel on a TPU has no tiles of {}", dtype.name()));
    }
    let mut text = format!(
        "module @kernel attributes {{stable_mosaic.version = {VERSION} : i64}} {{\n{}",
        body(kernel)
    );
    for (number, (_, array)) in windows(kernel).enumerate() {
        text.push_str(&transform(kernel, number, array));
    }
    text.push_str("}\n");
    Ok(text)
}

/// The arrays with an index map.
fn windows(kernel: &Kernel) -> impl Iterator<Item = (usize, &Array)> {
    kernel.with_role(Role::Input).chain(kernel.with_role(Role::Output))
}

/// The name of an element type.
fn element(dtype: DType) -> Option<&'static str> {
    matches!(dtype, DType::F32 | DType::Bf16 | DType::I32 | DType::Bool).then(|| dtype.stablehlo())
}

fn vector(ty: TileType) -> String {
    let [rows, columns] = ty.shape;
    format!("vector<{rows}x{columns}x{}>", ty.dtype.stablehlo())
}

fn list(items: impl IntoIterator<Item = impl ToString>) -> String {
    items.into_iter().map(|item| item.to_string()).collect::<Vec<_>>().join(", ")
}

fn memref(dtype: DType, shape: &[usize], space: &str) -> String {
    let sizes: Vec<String> = shape.iter().map(|size| format!("{size}x")).collect();
    format!("memref<{}{}, #tpu.memory_space<{space}>>", sizes.concat(), dtype.stablehlo())
}

/// The types of the arguments that all functions have: the position and the tables.
fn common_arguments(kernel: &Kernel) -> Vec<String> {
    let positions = kernel.grid.iter().map(|_| "i32".to_owned());
    let tables = kernel.tables.iter().map(|table| memref(DType::I32, &[table.len()], "smem"));
    positions.chain(tables).collect()
}

fn arguments(types: &[String], prefix: impl Fn(usize) -> String) -> String {
    list(types.iter().enumerate().map(|(number, ty)| format!("{}: {ty}", prefix(number))))
}

/// The name of an argument of every function.
fn common_name(kernel: &Kernel, number: usize) -> String {
    match number.checked_sub(kernel.grid.len()) {
        None => format!("%p{number}"),
        Some(table) => format!("%t{table}"),
    }
}

/// The function of one step.
fn body(kernel: &Kernel) -> String {
    let scratch: Vec<_> = kernel.with_role(Role::Scratch).collect();
    let memory: Vec<_> = windows(kernel).chain(scratch.iter().copied()).collect();
    let common = common_arguments(kernel).len();
    let mut types = common_arguments(kernel);
    types.extend(memory.iter().map(|(_, array)| memref(array.ty.dtype, &array.block, "vmem")));
    let declared = arguments(&types, |number| match number.checked_sub(common) {
        None => common_name(kernel, number),
        Some(array) => format!("%m{}", memory[array].0),
    });
    let mut writer = Writer::new(kernel);
    writer.statements(&kernel.statements);
    let semantics = (0..kernel.grid.len()).map(|axis| {
        let name = if axis < kernel.parallel { "parallel" } else { "arbitrary" };
        format!("#tpu.dimension_semantics<{name}>")
    });
    let window = |number: usize, array: &Array| {
        format!(
            "{{transform_indices = @transform_{number}, window_bounds = array<i64: {}>}}",
            list(&array.block)
        )
    };
    let windows = windows(kernel).enumerate().map(|(number, (_, array))| window(number, array));
    format!(
        "  \"stable_mosaic.func.func\"() ({{\n  ^bb0({declared}):\n{}    \"stable_mosaic.func.return\"() : () -> ()\n  }}) \
         {{dimension_semantics = [{}], function_type = ({}) -> (), iteration_bounds = array<i64: {}>, scalar_prefetch = \
         {} : i64, scratch_operands = {} : i64, sym_name = \"main\", tpu.core_type = #tpu.core_type<tc>, window_params = \
         [{}]}} : () -> ()\n",
        writer.text,
        list(semantics),
        list(&types),
        list(&kernel.grid),
        kernel.tables.len(),
        scratch.len(),
        list(windows),
    )
}

/// The function that computes the number of the block that a step sees.
fn transform(kernel: &Kernel, number: usize, array: &Array) -> String {
    let types = common_arguments(kernel);
    let mut writer = Writer::new(kernel);
    let names: Vec<String> = array.map.iter().map(|index| writer.index(index)).collect();
    let results = list(array.map.iter().map(|_| "i32"));
    format!(
        "  \"stable_mosaic.func.func\"() ({{\n  ^bb0({}):\n{}    \"stable_mosaic.func.return\"({}) : ({results}) -> ()\n  \
         }}) {{function_type = ({}) -> ({results}), sym_name = \"transform_{number}\"}} : () -> ()\n",
        arguments(&types, |number| common_name(kernel, number)),
        writer.text,
        list(&names),
        list(&types),
    )
}

impl Evaluate for Writer<'_> {
    type Value = String;

    fn constant(&mut self, value: i32) -> String {
        self.define("arith.constant", "", &format!("{{value = {value} : i32}}"), "() -> i32")
    }
    fn program(&mut self, axis: usize) -> String {
        format!("%p{axis}")
    }
    fn table(&mut self, table: usize, at: String) -> String {
        let at = self.define("arith.index_cast", &at, "", "(i32) -> index");
        let ty = memref(DType::I32, &[self.kernel.tables[table].len()], "smem");
        let operands = format!("%t{table}, {at}");
        self.define("memref.load", &operands, "", &format!("({ty}, index) -> i32"))
    }
    fn binary(&mut self, kind: Arithmetic, left: String, right: String) -> String {
        let overflow = "{overflowFlags = #arith.overflow<none>}";
        let (name, attributes) = match kind {
            Arithmetic::Add => ("arith.addi", overflow),
            Arithmetic::Sub => ("arith.subi", overflow),
            Arithmetic::Mul => ("arith.muli", overflow),
            Arithmetic::Div => ("arith.divsi", ""),
            Arithmetic::Rem => ("arith.remsi", ""),
        };
        self.define(name, &format!("{left}, {right}"), attributes, "(i32, i32) -> i32")
    }
}

impl<'a> Writer<'a> {
    fn new(kernel: &'a Kernel) -> Writer<'a> {
        let values = vec![String::new(); kernel.values.len()];
        Writer { kernel, text: String::new(), indent: 4, next: 0, values }
    }

    fn line(&mut self, text: &str) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.text, "{:indent$}{text}", "", indent = self.indent);
    }

    /// Writes a statement with one result, and returns the result's name.
    fn define(&mut self, name: &str, operands: &str, attributes: &str, signature: &str) -> String {
        let result = format!("%{}", self.next);
        self.next += 1;
        let space = if attributes.is_empty() { "" } else { " " };
        self.line(&format!(
            "{result} = \"stable_mosaic.{name}\"({operands}){space}{attributes} : {signature}"
        ));
        result
    }

    /// The positions of the first element of a block, and their types.
    fn origin(&mut self, rank: usize) -> (String, String) {
        let zero = self.define("arith.constant", "", "{value = 0 : index}", "() -> index");
        (list(vec![&zero; rank]), list(vec!["index"; rank]))
    }

    fn statements(&mut self, statements: &[Statement]) {
        for statement in statements {
            match statement {
                Statement::Define(value) => self.values[*value] = self.compute(*value),
                Statement::Store { array, value } => self.store(*array, *value),
                Statement::When { condition, body } => {
                    let left = self.index(&condition.left);
                    let right = self.index(&condition.right);
                    let holds =
                        self.compare(condition.compare, &left, &right, DType::I32, "i32", "i1");
                    self.line(&format!("\"stable_mosaic.scf.if\"({holds}) ({{"));
                    self.indent += 2;
                    self.statements(body);
                    self.line("\"stable_mosaic.scf.yield\"() : () -> ()");
                    self.indent -= 2;
                    self.line("}, {");
                    self.line("  \"stable_mosaic.scf.yield\"() : () -> ()");
                    self.line("}) : (i1) -> ()");
                }
            }
        }
    }

    /// The type of a block in memory, as a vector.
    fn block_vector(array: &Array) -> String {
        let sizes: Vec<String> = array.block.iter().map(|size| format!("{size}x")).collect();
        format!("vector<{}{}>", sizes.concat(), array.ty.dtype.stablehlo())
    }

    fn load(&mut self, number: usize) -> String {
        let array = &self.kernel.arrays[number];
        let memory = memref(array.ty.dtype, &array.block, "vmem");
        let (origin, indices) = self.origin(array.block.len());
        let block = Self::block_vector(array);
        let loaded = self.define(
            "vector.load",
            &format!("%m{number}, {origin}"),
            "",
            &format!("({memory}, {indices}) -> {block}"),
        );
        self.reshape(&loaded, &block, &vector(array.tile()))
    }

    fn reshape(&mut self, name: &str, from: &str, to: &str) -> String {
        if from == to {
            return name.to_owned();
        }
        self.define("vector.shape_cast", name, "", &format!("({from}) -> {to}"))
    }

    fn store(&mut self, number: usize, value: usize) {
        let array = &self.kernel.arrays[number];
        let memory = memref(array.ty.dtype, &array.block, "vmem");
        let rank = array.block.len();
        let block = Self::block_vector(array);
        let name = self.values[value].clone();
        let name = self.reshape(&name, &vector(array.tile()), &block);
        let (origin, indices) = self.origin(rank);
        self.line(&format!(
            "\"stable_mosaic.tpu.vector_store\"({name}, %m{number}, {origin}) {{add = false, operandSegmentSizes = \
             array<i32: 1, 1, {rank}, 0>, strides = array<i32>}} : ({block}, {memory}, {indices}) -> ()"
        ));
    }

    fn compare(
        &mut self,
        kind: Compare,
        left: &str,
        right: &str,
        dtype: DType,
        ty: &str,
        mask: &str,
    ) -> String {
        // The numbers of MLIR's predicates: signed ones for integers, ordered ones for floats.
        let (name, predicate) = match (dtype.is_float(), kind) {
            (false, Compare::Equal) => ("arith.cmpi", 0),
            (false, Compare::Less) => ("arith.cmpi", 2),
            (false, Compare::LessOrEqual) => ("arith.cmpi", 3),
            (true, Compare::Equal) => ("arith.cmpf", 1),
            (true, Compare::Less) => ("arith.cmpf", 4),
            (true, Compare::LessOrEqual) => ("arith.cmpf", 5),
        };
        let fast_math = if dtype.is_float() { "fastmath = #arith.fastmath<none>, " } else { "" };
        let attributes = format!("{{{fast_math}predicate = {predicate} : i64}}");
        let signature = format!("({ty}, {ty}) -> {mask}");
        self.define(name, &format!("{left}, {right}"), &attributes, &signature)
    }

    /// A vector of one number.
    fn full(&mut self, value: f64, dtype: DType, ty: &str) -> String {
        let element = match dtype {
            DType::F32 => format!("0x{:08X}", (value as f32).to_bits()),
            DType::Bf16 => format!("0x{:04X}", bf16_bits(value)),
            _ => format!("{}", value as i64),
        };
        let attributes = format!("{{value = dense<{element}> : {ty}}}");
        self.define("arith.constant", "", &attributes, &format!("() -> {ty}"))
    }

    fn splat(&mut self, index: &Index, ty: &str) -> String {
        let name = self.index(index);
        self.define("vector.broadcast", &name, "", &format!("(i32) -> {ty}"))
    }

    fn compute(&mut self, number: usize) -> String {
        const EXACT: &str = "{fastmath = #arith.fastmath<none>}";
        let kernel = self.kernel;
        let value = &kernel.values[number];
        let ty = vector(value.ty);
        let name = |operand: usize| self.values[operand].clone();
        let type_of = |operand: usize| vector(kernel.values[operand].ty);
        let same = |count: usize| format!("({}) -> {ty}", list(vec![&ty; count]));
        match &value.operation {
            Operation::Load(array) => self.load(*array),
            Operation::Full(number) => self.full(*number, value.ty.dtype, &ty),
            Operation::Splat(index) => self.splat(index, &ty),
            Operation::Iota(axis) => {
                let attributes = format!("{{dimensions = array<i32: {axis}>}}");
                self.define("tpu.iota", "", &attributes, &same(0))
            }
            Operation::Unary(kind, x) => {
                let operand = name(*x);
                self.define(unary(*kind), &operand, EXACT, &same(1))
            }
            Operation::Binary(kind, left, right) => {
                let operands = format!("{}, {}", name(*left), name(*right));
                let is_float = value.ty.dtype.is_float();
                let attributes = match kind {
                    _ if is_float => EXACT,
                    Binary::Div | Binary::Max => "",
                    _ => "{overflowFlags = #arith.overflow<none>}",
                };
                self.define(binary(*kind, is_float), &operands, attributes, &same(2))
            }
            Operation::Compare(kind, left, right) => {
                let operands = [name(*left), name(*right)];
                let dtype = kernel.values[*left].ty.dtype;
                self.compare(*kind, &operands[0], &operands[1], dtype, &type_of(*left), &ty)
            }
            Operation::And(left, right) => {
                let operands = format!("{}, {}", name(*left), name(*right));
                self.define("arith.andi", &operands, "", &same(2))
            }
            Operation::Select { mask, on_true, on_false } => {
                let operands = list([name(*mask), name(*on_true), name(*on_false)]);
                let signature = format!("({}, {ty}, {ty}) -> {ty}", type_of(*mask));
                self.define("arith.select", &operands, "", &signature)
            }
            Operation::Convert(x) => {
                let wider = value.ty.dtype == DType::F32;
                let conversion = if wider { "arith.extf" } else { "arith.truncf" };
                let signature = format!("({}) -> {ty}", type_of(*x));
                let operand = name(*x);
                self.define(conversion, &operand, "", &signature)
            }
            Operation::Broadcast(x) => {
                let signature = format!("({}) -> {ty}", type_of(*x));
                let operand = name(*x);
                self.define("vector.broadcast", &operand, "", &signature)
            }
            Operation::Reduce { kind, axis, of } => self.reduce(*kind, *axis, *of, value.ty),
            Operation::Dot { left, right, axes } => self.dot(*left, *right, *axes, value.ty),
            Operation::Transpose(x) => {
                let signature = format!("({}) -> {ty}", type_of(*x));
                let operand = name(*x);
                let attributes = "{permutation = array<i64: 1, 0>}";
                self.define("tpu.transpose", &operand, attributes, &signature)
            }
        }
    }

    fn reduce(&mut self, kind: Reduction, axis: usize, of: usize, result: TileType) -> String {
        let from = self.kernel.values[of].ty;
        let flat = format!("vector<{}x{}>", from.shape[1 - axis], from.dtype.stablehlo());
        let (name, neutral) = match kind {
            Reduction::Sum => ("add", 0.0),
            Reduction::Max => ("maximumf", f64::NEG_INFINITY),
        };
        let neutral = self.full(neutral, from.dtype, &flat);
        let operands = format!("{}, {neutral}", self.values[of]);
        let attributes =
            format!("{{kind = #vector.kind<{name}>, reduction_dims = array<i64: {axis}>}}");
        let signature = format!("({}, {flat}) -> {flat}", vector(from));
        let reduced = self.define("vector.multi_reduction", &operands, &attributes, &signature);
        self.reshape(&reduced, &flat, &vector(result))
    }

    fn dot(&mut self, left: usize, right: usize, axes: [usize; 2], result: TileType) -> String {
        let ty = vector(result);
        let zero = self.full(0.0, result.dtype, &ty);
        let operands = list([&self.values[left], &self.values[right], &zero]);
        let [of_left, of_right] = axes;
        let [kept_left, kept_right] = axes.map(|axis| 1 - axis);
        let attributes = format!(
            "{{dimension_numbers = #tpu.dot_dimension_numbers<[{of_left}], [{of_right}], [{kept_left}], [{kept_right}], [0, \
             {kept_left}, 1, {kept_right}], [], []>, transpose_lhs = false, transpose_lhs_hint = false, transpose_rhs = \
             false}}"
        );
        let types = [left, right].map(|operand| vector(self.kernel.values[operand].ty));
        let signature = format!("({}, {}, {ty}) -> {ty}", types[0], types[1]);
        self.define("tpu.matmul", &operands, &attributes, &signature)
    }
}

/// The upper half of the nearest 32-bit number.
fn bf16_bits(value: f64) -> u32 {
    let bits = (value as f32).to_bits();
    let rounding = 0x7FFF + ((bits >> 16) & 1);
    if (value as f32).is_nan() { 0x7FC0 } else { bits.wrapping_add(rounding) >> 16 }
}

fn unary(kind: Unary) -> &'static str {
    match kind {
        Unary::Exp => "math.exp",
        Unary::Log => "math.log",
        Unary::Tanh => "math.tanh",
        Unary::Rsqrt => "math.rsqrt",
    }
}

fn binary(kind: Binary, is_float: bool) -> &'static str {
    match (kind, is_float) {
        (Binary::Add, true) => "arith.addf",
        (Binary::Sub, true) => "arith.subf",
        (Binary::Mul, true) => "arith.mulf",
        (Binary::Div, true) => "arith.divf",
        (Binary::Max, true) => "arith.maximumf",
        (Binary::Add, false) => "arith.addi",
        (Binary::Sub, false) => "arith.subi",
        (Binary::Mul, false) => "arith.muli",
        (Binary::Div, false) => "arith.divsi",
        (Binary::Max, false) => "arith.maxsi",
    }
}
