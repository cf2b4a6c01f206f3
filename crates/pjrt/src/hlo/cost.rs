//! What a compiled program's loops cost. The compiler's own count takes a loop's body once; here the bodies are counted
//! by the program's text, so that the missing runs can be added. Not a second cost analysis: a count of operations and of
//! operands and results, no more.

use super::loops::Times;
use super::module::{Computation, Instruction, Module};

/// Operations and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Cost {
    /// Arithmetic operations.
    pub flops: f64,
    /// Bytes read and written by instructions.
    pub bytes: f64,
}

impl Module {
    /// What loops cost beyond the one run of each body that the compiler counts. Zero where there are no loops or none
    /// runs more than once; a loop of unknown length is taken as one run.
    pub fn cost_of_further_runs(&self) -> Cost {
        let times = Times::of(self);
        let mut total = Cost::default();
        for body in self.loop_computations() {
            let further = times.runs(body).saturating_sub(1) as f64;
            let cost = self.own_cost(body);
            total.flops += further * cost.flops;
            total.bytes += further * cost.bytes;
        }
        total
    }

    /// The computations that loops run, and those that they call in turn, but for what stands inside of one instruction.
    fn loop_computations(&self) -> Vec<usize> {
        let mut inside = vec![false; self.computations.len()];
        for (i, computation) in self.computations.iter().enumerate().rev() {
            for instruction in &computation.instructions {
                let counts = match instruction.opcode.as_str() {
                    "while" => true,
                    "call" | "conditional" | "async-start" => inside[i],
                    _ => false,
                };
                if counts {
                    instruction.called.iter().for_each(|&called| inside[called] = true);
                }
            }
        }
        (0..inside.len()).filter(|&i| inside[i]).collect()
    }

    /// What one run of a computation costs, without the loops in it.
    fn own_cost(&self, computation: usize) -> Cost {
        let computation = &self.computations[computation];
        let mut cost = Cost::default();
        for instruction in &computation.instructions {
            cost.flops += self.flops(computation, instruction);
            cost.bytes += self.bytes(computation, instruction);
        }
        cost
    }

    fn flops(&self, computation: &Computation, instruction: &Instruction) -> f64 {
        if let Some(product) = &instruction.product {
            return product.flops;
        }
        let elements = |i: &Instruction| i.shape.arrays().iter().map(|array| array.num_elements()).sum::<u64>() as f64;
        match instruction.opcode.as_str() {
            "fusion" => instruction
                .called
                .iter()
                .map(|&called| {
                    let inner = &self.computations[called];
                    inner.instructions.iter().map(|i| self.flops(inner, i)).sum::<f64>()
                })
                .sum(),
            "reduce" | "reduce-window" => computation.operands(instruction).next().map_or(0.0, elements),
            "add" | "subtract" | "multiply" | "divide" | "maximum" | "minimum" | "negate" | "abs" | "compare"
            | "select" | "power" | "clamp" | "and" | "or" | "not" | "xor" | "floor" | "sign" => elements(instruction),
            _ => 0.0,
        }
    }

    fn bytes(&self, computation: &Computation, instruction: &Instruction) -> f64 {
        match instruction.opcode.as_str() {
            "parameter" | "constant" | "get-tuple-element" | "tuple" | "bitcast" | "while" | "conditional" | "call"
            | "async-start" | "async-done" | "copy-done" | "after-all" | "partition-id" | "replica-id" => 0.0,
            "dynamic-slice" | "slice" | "gather" => 2.0 * instruction.shape.bytes() as f64,
            "dynamic-update-slice" => {
                computation.operands(instruction).nth(1).map_or(0.0, |update| 2.0 * update.shape.bytes() as f64)
            }
            "fusion" => instruction.called.first().map_or(0.0, |&inner| self.fused_bytes(&self.computations[inner])),
            _ => {
                let read: u64 = computation.operands(instruction).map(|operand| operand.shape.bytes()).sum();
                (read + instruction.shape.bytes()) as f64
            }
        }
    }

    /// A fusion reads of a parameter only what it slices out of it, and writes of an array that it updates only the
    /// update.
    fn fused_bytes(&self, fused: &Computation) -> f64 {
        let mut total = 0.0;
        for (i, instruction) in fused.instructions.iter().enumerate() {
            if instruction.opcode != "parameter" {
                continue;
            }
            let users = fused.instructions.iter().filter(|user| user.operands.contains(&i));
            let whole = instruction.shape.bytes() as f64;
            let read: f64 = users
                .map(|user| match user.opcode.as_str() {
                    "dynamic-slice" | "slice" | "gather" if user.operands.first() == Some(&i) => {
                        user.shape.bytes() as f64
                    }
                    "dynamic-update-slice" if user.operands.first() == Some(&i) => 0.0,
                    // A fusion inside of a fusion may do the slicing.
                    "fusion" => match user.called.first().map(|&inner| &self.computations[inner]) {
                        Some(inner) if inner.root().opcode == "dynamic-slice" => inner.root().shape.bytes() as f64,
                        _ => whole,
                    },
                    _ => whole,
                })
                .sum();
            total += read.min(whole);
        }
        let written = |i: &Instruction| match i.opcode.as_str() {
            "dynamic-update-slice" => fused.operands(i).nth(1).map_or(0, |update| update.shape.bytes()),
            _ => i.shape.bytes(),
        };
        let root = fused.root();
        total += match root.opcode.as_str() {
            "tuple" => fused.operands(root).map(written).sum::<u64>(),
            _ => written(root),
        } as f64;
        total
    }
}
