//! What the compiler's cost analysis lacks: further iterations of loops, whose bodies it counts
//! once, and the bytes that move between the chip and its main memory. This module only counts
//! operations, operands and results.

use std::collections::BTreeMap;

use super::loops::RunCounts;
use super::module::{Computation, Instruction, Module, Source};
use super::shape::Shape;

/// Operations and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// Arithmetic operations.
    pub flops: f64,
    /// Bytes that instructions read and write.
    pub bytes: f64,
}

impl Module {
    /// The cost of loops beyond the one iteration that the compiler counts. Zero if there are no
    /// loops, or if none has several iterations. A loop of unknown length counts as one iteration.
    pub fn cost_of_further_runs(&self) -> Cost {
        let times = RunCounts::new(self);
        let mut total = Cost::default();
        for (i, computation) in
            self.computations.iter().enumerate().filter(|(i, _)| times.is_scheduled(*i))
        {
            let further = times.runs(i).saturating_sub(1) as f64;
            if further > 0.0 {
                for instruction in &computation.instructions {
                    total.flops += further * self.flops(computation, instruction);
                    total.bytes += further * self.traffic(computation, instruction).all;
                }
            }
        }
        total
    }

    /// The bytes that one execution moves between a device and its main memory (HBM on a TPU), with
    /// padding to tiles. It is the minimum that each instruction must read and write there. Arrays
    /// that the compiler keeps on the chip are excluded. An instruction that reads an array several
    /// times counts once.
    pub fn main_memory_traffic(&self) -> f64 {
        let times = RunCounts::new(self);
        let scheduled = (0..self.computations.len()).filter(|&i| times.is_scheduled(i));
        scheduled.fold(0.0, |total, i| {
            let computation = &self.computations[i];
            let once = computation
                .instructions
                .iter()
                .fold(0.0, |n, i| n + self.traffic(computation, i).main);
            total + times.runs(i) as f64 * once
        })
    }

    /// The cost of one execution by line of the user's code: operations, and the bytes of
    /// [`main_memory_traffic`](Module::main_memory_traffic). A fusion belongs to the line of its
    /// result. Instructions that the compiler has added or replaced belong to the line that first
    /// uses them, if there is one.
    pub fn cost_by_line(&self) -> BTreeMap<Option<Source>, Cost> {
        let times = RunCounts::new(self);
        let mut lines: BTreeMap<Option<Source>, Cost> = BTreeMap::new();
        for (i, computation) in
            self.computations.iter().enumerate().filter(|(i, _)| times.is_scheduled(*i))
        {
            let runs = times.runs(i) as f64;
            for (instruction, source) in computation.instructions.iter().zip(computation.sources())
            {
                let cost = lines.entry(source.cloned()).or_default();
                cost.flops += runs * self.flops(computation, instruction);
                cost.bytes += runs * self.traffic(computation, instruction).main;
            }
        }
        lines
    }

    fn flops(&self, computation: &Computation, instruction: &Instruction) -> f64 {
        if let Some(product) = &instruction.product {
            return product.flops;
        }
        let elements = |i: &Instruction| {
            i.shape.arrays().iter().map(|array| array.num_elements()).sum::<u64>() as f64
        };
        match instruction.opcode.as_str() {
            "fusion" => instruction
                .called
                .iter()
                .map(|&called| {
                    let inner = &self.computations[called];
                    inner.instructions.iter().fold(0.0, |n, i| n + self.flops(inner, i))
                })
                .fold(0.0, |a, b| a + b),
            "reduce" | "reduce-window" => {
                computation.operands(instruction).next().map_or(0.0, elements)
            }
            "add" | "subtract" | "multiply" | "divide" | "maximum" | "minimum" | "negate"
            | "abs" | "compare" | "select" | "power" | "clamp" | "and" | "or" | "not" | "xor"
            | "floor" | "sign" => elements(instruction),
            _ => 0.0,
        }
    }

    /// The bytes that an instruction reads and writes.
    fn traffic(&self, computation: &Computation, instruction: &Instruction) -> Traffic {
        let operand = |n: usize| computation.operands(instruction).nth(n);
        let read = || {
            computation
                .operands(instruction)
                .map(|operand| Traffic::from_shape(&operand.shape))
                .sum::<Traffic>()
        };
        match instruction.opcode.as_str() {
            "parameter"
            | "constant"
            | "get-tuple-element"
            | "tuple"
            | "bitcast"
            | "while"
            | "conditional"
            | "call"
            | "async-start"
            | "after-all"
            | "partition-id"
            | "replica-id"
            | "optimization-barrier" => Traffic::default(),
            "custom-call" if instruction.target == "AllocateBuffer" => Traffic::default(),
            opcode if opcode.ends_with("-done") || opcode.ends_with("-update") => {
                Traffic::default()
            }
            // Its first result is the copy; the others are the source and a context.
            "copy-start" => match &instruction.shape {
                Shape::Tuple(parts) => {
                    read() + parts.first().map(Traffic::from_shape).unwrap_or_default()
                }
                shape => read() + Traffic::from_shape(shape),
            },
            "dynamic-slice" | "slice" | "gather" => {
                let source = operand(0)
                    .map(|source| Traffic::in_memory_of(&instruction.shape, &source.shape))
                    .unwrap_or_default();
                source + Traffic::from_shape(&instruction.shape)
            }
            "dynamic-update-slice" => match operand(1) {
                Some(update) => {
                    Traffic::from_shape(&update.shape)
                        + Traffic::in_memory_of(&update.shape, &instruction.shape)
                }
                None => Traffic::default(),
            },
            // In place: it reads the indices and the updates, and changes the updated elements.
            "scatter" => match scatter_update(computation, instruction) {
                Some(update) => {
                    let indices = operand(1).map(|indices| Traffic::from_shape(&indices.shape));
                    let changed = Traffic::in_memory_of(&update.shape, &instruction.shape);
                    indices.unwrap_or_default()
                        + Traffic::from_shape(&update.shape)
                        + changed
                        + changed
                }
                None => read() + Traffic::from_shape(&instruction.shape),
            },
            "fusion" => instruction
                .called
                .first()
                .map(|&inner| self.fusion_traffic(&self.computations[inner], &instruction.shape))
                .unwrap_or_default(),
            // The first half of an asynchronous collective returns its operands in addition to the
            // result.
            opcode if opcode.ends_with("-start") => {
                let operands_traffic = read();
                operands_traffic + operands_traffic
            }
            _ => read() + Traffic::from_shape(&instruction.shape),
        }
    }

    /// A fusion only reads the slices of a parameter that it uses. Of an array that it updates, it
    /// only writes the update.
    fn fusion_traffic(&self, fused: &Computation, result: &Shape) -> Traffic {
        let mut total = Traffic::default();
        for (i, parameter) in
            fused.instructions.iter().enumerate().filter(|(_, p)| p.opcode == "parameter")
        {
            total = total + self.read_of(fused, i, &parameter.shape);
        }
        // The shape of the fusion itself has the memory of each result.
        let written = |result: &Instruction, shape: &Shape| {
            let result = past_bitcasts(fused, result);
            match result.opcode.as_str() {
                "dynamic-update-slice" => fused
                    .operands(result)
                    .nth(1)
                    .map(|update| Traffic::in_memory_of(&update.shape, shape))
                    .unwrap_or_default(),
                "scatter" if changes_parameter(fused, result) => scatter_update(fused, result)
                    .map(|update| Traffic::in_memory_of(&update.shape, shape))
                    .unwrap_or_default(),
                _ => Traffic::from_shape(shape),
            }
        };
        let root = fused.root();
        match (root.opcode.as_str(), result) {
            ("tuple", Shape::Tuple(parts)) => {
                total + fused.operands(root).zip(parts).map(|(i, shape)| written(i, shape)).sum()
            }
            _ => total + written(root, result),
        }
    }
}

impl Module {
    /// What a fusion reads of a parameter, or of a value that has the parameter's elements one for
    /// one. `value` is the index of its instruction.
    fn read_of(&self, fused: &Computation, value: usize, parameter: &Shape) -> Traffic {
        let whole = Traffic::from_shape(parameter);
        let users = fused.instructions.iter().enumerate();
        let read: Traffic = users
            .filter(|(_, user)| user.operands.contains(&value))
            .map(|(index, user)| match user.opcode.as_str() {
                "dynamic-slice" | "slice" | "gather" if user.operands.first() == Some(&value) => {
                    Traffic::part_of(&user.shape, parameter)
                }
                "dynamic-update-slice" if user.operands.first() == Some(&value) => {
                    Traffic::default()
                }
                "scatter" if user.operands.first() == Some(&value) => scatter_update(fused, user)
                    .map_or(whole, |update| Traffic::part_of(&update.shape, parameter)),
                "bitcast" | "convert" | "copy" | "reshape" if index != fused.root => {
                    self.read_of(fused, index, parameter)
                }
                // A nested fusion may do the slicing.
                "fusion" => match user.called.first().map(|&inner| &self.computations[inner]) {
                    Some(inner) if slices_its_parameter(inner) => {
                        Traffic::part_of(&user.shape, parameter)
                    }
                    _ => whole,
                },
                _ => whole,
            })
            .sum();
        Traffic { all: read.all.min(whole.all), main: read.main.min(whole.main) }
    }
}

/// The updates of a scatter with one operand.
fn scatter_update<'a>(
    computation: &'a Computation,
    scatter: &'a Instruction,
) -> Option<&'a Instruction> {
    computation.operands(scatter).nth(2).filter(|_| scatter.operands.len() == 3)
}

/// The instruction whose elements the bitcasts before `instruction` pass on.
fn past_bitcasts<'a>(
    computation: &'a Computation,
    mut instruction: &'a Instruction,
) -> &'a Instruction {
    while let ("bitcast", Some(operand)) =
        (instruction.opcode.as_str(), computation.operands(instruction).next())
    {
        instruction = operand;
    }
    instruction
}

/// Whether a scatter changes a parameter, or a bitcast of one.
fn changes_parameter(fused: &Computation, scatter: &Instruction) -> bool {
    let changed = fused.operands(scatter).next();
    changed.is_some_and(|operand| past_bitcasts(fused, operand).opcode == "parameter")
}

/// Whether a fused computation only takes a slice or rows of its first parameter.
fn slices_its_parameter(fused: &Computation) -> bool {
    let result = past_bitcasts(fused, fused.root());
    matches!(result.opcode.as_str(), "dynamic-slice" | "slice" | "gather")
}

/// Bytes that are read or written.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Traffic {
    /// Bytes in any memory, without padding, as the compiler counts.
    all: f64,
    /// Bytes in the main memory, with padding.
    main: f64,
}

impl Traffic {
    fn from_shape(shape: &Shape) -> Traffic {
        shape.arrays().into_iter().fold(Self::default(), |traffic, array| {
            let main = if array.memory_space == 0 { array.padded_bytes() as f64 } else { 0.0 };
            traffic + Self { all: array.bytes() as f64, main }
        })
    }

    /// The bytes of as many elements of `array` as `shape` has, read from the memory of `array`.
    fn part_of(shape: &Shape, array: &Shape) -> Self {
        let elements = |shape: &Shape| {
            shape.arrays().iter().map(|array| array.num_elements()).sum::<u64>() as f64
        };
        let element_bytes = array.bytes() as f64 / elements(array).max(1.0);
        let all = elements(shape) * element_bytes;
        let is_main = array.arrays().first().is_some_and(|array| array.memory_space == 0);
        Self { all, main: if is_main { all } else { 0.0 } }
    }

    /// The bytes of `shape`, read from or written to the memory of `array`.
    fn in_memory_of(shape: &Shape, array: &Shape) -> Traffic {
        let all = shape.bytes() as f64;
        let is_main = array.arrays().first().is_some_and(|array| array.memory_space == 0);
        Self { all, main: if is_main { all } else { 0.0 } }
    }
}

impl std::ops::Add for Traffic {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { all: self.all + other.all, main: self.main + other.main }
    }
}

impl std::iter::Sum for Traffic {
    fn sum<I: Iterator<Item = Self>>(traffic: I) -> Self {
        traffic.fold(Self::default(), |a, b| a + b)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hlo::proto;

    const F32: i32 = 11;
    const S32: i32 = 4;

    /// A value of a computation: its opcode, its element type and sizes, and the numbers of its
    /// operands.
    struct Value(&'static str, i32, &'static [i64], &'static [i64]);

    const TABLE: Value = Value("parameter", F32, &[1000, 128], &[]);
    const INDICES: Value = Value("parameter", S32, &[8, 1], &[]);
    const UPDATES: Value = Value("parameter", F32, &[8, 128], &[]);

    /// A computation whose last value is its result. A fusion in it calls the computation before it.
    fn computation(number: i64, values: &[Value]) -> proto::Computation {
        let instruction = |(i, value): (usize, &Value)| {
            let Value(opcode, element_type, sizes, operands) = value;
            let calls = *opcode == "fusion";
            proto::Instruction {
                name: format!("i{number}.{i}"),
                opcode: (*opcode).into(),
                id: 100 * number + i as i64,
                operand_ids: operands.iter().map(|operand| 100 * number + operand).collect(),
                called_computation_ids: Vec::from_iter(calls.then_some(number - 1)),
                shape: Some(proto::Shape {
                    element_type: *element_type,
                    dimensions: sizes.to_vec(),
                    ..Default::default()
                }),
                ..Default::default()
            }
        };
        proto::Computation {
            name: format!("c{number}"),
            id: number,
            root_id: 100 * number + values.len() as i64 - 1,
            instructions: values.iter().enumerate().map(instruction).collect(),
        }
    }

    /// The bytes that a program of these computations moves. The last one is the entry; each other
    /// is a fusion of the next one.
    fn traffic(computations: &[&[Value]]) -> f64 {
        let module = proto::Module {
            name: "m".into(),
            computations: (1..)
                .zip(computations)
                .map(|(n, values)| computation(n, values))
                .collect(),
            entry_computation_id: computations.len() as i64,
            ..Default::default()
        };
        Module::read(&module, 1).unwrap().main_memory_traffic()
    }

    const ROWS: f64 = 8.0 * 128.0 * 4.0;
    const INDEX: f64 = 8.0 * 4.0;

    #[test]
    fn a_look_up_behind_another_shape_of_the_table_reads_its_rows() {
        const LOOK_UP: &[Value] = &[TABLE, INDICES, Value("fusion", F32, &[8, 128], &[0, 1])];
        for opcode in ["bitcast", "reshape", "copy", "convert"] {
            let fused = [
                TABLE,
                INDICES,
                Value(opcode, F32, &[1000, 1, 128], &[0]),
                Value("gather", F32, &[8, 1, 128], &[2, 1]),
                Value("bitcast", F32, &[8, 128], &[3]),
            ];
            assert_eq!(traffic(&[&fused, LOOK_UP]), ROWS + INDEX + ROWS, "{opcode}");
        }
        // A look-up in a fusion of a fusion.
        let inner = [
            TABLE,
            INDICES,
            Value("gather", F32, &[8, 1, 128], &[0, 1]),
            Value("bitcast", F32, &[8, 128], &[2]),
        ];
        let outer = [
            TABLE,
            INDICES,
            Value("fusion", F32, &[8, 128], &[0, 1]),
            Value("negate", F32, &[8, 128], &[2]),
        ];
        assert_eq!(traffic(&[&inner, &outer, LOOK_UP]), ROWS + INDEX + ROWS);
        // All elements are read where the table itself is used too.
        let whole = [
            TABLE,
            INDICES,
            Value("bitcast", F32, &[1000, 1, 128], &[0]),
            Value("gather", F32, &[8, 1, 128], &[2, 1]),
            Value("reduce", F32, &[8, 128], &[3, 0]),
        ];
        assert_eq!(traffic(&[&whole, LOOK_UP]), 1000.0 * 128.0 * 4.0 + INDEX + ROWS);
    }

    #[test]
    fn a_scatter_behind_another_shape_of_the_table_changes_its_rows() {
        const CHANGE: &[Value] =
            &[TABLE, INDICES, UPDATES, Value("fusion", F32, &[1000, 128], &[0, 1, 2])];
        let fused = [
            TABLE,
            INDICES,
            UPDATES,
            Value("bitcast", F32, &[1000, 1, 128], &[0]),
            Value("bitcast", F32, &[8, 1, 128], &[2]),
            Value("scatter", F32, &[1000, 1, 128], &[3, 1, 4]),
            Value("bitcast", F32, &[1000, 128], &[5]),
        ];
        // It reads the indices, the updates and the rows, and writes the rows.
        assert_eq!(traffic(&[&fused, CHANGE]), INDEX + ROWS + ROWS + ROWS);
    }
}
