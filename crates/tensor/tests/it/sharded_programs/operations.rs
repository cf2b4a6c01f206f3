//! [`Op`]: the operations of random programs, with their attributes. Numbers stay small, and no
//! operation jumps where rounding could decide.

use fulmen_tensor::{
    Combine, Convolution, Interpolation, PadMode, Pooling, Scan, Tensor, TriangularSolve, call,
    checkpoint, cond, random,
};
use serde::{Deserialize, Serialize};

use super::program::Step;

/// An operation on tensors of numbers; some operands are indices.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Op {
    Unary(usize),
    Binary(usize),
    Reduce {
        how: usize,
        axes: Vec<isize>,
        keep: bool,
    },
    Along {
        how: usize,
        axis: isize,
    },
    Softmax {
        axis: isize,
        log: bool,
    },
    Reshape(Vec<usize>),
    Permute(Vec<isize>),
    BroadcastTo(Vec<usize>),
    Flip(Vec<isize>),
    Roll {
        shift: isize,
        axis: isize,
    },
    Pad {
        low: Vec<i64>,
        high: Vec<i64>,
        interior: Vec<usize>,
    },
    PadMode {
        how: usize,
        amounts: Vec<(i64, i64)>,
    },
    Slice {
        start: Vec<usize>,
        limit: Vec<usize>,
        stride: Vec<usize>,
    },
    SplitAndSwap {
        axis: isize,
        first: usize,
    },
    Concatenate {
        axis: isize,
    },
    Stack {
        axis: isize,
    },
    Tile(Vec<usize>),
    RepeatInterleave {
        copies: usize,
        axis: isize,
    },
    Index {
        axis: isize,
        index: isize,
    },
    Diagonal {
        offset: i64,
    },
    DiagEmbed {
        offset: i64,
    },
    Triangle {
        diagonal: i64,
        upper: bool,
    },
    Sort {
        axis: isize,
        descending: bool,
    },
    SortTogether {
        axis: isize,
    },
    TopK {
        k: usize,
        axis: isize,
        largest: bool,
    },
    Kth {
        k: usize,
        axis: isize,
    },
    ArgMax {
        axis: isize,
    },
    Take {
        axis: isize,
    },
    Gather {
        axis: isize,
    },
    TakeAlong {
        axis: isize,
    },
    GatherNd,
    OneHot {
        classes: usize,
    },
    WriteAlong {
        axis: isize,
        combine: usize,
    },
    WriteElements {
        axis: isize,
        combine: usize,
    },
    ScatterNd {
        combine: usize,
    },
    DynamicSlice(Vec<usize>),
    DynamicUpdateSlice,
    Matmul,
    DotGeneral {
        batch: [Vec<isize>; 2],
        contracting: [Vec<isize>; 2],
    },
    Einsum(usize),
    Convolution(Window),
    ConvTranspose(Window),
    MaxPool(Window),
    /// The elements at the positions of the largest, which rounding may choose among equal ones.
    MaxPoolPositions(Window),
    AvgPool(Window),
    AdaptiveAvgPool(Vec<usize>),
    AdaptiveMaxPool(Vec<usize>),
    Interpolate {
        sizes: Vec<usize>,
        linear: bool,
    },
    Fft(Vec<isize>),
    Rfft(Vec<isize>),
    Cholesky,
    TriangularSolve {
        right: bool,
    },
    Dropout(u64),
    Moments {
        axes: Vec<isize>,
    },
    Checkpoint(Body),
    Call(Body),
    Cond(Body),
    Scan {
        body: Body,
        reverse: bool,
    },
}

/// The options of convolutions and pooling over two axes, or one.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Window {
    pub(super) size: Vec<usize>,
    pub(super) stride: Vec<usize>,
    pub(super) padding: Vec<i64>,
    pub(super) dilation: Vec<usize>,
    pub(super) groups: usize,
}

impl Window {
    fn convolution(&self) -> Convolution {
        Convolution::new(self.size.len())
            .stride(self.stride.clone())
            .padding(self.padding.iter().map(|&n| (n, n)).collect::<Vec<_>>())
            .dilation(self.dilation.clone())
            .groups(self.groups)
    }

    fn pooling(&self) -> Pooling {
        Pooling::new(self.size.clone())
            .stride(self.stride.clone())
            .padding(self.padding.iter().map(|&n| n as usize).collect::<Vec<_>>())
    }
}

/// The steps within a body. The first values are the operands; the last `captured` of them are
/// captured instead of passed.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Body {
    pub(super) steps: Vec<Step>,
    pub(super) captured: usize,
}

impl Body {
    /// The last value.
    pub(super) fn record(&self, inputs: &[Tensor]) -> Tensor {
        let mut values = inputs.to_vec();
        for step in &self.steps {
            values.push(step.record(&values));
        }
        values.pop().unwrap()
    }

    fn apply(
        &self,
        operands: &[Tensor],
        apply: impl FnOnce(Inner<'_>, &[&Tensor]) -> Vec<Tensor>,
    ) -> Tensor {
        let (passed, captured) = operands.split_at(operands.len() - self.captured);
        let inner = |x: &[Tensor]| vec![self.record(&[x, captured].concat())];
        apply(&inner, &passed.iter().collect::<Vec<_>>()).remove(0)
    }
}

type Inner<'a> = &'a dyn Fn(&[Tensor]) -> Vec<Tensor>;

/// Bounded functions of one tensor.
pub(super) const UNARY: &[fn(&Tensor) -> Tensor] = &[
    Tensor::tanh,
    Tensor::sin,
    Tensor::cos,
    |x| x.sin().exp(),
    Tensor::sigmoid,
    Tensor::relu,
    Tensor::abs,
    Tensor::neg,
    |x| (x * x + 1.0).sqrt(),
    |x| (x * x + 1.0).log(),
    |x| (x * x + 1.0).reciprocal(),
    Tensor::erf,
    |x| x * 0.5 + 0.25,
    |x| x.clamp(-0.7, 0.7),
    |x| x.gt(0.1).select(x, &(x * 0.3)),
    |x| x + x.detach() * 0.5,
    |x| (x.sin() + 1.5).pow(1.3),
];

/// Functions of two tensors with compatible shapes.
pub(super) const BINARY: &[fn(&Tensor, &Tensor) -> Tensor] = &[
    |a, b| a + b,
    |a, b| a - b,
    |a, b| a * b,
    |a, b| a / (b * b + 1.0),
    |a, b| a.maximum(b),
    |a, b| a.minimum(b),
    |a, b| a.atan2(b * b + 1.0),
    |a, b| a.gt(b).select(&(a * 0.5), b),
    |a, b| a.logaddexp(b),
];

type Reduction = fn(&Tensor, &[isize], bool) -> Tensor;

macro_rules! reduction {
    ($method:ident $kept:ident) => {
        |x, axes, keep| if keep { x.$kept(axes) } else { x.$method(axes) }
    };
}

pub(super) const REDUCTIONS: &[Reduction] = &[
    reduction!(sum sum_keepdim),
    reduction!(mean mean_keepdim),
    reduction!(max max_keepdim),
    reduction!(min min_keepdim),
    |x, axes, keep| {
        let x = x.sin() * 0.2 + 1.0;
        if keep { x.prod_keepdim(axes) } else { x.prod(axes) }
    },
    reduction!(var var_keepdim),
    reduction!(logsumexp logsumexp_keepdim),
    |x, axes, keep| {
        let x = x.sin() + 2.0;
        if keep { x.norm_keepdim(2.0, axes) } else { x.norm(2.0, axes) }
    },
];

pub(super) const ALONG: &[fn(&Tensor, isize) -> Tensor] = &[
    |x, axis| x.cumsum(axis) * 0.3,
    |x, axis| (x.sin() * 0.2 + 1.0).cumprod(axis),
    |x, axis| x.cummax(axis).0,
    |x, axis| x.cummin(axis).0,
    |x, axis| x.take_along_axis(axis, x.cummax(axis).1),
    |x, axis| x.take_along_axis(axis, x.cummin(axis).1),
    |x, axis| x.logcumsumexp(axis),
];

/// Equations, and the rank of each operand.
pub(super) const EQUATIONS: &[(&str, &[usize])] = &[
    ("ij,jk->ik", &[2, 2]),
    ("ij,kj->ki", &[2, 2]),
    ("bij,bjk->bik", &[3, 3]),
    ("bij,bkj->kbi", &[3, 3]),
    ("bhqd,bhkd->bhqk", &[4, 4]),
    ("bqhd,bkhd->bhqk", &[4, 4]),
    ("abc,c->ab", &[3, 1]),
    ("ij,ij->i", &[2, 2]),
    ("i,j->ij", &[1, 1]),
    ("abc,acd->bd", &[3, 3]),
];

pub(super) const COMBINES: [Combine; 5] =
    [Combine::Add, Combine::Set, Combine::Mul, Combine::Min, Combine::Max];

impl Op {
    /// The result; poisoned if the operands do not fit.
    pub(super) fn record(&self, x: &[Tensor]) -> Tensor {
        match self {
            Op::Unary(how) => UNARY[*how](&x[0]),
            Op::Binary(how) => BINARY[*how](&x[0], &x[1]),
            Op::Reduce { how, axes, keep } => REDUCTIONS[*how](&x[0], axes, *keep),
            Op::Along { how, axis } => ALONG[*how](&x[0], *axis),
            Op::Softmax { axis, log: false } => x[0].softmax(*axis),
            Op::Softmax { axis, log: true } => x[0].log_softmax(*axis),
            Op::Sort { axis, descending } => x[0].sort(*axis, *descending).0,
            Op::SortTogether { axis } => {
                Tensor::sort_together(&[&x[0], &x[1]], 1, *axis, false).remove(1)
            }
            Op::TopK { k, axis, largest } => {
                let (values, indices) = x[0].topk_along(*k, *axis, *largest);
                values * 0.5 + x[0].take_along_axis(*axis, indices) * 0.5
            }
            Op::Kth { k, axis } => x[0].kthvalue(*k, *axis).0,
            Op::ArgMax { axis } => x[0].argmax(*axis).to_dtype(x[0].dtype()) * 0.1,
            Op::Checkpoint(body) => body.apply(x, |f, x| checkpoint(|x| f(&x), x)),
            Op::Call(body) => body.apply(x, |f, x| call("body", x, |x| f(&x))),
            Op::Cond(body) => body.apply(x, |f, x| {
                let other = |x: Vec<Tensor>| f(&x).into_iter().map(|y| y * 0.5).collect();
                // Centered numbers have the sum 0, up to rounding.
                cond(x[0].sum_all().gt(0.012_345), x, |x| f(&x), other)
            }),
            Op::Scan { body, reverse } => {
                let (carry, ys) =
                    Scan::new().reverse(*reverse).run(&[&x[0]], &[&x[1]], |c, row| {
                        let y = body.record(&[&[c[0].clone(), row[0].clone()], &x[2..]].concat());
                        let carry = &c[0] * 0.5 + y.mean_all();
                        (vec![carry], vec![y])
                    });
                &ys[0] + carry[0].mean_all()
            }
            _ => self.record_arrangement(x),
        }
    }

    fn record_arrangement(&self, x: &[Tensor]) -> Tensor {
        let zero = || Tensor::zeros(x[0].dtype(), []);
        match self {
            Op::Reshape(dims) => x[0].reshape(dims.as_slice()),
            Op::Permute(axes) => x[0].permute(axes),
            Op::BroadcastTo(dims) => x[0].broadcast_to(dims.as_slice()),
            Op::Flip(axes) => x[0].flip(axes),
            Op::Roll { shift, axis } => x[0].roll(*shift, *axis),
            Op::Pad { low, high, interior } => x[0].pad(&zero(), low, high, interior),
            Op::PadMode { how, amounts } => {
                let modes = [PadMode::Reflect, PadMode::Replicate, PadMode::Circular];
                x[0].pad_mode(amounts, modes[*how])
            }
            Op::Slice { start, limit, stride } => x[0].slice(start, limit, stride),
            Op::SplitAndSwap { axis, first } => {
                let rest = x[0].size(*axis).saturating_sub(*first);
                let parts = x[0].split_with_sizes(&[*first, rest], *axis);
                Tensor::concatenate(&[&parts[1], &parts[0]], *axis)
            }
            Op::Concatenate { axis } => Tensor::concatenate(x, *axis),
            Op::Stack { axis } => Tensor::stack(x, *axis),
            Op::Tile(copies) => x[0].tile(copies),
            Op::RepeatInterleave { copies, axis } => x[0].repeat_interleave(*copies, *axis),
            Op::Index { axis, index } => x[0].index(*axis, *index),
            Op::Diagonal { offset } => x[0].diagonal(*offset, 0, 1),
            Op::DiagEmbed { offset } => x[0].diag_embed(*offset),
            Op::Triangle { diagonal, upper: true } => x[0].triu(*diagonal),
            Op::Triangle { diagonal, upper: false } => x[0].tril(*diagonal),
            Op::Dropout(seed) => {
                let kept = random::bernoulli(&random::key(*seed), 0.7, x[0].shape());
                kept.select(&x[0], &x[0].zeros_like())
            }
            _ => self.record_indexing(x),
        }
    }

    fn record_indexing(&self, x: &[Tensor]) -> Tensor {
        let known = |y: Tensor| y.is_finite().select(&y, &y.zeros_like());
        match self {
            Op::Take { axis } => known(x[0].take(*axis, &x[1])),
            Op::Gather { axis } => known(x[0].gather(*axis, &x[1])),
            Op::TakeAlong { axis } => known(x[0].take_along_axis(*axis, &x[1])),
            Op::GatherNd => known(x[0].gather_nd(&x[1])),
            Op::OneHot { classes } => &x[0] * x[1].one_hot(*classes).to_dtype(x[0].dtype()),
            Op::WriteAlong { axis, combine } => {
                x[0].index_reduce(*axis, &x[1], &x[2], COMBINES[*combine])
            }
            Op::WriteElements { axis, combine } => {
                x[0].scatter_reduce(*axis, &x[1], &x[2], COMBINES[*combine])
            }
            Op::ScatterNd { combine } => x[0].scatter_nd(&x[1], &x[2], COMBINES[*combine]),
            Op::DynamicSlice(sizes) => x[0].dynamic_slice(&x[1..], sizes),
            Op::DynamicUpdateSlice => x[0].dynamic_update_slice(&x[1], &x[2..]),
            _ => self.record_product(x),
        }
    }

    fn record_product(&self, x: &[Tensor]) -> Tensor {
        match self {
            Op::Matmul => x[0].matmul(&x[1]) * 0.3,
            Op::DotGeneral { batch, contracting } => {
                let product = x[0].dot_general(
                    &x[1],
                    (&batch[0], &batch[1]),
                    (&contracting[0], &contracting[1]),
                );
                product * 0.3
            }
            Op::Einsum(how) => Tensor::einsum(EQUATIONS[*how].0, x) * 0.3,
            Op::Convolution(window) => x[0].convolution(&x[1], &window.convolution()) * 0.2,
            Op::ConvTranspose(window) => x[0].conv_transpose(&x[1], &window.convolution()) * 0.2,
            Op::MaxPool(window) => x[0].max_pool(&window.pooling()),
            Op::MaxPoolPositions(window) => {
                let [largest, positions] = x[0].max_pool_with_indices(&window.pooling());
                let chosen = x[0].flatten(2, -1).take_along_axis(-1, positions.flatten(2, -1));
                largest * 0.5 + chosen.reshape(positions.shape()) * 0.5
            }
            Op::AvgPool(window) => x[0].avg_pool(&window.pooling()),
            Op::AdaptiveAvgPool(sizes) => x[0].adaptive_avg_pool(sizes),
            Op::AdaptiveMaxPool(sizes) => x[0].adaptive_max_pool(sizes),
            Op::Interpolate { sizes, linear } => {
                let linear_mode = Interpolation::Linear { align_corners: false };
                let mode = if *linear { linear_mode } else { Interpolation::Nearest };
                x[0].interpolate(sizes, mode)
            }
            Op::Fft(axes) => {
                let y = x[0].fft(axes);
                y.real() * 0.3 + y.imag() * 0.2
            }
            Op::Rfft(axes) => {
                let y = x[0].rfft(axes);
                let n = x[0].size(axes[axes.len() - 1]);
                y.irfft(axes, n) + y.real().mean_all()
            }
            Op::Cholesky => positive(&x[0]).cholesky(),
            Op::TriangularSolve { right } => {
                let how = TriangularSolve::lower();
                let how = if *right { how.right() } else { how };
                let n = x[0].size(-1);
                let matrix = x[0].sin() * 0.2 + Tensor::eye(x[0].dtype(), n, n) * 2.0;
                matrix.triangular_solve(&x[1], &how)
            }
            Op::Moments { axes } => {
                let centered = &x[0] - x[0].mean_keepdim(axes);
                &centered / (x[0].var_keepdim(axes) + 0.1).sqrt()
            }
            _ => Tensor::poison("record", "not an operation"),
        }
    }
}

/// A positive definite matrix.
fn positive(x: &Tensor) -> Tensor {
    let n = x.size(-1);
    x.matmul(x.transpose(-1, -2)) * 0.2 + Tensor::eye(x.dtype(), n, n)
}
