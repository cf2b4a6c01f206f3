//! How the values of a recorded step are split over the devices.
//!
//! The compiler decides this when it partitions a program. [`splits`] follows the shardings of
//! parameters and of `with_sharding` through the operations, as the compiler does.

use fulmen_tensor::{Mesh, RecordedBody, RecordedOp, RecordedValue, Sharding, TensorType};

/// For each axis of a value, the axes of the mesh over which it is split, as bits.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Split(Vec<u64>);

impl Split {
    fn whole(rank: usize) -> Split {
        Split(vec![0; rank])
    }

    pub(crate) fn new(sharding: &Sharding, mesh: &Mesh, rank: usize) -> Split {
        let mut split = Split::whole(rank);
        for (bits, names) in split.0.iter_mut().zip(sharding.axes()) {
            for (i, (name, _)) in mesh.axes().iter().enumerate().take(64) {
                if names.contains(name) {
                    *bits |= 1 << i;
                }
            }
        }
        split
    }

    /// Splits an axis over these axes of the mesh too, except those that split another axis.
    fn add(&mut self, axis: usize, bits: u64) {
        let used = self.0.iter().fold(0, |used, bits| used | bits);
        if let Some(own) = self.0.get_mut(axis) {
            *own |= bits & !used;
        }
    }

    fn add_all(&mut self, other: &Split) {
        other.0.iter().enumerate().for_each(|(axis, &bits)| self.add(axis, bits));
    }

    /// The size of one device's part, in bytes.
    pub(crate) fn bytes(&self, ty: &TensorType, mesh: &Mesh) -> u64 {
        let parts =
            self.0.iter().fold(1, |parts: u64, &bits| parts.saturating_mul(count(bits, mesh)));
        (ty.size_in_bytes() as u64).div_ceil(parts.max(1))
    }

    /// The split of a slice along the first axis.
    pub(crate) fn row(&self) -> Split {
        Split(self.0.get(1..).unwrap_or_default().to_vec())
    }

    /// The split of a stack of such values along a new first axis.
    fn stacked(&self) -> Split {
        Split([&[0], &self.0[..]].concat())
    }
}

/// The number of parts that these axes of the mesh make.
fn count(bits: u64, mesh: &Mesh) -> u64 {
    let sizes = mesh.axes().iter().enumerate().filter(|(i, _)| *i < 64 && bits >> i & 1 == 1);
    sizes.fold(1, |parts, (_, (_, size))| parts.saturating_mul(*size as u64))
}

/// The splits of an operation's results, and of the values of its bodies.
pub(crate) struct OpSplits {
    pub(crate) results: Vec<Split>,
    pub(crate) bodies: Vec<Vec<OpSplits>>,
}

/// The splits of a program's or a body's values. `parameter` returns the split of a parameter.
pub(crate) fn splits(
    ops: &[RecordedOp],
    mesh: &Mesh,
    parameter: &dyn Fn(usize) -> Option<Split>,
) -> Vec<OpSplits> {
    let mut known: Vec<OpSplits> = Vec::with_capacity(ops.len());
    for op in ops {
        let of = |value: &RecordedValue| known[value.op].results[value.output].clone();
        let split = if !op.bodies.is_empty() {
            with_bodies(ops, op, mesh, &op.operands.iter().map(of).collect::<Vec<_>>())
        } else {
            let results = op.types.iter().enumerate().map(|(output, ty)| {
                let rank = ty.shape.rank();
                if let Some(split) = op.parameter.and_then(parameter) {
                    return split;
                }
                if let Some(sharding) = &op.sharding {
                    return Split::new(sharding, mesh, rank);
                }
                let mut split = Split::whole(rank);
                for (number, value) in op.operands.iter().enumerate() {
                    // A barrier returns each of its operands.
                    if op.types.len() > 1 && op.types.len() == op.operands.len() && number != output
                    {
                        continue;
                    }
                    let operand = &ops[value.op].types[value.output];
                    for (axis, &bits) in
                        of(value).0.iter().enumerate().filter(|(_, bits)| **bits != 0)
                    {
                        let parts = count(bits, mesh) as usize;
                        let carried = carried(op, number, &operand.shape, axis, parts, &ty.shape);
                        if let Some(to) = carried {
                            split.add(to, bits);
                        }
                    }
                }
                split
            });
            OpSplits { results: results.collect(), bodies: Vec::new() }
        };
        known.push(split);
    }
    known
}

/// The splits of a loop or of branches.
fn with_bodies(ops: &[RecordedOp], op: &RecordedOp, mesh: &Mesh, operands: &[Split]) -> OpSplits {
    let mut inputs = operands.to_vec();
    let mut split = OpSplits { results: Vec::new(), bodies: Vec::new() };
    // What a step of a loop splits is split in the next step.
    for _ in 0..3 {
        split = OpSplits {
            results: op.types.iter().map(|ty| Split::whole(ty.shape.rank())).collect(),
            bodies: Vec::new(),
        };
        for body in &op.bodies {
            let values = splits(&body.ops, mesh, &|parameter| {
                let operand = *body.operands.get(parameter)?;
                let whole = &inputs[operand];
                let is_slice = is_slice(ops, op, body, parameter);
                Some(if is_slice { whole.row() } else { whole.clone() })
            });
            for (i, value) in body.results.iter().enumerate() {
                let one = &values[value.op].results[value.output];
                let is_stacked = is_stacked(op, body, i);
                split.results[i].add_all(&if is_stacked { one.stacked() } else { one.clone() });
            }
            split.bodies.push(values);
        }
        let mut is_stable = true;
        for (i, input) in inputs.iter_mut().enumerate().filter(|(i, _)| is_carry(op, *i)) {
            let before = input.clone();
            input.add_all(&split.results[i]);
            is_stable &= *input == before;
        }
        if is_stable {
            break;
        }
    }
    split
}

/// Whether result `i` of an operation is the stack of what each run of the body returns.
pub(crate) fn is_stacked(op: &RecordedOp, body: &RecordedBody, i: usize) -> bool {
    let value = body.results[i];
    op.types[i] != body.ops[value.op].types[value.output]
}

/// Whether a run of the body gets a slice of the operand.
fn is_slice(ops: &[RecordedOp], op: &RecordedOp, body: &RecordedBody, parameter: usize) -> bool {
    let Some(own) = body.ops.iter().find(|own| own.parameter == Some(parameter)) else {
        return false;
    };
    let value = op.operands[body.operands[parameter]];
    own.types[0] != ops[value.op].types[value.output]
}

/// Whether result `i` of an operation is operand `i` after the last step of a loop.
pub(crate) fn is_carry(op: &RecordedOp, i: usize) -> bool {
    let Some(body) = op.bodies.last().filter(|_| is_loop(op)) else { return false };
    i < body.results.len() && !is_stacked(op, body, i)
}

fn is_loop(op: &RecordedOp) -> bool {
    matches!(op.operation, Some("scan" | "while_loop"))
}

/// The number of steps of a scan; 1 for other operations and for loops of unknown length.
pub(crate) fn steps(ops: &[RecordedOp], op: &RecordedOp) -> u64 {
    let Some(body) = op.bodies.first().filter(|_| op.operation == Some("scan")) else { return 1 };
    let stacked = (0..body.results.len()).find(|&i| is_stacked(op, body, i)).map(|i| &op.types[i]);
    let sliced = || {
        let parameter = (0..body.operands.len()).find(|&j| is_slice(ops, op, body, j))?;
        let value = op.operands[body.operands[parameter]];
        Some(&ops[value.op].types[value.output])
    };
    stacked.or_else(sliced).map_or(1, |ty| ty.shape[0] as u64)
}

/// The axis of the result that has a split axis of an operand. After a reshape, that is the axis that
/// has the operand's axis in it or is its outer part. `None` if there is none, as in the gradient of
/// a weight.
fn carried(
    op: &RecordedOp,
    number: usize,
    operand: &[usize],
    axis: usize,
    parts: usize,
    result: &[usize],
) -> Option<usize> {
    if let Some(axes) = op.result_axes.get(number) {
        return *axes.get(axis)?;
    }
    let length = operand[axis];
    let has_same_size = operand.iter().product::<usize>() == result.iter().product::<usize>();
    if operand != result && has_same_size {
        let outer: usize = operand[..axis].iter().product();
        let mut before = 1;
        for (axis, &size) in result.iter().enumerate() {
            let merges = size > 0 && size.is_multiple_of(length);
            let divides = length.is_multiple_of(size) && size.is_multiple_of(parts);
            if before == outer && (merges || divides) {
                return Some(axis);
            }
            before *= size;
        }
        return None;
    }
    if result.get(axis) == Some(&length) {
        return Some(axis);
    }
    result.iter().position(|&size| size == length)
}
