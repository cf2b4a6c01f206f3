//! Finds the largest tensors of a recorded step, with the user's lines: where to look when a step
//! does not fit. This is an estimate from the recorded program, because a program that does not fit
//! is not compiled.

use std::collections::BTreeMap;

use fulmen_tensor::TensorType;

use crate::Step;

/// Equal tensors from one line.
#[derive(Clone, Debug, PartialEq)]
pub struct LargeTensor {
    /// The name of a parameter, or the operation that makes the tensor.
    pub name: String,
    /// The type of the whole tensor, over all devices.
    pub ty: TensorType,
    /// The number of such tensors.
    pub count: u64,
    /// The size of one of them on one device, in bytes.
    pub device_bytes: u64,
    /// The user's line that recorded the tensor, or for a parameter, the first line that uses it.
    pub source: String,
}

impl LargeTensor {
    /// The size of all of them on one device, in bytes.
    pub fn total_bytes(&self) -> u64 {
        self.device_bytes.saturating_mul(self.count)
    }
}

/// The `limit` largest groups of tensors. Operations recorded in internal files are the optimizer's
/// arithmetic, which needs no additional memory.
pub(crate) fn largest(step: &Step, limit: usize) -> Vec<LargeTensor> {
    let recorded = &step.recorded;
    let splits = splits(step);
    let mut groups: BTreeMap<(String, String, u64), (TensorType, u64)> = BTreeMap::new();
    let uses: BTreeMap<&str, String> = (recorded.iter().enumerate())
        .filter_map(|(i, value)| Some((value.name.as_deref()?, first_use(step, i)?)))
        .collect();
    for (value, split) in recorded.iter().zip(&splits) {
        let (name, source) = match (&value.name, value.operation) {
            (Some(name), _) => {
                // Optimizer state is named after its parameter.
                let parameter = (step.parameter_of)(name);
                let line = uses.get(name.as_str()).or_else(|| uses.get(parameter?));
                (name.clone(), line.cloned().unwrap_or_else(|| value.location.to_string()))
            }
            (None, _) if (step.is_internal)(value.location.file()) => continue,
            (None, Some(operation)) if !is_rematerialized(operation) => {
                (operation.to_owned(), value.location.to_string())
            }
            (None, None) => ("constant value".to_owned(), value.location.to_string()),
            _ => continue,
        };
        for ty in &value.types {
            let parts = split.map_or(1, |split| split.parts as u64);
            let bytes = (ty.size_in_bytes() as u64).div_ceil(parts);
            let group =
                groups.entry((name.clone(), source.clone(), bytes)).or_insert((ty.clone(), 0));
            group.1 += 1;
        }
    }
    let mut tensors: Vec<LargeTensor> = groups
        .into_iter()
        .map(|((name, source, device_bytes), (ty, count))| LargeTensor {
            name,
            ty,
            count,
            device_bytes,
            source,
        })
        .collect();
    tensors.sort_by_key(|tensor| std::cmp::Reverse(tensor.total_bytes()));
    tensors.truncate(limit);
    // Leave out tensors a thousand times smaller than the largest: without them, the step would not
    // fit either.
    let threshold = tensors.first().map_or(0, |tensor| tensor.total_bytes() / 1000);
    tensors.retain(|tensor| tensor.total_bytes() > threshold);
    tensors
}

/// How a value is split over the devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Split {
    axis: usize,
    parts: usize,
}

impl Split {
    /// How a result is split if one of its operands is: along the axis of the same length, or, after
    /// a reshape, along the axis that has the operand's axis in it or is its outer part. `None` if
    /// there is no such axis, as in the gradient of a weight.
    fn carried(self, operand: &[usize], result: &[usize]) -> Option<Split> {
        let length = *operand.get(self.axis)?;
        let carried = |axis: usize| Some(Split { axis, parts: self.parts });
        if result.get(self.axis) == Some(&length) {
            return carried(self.axis);
        }
        let outer: usize = operand[..self.axis].iter().product();
        let is_reshape = operand.iter().product::<usize>() == result.iter().product::<usize>();
        let mut before = 1;
        for (axis, &size) in result.iter().enumerate() {
            let merges = size % length == 0 && size > 0;
            let divides = size > 0 && length % size == 0 && size % self.parts == 0;
            if is_reshape && before == outer && (merges || divides) {
                return carried(axis);
            }
            before *= size;
        }
        carried(result.iter().position(|&size| size == length)?)
    }
}

/// The split of each recorded value. A parameter is split along its first axis that can be.
fn splits(step: &Step) -> Vec<Option<Split>> {
    let mut splits: Vec<Option<Split>> = Vec::with_capacity(step.recorded.len());
    for value in &step.recorded {
        let shape = value.types.first().map_or(&[][..], |ty| &ty.shape);
        let split = match value.parameter {
            Some(number) => {
                let parts = step.parts.get(number).copied().unwrap_or(1);
                let can_be_split = |&size: &usize| size > 0 && size % parts == 0;
                let axis = shape.iter().position(can_be_split);
                axis.filter(|_| parts > 1).map(|axis| Split { axis, parts })
            }
            None => value
                .operands
                .iter()
                .filter_map(|&i| {
                    let operand = step.recorded.get(i)?.types.first()?;
                    splits.get(i).copied()??.carried(&operand.shape, shape)
                })
                .max_by_key(|split| split.parts),
        };
        splits.push(split);
    }
    splits
}

/// Operations whose result the compiler does not keep but recomputes where it is read.
fn is_rematerialized(operation: &str) -> bool {
    matches!(
        operation,
        "constant"
            | "broadcast"
            | "broadcast_to"
            | "transpose"
            | "iota"
            | "reshape"
            | "with_sharding"
            | "all_gather"
            | "full"
            | "zeros"
            | "ones"
    )
}

/// The user's line that first computes with a value, after operations that only pass it on.
fn first_use(step: &Step, value: usize) -> Option<String> {
    let users = |value: usize| {
        step.recorded
            .iter()
            .enumerate()
            .skip(value + 1)
            .filter(move |(_, user)| user.operands.contains(&value))
    };
    let mut value = value;
    loop {
        if let Some((_, user)) =
            users(value).find(|(_, user)| !(step.is_internal)(user.location.file()))
        {
            return Some(user.location.to_string());
        }
        value = users(value)
            .find(|(_, user)| {
                matches!(
                    user.operation,
                    Some("with_sharding" | "all_gather" | "to_dtype" | "transpose")
                )
            })?
            .0;
    }
}

#[cfg(test)]
mod tests {
    use fulmen_tensor::{DType, Function, Mesh};

    use super::*;

    #[test]
    fn a_split_batch_stays_split_when_its_axis_moves_or_merges() {
        let split = |operand: &[usize], axis: usize, result: &[usize]| {
            Split { axis, parts: 256 }.carried(operand, result).map(|split| split.axis)
        };
        // Tokens of all samples as rows, and back.
        assert_eq!(split(&[512, 128, 64], 0, &[65536, 64]), Some(0));
        assert_eq!(split(&[65536, 64], 0, &[512, 128, 64]), Some(0));
        // Attention's scores; the residuals of a scan over layers.
        assert_eq!(split(&[512, 12, 128, 64], 0, &[512, 12, 128, 128]), Some(0));
        assert_eq!(split(&[512, 128, 64], 0, &[24, 512, 128, 64]), Some(1));
        // The gradient of a weight, and a mean over the batch.
        assert_eq!(split(&[512, 128], 0, &[128, 64]), None);
        assert_eq!(split(&[512, 128], 0, &[]), None);
    }

    #[test]
    fn no_activation_is_listed_larger_than_a_device_needs() {
        let types =
            [TensorType::new(DType::F32, [256, 16, 64]), TensorType::new(DType::F32, [64, 1000])];
        let function = Function::trace("f", &types, |x| {
            let rows = x[0].reshape([256 * 16, 64]);
            vec![rows.matmul(&x[1]).tanh().sum_all()]
        });
        let step = Step {
            parts: vec![256, 1],
            ..Step::new(&function, &Mesh::new([("data", 1)]).unwrap()).unwrap()
        };
        let large = largest(&step, 10);
        let activation = large.iter().find(|t| t.name == "tanh").unwrap();
        assert_eq!(activation.device_bytes, 16 * 1000 * 4, "{large:?}");
        assert_eq!(large[0].name, "input 1", "{large:?}");
    }

    #[test]
    fn the_largest_come_first_with_their_size_on_one_device() {
        let types =
            [TensorType::new(DType::F32, [64, 100]), TensorType::new(DType::F32, [100, 1000])];
        let line = line!() + 2;
        let function = Function::trace("f", &types, |x| {
            let y = x[0].matmul(&x[1]).tanh();
            vec![y.sum_all()]
        });
        let step = Step {
            parts: vec![8, 1],
            ..Step::new(&function, &Mesh::new([("data", 1)]).unwrap()).unwrap()
        };
        let large = largest(&step, 3);
        let groups: Vec<_> =
            large.iter().map(|t| (t.name.as_str(), t.device_bytes, t.count)).collect();
        assert_eq!(groups[0], ("input 1", 400_000, 1), "{large:?}");
        // Each device has an eighth of the rows of the results.
        assert_eq!((groups[1].1, groups[2].1), (8 * 1000 * 4, 8 * 1000 * 4), "{large:?}");
        assert!(
            large.iter().all(|t| t.source.contains(&format!("largest_tensors.rs:{line}:"))),
            "{large:?}"
        );
    }
}
