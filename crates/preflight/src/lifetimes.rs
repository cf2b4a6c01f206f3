//! Which values of a recorded step are in memory, and from when to when.
//!
//! The compiler computes elementwise operations within the operations that read them, and computes a
//! value again if that needs less memory. So [`lifetimes`] keeps the smallest values from which the
//! rest follows: what a step needs is at least this.

use std::collections::HashMap;
use std::panic::Location;

use fulmen_tensor::{Mesh, RecordedOp, RecordedValue, TensorType};

use crate::splits::{OpSplits, is_carry, is_stacked};

/// More values than this are not kept in place of one.
const MAX_PARTS: usize = 8;

/// Values of one type in memory. The times count operations.
pub(crate) struct Lifetime {
    pub(crate) name: &'static str,
    pub(crate) source: &'static Location<'static>,
    pub(crate) ty: TensorType,
    /// The size of each on one device, in bytes.
    pub(crate) device_bytes: u64,
    pub(crate) count: u64,
    pub(crate) from: usize,
    pub(crate) until: usize,
}

/// The lifetimes of all values that the operations of a step compute.
pub(crate) fn lifetimes(ops: &[RecordedOp], splits: &[OpSplits], mesh: &Mesh) -> Vec<Lifetime> {
    let mut found = Vec::new();
    // The results of a step replace its parameters.
    List { ops, splits, mesh, start: 0 }.walk(&[], &[], &mut found);
    found
}

/// The values of a program or of one run of a body.
struct List<'a> {
    ops: &'a [RecordedOp],
    splits: &'a [OpSplits],
    mesh: &'a Mesh,
    /// The time of the first operation.
    start: usize,
}

/// The values that must be kept so that a value can be read.
#[derive(Clone, Default)]
struct Kept {
    values: Vec<RecordedValue>,
    bytes: u64,
}

impl List<'_> {
    fn bytes(&self, value: RecordedValue) -> u64 {
        let ty = &self.ops[value.op].types[value.output];
        self.splits[value.op].results[value.output].bytes(ty, self.mesh)
    }

    /// What must be kept to read each result of each operation. Parameters are there anyway.
    fn kept(&self) -> Vec<Vec<Kept>> {
        let mut kept: Vec<Vec<Kept>> = Vec::with_capacity(self.ops.len());
        for (i, op) in self.ops.iter().enumerate() {
            let results = (0..op.types.len()).map(|output| {
                if op.operation.is_none() {
                    return Kept::default();
                }
                let value = RecordedValue { op: i, output };
                let itself = Kept { values: vec![value], bytes: self.bytes(value) };
                if !is_fused(op) {
                    return itself;
                }
                let read = match op.operands.get(output).filter(|_| is_barrier(op)) {
                    Some(operand) => std::slice::from_ref(operand),
                    None => &op.operands,
                };
                let mut parts = Kept::default();
                for value in read.iter().flat_map(|v| &kept[v.op][v.output].values) {
                    if !parts.values.contains(value) {
                        parts.bytes = parts.bytes.saturating_add(self.bytes(*value));
                        parts.values.push(*value);
                    }
                }
                let is_less = parts.bytes <= itself.bytes && parts.values.len() <= MAX_PARTS;
                if is_less { parts } else { itself }
            });
            kept.push(results.collect());
        }
        kept
    }

    /// Adds the lifetimes of all values. `results` are kept to the end. Those in `stacked` are
    /// written into a stack, which is a result of the loop.
    fn walk(
        &self,
        results: &[RecordedValue],
        stacked: &[RecordedValue],
        found: &mut Vec<Lifetime>,
    ) {
        let mut times = Vec::with_capacity(self.ops.len());
        let mut end = self.start;
        for op in self.ops {
            let from = end;
            end += duration(op);
            times.push((from, end));
        }
        let mut is_used = vec![false; self.ops.len()];
        for value in self.ops.iter().flat_map(|op| &op.operands).chain(results).chain(stacked) {
            is_used[value.op] = true;
        }

        let kept = self.kept();
        let mut uses: HashMap<RecordedValue, Use> = HashMap::new();
        for value in results {
            add_use(&mut uses, &kept, *value, end, false);
        }
        for (i, op) in self.ops.iter().enumerate().rev() {
            // What nothing uses is a result of the program.
            let is_computed = !is_fused(op)
                || !is_used[i]
                || outputs(i, op)
                    .any(|value| uses.contains_key(&value) || stacked.contains(&value));
            // A value that changes its sharding is computed before.
            let is_fused = is_fused(op) && op.sharding.is_none();
            for value in op.operands.iter().filter(|_| is_computed) {
                add_use(&mut uses, &kept, *value, times[i].1, is_fused);
            }
        }

        for (i, op) in self.ops.iter().enumerate().filter(|(_, op)| op.operation.is_some()) {
            for value in outputs(i, op).filter(|value| !stacked.contains(value)) {
                let until = match uses.get(&value) {
                    // The operation that reads it computes it.
                    Some(Use { count: 1, is_fused: true, .. }) if op.bodies.is_empty() => continue,
                    Some(last) => last.at,
                    None if is_fused(op) => continue,
                    None => times[i].1,
                };
                self.add(value, times[i], until, found);
            }
            let mut start = times[i].0;
            for (body, splits) in op.bodies.iter().zip(&self.splits[i].bodies) {
                let list = List { ops: &body.ops, splits, mesh: self.mesh, start };
                let (stacked, carried): (Vec<usize>, Vec<usize>) =
                    (0..body.results.len()).partition(|&result| is_stacked(op, body, result));
                let values = |results: Vec<usize>| -> Vec<RecordedValue> {
                    results.into_iter().map(|result| body.results[result]).collect()
                };
                list.walk(&values(carried), &values(stacked), found);
                start += body.ops.iter().map(duration).sum::<usize>();
            }
        }
    }

    /// Adds the lifetime of a value that an operation computes.
    fn add(
        &self,
        value: RecordedValue,
        computed: (usize, usize),
        until: usize,
        found: &mut Vec<Lifetime>,
    ) {
        let op = &self.ops[value.op];
        let Some((name, source)) = name(self.ops, value) else { return };
        let mut ty = op.types[value.output].clone();
        let mut split = self.splits[value.op].results[value.output].clone();
        let mut from = computed.1;
        let mut count = 1;
        let body = op.bodies.last().filter(|body| value.output < body.results.len());
        if let Some(body) = body.filter(|body| is_stacked(op, body, value.output)) {
            let one = body.results[value.output];
            count = ty.shape[0] as u64;
            ty = body.ops[one.op].types[one.output].clone();
            split = split.row();
            from = computed.0;
        }
        let device_bytes = split.bytes(&ty, self.mesh);
        let until = until.max(from + 1);
        found.push(Lifetime { name, source, ty, device_bytes, count, from, until });
    }
}

/// When a value is last read.
struct Use {
    at: usize,
    /// How many operations read it.
    count: usize,
    /// Whether all of them are elementwise.
    is_fused: bool,
}

/// Notes that an operation reads a value at this time.
fn add_use(
    uses: &mut HashMap<RecordedValue, Use>,
    kept: &[Vec<Kept>],
    value: RecordedValue,
    at: usize,
    is_fused: bool,
) {
    for value in &kept[value.op][value.output].values {
        let last = uses.entry(*value).or_insert(Use { at, count: 0, is_fused: true });
        last.at = last.at.max(at);
        last.count += 1;
        last.is_fused &= is_fused;
    }
}

fn outputs(i: usize, op: &RecordedOp) -> impl Iterator<Item = RecordedValue> {
    (0..op.types.len()).map(move |output| RecordedValue { op: i, output })
}

/// The number of operations, with one run of each body.
fn duration(op: &RecordedOp) -> usize {
    1 + op.bodies.iter().flat_map(|body| &body.ops).map(duration).sum::<usize>()
}

/// Whether the compiler computes the operation within those that read it.
fn is_fused(op: &RecordedOp) -> bool {
    const OTHERS: [&str; 8] =
        ["clamp", "concatenate", "constant", "dynamic_slice", "flip", "iota", "pad", "slice"];
    let is_other = |operation| OTHERS.contains(&operation);
    op.is_elementwise || is_passed_on(op) || op.operation.is_some_and(is_other)
}

/// Whether an operation returns its operands, in another form.
pub(crate) fn is_passed_on(op: &RecordedOp) -> bool {
    const VIEWS: [&str; 9] = [
        "all_gather",
        "bitcast",
        "broadcast_to",
        "detach",
        "reshape",
        "to_dtype",
        "transpose",
        "with_sharding",
        "with_weight",
    ];
    is_barrier(op) || op.operation.is_some_and(|operation| VIEWS.contains(&operation))
}

/// Whether each result is one of the operands.
fn is_barrier(op: &RecordedOp) -> bool {
    matches!(op.operation, Some("optimization_barrier" | "computed_after"))
}

/// The operation that computes a value, and its line: within the body of a loop or a branch, and
/// before views and conversions. `None` for a parameter.
fn name(
    ops: &[RecordedOp],
    value: RecordedValue,
) -> Option<(&'static str, &'static Location<'static>)> {
    let op = &ops[value.op];
    let own = (op.operation?, op.location);
    if is_passed_on(op) {
        let operand = op.operands.get(if is_barrier(op) { value.output } else { 0 });
        return operand.and_then(|&operand| name(ops, operand)).or(Some(own));
    }
    let mut in_bodies = op.bodies.iter().filter_map(|body| {
        let result = *body.results.get(value.output)?;
        name(&body.ops, result).or_else(|| {
            // What one step returns is a parameter of the next.
            let operand = *body.operands.get(body.ops[result.op].parameter?)?;
            name(&body.ops, *body.results.get(operand).filter(|_| is_carry(op, operand))?)
        })
    });
    in_bodies.next().or(Some(own))
}
