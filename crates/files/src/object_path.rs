//! The name of an object in a store: scheme, bucket and key.
//!
//! Not here: how it is written by users (`location`), and asking the store for it (`remote`).

use std::fmt;
#[cfg(feature = "cloud")]
use std::{io, path::Path};

#[cfg(feature = "cloud")]
use fulmen_data::Error;

/// Which store a bucket belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Scheme {
    Gs,
    S3,
}

impl Scheme {
    fn name(self) -> &'static str {
        match self {
            Scheme::Gs => "gs",
            Scheme::S3 => "s3",
        }
    }
}

/// An object of a store, or all objects below a name.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct ObjectPath {
    pub(super) scheme: Scheme,
    pub(super) bucket: String,
    /// Without slashes at its ends; empty for the whole bucket.
    pub(super) key: String,
}

impl fmt::Display for ObjectPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}/{}", self.scheme.name(), self.bucket, self.key)
    }
}

#[cfg(feature = "cloud")]
impl ObjectPath {
    /// An error about this object.
    pub(crate) fn error(&self, message: impl Into<String>) -> Error {
        Error::file(Path::new(&self.to_string()), message)
    }

    pub(super) fn io(&self, doing: &str, source: io::Error) -> Error {
        Error::io(Path::new(&self.to_string()), doing, source)
    }
}
