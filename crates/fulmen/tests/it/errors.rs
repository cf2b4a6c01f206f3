//! What `fn main() -> Result<(), Box<dyn Error>>` prints of an error: its `Debug`, which must be the message.

use std::error::Error;

use fulmen::prelude::*;

/// Checks that an error's `Debug` is its message.
fn check(error: impl Error) {
    assert_eq!(format!("{error:?}"), error.to_string());
    assert!(!error.to_string().is_empty());
}

#[test]
fn main_prints_the_message_of_an_error_of_every_crate() {
    check(fulmen::pjrt::Plugin::load("/no/such/plugin.so").unwrap_err());
    check(fulmen::pjrt::KeyValueError::timed_out("host 3 did not come"));
    check(Tensor::ones(DType::F32, [2]).matmul(Tensor::ones(DType::F32, [3])).eval().unwrap_err());
    check(Linear::new(2, 2).to_dtype(DType::I32).unwrap_err());
    check(fulmen::data::TensorDataset::builder().build().map(|_| ()).unwrap_err());
    #[cfg(feature = "multi-host")]
    check(fulmen::coordination::Process::new(8, 8, "host-a:8482").unwrap_err());
    check(Trainer::builder().max_epochs(0).options().unwrap_err());
}
