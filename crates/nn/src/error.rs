//! The errors of weight files and of the values in them. Mistakes in code that records are faults of
//! tensors instead (`fulmen_tensor::Fault`).

use std::fmt;
use std::io;
use std::path::Path;

use fulmen_error::{Error, Fact};

use crate::weights::LoadReport;

pub(crate) fn io(doing: &'static str, path: &Path, source: io::Error) -> Error {
    Error::of_io(format!("cannot {doing} {}: {source}", path.display()), source)
}

/// A file of an unknown format, or with damage.
pub(crate) fn format(path: &Path, format: &'static str, message: impl Into<String>) -> Error {
    let message = message.into();
    Error::of(Fact::Format, format!("{}: not a valid {format}: {message}", path.display()))
}

/// A file that is not the one that was opened.
pub(crate) fn changed(path: &Path) -> Error {
    let message = format!(
        "{}: the file was changed after it was opened. Its weights are read when devices need them: leave it as it is \
         until then, or load it again",
        path.display()
    );
    Error::of(Fact::Format, message)
}

/// A file whose names and shapes differ from the model's. The report is a detail of the error.
pub(crate) fn mismatch(path: &Path, report: LoadReport) -> Error {
    struct Mismatches<'a>(&'a LoadReport);

    impl fmt::Display for Mismatches<'_> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            self.0.describe_mismatches(f)
        }
    }

    let message = format!(
        "the weights in {} do not fit the model; nothing was loaded{}\n  load what fits with Strictness::Lenient, or build \
         the model that the file was made for",
        path.display(),
        Mismatches(&report)
    );
    Error::of(Fact::Mismatch, message).with_detail(report)
}

pub(crate) fn value(name: &str, source: Error) -> Error {
    source.context(format_args!("`{name}` has no value to save"))
}
