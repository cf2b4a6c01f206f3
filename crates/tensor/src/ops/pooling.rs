//! Pooling by `reduce_window`. The derivative of a maximum is `select_and_scatter`.

use super::constant::holds;
use super::convolution::dilated_size;
use super::dtype_set::DTypeSet;
use super::pooling_positions::{max_indices, max_pool_with_indices, scatter_to_max};
use super::reduce::Reducer;
use super::select_and_scatter::SelectAndScatter;
use super::unary::methods;
use crate::autocast::wide;
use crate::axis_order::AxisOrder;
use crate::lower::Lowering;
use crate::operation::{Operation, Vjp, one};
use crate::scope::Refusal;
use crate::shape::within_reach;
use crate::{DType, Tensor, TensorType};

/// The windows over all axes of a tensor.
#[derive(Clone, Debug)]
pub(crate) struct Windows {
    pub(crate) size: Vec<usize>,
    pub(crate) stride: Vec<usize>,
    pub(crate) padding: Vec<(i64, i64)>,
    pub(crate) dilation: Vec<usize>,
}

impl Windows {
    /// The same windows over an operand whose axes are in this order.
    pub(crate) fn reordered(&self, order: &AxisOrder) -> Windows {
        Windows {
            size: order.reorder(&self.size),
            stride: order.reorder(&self.stride),
            padding: order.reorder(&self.padding),
            dilation: order.reorder(&self.dilation),
        }
    }

    pub(super) fn result(&self, from: &TensorType) -> Result<TensorType, String> {
        let mut shape = Vec::with_capacity(self.size.len());
        for (axis, &size) in from.shape.iter().enumerate() {
            let window = self.size[axis];
            let stride = self.stride[axis];
            let (low, high) = self.padding[axis];
            let dilation = self.dilation[axis];
            if window == 0 || stride == 0 {
                return Err(format!(
                    "window and stride must be at least 1, axis {axis} has {window} and {stride}"
                ));
            }
            if dilation == 0 {
                return Err(format!("dilation must be at least 1, axis {axis} has 0"));
            }
            let window = dilated_size(window, dilation) as i128;
            let room = size as i128 + i128::from(low) + i128::from(high);
            let amounts =
                [("window", window), ("stride", stride as i128), ("the padded size", room)];
            for (name, amount) in amounts {
                within_reach(name, axis, amount)?;
            }
            shape.push(if room < window { 0 } else { (room - window) as usize / stride + 1 });
        }
        Ok(TensorType::new(from.dtype, shape))
    }

    /// Whether any axis is dilated.
    fn is_dilated(&self) -> bool {
        self.dilation.iter().any(|&d| d != 1)
    }

    /// The attributes in StableHLO's generic form.
    pub(super) fn attributes(&self) -> String {
        let pads: Vec<_> =
            self.padding.iter().map(|(low, high)| format!("[{low}, {high}]")).collect();
        // `select_and_scatter` has no dilation attribute.
        let dilation = if self.is_dilated() {
            format!(", window_dilations = array<i64: {}>", spell(&self.dilation))
        } else {
            String::new()
        };
        format!(
            "padding = dense<[{}]> : tensor<{}x2xi64>, window_dimensions = array<i64: {}>, \
             window_strides = array<i64: {}>{dilation}",
            pads.join(", "),
            pads.len(),
            spell(&self.size),
            spell(&self.stride)
        )
    }
}

fn spell(v: &[usize]) -> String {
    v.iter().map(usize::to_string).collect::<Vec<_>>().join(", ")
}

#[derive(Debug)]
pub(crate) struct ReduceWindow {
    pub(crate) method: &'static str,
    pub(crate) reducer: Reducer,
    pub(crate) windows: Windows,
}

impl Operation for ReduceWindow {
    fn name(&self) -> &'static str {
        self.method
    }
    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, String> {
        DTypeSet::Numbers.check(inputs[0].dtype)?;
        one(self.windows.result(inputs[0])?)
    }
    fn vjp(&self, cx: &Vjp<'_>) -> Vec<Option<Tensor>> {
        let x = cx.input(0);
        let g = cx.cotangent();
        if g.shape().num_elements() == 0 {
            return vec![Some(x.zeros_like())];
        }
        let w = &self.windows;
        let zero = Tensor::full(g.dtype(), [], 0.0);
        if self.reducer != Reducer::Sum {
            if w.is_dilated() {
                let positions = max_indices(x, w);
                return vec![Some(scatter_to_max(x, &positions, &g))];
            }
            let is_padded = w.padding.iter().any(|&padding| padding != (0, 0));
            if is_padded && w.size.contains(&2) {
                return vec![Some(self.select_and_scatter_unpadded(x, &g))];
            }
            let operation = SelectAndScatter { reducer: self.reducer, windows: w.clone() };
            return vec![Some(Tensor::apply(operation, &[x, &g]))];
        }
        // Each element of the input gets the sum of the cotangents of the windows that contain it.
        // So the cotangent is dilated by the stride, padded, and summed over windows of the same
        // size with stride 1.
        let mut low = Vec::new();
        let mut high = Vec::new();
        for axis in 0..x.rank() {
            let window = dilated_size(w.size[axis], w.dilation[axis]) as i64;
            let before = window - 1 - w.padding[axis].0;
            let spread = (g.shape()[axis] as i64 - 1) * w.stride[axis] as i64 + 1;
            low.push(before);
            high.push(x.shape()[axis] as i64 + window - 1 - spread - before);
        }
        let interior: Vec<usize> = w.stride.iter().map(|s| s - 1).collect();
        let stride = vec![1; x.rank()];
        let padding = vec![(0, 0); x.rank()];
        let windows =
            Windows { size: w.size.clone(), stride, padding, dilation: w.dilation.clone() };
        let operation = ReduceWindow { method: self.method, reducer: Reducer::Sum, windows };
        vec![Some(Tensor::apply(operation, &[&g.pad(&zero, &low, &high, &interior)]))]
    }
    fn lower(&self, cx: &mut Lowering<'_>) -> String {
        let dtype = cx.result().dtype;
        let scalar = TensorType::scalar(dtype).stablehlo();
        let start = cx.constant(dtype, &self.reducer.identity(dtype));
        format!(
            "\"stablehlo.reduce_window\"({}, {start}) ({{ ^bb0(%a: {scalar}, %b: {scalar}): \
             %r = {} %a, %b : {scalar} \"stablehlo.return\"(%r) : ({scalar}) -> () }}) {{{}}} : ({}, {scalar}) -> {}",
            cx.operand(0),
            self.reducer.stablehlo(),
            self.windows.attributes(),
            cx.operand_type(0).stablehlo(),
            cx.result().stablehlo()
        )
    }
}

impl ReduceWindow {
    /// The cotangent of a maximum or minimum, by windows over a padded operand.
    ///
    /// If windows with a side of 2 are padded, XLA's CPU compiler does not select the first element
    /// of a tie. (JAX pads all windows itself for this reason.) Windows with longer sides give the
    /// right result, and on a TPU the padded operand would take memory.
    fn select_and_scatter_unpadded(&self, x: &Tensor, g: &Tensor) -> Tensor {
        let w = &self.windows;
        let (low, high): (Vec<i64>, Vec<i64>) = w.padding.iter().copied().unzip();
        let least = Tensor::full(
            x.dtype(),
            [],
            if self.reducer == Reducer::Max { f64::NEG_INFINITY } else { f64::INFINITY },
        );
        let zeros = vec![0; x.rank()];
        let windows = Windows { padding: vec![(0, 0); x.rank()], ..w.clone() };
        let padded = x.pad(&least, &low, &high, &zeros);
        let spread =
            Tensor::apply(SelectAndScatter { reducer: self.reducer, windows }, &[&padded, g]);
        let negated = |v: &[i64]| v.iter().map(|n| -n).collect::<Vec<_>>();
        spread.pad(&Tensor::zeros(x.dtype(), []), &negated(&low), &negated(&high), &zeros)
    }
}

/// The options of pooling; lists have one entry for each spatial axis.
///
/// ```
/// use fulmen_tensor::{DType, Pooling, Tensor};
/// let x = Tensor::ones(DType::F32, [8, 16, 29, 29]);
/// assert_eq!(x.max_pool(&Pooling::new([2, 2])).ty().to_string(), "f32[8, 16, 14, 14]");
/// assert_eq!(x.max_pool(&Pooling::new([2, 2]).ceil_mode(true)).ty().to_string(), "f32[8, 16, 15, 15]");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct Pooling {
    window: Vec<usize>,
    stride: Vec<usize>,
    padding: Vec<usize>,
    dilation: Vec<usize>,
    ceil_mode: bool,
    count_include_pad: bool,
    divisor: Option<usize>,
}

impl Pooling {
    /// Adjacent windows of these sizes, without padding: the stride equals the window.
    pub fn new(window: impl Into<Vec<usize>>) -> Pooling {
        let window = window.into();
        let n = window.len();
        Pooling {
            stride: window.clone(),
            padding: vec![0; n],
            dilation: vec![1; n],
            ceil_mode: false,
            count_include_pad: true,
            divisor: None,
            window,
        }
    }

    /// The step between two windows.
    pub fn stride(mut self, stride: impl Into<Vec<usize>>) -> Pooling {
        self.stride = stride.into();
        self
    }

    /// The number of elements added on each side, at most half of the window. For a maximum they
    /// are never selected; for an average they are zeros.
    pub fn padding(mut self, padding: impl Into<Vec<usize>>) -> Pooling {
        self.padding = padding.into();
        self
    }

    /// The step between two elements of a window.
    pub fn dilation(mut self, dilation: impl Into<Vec<usize>>) -> Pooling {
        self.dilation = dilation.into();
        self
    }

    /// Whether to add a last window that begins within the input or the padding before it, and ends
    /// beyond the padding.
    pub fn ceil_mode(mut self, ceil_mode: bool) -> Pooling {
        self.ceil_mode = ceil_mode;
        self
    }

    /// Whether padding counts as elements of an average; it does by default. Positions of a
    /// [`Pooling::ceil_mode`] window beyond the padding never count.
    pub fn count_include_pad(mut self, count: bool) -> Pooling {
        self.count_include_pad = count;
        self
    }

    /// The divisor of each window's sum for an average, instead of the number of elements.
    pub fn divisor(mut self, divisor: usize) -> Pooling {
        self.divisor = Some(divisor);
        self
    }

    /// The windows over all axes of a tensor `[batch, channels, spatial…]`, after a check of the
    /// options.
    fn windows(&self, operand: &Tensor) -> Result<Windows, String> {
        let n = self.window.len();
        let fits = [self.stride.len(), self.padding.len(), self.dilation.len()]
            .iter()
            .all(|&named| named == n);
        if !fits || operand.rank() != n + 2 {
            return Err(format!(
                "{} is not a [batch, channels, …] for windows over {n} axes: {self:?}",
                operand.ty()
            ));
        }
        let extents: Vec<usize> =
            (0..n).map(|i| dilated_size(self.window[i], self.dilation[i])).collect();
        if let Some(i) = (0..n).find(|&i| self.padding[i] > extents[i] / 2) {
            return Err(format!(
                "padding {} is more than half of the window {}: some windows would hold only padding",
                self.padding[i], extents[i]
            ));
        }
        let high = (0..n).map(|i| {
            let size = operand.shape()[i + 2] as i128;
            let window = extents[i] as i128;
            let stride = self.stride[i] as i128;
            let padding = self.padding[i] as i128;
            let room = size + 2 * padding - window;
            if !self.ceil_mode || room < 0 || stride == 0 {
                return padding;
            }
            // The last window begins within the input or the padding before it.
            let last = ((room + stride - 1) / stride).min((size + padding - 1) / stride);
            padding.max(last * stride + window - size - padding)
        });
        let all = |v: &[usize]| [&[1, 1], v].concat();
        let pad = |(&low, high): (&usize, i128)| (low as i64, high as i64);
        Ok(Windows {
            size: all(&self.window),
            stride: all(&self.stride),
            padding: [(0, 0), (0, 0)]
                .into_iter()
                .chain(self.padding.iter().zip(high).map(pad))
                .collect(),
            dilation: all(&self.dilation),
        })
    }

    /// The number of elements of each window that count for an average: `[spatial…]`. `None` if it
    /// is the same for all.
    fn counts(
        &self,
        operand: &Tensor,
        windows: &Windows,
        result: &Tensor,
        dtype: DType,
    ) -> Option<Tensor> {
        let n = self.window.len();
        let beyond = (0..n).any(|i| windows.padding[i + 2].1 > self.padding[i] as i64);
        let varies = if self.count_include_pad {
            beyond
        } else {
            beyond || self.padding.iter().any(|&p| p > 0)
        };
        if !varies || self.divisor.is_some() {
            return None;
        }
        let mut counts = Tensor::ones(dtype, []);
        for i in 0..n {
            let size = operand.shape()[i + 2] as f64;
            let padding = self.padding[i] as f64;
            let (low, high) =
                if self.count_include_pad { (-padding, size + padding) } else { (0.0, size) };
            let dilation = self.dilation[i] as f64;
            // Element `t` of a window that begins at `start` is at `start + t·dilation`.
            // `first..end` are the elements that count.
            let start =
                Tensor::arange(DType::I64, result.shape()[i + 2]) * self.stride[i] as f64 - padding;
            let first = ((-&start + low).maximum(0.0) + (dilation - 1.0)) / dilation;
            let end =
                ((-start + (high + dilation - 1.0)) / dilation).minimum(self.window[i] as f64);
            let mut shape = vec![1; n];
            shape[i] = result.shape()[i + 2];
            counts = counts * (end - first).to_dtype(dtype).reshape(shape);
        }
        Some(counts)
    }
}

methods! {
    /// The largest element of each window over `[batch, channels, spatial…]` (PyTorch's
    /// `max_pool1d`, `max_pool2d` and `max_pool3d`). Of tied elements, the first gets the gradient.
    ///
    /// Poisoned if the options do not fit the tensor, or for booleans and complex numbers.
    max_pool(options: &Pooling) -> Tensor, |x| x.pool("max_pool", Reducer::Max, options);

    /// The largest element of each window over `[batch, channels, spatial…]`, and its position
    /// (PyTorch's `return_indices`). The position is an i32 that counts the elements of one channel
    /// in row-major order. Of tied elements, the first is selected.
    ///
    /// ```
    /// use fulmen_tensor::{Pooling, Tensor};
    /// let x = Tensor::from_slice(&[1.0f32, 3.0, 2.0, 5.0, 4.0, 0.0], [1, 1, 2, 3]);
    /// let [largest, at] = x.max_pool_with_indices(&Pooling::new([2, 2]).stride([1, 1]));
    /// assert_eq!(largest.eval()?.to_vec::<f32>()?, [5.0, 4.0]);
    /// assert_eq!(at.eval()?.to_vec::<i32>()?, [3, 4]);
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    max_pool_with_indices(options: &Pooling) -> [Tensor; 2], |x| {
        Ok(max_pool_with_indices("max_pool_with_indices", x, &options.windows(x)?))
    };
}

impl Tensor {
    /// The mean of each window over `[batch, channels, spatial…]` (PyTorch's `avg_pool1d`,
    /// `avg_pool2d` and `avg_pool3d`). Padding counts as zeros unless
    /// [`Pooling::count_include_pad`] is false. 16-bit floats are summed as f32.
    ///
    /// Poisoned if the options do not fit the tensor, or if the dtype cannot hold the number of
    /// elements of a window.
    #[track_caller]
    pub fn avg_pool(&self, options: &Pooling) -> Tensor {
        Tensor::record("avg_pool", || {
            self.live()?;
            let count: f64 = options
                .divisor
                .map_or_else(|| options.window.iter().map(|&n| n as f64).product(), |n| n as f64);
            let dtype = self.dtype();
            if !holds(dtype, count) {
                return Err(format!(
                    "a window has {count} elements, which does not fit {dtype}; convert with to_dtype() first"
                )
                .into());
            }
            if options.divisor == Some(0) {
                return Err("the divisor must be at least 1".into());
            }
            // The sum, and even the number of elements, may overflow 16 bits.
            let wide = wide(self);
            let sum = wide.pool("avg_pool", Reducer::Sum, options)?;
            let mean = match options.counts(&wide, &options.windows(&wide)?, &sum, wide.dtype()) {
                Some(counts) => sum / counts,
                None => sum / count,
            };
            Ok(mean.to_dtype(dtype))
        })
    }

    fn pool(
        &self,
        method: &'static str,
        reducer: Reducer,
        options: &Pooling,
    ) -> Result<Tensor, Refusal> {
        self.live()?;
        let windows = options.windows(self)?;
        Tensor::try_apply(ReduceWindow { method, reducer, windows }, &[self])
    }
}
