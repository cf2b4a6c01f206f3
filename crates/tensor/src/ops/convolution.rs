//! Convolution over any number of spatial axes, and its derivatives, which are convolutions too.
//!
//! Both derivative rules follow from the sum that defines a convolution. The derivative with
//! respect to the input slides the flipped kernel over the cotangent, with the stride and the
//! dilation of the input exchanged. The derivative with respect to the kernel slides the cotangent
//! over the input, with the stride and the dilation of the kernel exchanged.

use fulmen_durable::messages::quantity;

use super::convolution_options::Convolution;
use super::dot::product_operands;
use super::reduce::Reducer;
use crate::Mesh;
use crate::lower::Lowering;
use crate::operation::{Operation, Vjp, one};
use crate::shape::{LARGEST, within_reach};
use crate::whole_axes::WholeAxes;
use crate::{AsTensor, DType, Tensor, TensorType};

/// The positions of an operand's axes: the batch or feature axes, and the spatial axes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Axes {
    /// The batch of an input or result; the output features of a kernel.
    pub(crate) first: usize,
    /// The features of an input or result; the input features of a kernel.
    pub(crate) second: usize,
    pub(crate) spatial: Vec<usize>,
}

impl Axes {
    /// The order `first, second, spatial…`.
    pub(crate) fn standard(spatial: usize) -> Axes {
        Axes { first: 0, second: 1, spatial: (2..spatial + 2).collect() }
    }
    /// All axes: `first`, the spatial axes, `last`.
    pub(crate) fn in_order(&self, first: usize, last: usize) -> Vec<usize> {
        [&[first], &self.spatial[..], &[last]].concat()
    }
    pub(crate) fn swapped(&self) -> Axes {
        Axes { first: self.second, second: self.first, spatial: self.spatial.clone() }
    }
    /// StableHLO's syntax, for example `[b, f, 0, 1]`.
    fn spell(&self, first: &str, second: &str) -> String {
        let mut names = vec![String::new(); self.spatial.len() + 2];
        names[self.first] = first.into();
        names[self.second] = second.into();
        for (i, &axis) in self.spatial.iter().enumerate() {
            names[axis] = i.to_string();
        }
        format!("[{}]", names.join(", "))
    }
    pub(crate) fn spatial_sizes(&self, ty: &TensorType) -> Vec<usize> {
        self.spatial.iter().map(|&a| ty.shape[a]).collect()
    }
}

/// The attributes of StableHLO's `convolution`.
#[derive(Clone, Debug)]
pub(crate) struct ConvolutionOp {
    pub(crate) method: &'static str,
    pub(crate) stride: Vec<usize>,
    pub(crate) padding: Vec<(i64, i64)>,
    pub(crate) lhs_dilation: Vec<usize>,
    pub(crate) rhs_dilation: Vec<usize>,
    pub(crate) feature_groups: usize,
    pub(crate) batch_groups: usize,
    pub(crate) lhs: Axes,
    pub(crate) rhs: Axes,
    pub(crate) out: Axes,
}

/// The extent of `size` elements with `dilation − 1` gaps between neighbors.
pub(crate) fn dilated_size(size: usize, dilation: usize) -> usize {
    if size == 0 { 0 } else { (size - 1).saturating_mul(dilation).saturating_add(1) }
}

impl ConvolutionOp {
    /// The spatial sizes of the result, or an error message if an extent is larger than a program
    /// can address.
    pub(crate) fn spatial_result(
        &self,
        lhs: &TensorType,
        rhs: &TensorType,
    ) -> Result<Vec<usize>, String> {
        let input = self.lhs.spatial_sizes(lhs);
        let kernel = self.rhs.spatial_sizes(rhs);
        (0..input.len())
            .map(|i| {
                let (low, high) = self.padding[i];
                let spread = dilated_size(input[i], self.lhs_dilation[i]);
                let window = dilated_size(kernel[i], self.rhs_dilation[i]);
                let room = i128::from(low) + spread as i128 + i128::from(high);
                for (name, amount) in [
                    ("stride", self.stride[i] as i128),
                    ("padding", low.into()),
                    ("padding", high.into()),
                    ("input dilation", self.lhs_dilation[i] as i128),
                    ("dilation", self.rhs_dilation[i] as i128),
                    ("the dilated size", spread as i128),
                    ("the dilated kernel size", window as i128),
                    ("the padded size", room),
                ] {
                    within_reach(name, self.lhs.spatial[i], amount)?;
                }
                let window = window as i128;
                Ok(if room < window { 0 } else { (room - window) as usize / self.stride[i] + 1 })
            })
            .collect()
    }

    /// The spatial axes, by position, along which XLA takes the convolution for one with groups.
    ///
    /// When XLA exchanges the input and the kernel, it leaves such an axis as it is, so that the
    /// window does not fit the new kernel, and ends the process (in JAX, too). The derivative of a
    /// convolution with two elements in the kernel, a stride of 2 and a padding of 1 is one. With a
    /// zero at the kernel's end it is none.
    fn axes_like_groups(&self, kernel: &TensorType) -> Vec<usize> {
        let sizes = self.rhs.spatial_sizes(kernel);
        let is_like_groups = |&i: &usize| {
            self.lhs_dilation[i] == sizes[i]
                && self.stride[i] + 1 == sizes[i]
                && self.rhs_dilation[i] == 1
                && self.padding[i] == (0, 0)
        };
        (0..sizes.len()).filter(is_like_groups).collect()
    }

    /// The kernel with one more element along an axis.
    fn with_zero_at_end(
        &self,
        axis: usize,
        (name, from): (String, TensorType),
        cx: &mut Lowering<'_>,
    ) -> (String, TensorType) {
        let mut to = from.shape.to_vec();
        let mut high = vec![0; from.shape.rank()];
        to[axis] += 1;
        high[axis] = 1;
        let to = TensorType::new(from.dtype, to);
        let zero = cx.constant(from.dtype, &Reducer::Sum.identity(from.dtype));
        let zeros = vec![0; high.len()];
        let padded = cx.statement(format!(
            "stablehlo.pad {name}, {zero}, low = {zeros:?}, high = {high:?}, interior = {zeros:?} : ({}, {}) -> {}",
            from.stablehlo(),
            TensorType::scalar(from.dtype).stablehlo(),
            to.stablehlo()
        ));
        (padded, to)
    }

    fn lhs_vjp(&self, lhs: &Tensor, rhs: &Tensor, g: &Tensor) -> Tensor {
        let mut kernel = rhs.clone();
        let mut groups = self.feature_groups;
        if self.feature_groups > 1 {
            kernel = move_groups(&kernel, self.rhs.first, self.rhs.second, self.feature_groups);
        } else if self.batch_groups > 1 {
            kernel = move_groups(&kernel, self.rhs.first, self.rhs.second, self.batch_groups);
            groups = self.batch_groups;
        }
        let (input, window, result) = self.extents(lhs, rhs, g);
        let padding = (0..input.len())
            .map(|i| {
                let low = window[i] - self.padding[i].0 - 1;
                (low, input[i] + window[i] - 1 - result[i] - low)
            })
            .collect();
        let spatial: Vec<isize> = self.rhs.spatial.iter().map(|&a| a as isize).collect();
        let operation = ConvolutionOp {
            method: self.method,
            stride: self.lhs_dilation.clone(),
            padding,
            lhs_dilation: self.stride.clone(),
            rhs_dilation: self.rhs_dilation.clone(),
            feature_groups: groups,
            batch_groups: 1,
            lhs: self.out.clone(),
            rhs: self.rhs.swapped(),
            out: self.lhs.clone(),
        };
        let cotangent = Tensor::apply(operation, &[g, &kernel.flip(&spatial)]);
        if self.batch_groups > 1 {
            move_groups(&cotangent, self.lhs.second, self.lhs.first, self.batch_groups)
        } else {
            cotangent
        }
    }

    fn rhs_vjp(&self, lhs: &Tensor, rhs: &Tensor, g: &Tensor) -> Tensor {
        if g.shape().num_elements() == 0 {
            // An empty cotangent cannot be a kernel.
            return rhs.zeros_like();
        }
        let (input, window, result) = self.extents(lhs, rhs, g);
        let padding = (0..input.len())
            .map(|i| {
                let low = self.padding[i].0;
                (low, result[i] - input[i] + window[i] - low - 1)
            })
            .collect();
        let (feature_groups, batch_groups) = match (self.feature_groups, self.batch_groups) {
            (1, groups) => (groups, 1),
            (groups, _) => (1, groups),
        };
        let operation = ConvolutionOp {
            method: self.method,
            stride: self.rhs_dilation.clone(),
            padding,
            lhs_dilation: self.lhs_dilation.clone(),
            rhs_dilation: self.stride.clone(),
            feature_groups,
            batch_groups,
            lhs: self.lhs.swapped(),
            rhs: self.out.swapped(),
            out: self.rhs.swapped(),
        };
        Tensor::apply(operation, &[lhs, g])
    }

    /// The dilated extents of the input, the kernel and the result along the spatial axes.
    fn extents(&self, lhs: &Tensor, rhs: &Tensor, g: &Tensor) -> (Vec<i64>, Vec<i64>, Vec<i64>) {
        let spread = |axes: &Axes, t: &Tensor, dilation: &[usize]| -> Vec<i64> {
            axes.spatial_sizes(t.ty())
                .iter()
                .zip(dilation)
                .map(|(&n, &d)| dilated_size(n, d) as i64)
                .collect()
        };
        (
            spread(&self.lhs, lhs, &self.lhs_dilation),
            spread(&self.rhs, rhs, &self.rhs_dilation),
            spread(&self.out, g, &self.stride),
        )
    }
}

/// Splits `groups` off the front of axis `from` and joins them to the front of axis `to`.
fn move_groups(t: &Tensor, from: usize, to: usize, groups: usize) -> Tensor {
    let mut split_shape = t.shape().to_vec();
    split_shape[from] /= groups;
    let mut result = split_shape.clone();
    result[to] *= groups;
    split_shape.insert(from, groups);
    // The group axis is now at `from`; it moves directly before `to`.
    let to = if to > from { to + 1 } else { to };
    let mut order: Vec<usize> = (0..split_shape.len()).filter(|&a| a != from).collect();
    let position = order.iter().position(|&a| a == to).unwrap_or(0);
    order.insert(position, from);
    t.reshape(split_shape).permute_axes(order).reshape(result)
}

impl Operation for ConvolutionOp {
    fn name(&self) -> &'static str {
        self.method
    }
    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, String> {
        let lhs = inputs[0];
        let rhs = inputs[1];
        let spatial = self.stride.len();
        if lhs.dtype != rhs.dtype || lhs.dtype == DType::Bool {
            return Err(format!(
                "the input and the kernel must have one numeric dtype, but they are {lhs} and {rhs}"
            ));
        }
        if lhs.shape.rank() != spatial + 2 || rhs.shape.rank() != spatial + 2 {
            return Err(format!(
                "a convolution over {spatial} axes takes an input [batch, channels, …] and a kernel [out, in, …] of \
                 rank {}; they are {lhs} and {rhs}",
                spatial + 2
            ));
        }
        let features = lhs.shape[self.lhs.second];
        let expected = rhs.shape[self.rhs.second] as u128 * self.feature_groups as u128;
        if features as u128 != expected {
            return Err(format!(
                "the input {lhs} has {}; the kernel {rhs} in {} takes {expected}",
                quantity(features, "channel"),
                quantity(self.feature_groups, "group")
            ));
        }
        let batch = lhs.shape[self.lhs.first];
        let out = rhs.shape[self.rhs.first];
        if self.feature_groups == 0
            || self.feature_groups > LARGEST
            || !out.is_multiple_of(self.feature_groups)
        {
            return Err(format!(
                "{out} output channels cannot be split into {} groups",
                self.feature_groups
            ));
        }
        if self.batch_groups == 0
            || !batch.is_multiple_of(self.batch_groups)
            || !out.is_multiple_of(self.batch_groups)
        {
            return Err(format!(
                "a batch of {batch} cannot be split into {} groups",
                self.batch_groups
            ));
        }
        if [&self.stride, &self.lhs_dilation, &self.rhs_dilation].iter().any(|v| v.contains(&0)) {
            return Err("stride and dilation must be at least 1".into());
        }
        if let Some(&axis) = self.rhs.spatial.iter().find(|&&axis| rhs.shape[axis] == 0) {
            return Err(format!("the kernel {rhs} has no element along axis {axis}"));
        }
        let mut to = vec![0; spatial + 2];
        to[self.out.first] = batch / self.batch_groups;
        to[self.out.second] = out;
        for (&axis, size) in self.out.spatial.iter().zip(self.spatial_result(lhs, rhs)?) {
            to[axis] = size;
        }
        one(TensorType::new(lhs.dtype, to))
    }
    fn vjp(&self, cx: &Vjp<'_>) -> Vec<Option<Tensor>> {
        let lhs = cx.input(0);
        let rhs = cx.input(1);
        let g = cx.cotangent();
        if [lhs, rhs, &g].iter().any(|t| t.shape().num_elements() == 0) {
            return vec![Some(lhs.zeros_like()), Some(rhs.zeros_like())];
        }
        vec![Some(self.lhs_vjp(lhs, rhs, &g)), Some(self.rhs_vjp(lhs, rhs, &g))]
    }
    fn check(&self, mesh: &Mesh, _: &[&TensorType]) -> Result<WholeAxes, String> {
        let mut whole = WholeAxes {
            operands: vec![self.lhs.spatial.clone(), self.rhs.spatial.clone()],
            results: vec![self.out.spatial.clone()],
            all_or_none: Vec::new(),
            ..WholeAxes::default()
        };
        if self.batch_groups > 1 {
            whole.all_or_none = vec![self.lhs.second, self.rhs.second];
        }
        let groups = self.feature_groups.max(self.batch_groups);
        if groups > 1 && !groups.is_multiple_of(mesh.num_devices()) {
            // A part of an axis may be a part of a group.
            let by_batch = self.batch_groups > 1;
            whole.operands[0].push(if by_batch { self.lhs.first } else { self.lhs.second });
            whole.operands[1].push(self.rhs.first);
            whole.results[0].push(self.out.second);
            if by_batch {
                whole.results[0].push(self.out.first);
            }
        }
        Ok(whole)
    }
    fn lower(&self, cx: &mut Lowering<'_>) -> String {
        let precision = cx.precision(cx.result().dtype);
        let mut padding = self.padding.clone();
        let mut kernel = (cx.operand(1).to_owned(), cx.operand_type(1).clone());
        for i in self.axes_like_groups(cx.operand_type(1)) {
            let axis = self.rhs.spatial[i];
            padding[i].1 += 1;
            kernel = self.with_zero_at_end(axis, kernel, cx);
        }
        let pads: Vec<_> = padding.iter().map(|(low, high)| format!("[{low}, {high}]")).collect();
        let (kernel, kernel_ty) = kernel;
        let convolution = format!(
            "stablehlo.convolution({}, {kernel}) dim_numbers = {}x{}->{}, window = {{stride = {:?}, pad = [{}], \
             lhs_dilate = {:?}, rhs_dilate = {:?}}} {{batch_group_count = {} : i64, feature_group_count = {} : i64, \
             precision_config = [#stablehlo<precision {precision}>, #stablehlo<precision {precision}>]}} : ({}, {}) -> {}",
            cx.operand(0),
            self.lhs.spell("b", "f"),
            self.rhs.spell("o", "i"),
            self.out.spell("b", "f"),
            self.stride,
            pads.join(", "),
            self.lhs_dilation,
            self.rhs_dilation,
            self.batch_groups,
            self.feature_groups,
            cx.operand_type(0).stablehlo(),
            kernel_ty.stablehlo(),
            cx.result().stablehlo()
        );
        cx.split_product(convolution)
    }
}

impl Tensor {
    /// The convolution of an input `[batch, channels, spatial…]` with a kernel
    /// `[out, channels / groups, spatial…]`. As in PyTorch, this is the cross-correlation. The
    /// result is `[batch, out, spatial…]`; each spatial axis has the size
    /// `(size + padding − dilation·(kernel − 1) − 1) / stride + 1`, rounded down.
    ///
    /// Poisoned if the ranks, channels, groups or lists of options do not fit, or for booleans.
    #[track_caller]
    pub fn convolution(&self, kernel: impl AsTensor, options: &Convolution) -> Tensor {
        Tensor::record("convolution", || {
            let (input, kernel) = product_operands(self, kernel.as_tensor())?;
            let spatial = options.stride.len();
            let padding = options.check(&kernel)?;
            if options.output_padding.iter().any(|&n| n != 0) {
                return Err("only conv_transpose supports output_padding".into());
            }
            let operation = ConvolutionOp {
                method: "convolution",
                stride: options.stride.clone(),
                padding,
                lhs_dilation: vec![1; spatial],
                rhs_dilation: options.dilation.clone(),
                feature_groups: options.groups,
                batch_groups: 1,
                lhs: Axes::standard(spatial),
                rhs: Axes::standard(spatial),
                out: Axes::standard(spatial),
            };
            Tensor::try_apply(operation, &[&input, &kernel])
        })
    }

    /// The transposed convolution of an input `[batch, channels, spatial…]` with a kernel
    /// `[channels, out / groups, spatial…]` (PyTorch's `conv_transpose1d`, `conv_transpose2d` and
    /// `conv_transpose3d`). It is the derivative of a convolution with respect to its input. The
    /// result is `[batch, out, spatial…]`; each spatial axis has the size
    /// `(size − 1)·stride − padding + dilation·(kernel − 1) + output_padding + 1`.
    ///
    /// ```
    /// use fulmen_tensor::{Convolution, DType, Tensor};
    /// let x = Tensor::zeros(DType::F32, [8, 16, 7, 7]);
    /// let w = Tensor::zeros(DType::F32, [16, 3, 4, 4]);
    /// let y = x.conv_transpose(&w, &Convolution::new(2).stride([2, 2]).padding([(1, 1), (1, 1)]));
    /// assert_eq!(y.ty().to_string(), "f32[8, 3, 14, 14]");
    /// ```
    #[track_caller]
    pub fn conv_transpose(&self, kernel: impl AsTensor, options: &Convolution) -> Tensor {
        Tensor::record("conv_transpose", || {
            let (input, kernel) = product_operands(self, kernel.as_tensor())?;
            let (operation, moves_groups) = options.transposed(&input, &kernel)?;
            let spatial: Vec<isize> = (2..kernel.rank() as isize).collect();
            let kernel =
                if moves_groups { move_groups(&kernel, 0, 1, options.groups) } else { kernel };
            Tensor::try_apply(operation, &[&input, &kernel.flip(&spatial)])
        })
    }
}
