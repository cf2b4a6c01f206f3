//! The derivative of a maximum or minimum over windows, in the forms that suit CPUs and GPUs.

use super::Replacement;
use crate::operation::Operation;
use crate::ops::pooling::Windows;
use crate::ops::reduce::Reducer;
use crate::ops::select_and_scatter::SelectAndScatter;
use crate::ops::slice::{WindowGrid, windows};
use crate::region::{Region, parameters};
use crate::{DType, Tensor, TensorType};

/// The largest number of elements of a window that a CPU compares one by one.
const LARGEST_WINDOW: usize = 16;

/// For the CPU: a selection, if the windows are adjacent.
pub(super) fn as_selection(
    operation: &dyn Operation,
    operands: &[&TensorType],
) -> Option<Replacement> {
    let scatter = operation.downcast::<SelectAndScatter>()?;
    scatter.selection(operands[0], operands[1]).map(Replacement::Expression)
}

/// For GPUs: an operand that contains its padding.
pub(super) fn with_padded_operand(
    operation: &dyn Operation,
    operands: &[&TensorType],
) -> Option<Replacement> {
    let scatter = operation.downcast::<SelectAndScatter>()?;
    if scatter.windows.padding.iter().all(|&n| n == (0, 0)) {
        return None;
    }
    let parameters = parameters("select_and_scatter", "operand", operands.iter().copied());
    let results = vec![scatter.padded(&parameters[0], &parameters[1])];
    Some(Replacement::Expression(Region { parameters, results }))
}

impl SelectAndScatter {
    /// The same result, from an operand that contains its padding.
    ///
    /// XLA's GPU compiler scatters into zeros of the operand's shape. If a ReLU's derivative needs
    /// zeros of that shape too, both share them, so that they are written to memory, copied and
    /// read. In ResNet-50's step with 256 images, that is 1.6 GB of 105. The zeros of a padded
    /// operand have a shape of their own.
    fn padded(&self, x: &Tensor, g: &Tensor) -> Tensor {
        let Windows { padding, .. } = &self.windows;
        let [low, high]: [Vec<i64>; 2] =
            [padding.iter().map(|n| n.0).collect(), padding.iter().map(|n| n.1).collect()];
        let worst = if self.reducer == Reducer::Max { f64::NEG_INFINITY } else { f64::INFINITY };
        let operand = x.pad(Tensor::full(x.dtype(), [], worst), &low, &high, &vec![0; x.rank()]);
        let windows = Windows { padding: vec![(0, 0); x.rank()], ..self.windows.clone() };
        let scattered =
            Tensor::apply(SelectAndScatter { reducer: self.reducer, windows }, &[&operand, g]);
        let [low, high] = [low, high].map(|sizes| sizes.iter().map(|n| -n).collect::<Vec<_>>());
        scattered.pad(Tensor::zeros(x.dtype(), []), &low, &high, &vec![0; x.rank()])
    }

    /// The same result for adjacent windows, without a scatter: each element of the input compares
    /// its position with that of the selected element of its window.
    ///
    /// XLA's CPU compiler expands `select_and_scatter` into a `reduce_window` over positions and a
    /// scatter of single elements. Measured with windows of 2 × 2 over f32[64, 20, 24, 24] on two
    /// cores, a selection takes a quarter of that time.
    fn selection(&self, x: &TensorType, g: &TensorType) -> Option<Region> {
        let Windows { size, stride, padding, dilation } = &self.windows;
        let adjacent = size == stride
            && padding.iter().all(|&n| n == (0, 0))
            && dilation.iter().all(|&n| n == 1);
        let count: usize = size.iter().product();
        if !adjacent || count > LARGEST_WINDOW || g.shape.num_elements() == 0 {
            return None;
        }
        let parameters = parameters("select_and_scatter", "operand", [x, g]);
        let x = &parameters[0];
        let g = &parameters[1];
        let rank = x.rank();
        let ones = vec![1; x.rank()];
        let axes: Vec<_> = (0..rank).collect();
        let grid = WindowGrid { counts: size, stride: &ones, sizes: g.shape(), dilation: stride };
        let elements = windows(x, &axes, &grid);
        // The first of equal elements is selected.
        let mut selected = elements[0].clone();
        let mut position = Tensor::zeros(DType::I32, g.shape());
        for (i, element) in elements.iter().enumerate().skip(1) {
            let keep = if self.reducer == Reducer::Max {
                selected.ge(element)
            } else {
                selected.le(element)
            };
            position = keep.select(&position, Tensor::full(DType::I32, g.shape(), i as f64));
            selected = keep.select(&selected, element);
        }
        // Each axis of windows becomes two: the window, and the position in the window.
        let pairs: Vec<usize> = (0..rank).flat_map(|axis| [g.shape()[axis], size[axis]]).collect();
        let outer: Vec<usize> = (0..rank).map(|axis| 2 * axis).collect();
        let mut own = Tensor::zeros(DType::I32, pairs.clone());
        for (axis, &size) in size.iter().enumerate().filter(|&(_, &size)| size > 1) {
            own =
                own * size as f64 + Tensor::iota(DType::I32, pairs.clone(), 2 * axis as isize + 1);
        }
        let is_selected = own.eq(position.broadcast_along(pairs.clone(), &outer));
        let spread = is_selected
            .select(g.broadcast_along(pairs.clone(), &outer), Tensor::zeros(g.dtype(), pairs));
        let covered: Vec<usize> = (0..rank).map(|axis| g.shape()[axis] * size[axis]).collect();
        // Elements after the last window are in no window.
        let rest: Vec<_> =
            (0..rank).map(|axis| x.shape()[axis] as i64 - covered[axis] as i64).collect();
        let zeros = vec![0; rank];
        let result = spread.reshape(covered).pad(
            Tensor::zeros(g.dtype(), []),
            &vec![0; rank],
            &rest,
            &zeros,
        );
        Some(Region { parameters, results: vec![result] })
    }
}

#[cfg(test)]
mod tests {
    use fulmen_pjrt::locate::Platform;

    use super::*;
    use crate::passes::tests::{count, text, texts};
    use crate::{Function, Pooling, grad};

    #[test]
    fn padding_in_the_operand_selects_the_same_elements() -> crate::Result<()> {
        // Ties, and windows whose elements are all negative.
        let x = Tensor::from_slice(&[-1.0f32, -2.0, 3.0, 3.0, -5.0, -1.0, 0.0, 2.0, 2.0], [3, 3]);
        let g = Tensor::from_slice(&[1.0f32, 2.0, 4.0, 8.0], [2, 2]);
        for reducer in [Reducer::Max, Reducer::Min] {
            let operation = || SelectAndScatter {
                reducer,
                windows: Windows {
                    size: vec![3, 3],
                    stride: vec![2, 2],
                    padding: vec![(1, 1); 2],
                    dilation: vec![1, 1],
                },
            };
            let scattered = Tensor::apply(operation(), &[&x, &g]).eval()?.to_vec::<f32>()?;
            assert_eq!(scattered.iter().sum::<f32>(), 15.0);
            let function =
                Function::new("scatter", vec![], vec![Tensor::apply(operation(), &[&x, &g])]);
            let texts = texts(&function, 1, Platform::Cuda, "padded-operand")?;
            assert_eq!((count(&texts.with, "pad "), count(&texts.without, "pad ")), (2, 0));
            assert_eq!(count(&text(&function, Some(Platform::Tpu))?, "pad "), 0);
            let padded = operation().padded(&x, &g).eval()?.to_vec::<f32>()?;
            assert_eq!(padded, scattered);
        }
        Ok(())
    }

    #[test]
    fn on_cpus_the_derivative_over_adjacent_windows_has_no_scatter() -> crate::Result<()> {
        let ty = TensorType::new(DType::F32, [4, 3, 8, 8]);
        let function = Function::trace("f", ty, |x| {
            let pooled = x.max_pool(&Pooling::new([2, 2]).stride([2, 2]));
            grad(&pooled.sum_all(), &[&x])
        });
        let texts = texts(&function, 1, Platform::Cpu, "selection")?;
        assert_eq!(texts.with.matches("select_and_scatter").count(), 0);
        assert_eq!(texts.without.matches("select_and_scatter").count(), 1);
        Ok(())
    }
}
