//! Weighted sums of a few elements along one axis, for interpolation. The elements and weights are
//! known while recording.
//!
//! Each sum reads only its own elements: in a product with a matrix of weights, one infinity times
//! 0 would turn every sum into NaN. If the pattern of elements repeats along the axis, as for
//! integer multiples of a size, the sums use strided slices, whose derivatives are paddings.
//! Otherwise the elements are gathered, and the derivative is a product with the matrix of weights,
//! which a TPU's matrix unit computes. The derivative of a gather would be a scatter, which a TPU
//! executes one element at a time. The product has f32 precision, since a single bf16 pass would
//! change even values that interpolation copies.

use std::collections::BTreeMap;

use super::control_flow::custom_gradient;
use super::gather::{Dimensions, Gather};
use crate::autocast::wide;
use crate::lower::Lowering;
use crate::operation::{Operation, Vjp, one};
use crate::{DType, Tensor, TensorType};

/// The old elements of a new one, each with its nonzero weight.
pub(super) type Taps = Vec<(usize, f64)>;

/// The largest number of slices for one axis.
const MAX_SLICES: usize = 128;

/// `y[…, o] = Σᵢ x[…, i, …] · w[o, i]`, or with `w[i, o]`. The new axis `o` comes last.
#[derive(Debug)]
struct AlongAxis {
    method: &'static str,
    /// The axis of the input that is contracted.
    axis: usize,
    /// The axis of the weights that is contracted.
    contracted: usize,
}

impl Operation for AlongAxis {
    fn name(&self) -> &'static str {
        self.method
    }
    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, String> {
        let mut shape = inputs[0].shape.to_vec();
        shape.remove(self.axis);
        shape.push(inputs[1].shape[1 - self.contracted]);
        one(TensorType::new(inputs[0].dtype, shape))
    }
    fn vjp(&self, cx: &Vjp<'_>) -> Vec<Option<Tensor>> {
        let last = cx.output().rank() - 1;
        let back = AlongAxis { method: self.method, axis: last, contracted: 1 - self.contracted };
        let gradient = Tensor::apply(back, &[&cx.cotangent(), cx.input(1)]);
        // The weights are constants.
        vec![Some(gradient.movedim(-1, self.axis as isize)), None]
    }
    fn lower(&self, cx: &mut Lowering<'_>) -> String {
        let precision = if cx.result().dtype == DType::F32 { "HIGHEST" } else { "DEFAULT" };
        format!(
            "stablehlo.dot_general {}, contracting_dims = [{}] x [{}], precision = [{precision}, {precision}] : {}",
            cx.operands(),
            self.axis,
            self.contracted,
            cx.signature()
        )
    }
}

/// The weighted sums along `axis`, with one list of taps for each new element. 16-bit floats are
/// summed as f32.
pub(super) fn along_axis(method: &'static str, x: &Tensor, axis: usize, taps: &[Taps]) -> Tensor {
    let from = wide(x);
    let sums = match phases(taps, x.shape()[axis]) {
        Some(phases) => sums_by_slices(&from, axis, taps.len(), &phases),
        None => sums_by_gathers(method, &from, axis, taps),
    };
    sums.to_dtype(x.dtype())
}

/// One tap of every `stride`-th new element, from number `first` on.
struct Run {
    first: usize,
    /// The old element that the first new element reads. Each next one reads further by the same
    /// step.
    start: usize,
    weights: Vec<f64>,
}

pub(super) fn greatest_common_divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}

/// New elements `j`, `j + stride`, … read old elements in equal steps. Returns the runs for each
/// `j` below the stride, ordered by their offsets. `None` if this takes too many slices.
fn phases(taps: &[Taps], from: usize) -> Option<Vec<Vec<Run>>> {
    let count = greatest_common_divisor(from, taps.len());
    let stride = taps.len() / count;
    let step = from / count;
    let mut phases = Vec::new();
    let mut slices = 0;
    for j in 0..stride {
        let mut runs: BTreeMap<i64, Run> = BTreeMap::new();
        for (q, taps) in taps.iter().skip(j).step_by(stride).enumerate() {
            for &(start, weight) in taps {
                let offset = start as i64 - (q * step) as i64;
                let run =
                    runs.entry(offset).or_insert(Run { first: q, start, weights: Vec::new() });
                if run.first + run.weights.len() != q {
                    return None;
                }
                run.weights.push(weight);
            }
        }
        slices += runs.len();
        if slices > MAX_SLICES {
            return None;
        }
        phases.push(runs.into_values().collect());
    }
    Some(phases)
}

/// Multiplies `part` by one weight for each element along `axis`.
fn scale(part: &Tensor, axis: usize, weights: &[f64]) -> Tensor {
    match weights {
        [first, rest @ ..] if rest.iter().all(|weight| weight == first) => {
            if *first == 1.0 {
                part.clone()
            } else {
                part * *first
            }
        }
        _ => {
            let mut shape = vec![1; part.rank() - axis];
            shape[0] = weights.len();
            part * numbers(weights, part.dtype()).reshape(shape)
        }
    }
}

/// A constant vector of these numbers.
fn numbers(values: &[f64], dtype: DType) -> Tensor {
    match dtype {
        DType::F64 => Tensor::from_slice(values, [values.len()]),
        _ => Tensor::from_slice(
            &values.iter().map(|&v| v as f32).collect::<Vec<_>>(),
            [values.len()],
        ),
    }
}

/// The sums, by slices.
fn sums_by_slices(x: &Tensor, axis: usize, to: usize, phases: &[Vec<Run>]) -> Tensor {
    let count = to / phases.len();
    let step = x.shape()[axis] / count;
    let zeros = vec![0; x.rank()];
    let mut sums = Vec::new();
    for runs in phases {
        let mut sum: Option<Tensor> = None;
        for run in runs {
            let mut start = zeros.clone();
            let mut limit = x.shape().to_vec();
            let mut stride = vec![1; x.rank()];
            start[axis] = run.start;
            limit[axis] = run.start + (run.weights.len() - 1) * step + 1;
            stride[axis] = step;
            let mut part = scale(&x.slice(&start, &limit, &stride), axis, &run.weights);
            let mut low = vec![0; x.rank()];
            let mut high = vec![0; x.rank()];
            low[axis] = run.first as i64;
            high[axis] = (count - run.first - run.weights.len()) as i64;
            let is_whole = run.weights.len() == count;
            if !is_whole {
                part = part.pad(&Tensor::zeros(x.dtype(), []), &low, &high, &zeros);
            }
            sum = Some(match sum {
                Some(sum) => sum + part,
                None => part,
            });
        }
        sums.extend(sum);
    }
    let mut shape = x.shape().to_vec();
    shape[axis] = to;
    Tensor::stack(&sums, axis as isize + 1).reshape(shape)
}

/// The `t`-th element of each list of taps, and its weight: 0 if the list is shorter.
fn column(taps: &[Taps], t: usize) -> (Tensor, Vec<f64>) {
    let mut indices = Vec::new();
    let mut weights = Vec::new();
    for taps in taps {
        let (index, weight) =
            taps.get(t).copied().unwrap_or((taps.first().map_or(0, |tap| tap.0), 0.0));
        indices.push(index as i32);
        weights.push(weight);
    }
    (Tensor::from_slice(&indices, [indices.len()]), weights)
}

fn longest(taps: &[Taps]) -> usize {
    taps.iter().map(Vec::len).max().unwrap_or(0)
}

/// The sums, by gathers, with a product as the derivative.
fn sums_by_gathers(method: &'static str, x: &Tensor, axis: usize, taps: &[Taps]) -> Tensor {
    let mut sum = Tensor::zeros(x.dtype(), []);
    let from = x.shape()[axis];
    let owned = taps.to_vec();
    let dimensions = Dimensions::along(axis, x.rank(), 1);
    let forward = |x: Tensor| {
        for t in 0..longest(taps) {
            let (indices, weights) = column(taps, t);
            let gather = Gather { method, dimensions: dimensions.clone() };
            let part = scale(&Tensor::apply(gather, &[&x, &indices]), axis, &weights);
            let mut shape = vec![1; part.rank() - axis];
            shape[0] = taps.len();
            let exists =
                numbers(&weights, DType::F32).ne(0.0).reshape(shape).broadcast_to(part.shape());
            let is_whole = weights.iter().all(|&weight| weight != 0.0);
            sum = &sum + if is_whole { part } else { exists.select(&part, &part.zeros_like()) };
        }
        sum
    };
    let backward = move |_: &Tensor, _: &Tensor, g: &Tensor| {
        let index = Tensor::arange(DType::I32, from).broadcast_to([owned.len(), from]);
        let mut matrix = Tensor::zeros(g.dtype(), [owned.len(), from]);
        for t in 0..longest(&owned) {
            let (indices, weights) = column(&owned, t);
            let is_tap = index.eq(indices.reshape([owned.len(), 1])).to_dtype(g.dtype());
            matrix = matrix + is_tap * numbers(&weights, g.dtype()).reshape([owned.len(), 1]);
        }
        let product = Tensor::apply(AlongAxis { method, axis, contracted: 0 }, &[g, &matrix]);
        product.movedim(-1, axis as isize)
    };
    custom_gradient(x, forward, backward)
}
