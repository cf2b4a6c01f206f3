//! Rows of a matrix in blocks, for kernels that treat each row alone.

use fulmen_tensor::Tensor;

/// The elements of a block, so that a few blocks and values fit into vector memory.
const ELEMENTS: usize = 1 << 18;

/// The rows of a tile of 16-bit numbers; a tile of f32 has half as many.
const TILE: usize = 16;

/// How `rows` rows are split into blocks.
#[derive(Clone, Copy)]
pub(crate) struct Rows {
    rows: usize,
    pub(crate) width: usize,
    pub(crate) block: usize,
    /// The rows of whole blocks.
    pub(crate) padded: usize,
}

impl Rows {
    pub(crate) fn new(rows: usize, width: usize) -> Rows {
        let most = (ELEMENTS / width / TILE * TILE).clamp(TILE, 512);
        let block = most.min(rows.next_multiple_of(TILE));
        Rows { rows, width, block, padded: rows.next_multiple_of(block) }
    }

    /// A tensor `[…, width]` as a matrix of whole blocks, the last rows zero.
    pub(crate) fn of(self, x: &Tensor) -> Tensor {
        let matrix = x.reshape([self.rows, self.width]);
        let missing = (self.padded - self.rows) as i64;
        if missing == 0 {
            return matrix;
        }
        matrix.pad(Tensor::zeros(x.dtype(), []), &[0, 0], &[missing, 0], &[0, 0])
    }

    /// The rows without those that were added.
    pub(crate) fn cut(self, x: &Tensor) -> Tensor {
        x.narrow(0, 0, self.rows)
    }
}
