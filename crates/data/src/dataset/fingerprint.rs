//! A hash over all that samples depend on, so that what was kept of them is known to be of the same ones.
//!
//! Not here: what is kept (`cache`).

use std::fmt;
use std::fs::Metadata;
use std::path::Path;
use std::time::UNIX_EPOCH;

use sha2::{Digest, Sha256};

use crate::dataset::key_parts::KeyParts;
use crate::{Error, Result};

/// A SHA-256 that takes in named values.
///
/// ```
/// use fulmen_data::Fingerprint;
///
/// let of = |size: u64| {
///     let mut fingerprint = Fingerprint::new();
///     fingerprint.add("resize", size.to_le_bytes());
///     fingerprint.to_string()
/// };
/// assert_eq!(of(224), of(224));
/// assert_ne!(of(224), of(256));
/// assert_eq!(of(224).len(), 64);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Fingerprint {
    hash: Sha256,
    /// What was taken in, name by name, where someone wants to say later what differs.
    parts: Option<KeyParts>,
    /// The type of the first function that takes part.
    function: Option<&'static str>,
}

impl Fingerprint {
    /// Of nothing yet.
    pub fn new() -> Fingerprint {
        Fingerprint::default()
    }

    /// Of nothing yet, and keeping notes of what it takes in.
    #[doc(hidden)]
    pub fn recording_parts() -> Fingerprint {
        Fingerprint { parts: Some(KeyParts::default()), ..Fingerprint::default() }
    }

    /// The notes of one that keeps them.
    #[doc(hidden)]
    pub fn into_parts(self) -> KeyParts {
        self.parts.unwrap_or_default()
    }

    /// Takes in a value under a name. The order counts; no two lists of names and values give the same bytes to the hash.
    pub fn add(&mut self, name: &str, value: impl AsRef<[u8]>) {
        for part in [name.as_bytes(), value.as_ref()] {
            self.hash.update((part.len() as u64).to_le_bytes());
            self.hash.update(part);
        }
        if let Some(parts) = &mut self.parts {
            parts.add(name, value.as_ref());
        }
    }

    /// Takes in a function by its type, which does not change with what the function does. What is kept by this fingerprint
    /// then needs a version, as `CacheBuilder::version`, which its user changes with the
    /// function.
    pub fn add_function<F>(&mut self, name: &str) {
        let function = std::any::type_name::<F>();
        self.add(name, function);
        self.function.get_or_insert(function);
    }

    /// The first function that takes part, by its type.
    #[doc(hidden)]
    pub fn function(&self) -> Option<&'static str> {
        self.function
    }

    /// Takes in a file by its path, its size and its time of change; its content is not read.
    ///
    /// # Errors
    /// A file that is not there.
    pub fn add_file(&mut self, path: &Path) -> Result<()> {
        let metadata = path.metadata().map_err(|source| Error::io(path, "looking at the file", source))?;
        self.add_metadata(path, &metadata);
        Ok(())
    }

    /// The same for a file whose metadata is known.
    pub fn add_metadata(&mut self, path: &Path, metadata: &Metadata) {
        let changed = metadata.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        self.add("file", path.as_os_str().as_encoded_bytes());
        self.add("size", metadata.len().to_le_bytes());
        self.add("changed", changed.map_or(0, |time| time.as_nanos()).to_le_bytes());
    }
}

impl fmt::Display for Fingerprint {
    /// 64 hexadecimal digits.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.hash.clone().finalize().iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}
