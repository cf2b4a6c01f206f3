//! Local files that are read at many places, of which so many stay open.
//!
//! Not here: reading from the beginning to the end (`decompress`).

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use fulmen_data::{Error, Result};

/// How many files of a collection stay open once they have been read. A process may often open no more than 1,024.
const KEPT_OPEN: usize = 256;

/// A file of a collection, which is opened when it is first read.
#[derive(Debug)]
pub struct CachedFile {
    path: PathBuf,
    file: OnceLock<File>,
    stays_open: bool,
}

impl CachedFile {
    /// The file with this number in its collection. One far behind is opened for each reading.
    pub fn new(path: &Path, number: usize) -> CachedFile {
        CachedFile { path: path.to_owned(), file: OnceLock::new(), stays_open: number < KEPT_OPEN }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Calls `read` with the file open.
    pub fn with<T>(&self, read: impl FnOnce(&File) -> Result<T>) -> Result<T> {
        if let Some(file) = self.file.get() {
            return read(file);
        }
        let file = File::open(&self.path).map_err(|source| Error::io(&self.path, "cannot open the file", source))?;
        match self.stays_open {
            true => read(self.file.get_or_init(|| file)),
            false => read(&file),
        }
    }
}
