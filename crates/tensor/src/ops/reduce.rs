//! Reductions: many elements along some axes become one.
//!
//! Not here: averages, [`moments`](super::moments); the places of extremes, [`arg_reduce`](super::arg_reduce); lengths of
//! vectors, [`norm`](super::norm); results at every place along an axis, [`cumulative`](super::cumulative).

use super::dtype_set::DTypeSet;
use super::unary::methods;
use crate::autocast::{result_of, wide};
use crate::lower::Lowering;
use crate::operation::{Operation, Vjp, one};
use crate::scope::Refusal;
use crate::{DType, Tensor, TensorType, grad};

/// How two elements become one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reducer {
    Sum,
    Prod,
    Max,
    Min,
    And,
    Or,
}

impl Reducer {
    /// The StableHLO operation that combines two elements.
    pub(super) fn stablehlo(self) -> &'static str {
        match self {
            Reducer::Sum => "stablehlo.add",
            Reducer::Prod => "stablehlo.multiply",
            Reducer::Max => "stablehlo.maximum",
            Reducer::Min => "stablehlo.minimum",
            Reducer::And => "stablehlo.and",
            Reducer::Or => "stablehlo.or",
        }
    }

    /// MLIR's spelling of the element that changes nothing.
    pub(super) fn identity(self, dtype: DType) -> String {
        if dtype.is_complex() {
            // Only sums take these.
            return "(0.0, 0.0)".into();
        }
        let bits = 8 * dtype.size_in_bytes() as u32;
        let most = if dtype.is_unsigned() { u64::MAX >> (64 - bits) } else { u64::MAX >> (65 - bits) };
        match (self, dtype) {
            (Reducer::Or, _) => "false".into(),
            (Reducer::And, _) => "true".into(),
            (Reducer::Sum, _) if dtype.is_float() => "0.0".into(),
            (Reducer::Sum, _) => "0".into(),
            (Reducer::Prod, _) if dtype.is_float() => "1.0".into(),
            (Reducer::Prod, _) => "1".into(),
            (Reducer::Max, DType::F32) => "0xFF800000".into(),
            (Reducer::Max, DType::F64) => "0xFFF0000000000000".into(),
            (Reducer::Max, DType::Bf16) => "0xFF80".into(),
            (Reducer::Max, DType::F16) => "0xFC00".into(),
            (Reducer::Min, DType::F32) => "0x7F800000".into(),
            (Reducer::Min, DType::F64) => "0x7FF0000000000000".into(),
            (Reducer::Min, DType::Bf16) => "0x7F80".into(),
            (Reducer::Min, DType::F16) => "0x7C00".into(),
            (Reducer::Max, _) if dtype.is_unsigned() => "0".into(),
            (Reducer::Max, _) => format!("-{}", u128::from(most) + 1),
            (Reducer::Min, _) => most.to_string(),
        }
    }
}

fn no_element(from: &TensorType, axes: &[usize]) -> String {
    format!("{from} has no element along the axes {axes:?} to choose from")
}

#[derive(Debug)]
struct Reduce {
    method: &'static str,
    reducer: Reducer,
    /// Sorted and different.
    axes: Vec<usize>,
}

impl Operation for Reduce {
    fn name(&self) -> &'static str {
        self.method
    }
    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, String> {
        let from = inputs[0];
        match self.reducer {
            Reducer::And | Reducer::Or if from.dtype == DType::Bool => {}
            Reducer::And | Reducer::Or => return Err(format!("takes booleans, not {}", from.dtype)),
            Reducer::Sum => DTypeSet::NumbersAndComplex.check(from.dtype)?,
            _ => DTypeSet::Numbers.check(from.dtype)?,
        }
        if matches!(self.reducer, Reducer::Max | Reducer::Min) && self.axes.iter().any(|&a| from.shape[a] == 0) {
            return Err(no_element(from, &self.axes));
        }
        let kept = (0..from.shape.rank()).filter(|a| !self.axes.contains(a));
        one(TensorType::new(from.dtype, kept.map(|a| from.shape[a]).collect::<Vec<_>>()))
    }
    fn vjp(&self, cx: &Vjp<'_>) -> Vec<Option<Tensor>> {
        let x = cx.input(0);
        match self.reducer {
            Reducer::And | Reducer::Or => return vec![None],
            Reducer::Prod => return vec![Some(product_vjp(x, &self.axes, &cx.cotangent()))],
            Reducer::Sum | Reducer::Max | Reducer::Min => {}
        }
        let kept: Vec<usize> = (0..x.rank()).filter(|a| !self.axes.contains(a)).collect();
        let spread = |t: &Tensor| t.broadcast_in_dim(x.shape(), &kept);
        let g = spread(&cx.cotangent());
        vec![Some(match self.reducer {
            Reducer::Sum | Reducer::Prod | Reducer::And | Reducer::Or => g,
            // Elements that tie for the extreme share its gradient.
            Reducer::Max | Reducer::Min => {
                // A NaN is chosen too, though it equals nothing.
                let chosen = x.eq(spread(cx.output())).or(x.ne(x)).to_dtype(x.dtype());
                let axes: Vec<isize> = self.axes.iter().map(|&a| a as isize).collect();
                g * &chosen / spread(&chosen.sum(&axes))
            }
        })]
    }
    fn lower(&self, cx: &mut Lowering<'_>) -> String {
        let dtype = cx.result().dtype;
        let start = cx.constant(dtype, &self.reducer.identity(dtype));
        format!(
            "stablehlo.reduce({} init: {start}) applies {} across dimensions = {:?} : ({}, {}) -> {}",
            cx.operand(0),
            self.reducer.stablehlo(),
            self.axes,
            cx.operand_type(0).stablehlo(),
            TensorType::scalar(dtype).stablehlo(),
            cx.result().stablehlo()
        )
    }
}

/// The cotangent of `x` in its product along `axes`, which are sorted. Exact where elements are 0: it is that of a tree
/// of multiplications, and nothing is divided.
fn product_vjp(x: &Tensor, axes: &[usize], g: &Tensor) -> Tensor {
    // A node of its own: `g` may be computed from `x`.
    let leaf = x.unsqueeze(0);
    let product = product_tree(&leaf.squeeze(0), axes);
    match grad(&(product * g).sum_all(), &[&leaf]).into_iter().next() {
        Some(gradient) => gradient.squeeze(0),
        None => x.zeros_like(),
    }
}

/// The product along `axes`, by multiplying one half with the other again and again.
fn product_tree(x: &Tensor, axes: &[usize]) -> Tensor {
    let kept: Vec<usize> = (0..x.rank()).filter(|a| !axes.contains(a)).collect();
    let mut to: Vec<usize> = kept.iter().map(|&a| x.shape()[a]).collect();
    let mut n: usize = axes.iter().map(|&a| x.shape()[a]).product();
    let result = to.clone();
    to.push(n);
    let mut tree = x.permuted([kept.as_slice(), axes].concat()).reshape(to);
    if n == 0 {
        return Tensor::ones(x.dtype(), result);
    }
    while n > 1 {
        let half = n / 2;
        let pairs = tree.narrow(-1, 0, half) * tree.narrow(-1, half, half);
        // The odd one waits for the next round.
        tree = match n % 2 {
            0 => pairs,
            _ => Tensor::concatenate(&[&pairs, &tree.narrow(-1, n - 1, 1)], -1),
        };
        n = n.div_ceil(2);
    }
    tree.reshape(result)
}

/// Reductions, each in two methods: doc, the method, the one that keeps the axes, the parameters, what they give, and the
/// value, a `Result`, given this tensor and whether the axes stay, `|x, keepdim|`.
macro_rules! reductions {
    ($(
        $(#[$doc:meta])*
        $method:ident, $kept:ident($($arg:ident: $ty:ty),*) -> $result:ty, |$x:ident, $keepdim:ident| $value:expr;
    )*) => {
        impl $crate::Tensor {$(
            $(#[$doc])*
            #[track_caller]
            pub fn $method(&self, $($arg: $ty),*) -> $result {
                $crate::Tensor::record(stringify!($method), || {
                    let ($x, $keepdim) = (self.live()?, false);
                    $value
                })
            }

            #[doc = concat!("As [`Tensor::", stringify!($method), "`], but the axes stay, with size 1.")]
            #[track_caller]
            pub fn $kept(&self, $($arg: $ty),*) -> $result {
                $crate::Tensor::record(stringify!($method), || {
                    let ($x, $keepdim) = (self.live()?, true);
                    $value
                })
            }
        )*}
    };
}
pub(super) use reductions;

methods! {
    /// The sum of all elements: a scalar.
    sum_all() -> Tensor, |x| Ok(x.sum(&x.all_axes()));
}

impl Tensor {
    /// The reduction for `method`, which faults and autocast know it by.
    pub(super) fn reduce(&self, method: &'static str, reducer: Reducer, axes: &[isize], keepdim: bool) -> Tensor {
        Tensor::record(method, || {
            let axes = self.live()?.shape().axes(axes)?;
            let to = result_of(method, self.dtype());
            if axes.is_empty() {
                return Ok(self.to_dtype(to));
            }
            let mut kept = self.shape().to_vec();
            axes.iter().for_each(|&a| kept[a] = 1);
            // A 16-bit sum stops growing at 256 or 2048 ones; an extreme is one of the elements.
            let long = matches!(reducer, Reducer::Sum | Reducer::Prod);
            let from = if long { wide(self) } else { self.clone() };
            let reduced = Tensor::try_apply(Reduce { method, reducer, axes }, &[&from])?.to_dtype(to);
            Ok(if keepdim { reduced.reshape(kept) } else { reduced })
        })
    }

    /// Booleans as numbers that count them, i32, or i64 where an i32 may be too small; anything else as it is.
    pub(super) fn countable(&self) -> Tensor {
        if self.dtype() != DType::Bool {
            return self.clone();
        }
        let fits = self.shape().num_elements() <= i32::MAX as usize;
        self.to_dtype(if fits { DType::I32 } else { DType::I64 })
    }

    /// The largest or the smallest; of booleans, `true` is larger than `false`.
    pub(super) fn extreme(
        &self,
        method: &'static str,
        reducer: Reducer,
        axes: &[isize],
        keepdim: bool,
    ) -> Result<Tensor, Refusal> {
        let found = self.live()?.shape().axes(axes)?;
        let reducer = match reducer {
            _ if self.dtype() != DType::Bool => reducer,
            // Of nothing there is a disjunction, but no extreme.
            _ if found.iter().any(|&axis| self.shape()[axis] == 0) => return Err(no_element(self.ty(), &found).into()),
            Reducer::Max => Reducer::Or,
            _ => Reducer::And,
        };
        Ok(self.reduce(method, reducer, axes, keepdim))
    }

    /// Every axis.
    pub(super) fn all_axes(&self) -> Vec<isize> {
        (0..self.rank() as isize).collect()
    }
}

reductions! {
    /// The sum along `axes`, which vanish. The sum of nothing is 0. 16-bit floats are
    /// summed as f32, integers in their own dtype. Of booleans it is the number of those that are true, an i32, or an i64
    /// where an i32 may be too small.
    ///
    /// Poisoned if an axis is named twice or out of range, as is every reduction here.
    sum, sum_keepdim(axes: &[isize]) -> Tensor, |x, keepdim| Ok(x.countable().reduce("sum", Reducer::Sum, axes, keepdim));

    /// The product along `axes`, which vanish. The product of nothing is 1. 16-bit
    /// floats are multiplied as f32, booleans as i32. The gradient, the product of all others, is right where elements
    /// are 0.
    ///
    /// ```
    /// use fulmen_tensor::{Tensor, grad};
    /// let x = Tensor::from_slice(&[2.0f32, 0.0, 5.0], [3]);
    /// let dx = &grad(&x.prod(&[0]), &[&x])[0];
    /// assert_eq!(dx.eval()?.to_vec::<f32>()?, [0.0, 10.0, 0.0]);
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    prod, prod_keepdim(axes: &[isize]) -> Tensor, |x, keepdim| Ok(x.countable().reduce("prod", Reducer::Prod, axes, keepdim));

    /// The largest element along `axes` (PyTorch's `amax`); NaN if one is NaN, and `true` is larger than `false`. Ties
    /// share the gradient. Poisoned if there is no element along an axis.
    max, max_keepdim(axes: &[isize]) -> Tensor, |x, keepdim| x.extreme("max", Reducer::Max, axes, keepdim);

    /// The smallest element along `axes` (PyTorch's `amin`); NaN if one is NaN, and `false` is smaller than `true`. Ties
    /// share the gradient. Poisoned if there is no element along an axis.
    min, min_keepdim(axes: &[isize]) -> Tensor, |x, keepdim| x.extreme("min", Reducer::Min, axes, keepdim);

    /// Whether any element along `axes` is true, or is not 0: booleans. False of nothing.
    any, any_keepdim(axes: &[isize]) -> Tensor, |x, keepdim| {
        Ok(x.to_dtype(DType::Bool).reduce("any", Reducer::Or, axes, keepdim))
    };

    /// Whether all elements along `axes` are true, or not 0: booleans. True of nothing.
    all, all_keepdim(axes: &[isize]) -> Tensor, |x, keepdim| {
        Ok(x.to_dtype(DType::Bool).reduce("all", Reducer::And, axes, keepdim))
    };

    /// How many elements along `axes` are true, or not 0, NaNs among them: i32, or i64 where an i32 may be too small.
    ///
    /// ```
    /// use fulmen_tensor::Tensor;
    /// let x = Tensor::from_slice(&[0.0f32, 3.0, -1.0, 0.0], [2, 2]);
    /// assert_eq!(x.count_nonzero(&[0, 1]).eval()?.to_vec::<i32>()?, [2]);
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    count_nonzero, count_nonzero_keepdim(axes: &[isize]) -> Tensor, |x, keepdim| {
        let nonzero = x.to_dtype(DType::Bool).countable();
        Ok(nonzero.reduce("count_nonzero", Reducer::Sum, axes, keepdim))
    };
}
