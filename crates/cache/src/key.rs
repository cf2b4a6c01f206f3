//! The key that identifies the cache of a dataset: its fingerprint, its fields, and the options of
//! caching.
//!
//! Out of scope: a dataset's own fingerprint.

use super::manifest::{FOLDER_DIGITS, FORMAT};
use fulmen_data::internal::KeyPart;
use fulmen_data::{Dataset, Error, Field, Fingerprint, Result};

/// The options that the content of a cache depends on.
#[derive(Clone, Debug)]
pub(crate) struct Options {
    pub(crate) version: String,
    pub(crate) variants: usize,
    pub(crate) seed: u64,
}

/// A hash, and the values from which it was computed.
#[derive(Clone, Debug)]
pub(crate) struct Key {
    pub(crate) hash: String,
    pub(crate) key_parts: Vec<KeyPart>,
}

impl Key {
    pub(crate) fn new(dataset: &dyn Dataset, fields: &[Field], options: &Options) -> Result<Key> {
        let mut fingerprint = Fingerprint::recording_parts();
        fingerprint.add("cache format", FORMAT.to_le_bytes());
        fingerprint.add("byte order", if cfg!(target_endian = "big") { "big" } else { "little" });
        fingerprint.add("version", &options.version);
        fingerprint.add("variants", options.variants.to_le_bytes());
        fingerprint.add("seed", options.seed.to_le_bytes());
        fingerprint.add("samples", dataset.len().to_le_bytes());
        for field in fields {
            fingerprint.add("field", field.to_string());
        }
        dataset.fingerprint(&mut fingerprint)?;
        if options.version.is_empty()
            && let Some(function) = fingerprint.function()
        {
            return Err(Error::usage(format!(
                "the samples depend on a function ({function}), and a cache cannot see changes of its code: give the \
                 cache a version, .version(\"1\"), and a new version when the function changes"
            )));
        }
        let hash = fingerprint.to_string();
        Ok(Key { hash, key_parts: fingerprint.into_parts().finish() })
    }

    /// The name of the cache's folder.
    pub(crate) fn folder(&self) -> &str {
        &self.hash[..FOLDER_DIGITS]
    }
}
