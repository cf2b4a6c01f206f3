//! What several test files read.

use fulmen_data::TensorDataset;

/// `count` samples: a byte triple and a number, so that rows do not end at multiples of 64.
pub(crate) fn data(count: usize) -> TensorDataset {
    TensorDataset::builder()
        .array("bytes", [count, 3], (0..3 * count).map(|i| i as u8).collect::<Vec<_>>())
        .array("number", [count], (0..count as i32).collect::<Vec<_>>())
        .build()
        .unwrap()
}
