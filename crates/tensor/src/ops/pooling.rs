//! Sliding windows: `reduce_window`, and its derivative for a maximum, `select_and_scatter`.

use super::constant::holds;
use super::dtype_set::DTypeSet;
use super::pooling_positions::{at_winners, largest_and_where, to_winners, winners};
use super::reduce::Reducer;
use super::unary::methods;
use crate::autocast::wide;
use crate::lower::Lowering;
use crate::operation::{Operation, Vjp, one};
use crate::scope::Refusal;
use crate::shape::within_reach;
use crate::{DType, Tensor, TensorType};

/// Windows over all axes of a tensor.
#[derive(Clone, Debug)]
pub(super) struct Windows {
    size: Vec<usize>,
    stride: Vec<usize>,
    padding: Vec<(i64, i64)>,
    dilation: Vec<usize>,
}

/// The extent of a window with `dilation − 1` gaps between neighbours.
fn extent(window: usize, dilation: usize) -> usize {
    window.saturating_sub(1).saturating_mul(dilation).saturating_add(window.min(1))
}

impl Windows {
    pub(super) fn result(&self, from: &TensorType) -> Result<TensorType, String> {
        let mut to = Vec::with_capacity(self.size.len());
        for (axis, &size) in from.shape.iter().enumerate() {
            let (window, stride, (low, high)) = (self.size[axis], self.stride[axis], self.padding[axis]);
            let dilation = self.dilation[axis];
            if window == 0 || stride == 0 {
                return Err(format!("window and stride must be at least 1, axis {axis} has {window} and {stride}"));
            }
            if dilation == 0 {
                return Err(format!("dilation must be at least 1, axis {axis} has 0"));
            }
            let window = extent(window, dilation) as i128;
            let room = size as i128 + i128::from(low) + i128::from(high);
            let amounts = [("window", window), ("stride", stride as i128), ("the padded size", room)];
            for (what, amount) in amounts {
                within_reach(what, axis, amount)?;
            }
            to.push(if room < window { 0 } else { (room - window) as usize / stride + 1 });
        }
        Ok(TensorType::new(from.dtype, to))
    }

    /// Whether the windows have gaps.
    fn is_dilated(&self) -> bool {
        self.dilation.iter().any(|&d| d != 1)
    }

    /// The attributes in the generic form of StableHLO.
    pub(super) fn attributes(&self) -> String {
        let pads: Vec<_> = self.padding.iter().map(|(low, high)| format!("[{low}, {high}]")).collect();
        // `select_and_scatter` knows no dilation.
        let dilation = match self.is_dilated() {
            true => format!(", window_dilations = array<i64: {}>", spell(&self.dilation)),
            false => String::new(),
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
struct ReduceWindow {
    method: &'static str,
    reducer: Reducer,
    windows: Windows,
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
        let (x, g) = (cx.input(0), cx.cotangent());
        if g.shape().num_elements() == 0 {
            return vec![Some(x.zeros_like())];
        }
        let w = &self.windows;
        let zero = Tensor::full(g.dtype(), [], 0.0);
        if self.reducer != Reducer::Sum {
            if w.is_dilated() {
                let positions = winners(x, w);
                return vec![Some(to_winners(x, &positions, &g))];
            }
            let is_padded = w.padding.iter().any(|&padding| padding != (0, 0));
            if is_padded && w.size.contains(&2) {
                return vec![Some(self.select_and_scatter_unpadded(x, &g))];
            }
            let operation = SelectAndScatter { reducer: self.reducer, windows: w.clone() };
            return vec![Some(Tensor::apply(operation, &[x, &g]))];
        }
        // Each element of the input gets the sum over the windows it is in: the cotangent, spread by the stride and
        // padded, summed by windows of the same size and stride 1.
        let (mut low, mut high) = (vec![], vec![]);
        for axis in 0..x.rank() {
            let window = extent(w.size[axis], w.dilation[axis]) as i64;
            let before = window - 1 - w.padding[axis].0;
            let spread = (g.shape()[axis] as i64 - 1) * w.stride[axis] as i64 + 1;
            low.push(before);
            high.push(x.shape()[axis] as i64 + window - 1 - spread - before);
        }
        let interior: Vec<usize> = w.stride.iter().map(|s| s - 1).collect();
        let (stride, padding) = (vec![1; x.rank()], vec![(0, 0); x.rank()]);
        let windows = Windows { size: w.size.clone(), stride, padding, dilation: w.dilation.clone() };
        let operation = ReduceWindow { method: self.method, reducer: Reducer::Sum, windows };
        vec![Some(Tensor::apply(operation, &[&g.pad(&zero, &low, &high, &interior)]))]
    }
    fn lower(&self, cx: &mut Lowering<'_>) -> String {
        let dtype = cx.result().dtype;
        let (scalar, start) =
            (TensorType::scalar(dtype).stablehlo(), cx.constant(dtype, &self.reducer.identity(dtype)));
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
    /// The cotangent of an extreme, by windows over an operand that is padded before.
    ///
    /// Where windows with a side of 2 are padded, XLA's compiler for CPUs takes another element of a tie than the first.
    /// (JAX pads all windows itself there.) Longer sides come out right, and a TPU would have to keep what is padded.
    fn select_and_scatter_unpadded(&self, x: &Tensor, g: &Tensor) -> Tensor {
        let w = &self.windows;
        let (low, high): (Vec<i64>, Vec<i64>) = w.padding.iter().copied().unzip();
        let least =
            Tensor::full(x.dtype(), [], if self.reducer == Reducer::Max { f64::NEG_INFINITY } else { f64::INFINITY });
        let none = vec![0; x.rank()];
        let windows = Windows { padding: vec![(0, 0); x.rank()], ..w.clone() };
        let padded = x.pad(&least, &low, &high, &none);
        let spread = Tensor::apply(SelectAndScatter { reducer: self.reducer, windows }, &[&padded, g]);
        let back = |v: &[i64]| v.iter().map(|n| -n).collect::<Vec<_>>();
        spread.pad(&Tensor::zeros(x.dtype(), []), &back(&low), &back(&high), &none)
    }
}

/// Adds each element of the second operand to the place of the first that won its window.
#[derive(Debug)]
struct SelectAndScatter {
    reducer: Reducer,
    windows: Windows,
}

impl Operation for SelectAndScatter {
    fn name(&self) -> &'static str {
        "select_and_scatter"
    }
    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, String> {
        one(inputs[0].clone())
    }
    fn vjp(&self, cx: &Vjp<'_>) -> Vec<Option<Tensor>> {
        // Which places win does not change with small changes of the numbers.
        let positions = winners(cx.input(0), &self.windows);
        vec![None, Some(at_winners(&cx.cotangent(), &positions))]
    }
    fn lower(&self, cx: &mut Lowering<'_>) -> String {
        let dtype = cx.result().dtype;
        let (scalar, zero) = (TensorType::scalar(dtype).stablehlo(), cx.constant(dtype, &Reducer::Sum.identity(dtype)));
        let wins = if self.reducer == Reducer::Max { "GE" } else { "LE" };
        format!(
            "\"stablehlo.select_and_scatter\"({}, {zero}) ({{ ^bb0(%a: {scalar}, %b: {scalar}): \
             %r = stablehlo.compare {wins}, %a, %b : ({scalar}, {scalar}) -> tensor<i1> \
             \"stablehlo.return\"(%r) : (tensor<i1>) -> () }}, {{ ^bb0(%a: {scalar}, %b: {scalar}): \
             %r = stablehlo.add %a, %b : {scalar} \"stablehlo.return\"(%r) : ({scalar}) -> () }}) {{{}}} : \
             ({}, {}, {scalar}) -> {}",
            cx.operands(),
            self.windows.attributes(),
            cx.operand_type(0).stablehlo(),
            cx.operand_type(1).stablehlo(),
            cx.result().stablehlo()
        )
    }
}

/// How a pooling window moves; one entry a spatial axis.
///
/// ```
/// use fulmen_tensor::{DType, Pooling, Tensor};
/// let x = Tensor::ones(DType::F32, [8, 16, 29, 29]);
/// assert_eq!(x.max_pool(&Pooling::new([2, 2])).ty().to_string(), "f32[8, 16, 14, 14]");
/// assert_eq!(x.max_pool(&Pooling::new([2, 2]).ceil_mode(true)).ty().to_string(), "f32[8, 16, 15, 15]");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
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
    /// Windows of these sizes side by side, without padding.
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

    /// Steps between two windows.
    pub fn stride(mut self, stride: impl Into<Vec<usize>>) -> Pooling {
        self.stride = stride.into();
        self
    }

    /// Elements added on either side, at most half of the window: never the largest for a maximum, zeros for an average.
    pub fn padding(mut self, padding: impl Into<Vec<usize>>) -> Pooling {
        self.padding = padding.into();
        self
    }

    /// Steps between two elements of a window.
    pub fn dilation(mut self, dilation: impl Into<Vec<usize>>) -> Pooling {
        self.dilation = dilation.into();
        self
    }

    /// Whether a last window counts that begins within the input (or the padding before it) and ends beyond it.
    pub fn ceil_mode(mut self, ceil_mode: bool) -> Pooling {
        self.ceil_mode = ceil_mode;
        self
    }

    /// Whether padding counts among the elements of an average, as it does at first. What a window of
    /// [`Pooling::ceil_mode`] has beyond the padding never counts.
    pub fn count_include_pad(mut self, count: bool) -> Pooling {
        self.count_include_pad = count;
        self
    }

    /// What the sum of each window is divided by for an average, instead of its number of elements.
    pub fn divisor(mut self, divisor: usize) -> Pooling {
        self.divisor = Some(divisor);
        self
    }

    /// The windows over all axes of a tensor `[batch, channels, spatial…]`.
    fn windows(&self, over: &Tensor) -> Result<Windows, String> {
        let n = self.window.len();
        let fits = [self.stride.len(), self.padding.len(), self.dilation.len()].iter().all(|&named| named == n);
        if !fits || over.rank() != n + 2 {
            return Err(format!("{} is not a [batch, channels, …] for windows over {n} axes: {self:?}", over.ty()));
        }
        let extents: Vec<usize> = (0..n).map(|i| extent(self.window[i], self.dilation[i])).collect();
        if let Some(i) = (0..n).find(|&i| self.padding[i] > extents[i] / 2) {
            return Err(format!(
                "padding {} is more than half of the window {}: some windows would hold only padding",
                self.padding[i], extents[i]
            ));
        }
        let high = (0..n).map(|i| {
            let (size, window, stride) = (over.shape()[i + 2] as i128, extents[i] as i128, self.stride[i] as i128);
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
            padding: [(0, 0), (0, 0)].into_iter().chain(self.padding.iter().zip(high).map(pad)).collect(),
            dilation: all(&self.dilation),
        })
    }

    /// How many elements each window has that count, to be divided by: `[spatial…]`. Whole windows need no such thing.
    fn counts(&self, over: &Tensor, windows: &Windows, result: &Tensor, dtype: DType) -> Option<Tensor> {
        let n = self.window.len();
        let beyond = (0..n).any(|i| windows.padding[i + 2].1 > self.padding[i] as i64);
        let some_out = if self.count_include_pad { beyond } else { beyond || self.padding.iter().any(|&p| p > 0) };
        if !some_out || self.divisor.is_some() {
            return None;
        }
        let mut counts = Tensor::ones(dtype, []);
        for i in 0..n {
            let (size, padding) = (over.shape()[i + 2] as f64, self.padding[i] as f64);
            let (low, high) = if self.count_include_pad { (-padding, size + padding) } else { (0.0, size) };
            let dilation = self.dilation[i] as f64;
            // Element `t` of a window that begins at `start` is at `start + t·dilation`: the first that counts, and the
            // first that counts no more.
            let start = Tensor::arange(DType::I64, result.shape()[i + 2]) * self.stride[i] as f64 - padding;
            let first = ((-&start + low).maximum(0.0) + (dilation - 1.0)) / dilation;
            let end = ((-start + (high + dilation - 1.0)) / dilation).minimum(self.window[i] as f64);
            let mut shape = vec![1; n];
            shape[i] = result.shape()[i + 2];
            counts = counts * (end - first).to_dtype(dtype).reshape(shape);
        }
        Some(counts)
    }
}

methods! {
    /// The largest element of each window over `[batch, channels, spatial…]`. The gradient goes to the first of the
    /// largest.
    max_pool(how: &Pooling) -> Tensor, |x| x.pool("max_pool", Reducer::Max, how);

    /// The largest element of each window over `[batch, channels, spatial…]`, and its position (PyTorch's
    /// `return_indices`): an i32 that counts the elements of one channel, row by row; the first of several.
    ///
    /// ```
    /// use fulmen_tensor::{Pooling, Tensor};
    /// let x = Tensor::from_slice(&[1.0f32, 3.0, 2.0, 5.0, 4.0, 0.0], [1, 1, 2, 3]);
    /// let [largest, at] = x.max_pool_with_indices(&Pooling::new([2, 2]).stride([1, 1]));
    /// assert_eq!(largest.eval()?.to_vec::<f32>()?, [5.0, 4.0]);
    /// assert_eq!(at.eval()?.to_vec::<i32>()?, [3, 4]);
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    max_pool_with_indices(how: &Pooling) -> [Tensor; 2], |x| {
        Ok(largest_and_where("max_pool_with_indices", x, &how.windows(x)?))
    };
}

impl Tensor {
    /// The mean of each window over `[batch, channels, spatial…]`. Padding counts as zeros unless
    /// [`Pooling::count_include_pad`] says otherwise. 16-bit floats are summed as f32.
    #[track_caller]
    pub fn avg_pool(&self, how: &Pooling) -> Tensor {
        Tensor::record("avg_pool", || {
            self.live()?;
            let count: f64 = how.divisor.map_or_else(|| how.window.iter().map(|&n| n as f64).product(), |n| n as f64);
            let dtype = self.dtype();
            if !holds(dtype, count) {
                return Err(format!(
                    "a window has {count} elements, which does not fit {dtype}; convert with to_dtype() first"
                )
                .into());
            }
            if how.divisor == Some(0) {
                return Err("the divisor must be at least 1".into());
            }
            // The sum, and even the number of elements, may be too large for 16 bits.
            let wide = wide(self);
            let sum = wide.pool("avg_pool", Reducer::Sum, how)?;
            let mean = match how.counts(&wide, &how.windows(&wide)?, &sum, wide.dtype()) {
                Some(counts) => sum / counts,
                None => sum / count,
            };
            Ok(mean.to_dtype(dtype))
        })
    }

    fn pool(&self, method: &'static str, reducer: Reducer, how: &Pooling) -> Result<Tensor, Refusal> {
        self.live()?;
        let windows = how.windows(self)?;
        Tensor::try_apply(ReduceWindow { method, reducer, windows }, &[self])
    }
}
