//! Convolutions as products of matrices, for the CPU.
//!
//! XLA's CPU compiler runs a convolution as one loop over windows. That is slow for small maps, and
//! for some derivatives: with respect to a kernel of one element, to the kernel of a transposed
//! convolution, and to an input without padding. A product is faster there, at the cost of memory
//! for copies of an operand. Which form is chosen depends on the sizes alone; see [`Form::choose`].
//!
//! Programs for other devices keep their convolutions.

use super::Replacement;
use crate::axis_order::inverse;
use crate::operation::Operation;
use crate::ops::convolution::{Axes, ConvolutionOp, dilated_size};
use crate::ops::slice::{WindowGrid, windows};
use crate::region::{Region, parameters};
use crate::{DType, Shape, Tensor, TensorType};

/// The least number of features on each side for which a product is faster. Below it, a product is
/// too narrow.
const LEAST_FEATURES: usize = 32;

/// The largest number of positions of a map on which patches are faster than XLA's loop over
/// windows.
const LARGEST_SMALL_MAP: usize = 16;

/// The largest number of elements of a kernel for which the input is copied once for each.
const LARGEST_SMALL_KERNEL: usize = 27;

/// How a convolution is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// A product with the input's patches, copied once for each element of the kernel.
    PatchesByTap,
    /// A product of the input with each element of the kernel, then a sum of these products, each
    /// shifted by its element's position.
    SumOfTaps,
    /// A product with the input's patches, copied once for each position of the result.
    PatchesByPosition,
    /// A product with the kernel's patches, copied once for each position of the result. For the
    /// derivative with respect to the kernel of a transposed convolution, the larger operand is the
    /// cotangent, which is the kernel here.
    KernelPatchesByPosition,
}

impl Form {
    /// The fastest form for these operands; `None` for XLA's own convolution.
    ///
    /// The best of 7 to 9 times of f32 on two cores of an AMD EPYC with AVX-512 and the CPU plugin of
    /// JAX 0.11.2, as a multiple of the time of XLA's convolution with the features last. The rows
    /// with stride 16 were measured while other work ran.
    ///
    /// | | Map | Images | Patches |
    /// |---|---|---|---|
    /// | convolution, 3 × 3 | 2 × 2 with 512 features | 32 | 0.02 |
    /// | | 4 × 4 with 512 features | 4 and 32 | 0.7 and 1.0 |
    /// | | 8 × 8 with 256 features | 4 and 32 | 1.0 and 1.7 |
    /// | | 16 × 16 with 128 features | 32 | 2.5 |
    /// | convolution, 16 × 16, stride 16 | 224 × 224 with 3 features | 8 and 32 | 2.2 and 1.9 |
    /// | kernel's derivative, 3 × 3 | 4 × 4 with 512 features | 4 and 32 | 1.7 and 1.0 |
    /// | | 8 × 8 with 256 features | 4 | 1.4 |
    /// | | 32 × 32 with 64 features | 32 | 4.0 |
    /// | kernel's derivative, 3 × 3, stride 2 | 8 × 8 to 32 × 32 | 32 | 1.0 to 2.2 |
    /// | kernel's derivative, 16 × 16, stride 16 | 224 × 224 with 3 features | 32 | 1.3 |
    /// | kernel's derivative, 1 × 1, stride 2 | 32 × 32 with 64 features | 32 | 0.4 |
    /// | kernel's derivative, 1 × 1 | 56 × 56 with 64 features | 8 | 0.7 |
    /// | kernel's derivative, 3 | 1000 with 64 features | 32 | 1.8 |
    /// | kernel's derivative, 3 × 3 × 3 | 16 × 16 × 16 with 64 features | 8 | 0.8 |
    ///
    /// The last form is not used, because its 27 copies of the input need too much memory.
    ///
    /// On maps of 4 × 4, patches for the derivative with respect to the kernel made a whole step of
    /// ResNet-18 5 % faster on one device, and 15 % on eight, although alone they are not. Why is not
    /// known. For an input of 12 × 12
    /// without padding, the cotangent of 8 × 8 is padded to 16 × 16. The derivative with respect to
    /// this input takes 0.5 of the time as a sum of products.
    fn choose(operation: &ConvolutionOp, lhs: &TensorType, rhs: &TensorType) -> Option<Form> {
        let result = operation.spatial_result(lhs, rhs).ok()?;
        let kernel = operation.rhs.spatial_sizes(rhs);
        let positions = result.iter().product::<usize>();
        let taps = kernel.iter().product::<usize>();
        let batch = lhs.shape[operation.lhs.first];
        let features = lhs.shape[operation.lhs.second];
        let out = rhs.shape[operation.rhs.first];
        let plain = operation.feature_groups == 1 && operation.batch_groups == 1;
        let all_one = |steps: &[usize]| steps.iter().all(|&step| step == 1);
        let empty = lhs.shape.num_elements() == 0 || positions == 0 || kernel.is_empty();
        if lhs.dtype != DType::F32 || !plain || empty {
            return None;
        }
        if !all_one(&operation.lhs_dilation) {
            let form =
                positions < taps && all_one(&operation.stride) && all_one(&operation.rhs_dilation);
            return form.then_some(Form::KernelPatchesByPosition);
        }
        let elements: usize = operation.lhs.spatial_sizes(lhs).iter().product();
        let grows = positions >= 2 * elements && all_one(&operation.stride);
        if grows && features >= LEAST_FEATURES {
            return Some(Form::SumOfTaps);
        }
        // The derivative with respect to a kernel has few positions and many taps, and its "batch"
        // is the input's features.
        let by_position = positions < taps && (positions == 1 || taps <= LARGEST_SMALL_MAP);
        if by_position && batch.min(out) >= LEAST_FEATURES {
            return Some(Form::PatchesByPosition);
        }
        let by_tap = positions <= LARGEST_SMALL_MAP && taps <= LARGEST_SMALL_KERNEL;
        (by_tap && features.min(out) >= LEAST_FEATURES).then_some(Form::PatchesByTap)
    }
}

/// The convolution as a product of matrices, if that is faster on a CPU.
pub(super) fn as_product(
    operation: &dyn Operation,
    operands: &[&TensorType],
) -> Option<Replacement> {
    let convolution = operation.downcast::<ConvolutionOp>()?;
    let form = Form::choose(convolution, operands[0], operands[1])?;
    let parameters = parameters("convolution", "operand", operands.iter().copied());
    let result = convolution.product(form, &parameters[0], &parameters[1])?;
    Some(convolution.features_second(parameters, &result))
}

/// The convolution with its features last, as XLA's CPU compiler computes it. `None` if it already
/// has that form.
pub(super) fn with_features_last(
    operation: &dyn Operation,
    operands: &[&TensorType],
) -> Option<Replacement> {
    let convolution = operation.downcast::<ConvolutionOp>()?;
    let ConvolutionOp { lhs, rhs, out, .. } = convolution;
    let spatial = convolution.stride.len();
    let last = Axes { first: 0, spatial: (1..=spatial).collect(), second: spatial + 1 };
    let kernel = Axes { spatial: (0..spatial).collect(), second: spatial, first: spatial + 1 };
    if [lhs, out] == [&last; 2] && *rhs == kernel {
        return None;
    }
    let parameters = parameters("convolution", "operand", operands.iter().copied());
    let input = parameters[0].permute_axes(lhs.in_order(lhs.first, lhs.second));
    let kernel_order = [&rhs.spatial[..], &[rhs.second, rhs.first]].concat();
    let weight = parameters[1].permute_axes(kernel_order);
    let with_last =
        ConvolutionOp { lhs: last.clone(), rhs: kernel, out: last, ..convolution.clone() };
    let result = Tensor::apply(with_last, &[&input, &weight]);
    Some(convolution.features_second(parameters, &result))
}

/// An operand with its features last.
fn features_last(operand: &Tensor, axes: &Axes) -> Tensor {
    operand.permute_axes(axes.in_order(axes.first, axes.second))
}

/// An operand of a product over the positions: the contracted axes are first.
fn contracted_first(operand: &Tensor, axes: &Axes) -> Tensor {
    operand.permute_axes(axes.in_order(axes.second, axes.first))
}

impl ConvolutionOp {
    /// The replacement with this result, `[batch, positions…, out]`.
    fn features_second(&self, parameters: Vec<Tensor>, result: &Tensor) -> Replacement {
        let order = inverse(&self.out.in_order(self.out.first, self.out.second));
        let results = vec![result.permute_axes(order)];
        Replacement::Expression(Region { parameters, results })
    }

    /// The product `[batch, positions…, out]`.
    fn product(&self, form: Form, lhs: &Tensor, rhs: &Tensor) -> Option<Tensor> {
        let positions = self.spatial_result(lhs.ty(), rhs.ty()).ok()?;
        match form {
            Form::PatchesByTap => Some(self.patches_by_tap(lhs, rhs, &positions)),
            Form::SumOfTaps => self.sum_of_taps(lhs, rhs, &positions),
            Form::PatchesByPosition => Some(self.patches_by_position(lhs, rhs, &positions)),
            Form::KernelPatchesByPosition => {
                Some(self.kernel_patches_by_position(lhs, rhs, &positions))
            }
        }
    }

    fn patches_by_tap(&self, lhs: &Tensor, rhs: &Tensor, positions: &[usize]) -> Tensor {
        let taps = self.rhs.spatial_sizes(rhs.ty());
        let spatial: Vec<usize> = (1..=taps.len()).collect();
        let lhs = padded(&features_last(lhs, &self.lhs), &spatial, &self.padding);
        let grid = WindowGrid {
            counts: &taps,
            stride: &self.rhs_dilation,
            sizes: positions,
            dilation: &self.stride,
        };
        let patches = concatenate(&windows(&lhs, &spatial, &grid), taps.len() + 1);
        // The patches' features are taps × features; so are the kernel's. Its outer features stay
        // outside.
        if self.rhs.first < self.rhs.second {
            let order = [&[self.rhs.first], &self.rhs.spatial[..], &[self.rhs.second]].concat();
            patches.dot_general(rhs.permute_axes(order).flatten(1, -1), ([], []), (-1, 1))
        } else {
            let order = [&self.rhs.spatial[..], &[self.rhs.second, self.rhs.first]].concat();
            patches.dot_general(rhs.permute_axes(order).flatten(0, -2), ([], []), (-1, 0))
        }
    }

    /// `None` for a kernel without elements.
    fn sum_of_taps(&self, lhs: &Tensor, rhs: &Tensor, positions: &[usize]) -> Option<Tensor> {
        let taps = self.rhs.spatial_sizes(rhs.ty());
        let lhs = features_last(lhs, &self.lhs);
        let kernel = contracted_first(rhs, &self.rhs);
        // The batch and the positions, then the taps, then the output features.
        let mut product = lhs.dot_general(kernel, ([], []), (-1, 0));
        for i in (0..taps.len()).rev() {
            let axis = i + 1;
            let tap_axis = taps.len() + 1 + i;
            let grown = positions[i] as i64 - lhs.shape()[axis] as i64;
            let terms = (0..taps[i]).map(|tap| {
                let low = self.padding[i].0 - (tap * self.rhs_dilation[i]) as i64;
                let of_tap = product.index(tap_axis as isize, tap as isize);
                padded(&of_tap, &[axis], &[(low, grown - low)])
            });
            product = terms.reduce(|sum, term| sum + term)?;
        }
        Some(product)
    }

    fn patches_by_position(&self, lhs: &Tensor, rhs: &Tensor, positions: &[usize]) -> Tensor {
        let taps = self.rhs.spatial_sizes(rhs.ty());
        let spatial: Vec<usize> = (1..=taps.len()).collect();
        let lhs = padded(&contracted_first(lhs, &self.lhs), &spatial, &self.padding);
        let grid = WindowGrid {
            counts: positions,
            stride: &self.stride,
            sizes: &taps,
            dilation: &self.rhs_dilation,
        };
        let patches = concatenate(&windows(&lhs, &spatial, &grid), taps.len() + 1);
        self.product_of_patches(&patches, &contracted_first(rhs, &self.rhs), positions, &[])
    }

    fn kernel_patches_by_position(
        &self,
        lhs: &Tensor,
        rhs: &Tensor,
        positions: &[usize],
    ) -> Tensor {
        let taps = self.rhs.spatial_sizes(rhs.ty());
        let spatial: Vec<usize> = (1..=taps.len()).collect();
        // Position `s` of the result multiplies element `q` of the input, which its dilation moves
        // to `q·d`, by element `q·d − s + low` of the kernel.
        let input = self.lhs.spatial_sizes(lhs.ty());
        let mut margins = Vec::new();
        for i in 0..taps.len() {
            let low = self.padding[i].0;
            let last = positions[i] as i64 - 1;
            let dilated = dilated_size(input[i], self.lhs_dilation[i]) as i64;
            margins.push((last - low, low + dilated - taps[i] as i64));
        }
        let kernel = padded(&contracted_first(rhs, &self.rhs), &spatial, &margins);
        let steps = vec![1; taps.len()];
        let grid = WindowGrid {
            counts: positions,
            stride: &steps,
            sizes: &input,
            dilation: &self.lhs_dilation,
        };
        let mut windows = windows(&kernel, &spatial, &grid);
        // The first position is the last window.
        windows.reverse();
        let patches = concatenate(&windows, taps.len() + 1);
        self.product_of_patches(&contracted_first(lhs, &self.lhs), &patches, &[], positions)
    }

    /// The product `[batch, rhs_positions…, lhs_positions…, out]` over all axes but the last. The
    /// last axes have a copy of the features for each of these positions.
    fn product_of_patches(
        &self,
        lhs: &Tensor,
        rhs: &Tensor,
        lhs_positions: &[usize],
        rhs_positions: &[usize],
    ) -> Tensor {
        let contracted: Vec<usize> = (0..lhs.rank() - 1).collect();
        let product = |lhs: &Tensor, rhs: &Tensor| {
            lhs.product("dot_general", rhs, (&[], &[]), (&contracted, &contracted))
        };
        let features = |t: &Tensor, positions: &[usize]| {
            t.shape()[lhs.rank() - 1] / positions.iter().product::<usize>()
        };
        let batch = features(lhs, lhs_positions);
        let out = features(rhs, rhs_positions);
        let l = lhs_positions.len();
        let r = rhs_positions.len();
        // The operand whose features are the outer ones of the convolution's result is first. Then
        // the result is transposed within blocks that fit into a cache.
        if self.out.first < self.out.second {
            product(lhs, rhs)
                .reshape([lhs_positions, &[batch], rhs_positions, &[out]].concat())
                .permute_axes(
                    [l].into_iter()
                        .chain(l + 1..l + 1 + r)
                        .chain(0..l)
                        .chain([l + r + 1])
                        .collect(),
                )
        } else {
            product(rhs, lhs)
                .reshape([rhs_positions, &[out], lhs_positions, &[batch]].concat())
                .permute_axes(
                    [l + r + 1]
                        .into_iter()
                        .chain(0..r)
                        .chain(r + 1..r + 1 + l)
                        .chain([r])
                        .collect(),
                )
        }
    }
}

fn concatenate(parts: &[Tensor], axis: usize) -> Tensor {
    Tensor::concatenate(parts, axis as isize)
}

/// The tensor with zeros before and after these axes. A negative number removes elements.
fn padded(t: &Tensor, axes: &[usize], margins: &[(i64, i64)]) -> Tensor {
    let mut low = vec![0; t.rank()];
    let mut high = vec![0; t.rank()];
    for (&axis, margin) in axes.iter().zip(margins) {
        (low[axis], high[axis]) = *margin;
    }
    t.pad(Tensor::full(t.dtype(), Shape::scalar(), 0.0), &low, &high, &vec![0; t.rank()])
}

#[cfg(test)]
mod tests {
    use fulmen_pjrt::locate::Platform;

    use crate::passes::tests::{count, text, texts};
    use crate::{Convolution, DType, Function, TensorType, grad};

    /// The numbers of convolutions and of products in a convolution of f32 and its derivatives.
    fn statements<const N: usize>(
        input: [usize; N],
        kernel: [usize; N],
        options: &Convolution,
        platform: Option<Platform>,
    ) -> crate::Result<[usize; 2]> {
        let types = [input, kernel].map(|shape| TensorType::new(DType::F32, shape));
        let function = Function::trace("f", types, |[x, w]| {
            let y = x.convolution(&w, options);
            let gradients = grad(&y.sum_all(), &[&x, &w]);
            [vec![y], gradients].concat()
        });
        let text = text(&function, platform)?;
        Ok(["convolution(", "dot_general "].map(|statement| count(&text, statement)))
    }

    #[test]
    fn the_form_depends_on_the_platform_and_the_sizes() -> crate::Result<()> {
        let cpu = Some(Platform::Cpu);
        let bare = Convolution::new(2);
        let padded = bare.clone().padding([(1, 1); 2]);
        let large = [4, 64, 32, 32];
        let small = [4, 64, 4, 4];
        let kernel = [64, 64, 3, 3];
        assert_eq!(statements(large, kernel, &padded, cpu)?, [3, 0]);
        assert_eq!(statements(small, kernel, &padded, cpu)?, [0, 3]);
        assert_eq!(statements(large, [64, 64, 1, 1], &bare, cpu)?, [2, 1]);
        // The derivative for the input has a dilated input.
        assert_eq!(statements([4, 64, 8, 8], kernel, &padded.clone().stride([2; 2]), cpu)?, [1, 2]);
        // The derivative for an input without padding is more than twice as large as its cotangent.
        assert_eq!(statements([4, 20, 12, 12], [50, 20, 5, 5], &bare, cpu)?, [2, 1]);
        // A map that is smaller than the kernel: its derivative has many positions, and as many
        // features as there are images.
        assert_eq!(statements([4, 64, 2, 2], kernel, &padded, cpu)?, [1, 2]);
        assert_eq!(statements([32, 64, 2, 2], kernel, &padded, cpu)?, [0, 3]);
        let one = Convolution::new(1);
        assert_eq!(statements([2, 64, 16], [64, 64, 3], &one, cpu)?, [0, 3]);
        assert_eq!(statements([2, 64, 100], [64, 64, 3], &one, cpu)?, [3, 0]);
        let three = Convolution::new(3);
        assert_eq!(statements([2, 32, 6, 6, 6], [32, 32, 3, 3, 3], &three, cpu)?, [2, 1]);
        // Few features.
        assert_eq!(statements([4, 3, 32, 32], [64, 3, 3, 3], &padded, cpu)?, [3, 0]);
        for platform in [None, Some(Platform::Tpu), Some(Platform::Cuda)] {
            assert_eq!(statements(large, kernel, &padded, platform)?, [3, 0]);
            assert_eq!(statements(small, kernel, &padded, platform)?, [3, 0]);
        }
        Ok(())
    }

    #[test]
    fn a_convolution_of_a_small_map_is_a_product() -> crate::Result<()> {
        let types = [[4, 64, 4, 4], [64, 64, 1, 1]].map(|shape| TensorType::new(DType::F32, shape));
        let function =
            Function::trace("f", types, |[x, w]| x.convolution(&w, &Convolution::new(2)));
        let texts = texts(&function, 1, Platform::Cpu, "convolution-products")?;
        assert_eq!(
            (count(&texts.with, "convolution("), count(&texts.with, "dot_general ")),
            (0, 1)
        );
        assert_eq!(count(&texts.without, "convolution("), 1);
        Ok(())
    }

    #[test]
    fn a_convolution_on_a_cpu_has_its_features_last() -> crate::Result<()> {
        let types = [[4, 8, 32, 32], [8, 8, 3, 3]].map(|shape| TensorType::new(DType::F32, shape));
        let function =
            Function::trace("f", types, |[x, w]| x.convolution(&w, &Convolution::new(2)));
        let texts = texts(&function, 1, Platform::Cpu, "features-last")?;
        assert!(texts.with.contains("dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f]"));
        assert!(texts.without.contains("dim_numbers = [b, f, 0, 1]x[o, i, 0, 1]->[b, f, 0, 1]"));
        Ok(())
    }
}
