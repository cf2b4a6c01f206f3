//! The largest arrays of a compiled program in a device's main memory, with the source lines that
//! they come from.

use super::loops::RunCounts;
use super::module::{Module, Source};
use crate::element_type::ArrayType;

/// An array of a compiled program.
#[derive(Clone, Debug, PartialEq)]
pub struct LargeArray {
    /// The element type and the dimensions, on one device.
    pub ty: ArrayType,
    /// The size in bytes, with padding to whole tiles.
    pub bytes: u64,
    /// The name of the instruction that computes it.
    pub name: String,
    /// The opcode of that instruction.
    pub opcode: String,
    /// The operation's name in the program's text.
    pub op_name: String,
    /// The line of the user's code, if known.
    pub source: Option<Source>,
}

impl Module {
    /// The `count` largest arrays, largest first. They need not be alive at the same time.
    pub fn largest_arrays(&self, count: usize) -> Vec<LargeArray> {
        let times = RunCounts::new(self);
        let mut arrays = Vec::new();
        for (i, computation) in self.computations.iter().enumerate() {
            if !times.is_scheduled(i) {
                continue;
            }
            for instruction in &computation.instructions {
                let is_new = match instruction.opcode.as_str() {
                    "get-tuple-element" | "tuple" | "bitcast" | "while" | "conditional"
                    | "call" | "copy-done" => false,
                    "parameter" => i == self.entry,
                    opcode => !opcode.ends_with("-done"),
                };
                if !is_new {
                    continue;
                }
                for array in instruction.shape.arrays() {
                    if array.memory_space == 0 {
                        arrays.push(LargeArray {
                            ty: array.ty.clone(),
                            bytes: array.padded_bytes(),
                            name: instruction.name.clone(),
                            opcode: instruction.opcode.clone(),
                            op_name: instruction.op_name.clone(),
                            source: instruction.source.clone(),
                        });
                    }
                }
            }
        }
        arrays.sort_by(|a, b| b.bytes.cmp(&a.bytes).then_with(|| a.name.cmp(&b.name)));
        arrays.truncate(count);
        arrays
    }
}
