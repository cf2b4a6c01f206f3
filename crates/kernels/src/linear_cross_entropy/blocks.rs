//! How many tokens and classes the blocks of a kernel have.

use fulmen_tensor::{DType, Tensor, TensorType};

use super::{LinearCrossEntropy, Sizes};
use crate::padding::pad;

/// The bytes of vector memory to use. XLA gives a kernel 16 MiB.
const BYTES: usize = 15 << 20;

/// The bytes for each logit of a pair of blocks: a few values in f32.
const OF_LOGIT: usize = 16;

/// The lanes of a TPU. A row has a multiple of them, or all tokens.
const LANES: usize = 128;

/// The rows of a tile of 16-bit numbers.
const ROWS: usize = 16;

/// The sizes of the blocks of one kernel, and the lengths of whole blocks.
#[derive(Clone, Copy)]
pub(super) struct Blocks {
    pub(super) tokens: usize,
    pub(super) classes: usize,
    pub(super) padded_tokens: usize,
    pub(super) padded_classes: usize,
}

impl LinearCrossEntropy {
    /// The largest blocks for which `bytes`, of one feature of a block of tokens and of classes, fits.
    pub(super) fn blocks(&self, sizes: &Sizes, bytes: impl Fn(usize, usize) -> usize) -> Blocks {
        let mut tokens = self.block_size;
        let mut classes = self.block_size;
        let needed = |tokens: usize, classes: usize| {
            let of_blocks = bytes(tokens, classes).saturating_mul(sizes.width);
            of_blocks.saturating_add(OF_LOGIT * tokens * classes)
        };
        while needed(tokens, classes) > BYTES {
            if tokens >= classes && tokens >= 2 * LANES {
                tokens /= 2;
            } else if classes >= 2 * ROWS {
                classes /= 2;
            } else {
                break;
            }
        }
        let tokens = block(sizes.tokens, tokens, LANES);
        let classes = block(sizes.classes, classes, ROWS);
        Blocks {
            tokens,
            classes,
            padded_tokens: sizes.tokens.next_multiple_of(tokens),
            padded_classes: sizes.classes.next_multiple_of(classes),
        }
    }
}

/// The size of the blocks of a length: at most `most`, and a multiple of `unit` unless there is one
/// block. One that divides the length needs no padding, and is taken unless it is small.
fn block(length: usize, most: usize, unit: usize) -> usize {
    if length <= most {
        return most.min(length.next_multiple_of(ROWS));
    }
    let unit = unit.min(most);
    let largest = most / unit * unit;
    let sizes = (1..=most / unit).rev().map(|units| units * unit);
    sizes
        .take_while(|&size| 4 * size >= most)
        .find(|&size| length.is_multiple_of(size))
        .unwrap_or(largest)
}

impl Blocks {
    pub(super) fn token_blocks(&self) -> usize {
        self.padded_tokens / self.tokens
    }

    pub(super) fn class_blocks(&self) -> usize {
        self.padded_classes / self.classes
    }

    pub(super) fn x_ty(&self, sizes: &Sizes) -> TensorType {
        TensorType::new(sizes.dtype, [sizes.groups, self.padded_tokens, sizes.width])
    }

    /// The type of one number for each token.
    pub(super) fn row_ty(&self, sizes: &Sizes, dtype: DType) -> TensorType {
        TensorType::new(dtype, [sizes.groups, 1, self.padded_tokens])
    }

    /// The features, the weight and the targets, extended to whole blocks.
    pub(super) fn padded(&self, inputs: &[Tensor]) -> Vec<Tensor> {
        vec![
            pad(&inputs[0], 2, self.tokens),
            pad(&inputs[1], 2, self.classes),
            self.row(&inputs[2]),
        ]
    }

    /// A number for each token, as rows of whole blocks.
    pub(super) fn row(&self, x: &Tensor) -> Tensor {
        pad(x, 1, self.tokens).unsqueeze(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_divide_a_length_if_not_much_smaller_ones_do() {
        assert_eq!(block(8192, 512, LANES), 512);
        assert_eq!(block(1000, 512, LANES), 512);
        assert_eq!(block(1152, 512, LANES), 384);
        assert_eq!(block(300, 512, LANES), 304);
        assert_eq!(block(128_256, 512, ROWS), 384); // Llama 3
        assert_eq!(block(151_936, 512, ROWS), 128); // Qwen 3
        assert_eq!(block(50_257, 512, ROWS), 512); // GPT-2
        assert_eq!(block(40, 3, LANES), 3);
    }

    #[test]
    fn wide_features_have_small_blocks() {
        let of = |width| {
            let sizes =
                Sizes { groups: 1, tokens: 4096, classes: 1 << 17, width, dtype: DType::Bf16 };
            let blocks = LinearCrossEntropy::new()
                .blocks(&sizes, |tokens, classes| 12 * tokens + 4 * classes);
            (blocks.tokens, blocks.classes)
        };
        assert_eq!(
            [768, 2048, 4096, 8192].map(of),
            [(512, 512), (256, 512), (128, 256), (128, 64)]
        );
    }
}
