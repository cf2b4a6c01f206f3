//! What is wrong with a config, with a folder, or with the weights in it. Mistakes in recorded
//! operations are faults of tensors instead.

use std::io;
use std::path::Path;

use fulmen_error::{Error, Fact};

pub(crate) fn io(action: &'static str, path: &Path, source: io::Error) -> Error {
    Error::of_io(format!("cannot {action} {}: {source}", path.display()), source)
}

/// The message of an error of a config whose file is not known yet.
struct Unplaced(String);

/// `message` names the key, what was found there and what was expected.
pub(crate) fn config(message: impl Into<String>) -> Error {
    let message = message.into();
    Error::of(Fact::Config, format!("config: {message}")).with_detail(Unplaced(message))
}

/// Where in a config a mistake is.
pub(crate) trait InConfig {
    /// Says that the error is about the table of a config under this key.
    fn in_key(self, key: &str) -> Error;

    /// Adds the config's file to the error.
    fn in_file(self, file: &Path) -> Error;
}

impl InConfig for Error {
    fn in_key(self, key: &str) -> Error {
        match self.detail() {
            Some(Unplaced(message)) => config(format!("`{key}`: {message}")),
            None => self,
        }
    }

    fn in_file(self, file: &Path) -> Error {
        match self.detail() {
            Some(Unplaced(message)) => {
                Error::of(Fact::Config, format!("{}: {message}", file.display()))
            }
            None => self,
        }
    }
}
