//! The errors of expressions, and of opening devices.

use std::fmt;
use std::panic::Location;

use fulmen_error::{Error, Fact};

/// An error about the selected [`Devices`](crate::Devices).
pub(crate) fn devices(message: impl fmt::Display) -> Error {
    wrong_plugin(format!("devices: {message}"))
}

/// The plugin is for another accelerator than the selected one.
pub(crate) fn wrong_plugin(message: String) -> Error {
    Error::of(Fact::Option, message).with(Fact::Devices)
}

/// The selected accelerator cannot be opened on this machine; `doing` says what failed.
pub(crate) fn accelerator(doing: String, source: Error) -> Error {
    let error = Error::runtime(doing, source);
    if error.is_out_of_memory() || error.is_disk_full() {
        error
    } else {
        error.with(Fact::Option).with(Fact::Devices)
    }
}

/// An error of XLA's partitioner; the message has the text of `source`.
pub(crate) fn partitioner(
    message: String,
    location: Option<&'static Location<'static>>,
    source: Error,
) -> Error {
    let error = source.reworded(message).located(location);
    error.without(Fact::Rejected).with(Fact::Runtime)
}

pub(crate) fn unbound(name: &str, location: &'static Location<'static>) -> Error {
    recorded(
        format!("the placeholder `{name}` has no value: pass it as an input of the function"),
        location,
    )
}

/// A mistake in what the code at `location` recorded.
pub(crate) fn recorded(message: String, location: &'static Location<'static>) -> Error {
    let message = format!("{message}\n  recorded at {location}");
    Error::of(Fact::Usage, message).located(Some(location))
}
