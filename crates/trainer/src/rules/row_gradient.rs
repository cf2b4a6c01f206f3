//! The gradient of a table whose rows are looked up by index.

use std::panic::Location;

use fulmen_tensor::internal::{RowUpdates, row_updates};
use fulmen_tensor::{DType, Shape, Sharding, Tensor};

use crate::{Error, Result};

/// The rows of a table that have a gradient. Each occurs once.
pub(crate) struct RowGradient {
    /// The indices of the rows, ascending, a vector. Unused elements have the size of the table.
    pub(crate) indices: Tensor,
    /// The gradient of each row; 0 in unused elements.
    pub(crate) rows: Tensor,
}

impl RowGradient {
    /// Sums the gradients of rows that were looked up several times.
    pub(crate) fn sum(updates: &[RowUpdates], table: &Shape) -> RowGradient {
        // Without the annotation, each device would add its rows to a table of zeros, and the sum
        // over the devices would have the size of the table.
        let everywhere = |parts: Vec<Tensor>| {
            Tensor::concatenate(&parts, 0).with_sharding(&Sharding::replicated())
        };
        let indices = everywhere(updates.iter().map(|part| part.indices.clone()).collect());
        let rows = everywhere(updates.iter().map(|part| part.rows.clone()).collect());
        let n = indices.size(0);
        let (sorted, order) = indices.sort(0, false);
        // The number of each distinct index, from 0.
        let is_new = sorted.narrow(0, 1, n - 1).ne(sorted.narrow(0, 0, n - 1)).to_dtype(DType::I32);
        let first = Tensor::zeros(DType::I32, [1]);
        let number = Tensor::concatenate(&[&first, &is_new], 0).cumsum(0);
        let unused = Tensor::full(sorted.dtype(), [n], table[0] as f64);
        let zeros = rows.zeros_like();
        RowGradient {
            indices: unused.index_copy(0, &number, &sorted),
            rows: zeros.index_add(0, &number, rows.take(0, &order)),
        }
    }
}

/// A table with sparse gradients, in messages.
pub(crate) struct Table<'a> {
    pub(crate) name: &'a str,
    /// The line that asked for sparse gradients.
    pub(crate) location: &'static Location<'static>,
}

impl Table<'_> {
    /// The rows of the table that have a gradient, from the gradients of its uses.
    pub(crate) fn gradient(&self, parts: &[Tensor], shape: &Shape) -> Result<RowGradient> {
        let mut updates = Vec::new();
        for part in parts {
            updates.extend(row_updates(part).map_err(|other| self.error_of_use(&other))?);
        }
        Ok(RowGradient::sum(&updates, shape))
    }

    fn error_of_use(&self, other: &Tensor) -> Error {
        let operation = other.operation_name().unwrap_or("an input");
        self.error(&format!(
            "its gradient also comes from `{operation}`, recorded at {}, which is not a look-up outside of bodies; use \
             the table only in look-ups, outside of scan, cond and other bodies",
            other.location()
        ))
    }

    pub(crate) fn error(&self, reason: &str) -> Error {
        let Table { name, location } = self;
        Error::usage(format!("`{name}` cannot have sparse gradients: {reason}\n  at {location}"))
    }
}

/// The rows of a table at these indices. Where there is no row, it is the last one.
pub(crate) fn rows_at(table: &Tensor, indices: &Tensor) -> Tensor {
    table.take(0, indices.minimum(table.size(0) as f64 - 1.0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_that_were_looked_up_twice_are_summed() {
        let part = |indices: &[i32], rows: &[f32]| RowUpdates {
            indices: Tensor::from_slice(indices, [indices.len()]),
            rows: Tensor::from_slice(rows, [indices.len(), 1]),
        };
        let parts = [part(&[7, 2, 7], &[1.0, 10.0, 2.0]), part(&[0, 2], &[100.0, 20.0])];
        let gradient = RowGradient::sum(&parts, &Shape::from([9, 1]));
        assert_eq!(gradient.indices.eval().unwrap().to_f64(), [0.0, 2.0, 7.0, 9.0, 9.0]);
        assert_eq!(gradient.rows.eval().unwrap().to_f64(), [100.0, 30.0, 3.0, 0.0, 0.0]);
        let one = RowGradient::sum(&[part(&[5], &[4.0])], &Shape::from([9, 1]));
        assert_eq!(one.indices.eval().unwrap().to_f64(), [5.0]);

        let table = Tensor::arange(DType::F32, 9).reshape([9, 1]);
        assert_eq!(
            rows_at(&table, &gradient.indices).eval().unwrap().to_f64(),
            [0.0, 2.0, 7.0, 8.0, 8.0]
        );
    }
}
