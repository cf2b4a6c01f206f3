//! The errors of plugins, and of what this crate does with them.

use std::io;

pub(crate) use fulmen_error::{Error, Fact, Result};

use crate::abi::PJRT_Error_Code;
use crate::key_value::KeyValueError;

/// An error of the store in which processes find each other.
impl From<KeyValueError> for Error {
    fn from(error: KeyValueError) -> Error {
        Error::of(Fact::Io, error.to_string())
    }
}

/// The caller's arguments were rejected before the plugin saw them.
pub(crate) fn invalid(message: impl Into<String>) -> Error {
    Error::of(Fact::Rejected, message)
}

/// The plugin violated its own contract.
pub(crate) fn broken(message: impl Into<String>) -> Error {
    Error::of(Fact::Runtime, message)
}

/// Stored bytes are damaged, or belong to a different plugin.
pub(crate) fn corrupt(message: impl Into<String>) -> Error {
    Error::of(Fact::Corrupt, message)
}

/// An input or output operation failed.
pub(crate) fn io(what: impl Into<String>, source: io::Error) -> Error {
    Error::of_io(format!("{}: {source}", what.into()), source)
}

/// The plugin returned an error.
pub(crate) fn plugin(status: PJRT_Error_Code, message: impl Into<String>) -> Error {
    let fact = match status {
        PJRT_Error_Code::INVALID_ARGUMENT => Fact::Rejected,
        PJRT_Error_Code::NOT_FOUND => Fact::NotFound,
        PJRT_Error_Code::UNIMPLEMENTED => Fact::Unsupported,
        PJRT_Error_Code::RESOURCE_EXHAUSTED => Fact::OutOfMemory,
        _ => Fact::Runtime,
    };
    Error::of(fact, message).with_code(status.name()).with_detail(status)
}

/// The status code with which a plugin reports this error, for `fulmen-virtual-pod`.
#[doc(hidden)]
pub fn status(error: &Error) -> PJRT_Error_Code {
    if let Some(status) = error.detail::<PJRT_Error_Code>() {
        *status
    } else if error.is_usage() {
        PJRT_Error_Code::INVALID_ARGUMENT
    } else if error.is_not_found() {
        PJRT_Error_Code::NOT_FOUND
    } else if error.is_unsupported() {
        PJRT_Error_Code::UNIMPLEMENTED
    } else if error.is_out_of_memory() {
        PJRT_Error_Code::RESOURCE_EXHAUSTED
    } else {
        PJRT_Error_Code::INTERNAL
    }
}
