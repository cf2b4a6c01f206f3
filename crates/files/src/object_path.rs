//! The name of an object in a store: scheme, bucket and key.
//!
//! Out of scope: locations as users write them (`location`), and requests (`remote`).

use std::fmt;
#[cfg(feature = "cloud")]
use std::{io, path::Path};

#[cfg(feature = "cloud")]
use crate::Error;

/// The kind of a store. The files of a web server are treated as a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Scheme {
    Gs,
    S3,
    Http,
    Https,
}

impl Scheme {
    fn name(self) -> &'static str {
        match self {
            Scheme::Gs => "gs",
            Scheme::S3 => "s3",
            Scheme::Http => "http",
            Scheme::Https => "https",
        }
    }
}

/// An object in a store, or all objects with a prefix.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct ObjectPath {
    pub(super) scheme: Scheme,
    pub(super) bucket: String,
    /// Without leading and trailing slashes; empty for the whole bucket.
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

    /// Whether this is a file of a web server, which can only be read.
    pub(super) fn is_web(&self) -> bool {
        matches!(self.scheme, Scheme::Http | Scheme::Https)
    }

    /// Rejects operations that a web server does not support.
    pub(super) fn refuse_web(&self, instruction: &str) -> Result<(), Error> {
        if self.is_web() {
            Err(Error::usage(format!(
                "{self}: from a web server files are read by their names; {instruction}"
            )))
        } else {
            Ok(())
        }
    }

    /// The scheme and the bucket.
    pub(super) fn root(&self) -> String {
        format!("{}://{}", self.scheme.name(), self.bucket)
    }

    pub(super) fn io(&self, doing: &str, source: io::Error) -> Error {
        Error::io(Path::new(&self.to_string()), doing, source)
    }
}
