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

/// The `limit` largest groups of tensors. A value whose first axis is as long as that of its
/// operands, such as the batch axis, is assumed to be split like them. Operations recorded in
/// internal files are the optimizer's arithmetic, which needs no additional memory.
pub(crate) fn largest(step: &Step, limit: usize) -> Vec<LargeTensor> {
    let (recorded, parts) = (&step.recorded, &step.parts);
    let mut split: Vec<usize> = Vec::with_capacity(recorded.len());
    for value in recorded {
        let first_axis = |i: usize| recorded.get(i)?.types.first()?.shape.first().copied();
        let length = value.types.first().and_then(|ty| ty.shape.first().copied());
        let inherited = value
            .operands
            .iter()
            .filter(|&&i| length.is_some() && first_axis(i) == length)
            .filter_map(|&i| split.get(i).copied())
            .max();
        split.push(match value.parameter {
            Some(number) => parts.get(number).copied().unwrap_or(1),
            None => inherited.unwrap_or(1),
        });
    }
    let mut groups: BTreeMap<(String, String, u64), (TensorType, u64)> = BTreeMap::new();
    let uses: BTreeMap<&str, String> = (recorded.iter().enumerate())
        .filter_map(|(i, value)| Some((value.name.as_deref()?, first_use(step, i)?)))
        .collect();
    for (value, parts) in recorded.iter().zip(&split) {
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
            let bytes = (ty.size_in_bytes() as u64).div_ceil(*parts as u64);
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
