//! Helpers that several test files share.

use expect_test::Expect;
use fulmen_data::{Result, TensorDataset};

/// `count` samples: a byte triple and a number, so that rows do not end at multiples of 64.
pub(crate) fn data(count: usize) -> TensorDataset {
    TensorDataset::builder()
        .array("bytes", [count, 3], (0..3 * count).map(|i| i as u8).collect::<Vec<_>>())
        .array("number", [count], (0..count as i32).collect::<Vec<_>>())
        .build()
        .unwrap()
}

/// Checks that it is rejected as a usage error with these words.
#[track_caller]
pub(crate) fn refused<T>(result: Result<T>, expect: Expect) {
    let error = result.err().unwrap();
    assert!(error.is_usage());
    expect.assert_eq(&error.to_string());
}
