//! The reason why a file could not be decoded.
//!
//! Out of scope: the file's name, which the caller knows.

use fulmen_error::{Error, Fact};

use crate::ffi::Failure;

pub(crate) fn cut_short(message: &str) -> Error {
    Error::of(Fact::CutShort, message)
}

pub(crate) fn from_failure(failure: Failure) -> Error {
    match failure {
        Failure::Failed(message) => Error::new(message),
        Failure::CutShort => cut_short("the file is truncated"),
        Failure::TooManyScans => Error::new("it has more than 500 scans, more than any valid file"),
    }
}
