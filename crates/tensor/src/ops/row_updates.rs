//! The gradient of a table from which rows were looked up, as rows and indices: [`row_updates`].

use super::constant::elements;
use super::scatter::Scatter;
use crate::operation::Operation;
use crate::tensor::Kind;
use crate::{DType, Tensor};

/// Rows to be added to a table `[size, …]`.
#[derive(Clone, Debug)]
pub struct RowUpdates {
    /// The indices of the rows, a vector; all are within the table. An index may occur several
    /// times.
    pub indices: Tensor,
    /// The rows, `[indices, …]`.
    pub rows: Tensor,
}

/// The gradient of a table as the rows of each look-up, without the sum over the table. An error if
/// it has another part: the tensor that is not a sum of looked-up rows.
pub fn row_updates(gradient: &Tensor) -> Result<Vec<RowUpdates>, Tensor> {
    let Kind::Operation(operation) = &gradient.node.kind else { return Err(gradient.clone()) };
    match (operation.name(), &gradient.node.inputs[..]) {
        ("to_dtype", [from]) if from.dtype().is_float() => row_updates(from),
        ("add", [a, b]) if a.shape() == b.shape() => {
            let [mut all, more] = [row_updates(a)?, row_updates(b)?];
            all.extend(more);
            Ok(all)
        }
        (_, [to, indices, rows]) if adds_rows(operation.as_ref()) && to.is_zeros() => {
            let n = indices.shape().num_elements();
            let shape = [&[n], &gradient.shape()[1..]].concat();
            Ok(vec![RowUpdates { indices: indices.reshape([n]), rows: rows.reshape(shape) }])
        }
        _ => Err(gradient.clone()),
    }
}

fn adds_rows(operation: &dyn Operation) -> bool {
    operation.downcast::<Scatter>().is_some_and(Scatter::adds_rows)
}

impl Tensor {
    /// The name of the operation that computes this tensor, if there is one.
    pub fn operation_name(&self) -> Option<&'static str> {
        match &self.node.kind {
            Kind::Operation(operation) => Some(operation.name()),
            _ => None,
        }
    }

    /// Whether this is a constant of zeros.
    fn is_zeros(&self) -> bool {
        let Kind::Operation(operation) = &self.node.kind else { return false };
        self.dtype() != DType::Bool
            && elements(operation.as_ref()).is_some_and(|bytes| bytes.iter().all(|byte| *byte == 0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grad;

    #[test]
    fn the_gradient_of_look_ups_is_rows_and_indices() {
        let table = Tensor::placeholder("table", crate::TensorType::new(DType::F32, [100, 2]));
        let indices = Tensor::from_slice(&[3i32, 7, 3], [3]);
        let rows = table.take(0, &indices);
        let other = table.take(0, Tensor::from_slice(&[[1i64], [2]].concat(), [2, 1]));
        let loss = (&rows * &rows).sum_all() + other.sum_all();
        let gradient = grad(&loss, &[&table]).remove(0);
        let mut shapes: Vec<String> = row_updates(&gradient)
            .unwrap()
            .iter()
            .map(|part| format!("{} {}", part.indices.shape(), part.rows.ty()))
            .collect();
        shapes.sort();
        assert_eq!(shapes, ["[2] f32[2, 2]", "[3] f32[3, 2]"]);

        let tied = loss + rows.matmul(&table.t()).sum_all();
        let gradient = grad(&tied, &[&table]).remove(0);
        let dense = row_updates(&gradient).unwrap_err();
        assert!(dense.operation_name().is_some());
    }
}
