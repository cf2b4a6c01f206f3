//! Sliding windows: `reduce_window`, and its derivative for a maximum, `select_and_scatter`.

use super::constant::holds;
use super::reduce::Reducer;
use super::takes::Takes;
use crate::autocast::wide;
use crate::lower::Lowering;
use crate::operation::{Operation, Vjp, one};
use crate::shape::within_reach;
use crate::{Tensor, TensorType};

/// Windows over all axes of a tensor.
#[derive(Clone, Debug)]
struct Windows {
    size: Vec<usize>,
    stride: Vec<usize>,
    padding: Vec<(i64, i64)>,
}

impl Windows {
    fn result(&self, from: &TensorType) -> Result<TensorType, String> {
        let mut to = Vec::with_capacity(self.size.len());
        for (axis, &size) in from.shape.iter().enumerate() {
            let (window, stride, (low, high)) = (self.size[axis], self.stride[axis], self.padding[axis]);
            if window == 0 || stride == 0 {
                return Err(format!("window and stride must be at least 1, axis {axis} has {window} and {stride}"));
            }
            for (what, amount) in [("window", window as i128), ("stride", stride as i128)] {
                within_reach(what, axis, amount)?;
            }
            // Nothing here overflows: a padding is at most half of its window.
            let room = size as i64 + low + high;
            to.push(if room < window as i64 { 0 } else { (room as usize - window) / stride + 1 });
        }
        Ok(TensorType::new(from.dtype, to))
    }

    /// The attributes in the generic form of StableHLO.
    fn attributes(&self) -> String {
        let pads: Vec<_> = self.padding.iter().map(|(low, high)| format!("[{low}, {high}]")).collect();
        format!(
            "padding = dense<[{}]> : tensor<{}x2xi64>, window_dimensions = array<i64: {}>, \
             window_strides = array<i64: {}>",
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
        Takes::Numbers.check(inputs[0].dtype)?;
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
            let operation = SelectAndScatter { reducer: self.reducer, windows: w.clone() };
            return vec![Some(Tensor::apply(operation, &[x, &g]))];
        }
        // Each element of the input gets the sum over the windows it is in: the cotangent, spread by the stride and
        // padded, summed by windows of the same size and stride 1.
        let (mut low, mut high) = (vec![], vec![]);
        for axis in 0..x.rank() {
            let before = w.size[axis] as i64 - 1 - w.padding[axis].0;
            let spread = (g.shape()[axis] as i64 - 1) * w.stride[axis] as i64 + 1;
            low.push(before);
            high.push(x.shape()[axis] as i64 + w.size[axis] as i64 - 1 - spread - before);
        }
        let interior: Vec<usize> = w.stride.iter().map(|s| s - 1).collect();
        let windows = Windows { size: w.size.clone(), stride: vec![1; x.rank()], padding: vec![(0, 0); x.rank()] };
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
    fn vjp(&self, _: &Vjp<'_>) -> Vec<Option<Tensor>> {
        let message = "the derivative of max pooling has no derivative itself yet";
        vec![None, Some(Tensor::poison("max_pool", message))]
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
/// let x = Tensor::ones(DType::F32, [8, 16, 28, 28]);
/// assert_eq!(x.max_pool(&Pooling::new([2, 2])).ty().to_string(), "f32[8, 16, 14, 14]");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pooling {
    window: Vec<usize>,
    stride: Vec<usize>,
    padding: Vec<usize>,
}

impl Pooling {
    /// Windows of these sizes side by side, without padding.
    pub fn new(window: impl Into<Vec<usize>>) -> Pooling {
        let window = window.into();
        Pooling { stride: window.clone(), padding: vec![0; window.len()], window }
    }

    /// Steps between two windows.
    pub fn stride(mut self, stride: impl Into<Vec<usize>>) -> Pooling {
        self.stride = stride.into();
        self
    }

    /// Elements added on either side: never the largest for a maximum, zeros that count for an average.
    pub fn padding(mut self, padding: impl Into<Vec<usize>>) -> Pooling {
        self.padding = padding.into();
        self
    }

    /// The windows over all axes of a tensor `[batch, channels, spatial…]`.
    fn windows(&self, over: &Tensor) -> Result<Windows, String> {
        let n = self.window.len();
        if self.stride.len() != n || self.padding.len() != n || over.rank() != n + 2 {
            return Err(format!("{} is no [batch, channels, …] for windows over {n} axes: {self:?}", over.ty()));
        }
        if let Some(i) = (0..n).find(|&i| self.padding[i] > self.window[i] / 2) {
            return Err(format!(
                "padding {} is more than half of the window {}: some windows would hold nothing else",
                self.padding[i], self.window[i]
            ));
        }
        let all = |v: &[usize]| [&[1, 1], v].concat();
        let pad = |&p: &usize| (p as i64, p as i64);
        Ok(Windows {
            size: all(&self.window),
            stride: all(&self.stride),
            padding: [(0, 0), (0, 0)].into_iter().chain(self.padding.iter().map(pad)).collect(),
        })
    }
}

impl Tensor {
    /// The largest element of each window over `[batch, channels, spatial…]`. The gradient goes to the first of the
    /// largest.
    #[track_caller]
    pub fn max_pool(&self, how: &Pooling) -> Tensor {
        self.pool("max_pool", Reducer::Max, how)
    }

    /// The mean of each window over `[batch, channels, spatial…]`; padding counts as zeros (PyTorch's
    /// `count_include_pad`).
    #[track_caller]
    pub fn avg_pool(&self, how: &Pooling) -> Tensor {
        if self.fault().is_some() {
            return self.clone();
        }
        let count: f64 = how.window.iter().map(|&n| n as f64).product();
        let dtype = self.dtype();
        if !holds(dtype, count) {
            let message = format!("a window has {count} elements, which is no {dtype}; convert with to_dtype() first");
            return Tensor::poison("avg_pool", message);
        }
        // The sum, and even the number of elements, may be too large for 16 bits.
        (wide(self).pool("avg_pool", Reducer::Sum, how) / count).to_dtype(dtype)
    }

    #[track_caller]
    fn pool(&self, method: &'static str, reducer: Reducer, how: &Pooling) -> Tensor {
        if self.fault().is_some() {
            return self.clone();
        }
        match how.windows(self) {
            Ok(windows) => Tensor::apply(ReduceWindow { method, reducer, windows }, &[self]),
            Err(message) => Tensor::poison(method, message),
        }
    }
}
