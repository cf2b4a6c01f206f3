//! Cutting out a box of elements, with steps.

use crate::lower::Lowering;
use crate::operation::{Operation, Vjp, one};
use crate::shape::within_reach;
use crate::{Tensor, TensorType};

#[derive(Debug)]
struct Slice {
    start: Vec<usize>,
    limit: Vec<usize>,
    stride: Vec<usize>,
}

impl Slice {
    /// The elements taken along axis `i`.
    fn count(&self, i: usize) -> usize {
        (self.limit[i] - self.start[i]).div_ceil(self.stride[i])
    }
}

impl Operation for Slice {
    fn name(&self) -> &'static str {
        "slice"
    }
    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, String> {
        let from = &inputs[0].shape;
        let rank = from.rank();
        if [&self.start, &self.limit, &self.stride].iter().any(|v| v.len() != rank) {
            return Err(format!("start, limit and stride must have one entry for each of the {rank} axes of {from}"));
        }
        for axis in 0..rank {
            let (start, limit, stride) = (self.start[axis], self.limit[axis], self.stride[axis]);
            if start > limit || limit > from[axis] || stride == 0 {
                return Err(format!("{start}..{limit} in steps of {stride} does not lie within axis {axis} of {from}"));
            }
            within_reach("stride", axis, stride as i128)?;
        }
        let to: Vec<usize> = (0..rank).map(|i| self.count(i)).collect();
        one(TensorType::new(inputs[0].dtype, to))
    }
    fn vjp(&self, cx: &Vjp<'_>) -> Vec<Option<Tensor>> {
        let from = cx.input(0).shape();
        let low: Vec<i64> = self.start.iter().map(|&s| s as i64).collect();
        let interior: Vec<usize> = self.stride.iter().map(|s| s - 1).collect();
        let high: Vec<i64> = (0..from.rank())
            .map(|i| {
                let covered = match self.count(i) {
                    0 => 0,
                    n => (n - 1) * self.stride[i] + 1,
                };
                (from[i] - self.start[i] - covered) as i64
            })
            .collect();
        let zero = Tensor::full(cx.output().dtype(), [], 0.0);
        vec![Some(cx.cotangent().pad(&zero, &low, &high, &interior))]
    }
    fn lower(&self, cx: &mut Lowering<'_>) -> String {
        let ranges: Vec<String> =
            (0..self.start.len()).map(|i| format!("{}:{}:{}", self.start[i], self.limit[i], self.stride[i])).collect();
        format!("stablehlo.slice {} [{}] : {}", cx.operand(0), ranges.join(", "), cx.signature())
    }
}

impl Tensor {
    /// The elements `start[i], start[i] + stride[i], …` below `limit[i]` along each axis `i`.
    #[track_caller]
    pub fn slice(&self, start: &[usize], limit: &[usize], stride: &[usize]) -> Tensor {
        Tensor::apply(Slice { start: start.into(), limit: limit.into(), stride: stride.into() }, &[self])
    }

    /// The `length` elements from `start` on along one axis (PyTorch's `narrow`).
    #[track_caller]
    pub fn narrow(&self, axis: isize, start: usize, length: usize) -> Tensor {
        if self.fault().is_some() {
            return self.clone();
        }
        match self.shape().axis(axis) {
            Ok(axis) => {
                let (mut from, mut limit) = (vec![0; self.rank()], self.shape().to_vec());
                let size = limit[axis];
                from[axis] = start;
                limit[axis] = start.saturating_add(length);
                if limit[axis] > size {
                    let message =
                        format!("{length} elements from {start} on do not lie within axis {axis} of {}", self.shape());
                    return Tensor::poison("narrow", message);
                }
                self.slice(&from, &limit, &vec![1; self.rank()])
            }
            Err(message) => Tensor::poison("narrow", message),
        }
    }
}
