//! The reason why a file could not be decoded, and which of libjpeg's warnings are one.
//!
//! Out of scope: the file's name, which the caller knows.

use fulmen_error::{Error, Fact};

use crate::ffi::Failure;

pub(crate) fn cut_short(message: &str) -> Error {
    Error::of(Fact::CutShort, message)
}

pub(crate) fn from_failure(failure: Failure) -> Error {
    match failure.message {
        message if message.contains("more than 500 scans") => {
            Error::new("it has more than 500 scans, more than any valid file")
        }
        message => Error::new(message),
    }
}

/// Whether a warning makes no pixel wrong: some cameras and encoders write valid files that cause it.
///
/// Surplus bytes are such a case before the end marker and before a restart marker. Before a marker between scans, they
/// say that the scan was not read as it was written.
pub(crate) fn is_harmless(warning: &str) -> bool {
    let others = [
        "Invalid SOS parameters",
        "Unknown Adobe color transform",
        "Warning: unknown JFIF revision",
    ];
    let marker = warning.split_once("extraneous bytes before marker 0xd").map(|(_, digit)| digit);
    others.iter().any(|harmless| warning.starts_with(harmless))
        // Restart markers are 0xd0 to 0xd7, and the end marker is 0xd9.
        || marker.is_some_and(|digit| digit.starts_with(|digit: char| digit.is_ascii_digit()))
}

/// Whether a warning says that the file ended before its pixels.
pub(crate) fn is_cut_short(warning: &str) -> bool {
    warning.starts_with("Premature end of JPEG file")
}
