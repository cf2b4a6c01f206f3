//! Reductions: `sum`, `prod`, `max`, `min`, `any`, `all` and `count_nonzero` along axes.
//!
//! Out of scope: means and variances ([`moments`](super::moments)), indices of extremes
//! ([`arg_reduce`](super::arg_reduce)), norms ([`norm`](super::norm)), and cumulative reductions
//! ([`cumulative`](super::cumulative)).

use super::dtype_set::DTypeSet;
use super::optimization_barrier::computed_once;
use super::unary::methods;
use crate::autocast::{result_dtype, wide};
use crate::lower::Lowering;
use crate::operation::{Operation, Vjp, one};
use crate::scope::Refusal;
use crate::{AsAxes, DType, Tensor, TensorType, grad};

/// How two elements are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reducer {
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

    /// The identity element in MLIR's syntax.
    pub(super) fn identity(self, dtype: DType) -> String {
        if dtype.is_complex() {
            // Only sums accept complex numbers.
            return "(0.0, 0.0)".into();
        }
        let bits = 8 * dtype.size_in_bytes() as u32;
        let most =
            if dtype.is_unsigned() { u64::MAX >> (64 - bits) } else { u64::MAX >> (65 - bits) };
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

#[derive(Clone, Debug)]
pub(crate) struct Reduce {
    pub(crate) method: &'static str,
    pub(crate) reducer: Reducer,
    /// Sorted, without duplicates.
    pub(crate) axes: Vec<usize>,
}

impl Reduce {
    /// For each operand, the axis of the result that each of its axes becomes; `None` for an axis that
    /// the result does not have.
    pub(crate) fn result_axes(&self, inputs: &[&TensorType]) -> Vec<Vec<Option<usize>>> {
        let mut kept = 0;
        let axes = (0..inputs[0].shape.rank()).map(|axis| {
            if self.axes.contains(&axis) {
                return None;
            }
            kept += 1;
            Some(kept - 1)
        });
        vec![axes.collect()]
    }
}

impl Operation for Reduce {
    fn name(&self) -> &'static str {
        self.method
    }
    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, String> {
        let from = inputs[0];
        match self.reducer {
            Reducer::And | Reducer::Or if from.dtype == DType::Bool => {}
            Reducer::And | Reducer::Or => {
                return Err(format!("takes booleans, not {}", from.dtype));
            }
            Reducer::Sum => DTypeSet::NumbersAndComplex.check(from.dtype)?,
            _ => DTypeSet::Numbers.check(from.dtype)?,
        }
        if matches!(self.reducer, Reducer::Max | Reducer::Min)
            && self.axes.iter().any(|&a| from.shape[a] == 0)
        {
            return Err(no_element(from, &self.axes));
        }
        let kept_axes = (0..from.shape.rank()).filter(|a| !self.axes.contains(a));
        one(TensorType::new(from.dtype, kept_axes.map(|a| from.shape[a]).collect::<Vec<_>>()))
    }
    fn vjp(&self, cx: &Vjp<'_>) -> Vec<Option<Tensor>> {
        let x = cx.input(0);
        match self.reducer {
            Reducer::And | Reducer::Or => return vec![None],
            Reducer::Prod => return vec![Some(product_vjp(x, &self.axes, &cx.cotangent()))],
            Reducer::Sum | Reducer::Max | Reducer::Min => {}
        }
        let kept_axes: Vec<usize> = (0..x.rank()).filter(|a| !self.axes.contains(a)).collect();
        let spread = |t: &Tensor| t.broadcast_along(x.shape(), &kept_axes);
        let g = spread(&cx.cotangent());
        vec![Some(match self.reducer {
            Reducer::Sum | Reducer::Prod | Reducer::And | Reducer::Or => g,
            // Tied elements share the gradient.
            Reducer::Max | Reducer::Min => {
                let x = &computed_once(&[x])[0];
                let extreme = Tensor::apply(self.clone(), &[x]);
                // A NaN is selected too, although it equals nothing.
                let mask = x.eq(spread(&extreme)).or(x.ne(x)).to_dtype(x.dtype());
                let axes: Vec<isize> = self.axes.iter().map(|&a| a as isize).collect();
                // A 16-bit float cannot hold the number of many tied elements.
                let ties = spread(&wide(&mask).sum(&axes));
                (g * &mask / ties).to_dtype(x.dtype())
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

/// The cotangent of `x`, given the cotangent `g` of its product along the sorted `axes`. It
/// differentiates a tree of multiplications, without a division, so it is exact where elements are
/// 0.
fn product_vjp(x: &Tensor, axes: &[usize], g: &Tensor) -> Tensor {
    // A separate node, since `g` may depend on `x`.
    let leaf = x.unsqueeze(0);
    let product = product_tree(&leaf.squeeze(0), axes);
    match grad(&(product * g).sum_all(), &[&leaf]).into_iter().next() {
        Some(gradient) => gradient.squeeze(0),
        None => x.zeros_like(),
    }
}

/// The product along `axes`, by repeated multiplication of one half with the other.
fn product_tree(x: &Tensor, axes: &[usize]) -> Tensor {
    let kept_axes: Vec<usize> = (0..x.rank()).filter(|a| !axes.contains(a)).collect();
    let mut to: Vec<usize> = kept_axes.iter().map(|&a| x.shape()[a]).collect();
    let mut n: usize = axes.iter().map(|&a| x.shape()[a]).product();
    let result = to.clone();
    to.push(n);
    let mut tree = x.permute_axes([kept_axes.as_slice(), axes].concat()).reshape(to);
    if n == 0 {
        return Tensor::ones(x.dtype(), result);
    }
    while n > 1 {
        let half = n / 2;
        let pairs = tree.narrow(-1, 0, half) * tree.narrow(-1, half, half);
        // An odd element waits for the next round.
        tree = match n % 2 {
            0 => pairs,
            _ => Tensor::concatenate(&[&pairs, &tree.narrow(-1, n - 1, 1)], -1),
        };
        n = n.div_ceil(2);
    }
    tree.reshape(result)
}

/// Reductions, each as two methods. A row has the doc, the method, the variant that keeps the axes,
/// the parameters, the result type, and the value. The value is a `Result`, given this tensor and
/// whether the axes stay: `|x, keepdim|`.
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
                    let $x = self.live()?;
                    let $keepdim = false;
                    $value
                })
            }

            #[doc = concat!("Like [`Tensor::", stringify!($method), "`], but the axes stay, with size 1.")]
            #[track_caller]
            pub fn $kept(&self, $($arg: $ty),*) -> $result {
                $crate::Tensor::record(stringify!($method), || {
                    let $x = self.live()?;
                    let $keepdim = true;
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
    /// The reduction under the name `method`, which messages and autocast use.
    pub(super) fn reduce(
        &self,
        method: &'static str,
        reducer: Reducer,
        axes: &[isize],
        keepdim: bool,
    ) -> Tensor {
        Tensor::record(method, || {
            let axes = self.live()?.shape().axes(axes)?;
            let dtype = result_dtype(method, self.dtype());
            if axes.is_empty() {
                return Ok(self.to_dtype(dtype));
            }
            let mut keepdim_shape = self.shape().to_vec();
            axes.iter().for_each(|&a| keepdim_shape[a] = 1);
            // A 16-bit sum of ones stops growing at 256 or 2048. An extreme is one of the elements,
            // so it stays narrow.
            let long = matches!(reducer, Reducer::Sum | Reducer::Prod);
            let from = if long { wide(self) } else { self.clone() };
            let output =
                Tensor::try_apply(Reduce { method, reducer, axes }, &[&from])?.to_dtype(dtype);
            Ok(if keepdim { output.reshape(keepdim_shape) } else { output })
        })
    }

    /// Converts booleans to integers for counting: i32, or i64 if an i32 may overflow. Other dtypes
    /// are unchanged.
    pub(super) fn countable(&self) -> Tensor {
        if self.dtype() != DType::Bool {
            return self.clone();
        }
        let fits = self.shape().num_elements() <= i32::MAX as usize;
        self.to_dtype(if fits { DType::I32 } else { DType::I64 })
    }

    /// The largest or the smallest element. For booleans, `true` is larger than `false`.
    pub(super) fn extreme(
        &self,
        method: &'static str,
        reducer: Reducer,
        axes: &[isize],
        keepdim: bool,
    ) -> Result<Tensor, Refusal> {
        let checked_axes = self.live()?.shape().axes(axes)?;
        let reducer = match reducer {
            _ if self.dtype() != DType::Bool => reducer,
            // `Or` and `And` have a value for an empty axis, but an extreme does not exist.
            _ if checked_axes.iter().any(|&axis| self.shape()[axis] == 0) => {
                return Err(no_element(self.ty(), &checked_axes).into());
            }
            Reducer::Max => Reducer::Or,
            _ => Reducer::And,
        };
        Ok(self.reduce(method, reducer, axes, keepdim))
    }

    /// All axes, for methods that reduce a whole tensor.
    pub(super) fn all_axes(&self) -> Vec<isize> {
        (0..self.rank() as isize).collect()
    }
}

reductions! {
    /// The sum along `axes`, which are removed (PyTorch's and NumPy's `sum`). The sum of no
    /// elements is 0. 16-bit floats are summed as f32, integers in their own dtype. For booleans it
    /// is the number of true elements, an i32, or an i64 if an i32 may overflow.
    ///
    /// Like every reduction, it is poisoned if an axis is named twice or does not exist.
    sum, sum_keepdim(axes: impl AsAxes) -> Tensor, |x, keepdim| Ok(x.countable().reduce("sum", Reducer::Sum, axes.as_axes(), keepdim));

    /// The product along `axes`, which are removed (PyTorch's and NumPy's `prod`). The product of
    /// no elements is 1. 16-bit floats are multiplied as f32, booleans as i32. The gradient of an
    /// element is the product of all others, also where elements are 0.
    ///
    /// ```
    /// use fulmen_tensor::{Tensor, grad};
    /// let x = Tensor::from_slice(&[2.0f32, 0.0, 5.0], [3]);
    /// let dx = &grad(&x.prod(0), &[&x])[0];
    /// assert_eq!(dx.eval()?.to_vec::<f32>()?, [0.0, 10.0, 0.0]);
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    prod, prod_keepdim(axes: impl AsAxes) -> Tensor, |x, keepdim| Ok(x.countable().reduce("prod", Reducer::Prod, axes.as_axes(), keepdim));

    /// The largest element along `axes`, which are removed (PyTorch's `amax`); NaN if any element
    /// is NaN. `true` is larger than `false`. Tied elements share the gradient. Poisoned if an axis
    /// is empty, and for complex numbers.
    max, max_keepdim(axes: impl AsAxes) -> Tensor, |x, keepdim| x.extreme("max", Reducer::Max, axes.as_axes(), keepdim);

    /// The smallest element along `axes`, which are removed (PyTorch's `amin`); NaN if any element
    /// is NaN. `false` is smaller than `true`. Tied elements share the gradient. Poisoned if an
    /// axis is empty, and for complex numbers.
    min, min_keepdim(axes: impl AsAxes) -> Tensor, |x, keepdim| x.extreme("min", Reducer::Min, axes.as_axes(), keepdim);

    /// Whether any element along `axes` is true, or nonzero (PyTorch's and NumPy's `any`). The
    /// result is bool: false for no elements.
    any, any_keepdim(axes: impl AsAxes) -> Tensor, |x, keepdim| {
        Ok(x.to_dtype(DType::Bool).reduce("any", Reducer::Or, axes.as_axes(), keepdim))
    };

    /// Whether all elements along `axes` are true, or nonzero (PyTorch's and NumPy's `all`). The
    /// result is bool: true for no elements.
    all, all_keepdim(axes: impl AsAxes) -> Tensor, |x, keepdim| {
        Ok(x.to_dtype(DType::Bool).reduce("all", Reducer::And, axes.as_axes(), keepdim))
    };

    /// The number of elements along `axes` that are true, or nonzero (PyTorch's and NumPy's
    /// `count_nonzero`). NaN counts as nonzero. The result is i32, or i64 if an i32 may overflow.
    ///
    /// ```
    /// use fulmen_tensor::Tensor;
    /// let x = Tensor::from_slice(&[0.0f32, 3.0, -1.0, 0.0], [2, 2]);
    /// assert_eq!(x.count_nonzero([0, 1]).eval()?.to_vec::<i32>()?, [2]);
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    count_nonzero, count_nonzero_keepdim(axes: impl AsAxes) -> Tensor, |x, keepdim| {
        let nonzero = x.to_dtype(DType::Bool).countable();
        Ok(nonzero.reduce("count_nonzero", Reducer::Sum, axes.as_axes(), keepdim))
    };
}
