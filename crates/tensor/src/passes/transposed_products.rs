//! Products with a matrix that is transposed in memory first, for the CPU.

use super::Replacement;
use crate::operation::Operation;
use crate::ops::dot::DotGeneral;
use crate::region::{Region, parameters};
use crate::{DType, Tensor, TensorType};

/// The sizes of a contracted first axis for which transposing the left matrix pays.
const TRANSPOSED: std::ops::RangeInclusive<usize> = 256..=4096;

/// The least number of rows and columns of the product for which transposing the left matrix pays.
const LEAST_FREE: usize = 128;

/// A product over the first axis of two matrices, with the left one transposed in memory.
pub(super) fn rule(operation: &dyn Operation, operands: &[&TensorType]) -> Option<Replacement> {
    let product = operation.downcast::<DotGeneral>()?;
    let is_over_rows = product.lhs_contracting.len() == 1
        && product.lhs_batch.is_empty()
        && product.sums_over_first_axes(operands);
    if operands[0].dtype != DType::F32 || !is_over_rows {
        return None;
    }
    let parameters = parameters(product.method, "operand", operands.iter().copied());
    let result = product_of_transposed(&parameters[0], &parameters[1])?;
    Some(Replacement::Expression(Region { parameters, results: vec![result] }))
}

/// The product over the first axes of two matrices, with the left one transposed in memory, if that
/// is faster.
fn product_of_transposed(lhs: &Tensor, rhs: &Tensor) -> Option<Tensor> {
    let [contracted, rows] = &lhs.shape()[..] else {
        return None;
    };
    let [_, columns] = &rhs.shape()[..] else {
        return None;
    };
    if !TRANSPOSED.contains(contracted) || rows.min(columns) < &LEAST_FREE {
        return None;
    }
    // Without the barrier, XLA would make the transpose a part of the product again.
    let lhs = Tensor::optimization_barrier(&[&lhs.transpose(0, 1)]);
    Some(lhs[0].dot_general(rhs, ([], []), (1, 0)))
}

#[cfg(test)]
mod tests {
    use fulmen_pjrt::locate::Platform;

    use super::*;
    use crate::Function;
    use crate::passes::tests::{count, texts};

    #[test]
    fn on_cpus_the_left_matrix_is_transposed_in_memory_only_if_that_pays() -> crate::Result<()> {
        let is_transposed = |lhs: [usize; 2], rhs: [usize; 2], platform| -> crate::Result<bool> {
            let types = [lhs, rhs].map(|shape| TensorType::new(DType::F32, shape));
            let function =
                Function::trace("f", types, |[x, w]| x.dot_general(&w, ([], []), (0, 0)));
            let texts = texts(&function, 1, platform, "transposed-products")?;
            assert_eq!(count(&texts.without, "transpose "), 0, "{}", texts.without);
            Ok(count(&texts.with, "optimization_barrier") == 1)
        };
        assert!(is_transposed([512, 128], [512, 256], Platform::Cpu)?);
        assert!(!is_transposed([512, 128], [512, 256], Platform::Tpu)?);
        assert!(!is_transposed([128, 128], [128, 256], Platform::Cpu)?);
        assert!(!is_transposed([8192, 128], [8192, 256], Platform::Cpu)?);
        assert!(!is_transposed([512, 64], [512, 256], Platform::Cpu)?);
        assert!(!is_transposed([512, 128], [512, 64], Platform::Cpu)?);
        Ok(())
    }

    #[test]
    fn a_product_with_a_transposed_matrix_equals_the_sum_over_rows() -> crate::Result<()> {
        // Small whole numbers, so that every sum is exact.
        let matrix = |columns: usize| {
            let elements: Vec<f32> =
                (0..256 * columns).map(|i| ((i * i + i / columns) % 7) as f32 - 3.0).collect();
            elements
        };
        let lhs = matrix(129);
        let rhs = matrix(128);
        let product = Tensor::from_slice(&lhs, [2, 128, 129]).dot_general(
            Tensor::from_slice(&rhs, [2, 128, 128]),
            ([], []),
            ([0, 1], [0, 1]),
        );
        let product = product.eval()?.to_vec::<f32>()?;
        for (i, j) in [(0, 0), (0, 127), (128, 0), (128, 127), (64, 31)] {
            let sum: f32 = (0..256).map(|k| lhs[k * 129 + i] * rhs[k * 128 + j]).sum();
            assert_eq!(product[i * 128 + j], sum);
        }
        Ok(())
    }
}
