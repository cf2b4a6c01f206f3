//! Cumulative reductions: for each element, the sum, product, extreme or log-sum-exp of all
//! elements up to it along an axis.
//!
//! Each is one `reduce_window` whose windows reach back to the start of the axis; XLA compiles it
//! to a tree. The derivative of a sum is a sum in the other direction. The derivatives of the
//! others are scans in log₂(n) steps. Step `k` combines every element with the element 2ᵏ positions
//! before it.

use super::dtype_set::DTypeSet;
use super::reduce::Reducer;
use super::unary::methods;
use crate::autocast::{result_dtype, wide};
use crate::lower::Lowering;
use crate::operation::{Operation, Vjp, one};
use crate::scope::Refusal;
use crate::{DType, Tensor, TensorType, grad};

/// How two elements are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Accumulation {
    Reduce(Reducer),
    LogAddExp,
}

impl Accumulation {
    /// The identity element in MLIR's syntax.
    fn identity(self, dtype: DType) -> String {
        match self {
            Accumulation::Reduce(reducer) => reducer.identity(dtype),
            Accumulation::LogAddExp => Reducer::Max.identity(dtype),
        }
    }

    /// The statements that compute `%r` from `%a` and `%b`. Their types are explicit, so that they
    /// fit into any region.
    fn combine(self, scalar: &str) -> String {
        match self {
            Accumulation::Reduce(reducer) => {
                format!("%r = {} %a, %b : {scalar}", reducer.stablehlo())
            }
            // max + log1p(exp(−|a − b|)); for two equal infinities, whose difference is NaN, the
            // sum.
            Accumulation::LogAddExp => format!(
                "%m = stablehlo.maximum %a, %b : {scalar} %d = stablehlo.subtract %a, %b : {scalar} \
                 %u = stablehlo.compare NE, %d, %d : ({scalar}, {scalar}) -> tensor<i1> \
                 %s = stablehlo.add %a, %b : {scalar} %p = stablehlo.abs %d : {scalar} \
                 %n = stablehlo.negate %p : {scalar} %e = stablehlo.exponential %n : {scalar} \
                 %l = stablehlo.log_plus_one %e : {scalar} %t = stablehlo.add %m, %l : {scalar} \
                 %r = stablehlo.select %u, %s, %t : tensor<i1>, {scalar}"
            ),
        }
    }
}

/// Combines two floating-point tensors by operations with a derivative. `after` follows `before`
/// along the axis.
fn combine(reducer: Reducer, before: &Tensor, after: &Tensor) -> Tensor {
    match reducer {
        Reducer::Prod => before * after,
        // Of equal elements the later one is selected, and NaN wins over all others.
        Reducer::Max => after.ge(before).or(after.ne(after)).select(after, before),
        Reducer::Min => after.le(before).or(after.ne(after)).select(after, before),
        Reducer::Sum | Reducer::And | Reducer::Or => before + after,
    }
}

/// Replaces NaN, the difference of two equal infinities, by 0.
fn nan_to_zero(difference: &Tensor) -> Tensor {
    difference.ne(difference).select(&difference.zeros_like(), difference)
}

#[derive(Clone, Debug)]
struct Cumulative {
    method: &'static str,
    accumulation: Accumulation,
    axis: usize,
    /// Whether to reduce from the end to the start.
    reverse: bool,
}

impl Cumulative {
    /// The element `distance` before each element along the axis, in the given direction, and
    /// whether it exists. Missing elements are zeros. This avoids `pad`, which XLA miscompiles
    /// where the axis is sharded: see `lower`.
    fn neighbor(&self, y: &Tensor, distance: usize, reverse: bool) -> (Tensor, Tensor) {
        let size = y.shape()[self.axis];
        let axis = self.axis as isize;
        let mut fill_shape = y.shape().to_vec();
        fill_shape[self.axis] = distance;
        let fill = Tensor::zeros(y.dtype(), fill_shape);
        let neighbor = if reverse {
            Tensor::concatenate(&[&y.narrow(axis, distance, size - distance), &fill], axis)
        } else {
            Tensor::concatenate(&[&fill, &y.narrow(axis, 0, size - distance)], axis)
        };
        // The size of any axis fits an i64.
        let dtype = if size <= i32::MAX as usize { DType::I32 } else { DType::I64 };
        let index = Tensor::iota(dtype, y.shape(), self.axis as isize);
        let exists =
            if reverse { index.lt((size - distance) as f64) } else { index.ge(distance as f64) };
        (neighbor, exists)
    }

    /// The same reduction by operations with a derivative, in a logarithmic number of steps.
    fn logarithmic_steps(&self, reducer: Reducer, x: &Tensor) -> Tensor {
        let mut y = x.clone();
        let mut distance = 1usize;
        while distance < x.shape()[self.axis] {
            let (before, exists) = self.neighbor(&y, distance, self.reverse);
            y = exists.select(&combine(reducer, &before, &y), &y);
            distance *= 2;
        }
        y
    }

    /// The cotangent of `x`, where `y` is its cumulative log-sum-exp: `exp(xⱼ − yⱼ)·sⱼ`. Here `sⱼ`
    /// is the sum of `gᵢ·exp(yⱼ − yᵢ)` over `i = j` and all later `i`, computed from partial sums.
    /// No exponent is above 0.
    fn log_sum_exp_vjp(&self, x: &Tensor, y: &Tensor, g: &Tensor) -> Tensor {
        let mut s = g.clone();
        let mut distance = 1usize;
        while distance < x.shape()[self.axis] {
            let (later, exists) = self.neighbor(y, distance, !self.reverse);
            let fall = exists.select(&(y - later), &y.zeros_like());
            let part = nan_to_zero(&fall).exp() * self.neighbor(&s, distance, !self.reverse).0;
            s = exists.select(&(&s + part), &s);
            distance *= 2;
        }
        nan_to_zero(&(x - y)).exp() * s
    }
}

impl Cumulative {
    /// The right-hand side of the statement, for an operand and the initial scalar.
    fn windows(&self, operand: &str, start: &str, ty: &TensorType) -> String {
        let rank = ty.shape.rank();
        let last = ty.shape[self.axis] - 1;
        let scalar = TensorType::scalar(ty.dtype).stablehlo();
        let text = ty.stablehlo();
        let mut window = vec!["1".to_owned(); rank];
        let mut padding = vec!["[0, 0]".to_owned(); rank];
        window[self.axis] = (last + 1).to_string();
        padding[self.axis] =
            if self.reverse { format!("[0, {last}]") } else { format!("[{last}, 0]") };
        format!(
            "\"stablehlo.reduce_window\"({operand}, {start}) ({{ ^bb0(%a: {scalar}, %b: {scalar}): {} \
             \"stablehlo.return\"(%r) : ({scalar}) -> () }}) {{padding = dense<[{}]> : tensor<{rank}x2xi64>, \
             window_dimensions = array<i64: {}>, window_strides = array<i64: {}>}} : ({text}, {scalar}) -> {text}",
            self.accumulation.combine(&scalar),
            padding.join(", "),
            window.join(", "),
            vec!["1"; rank].join(", "),
        )
    }
}

impl Operation for Cumulative {
    fn name(&self) -> &'static str {
        self.method
    }
    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, String> {
        DTypeSet::Numbers.check(inputs[0].dtype)?;
        one(inputs[0].clone())
    }
    fn vjp(&self, cx: &Vjp<'_>) -> Vec<Option<Tensor>> {
        let x = cx.input(0);
        let g = cx.cotangent();
        let gradient = match self.accumulation {
            Accumulation::Reduce(Reducer::Sum) => {
                Some(Tensor::apply(Cumulative { reverse: !self.reverse, ..self.clone() }, &[&g]))
            }
            Accumulation::LogAddExp => Some(self.log_sum_exp_vjp(x, cx.output(), &g)),
            Accumulation::Reduce(reducer) => {
                // A separate node, since `g` may depend on `x`.
                let leaf = x.unsqueeze(0);
                let y = self.logarithmic_steps(reducer, &leaf.squeeze(0));
                grad(&(y * g).sum_all(), &[&leaf]).first().map(|gradient| gradient.squeeze(0))
            }
        };
        vec![gradient]
    }
    fn lower(&self, cx: &mut Lowering<'_>) -> String {
        let ty = cx.result().clone();
        let text = ty.stablehlo();
        let rank = ty.shape.rank();
        if !cx.is_partitioned() {
            let start = cx.constant(ty.dtype, &self.accumulation.identity(ty.dtype));
            return self.windows(cx.operand(0), &start, &ty);
        }
        // XLA's partitioner pads a sharded axis once for all windows of one size, with the padding
        // value of the first of them: next to a cumulative maximum, the cumulative product of a
        // tensor would start with −∞. So this axis is not sharded here.
        let axes: Vec<&str> =
            (0..rank).map(|a| if a == self.axis { "{}" } else { "{?}" }).collect();
        let whole = format!("<@mesh, [{}]>", axes.join(", "));
        let dims: Vec<_> = ty.shape.iter().map(usize::to_string).collect();
        let direction = if self.reverse { "_reverse" } else { "" };
        let name =
            format!("{}_{}_{}_{}{direction}", self.method, dims.join("x"), ty.dtype, self.axis);
        let name = cx.helper(&name, |name| {
            let scalar = TensorType::scalar(ty.dtype).stablehlo();
            format!(
                "  func.func private @{name}(%x: {text}) -> {text} {{\n    %w = sdy.sharding_constraint %x {whole} : \
                {text}\n    \
                 %i = stablehlo.constant dense<{}> : {scalar}\n    %y = {}\n    \
                 %z = sdy.sharding_constraint %y {whole} : {text}\n    return %z : {text}\n  }}\n",
                self.accumulation.identity(ty.dtype),
                self.windows("%w", "%i", &ty)
            )
        });
        format!("func.call @{name}({}) : {}", cx.operand(0), cx.signature())
    }
}

methods! {
    /// The cumulative sum along `axis` (PyTorch's and NumPy's `cumsum`). 16-bit floats are summed
    /// as f32, integers in their own dtype, and booleans as i32, or as i64 if an i32 may overflow.
    ///
    /// For a sum from the end to the start, use `x.flip(axis).cumsum(axis).flip(axis)`.
    /// Poisoned for complex numbers, or if there is no such axis.
    ///
    /// ```
    /// use fulmen_tensor::Tensor;
    /// let x = Tensor::from_slice(&[1.0f32, 2.0, 3.0, 4.0], [2, 2]);
    /// assert_eq!(x.cumsum(-1).eval()?.to_vec::<f32>()?, [1.0, 3.0, 3.0, 7.0]);
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    cumsum(axis: isize) -> Tensor, |x| x.countable().cumulate("cumsum", Accumulation::Reduce(Reducer::Sum), axis);

    /// The cumulative product along `axis` (PyTorch's and NumPy's `cumprod`). The gradient is exact
    /// at zeros too. 16-bit floats are multiplied as f32, booleans as i32. Poisoned under the same
    /// conditions as [`Tensor::cumsum`].
    cumprod(axis: isize) -> Tensor, |x| x.countable().cumulate("cumprod", Accumulation::Reduce(Reducer::Prod), axis);

    /// `log Σ exp(x)` of all elements up to each one along `axis`, without overflow (PyTorch's
    /// `logcumsumexp`). 16-bit floats are computed as f32. Poisoned if the elements are not floats,
    /// or if there is no such axis.
    logcumsumexp(axis: isize) -> Tensor, |x| x.cumulate("logcumsumexp", Accumulation::LogAddExp, axis);

    /// The cumulative maximum along `axis` and its index (i32), `(values, indices)` (PyTorch's
    /// `cummax`). Of equal elements the last one counts. From the first NaN on, all values are NaN,
    /// with the index of the latest NaN. The gradient flows to the element at the index.
    ///
    /// Poisoned under the same conditions as [`Tensor::cumsum`], and for booleans.
    ///
    /// ```
    /// use fulmen_tensor::Tensor;
    /// let (largest, index) = Tensor::from_slice(&[1.0f32, 3.0, 2.0, 3.0], [4]).cummax(0);
    /// assert_eq!(largest.eval()?.to_vec::<f32>()?, [1.0, 3.0, 3.0, 3.0]);
    /// assert_eq!(index.eval()?.to_vec::<i32>()?, [0, 1, 1, 3]);
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    cummax(axis: isize) -> (Tensor, Tensor), |x| x.running_extreme("cummax", Reducer::Max, axis);

    /// The cumulative minimum along `axis` and its index (i32), like [`Tensor::cummax`].
    cummin(axis: isize) -> (Tensor, Tensor), |x| x.running_extreme("cummin", Reducer::Min, axis);
}

impl Tensor {
    fn cumulate(
        &self,
        method: &'static str,
        accumulation: Accumulation,
        axis: isize,
    ) -> Result<Tensor, Refusal> {
        self.live()?;
        let dtypes = if accumulation == Accumulation::LogAddExp {
            DTypeSet::Floats
        } else {
            DTypeSet::Numbers
        };
        let axis = dtypes.check(self.dtype()).and_then(|()| self.shape().axis(axis))?;
        let dtype = result_dtype(method, self.dtype());
        // One element is its own sum; zero elements have no window.
        if self.shape()[axis] <= 1 || self.shape().num_elements() == 0 {
            return Ok(self.to_dtype(dtype));
        }
        let is_extreme = matches!(accumulation, Accumulation::Reduce(Reducer::Max | Reducer::Min));
        let operand = if is_extreme { self.clone() } else { wide(self) };
        Ok(Tensor::try_apply(
            Cumulative { method, accumulation, axis, reverse: false },
            &[&operand],
        )?
        .to_dtype(dtype))
    }

    fn running_extreme(
        &self,
        method: &'static str,
        reducer: Reducer,
        axis: isize,
    ) -> Result<(Tensor, Tensor), Refusal> {
        let extreme = self.cumulate(method, Accumulation::Reduce(reducer), axis)?;
        if self.size(axis) > i32::MAX as usize {
            return Err(format!(
                "axis {axis} of {} has more elements than an i32 can count",
                self.shape()
            )
            .into());
        }
        let position = Tensor::iota(DType::I32, self.shape(), axis);
        if self.size(axis) <= 1 || self.shape().num_elements() == 0 {
            return Ok((extreme, position));
        }
        // An element that the extreme before it does not surpass is the latest extreme. None need
        // equal the extreme: XLA may compute an element again and round it differently.
        let first = extreme.narrow(axis, 0, 1);
        let rest = extreme.narrow(axis, 0, self.size(axis) - 1);
        let before = Tensor::concatenate(&[&first, &rest], axis);
        let reaches = if reducer == Reducer::Max { self.ge(before) } else { self.le(before) };
        let latest = reaches.or(self.ne(self)).select(&position, &position.zeros_like());
        let index = latest.cumulate(method, Accumulation::Reduce(Reducer::Max), axis)?;
        Ok((extreme, index))
    }
}
