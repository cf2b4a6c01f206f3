//! Faults of invalid expressions. Each names the operation, the shapes, and the user's file and
//! line. None panics.
//!
//! `general` tests the rules for all operations. Each other file tests invalid calls of one family.

#![allow(clippy::unwrap_used)] // a test helper may panic: that fails the test

mod arranging;
mod control_flow;
mod general;
mod indexing;
mod random_numbers;
mod reducing;
mod sorting;
mod windows;

use expect_test::Expect;
use fulmen_tensor::{DType, Tensor};

#[track_caller]
fn zeros<const N: usize>(shape: [usize; N]) -> Tensor {
    Tensor::zeros(DType::F32, shape)
}

#[track_caller]
fn integers<const N: usize>(shape: [usize; N]) -> Tensor {
    Tensor::zeros(DType::I32, shape)
}

/// Checks the whole messages of poisoned tensors, one line for each. The calls must be in this
/// folder.
#[track_caller]
fn check_all(refused: impl IntoIterator<Item = Tensor>, expected: Expect) {
    let mut text = String::new();
    for tensor in refused {
        match tensor.fault() {
            Some(fault) => {
                assert!(fault.location().file().contains("tests/it/faults/"), "{fault}");
                text += &format!("{}: {}\n", fault.operation(), fault.message());
            }
            None => panic!("not refused: {tensor:?}"),
        }
    }
    expected.assert_eq(&text);
}

/// Checks that the message contains these words. The call must be in this folder.
#[track_caller]
fn check_words(refused: &Tensor, words: &str) {
    let fault = refused.fault().expect("the operation must be refused");
    assert!(fault.message().contains(words), "{fault}");
    assert!(fault.location().file().contains("tests/it/faults/"), "{fault}");
}

/// Checks the start of each message. The calls must be in this folder.
#[track_caller]
fn check_starts(rows: &[(Tensor, &str)]) {
    for (refused, expected) in rows {
        let fault = refused.fault().unwrap_or_else(|| panic!("not refused: {expected}"));
        assert!(fault.to_string().starts_with(expected), "{fault}\nis not\n{expected}");
        assert!(fault.location().file().contains("tests/it/faults/"), "{fault}");
    }
}
