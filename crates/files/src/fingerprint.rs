//! A hash of everything the samples depend on. A cache uses it to check that it holds the same
//! samples.
//!
//! Out of scope: the cache (`fulmen-cache`).

use std::fmt;
use std::fs::Metadata;
use std::path::Path;
use std::time::UNIX_EPOCH;

use sha2::{Digest, Sha256};

use crate::key_parts::KeyParts;
use crate::{Error, Result};

/// A SHA-256 hash of named values.
///
/// ```
/// use fulmen_files::Fingerprint;
///
/// let fingerprint_of = |size: u64| {
///     let mut fingerprint = Fingerprint::new();
///     fingerprint.add("resize", size.to_le_bytes());
///     fingerprint.to_string()
/// };
/// assert_eq!(fingerprint_of(224), fingerprint_of(224));
/// assert_ne!(fingerprint_of(224), fingerprint_of(256));
/// assert_eq!(fingerprint_of(224).len(), 64);
/// ```
#[derive(Clone, Debug, Default)]
pub struct Fingerprint {
    hash: Sha256,
    /// The values by name, if they are recorded to explain differences later.
    parts: Option<KeyParts>,
    /// The type of the first function that was added.
    function: Option<&'static str>,
}

impl Fingerprint {
    /// An empty fingerprint.
    pub fn new() -> Fingerprint {
        Fingerprint::default()
    }

    /// An empty fingerprint that also records the values that are added.
    #[doc(hidden)]
    pub fn recording_parts() -> Fingerprint {
        Fingerprint { parts: Some(KeyParts::default()), ..Fingerprint::default() }
    }

    /// The recorded values.
    #[doc(hidden)]
    pub fn into_parts(self) -> KeyParts {
        self.parts.unwrap_or_default()
    }

    /// Adds a named value. The order of the calls matters, and the hash includes the lengths of the
    /// name and the value, so different lists of names and values are hashed from different bytes.
    pub fn add(&mut self, name: &str, value: impl AsRef<[u8]>) {
        for part in [name.as_bytes(), value.as_ref()] {
            self.hash.update((part.len() as u64).to_le_bytes());
            self.hash.update(part);
        }
        if let Some(parts) = &mut self.parts {
            parts.add(name, value.as_ref());
        }
    }

    /// Adds a function by its type. The type does not change when the code of the function does, so
    /// the user of a cache with this fingerprint must set a version, such as
    /// `CacheBuilder::version`, and change it with the function.
    pub fn add_function<F>(&mut self, name: &str) {
        let function = std::any::type_name::<F>();
        self.add(name, function);
        self.function.get_or_insert(function);
    }

    /// The type of the first function that was added.
    #[doc(hidden)]
    pub fn function(&self) -> Option<&'static str> {
        self.function
    }

    /// Adds a file by its path, size and modification time, without reading its content.
    ///
    /// # Errors
    /// The file does not exist.
    pub fn add_file(&mut self, path: &Path) -> Result<()> {
        let metadata =
            path.metadata().map_err(|source| Error::io(path, "looking at the file", source))?;
        self.add_metadata(path, &metadata);
        Ok(())
    }

    /// Like [`add_file`](Fingerprint::add_file), for a file whose metadata is already known.
    pub fn add_metadata(&mut self, path: &Path, metadata: &Metadata) {
        let changed =
            metadata.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        self.add("file", path.as_os_str().as_encoded_bytes());
        self.add("size", metadata.len().to_le_bytes());
        self.add("changed", changed.map_or(0, |time| time.as_nanos()).to_le_bytes());
    }
}

impl fmt::Display for Fingerprint {
    /// The hash as 64 hexadecimal digits.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.hash.clone().finalize().iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}
