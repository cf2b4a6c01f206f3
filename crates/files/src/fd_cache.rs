//! Local files with random access. A limited number of them stays open.
//!
//! Out of scope: reading in sequence (`decompress`).

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use crate::{Error, Result};

/// How many files of a collection stay open after the first read. A process may often open only
/// 1,024 files.
const MAX_OPEN_FILES: usize = 256;

/// A file of a collection, opened on first use.
#[derive(Debug)]
pub struct CachedFile {
    path: PathBuf,
    file: OnceLock<File>,
    stays_open: bool,
}

impl CachedFile {
    /// The file with this number in its collection. A file with a high number is opened again for
    /// each read.
    pub fn new(path: &Path, number: usize) -> CachedFile {
        CachedFile {
            path: path.to_owned(),
            file: OnceLock::new(),
            stays_open: number < MAX_OPEN_FILES,
        }
    }

    /// The path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Calls `read` with the file open.
    pub fn with_file<T>(&self, read: impl FnOnce(&File) -> Result<T>) -> Result<T> {
        if let Some(file) = self.file.get() {
            return read(file);
        }
        let file = fulmen_durable::open_regular(&self.path)
            .map_err(|source| Error::io(&self.path, "cannot open the file", source))?;
        if self.stays_open { read(self.file.get_or_init(|| file)) } else { read(&file) }
    }
}
