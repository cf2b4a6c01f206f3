//! Atomic writes, and disks that may be full.
//!
//! Out of scope: the content.

use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use sha2::Sha256;

use fulmen_data::internal::checksum;
use fulmen_data::{Error, Result};
use fulmen_durable::messages::size;
use fulmen_files as store;

/// A disk. Tests can give it less space than the real one has.
#[derive(Debug, Default)]
pub(crate) struct Disk {
    room: Option<AtomicU64>,
}

impl Disk {
    #[cfg(test)]
    pub(crate) fn with_free_space(bytes: u64) -> Disk {
        Disk { room: Some(AtomicU64::new(bytes)) }
    }

    /// The free bytes before writing.
    pub(crate) fn available(&self, dir: &Path) -> io::Result<u64> {
        fulmen_durable::available_space(dir)
    }

    fn take(&self, bytes: u64) -> io::Result<()> {
        let Some(room) = &self.room else { return Ok(()) };
        match room
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |room| room.checked_sub(bytes))
        {
            Ok(_) => Ok(()),
            Err(_) => Err(io::Error::from(io::ErrorKind::StorageFull)),
        }
    }
}

/// A file of known size that is filled in any order. It has a temporary name until it is complete,
/// and is removed if it is dropped earlier.
#[derive(Debug)]
pub(crate) struct NewFile {
    file: fulmen_durable::NewFile,
    path: PathBuf,
    bytes: u64,
}

impl NewFile {
    /// Creates the file and allocates all its disk space, so that a full disk is noticed before any
    /// work.
    pub(crate) fn create(path: &Path, bytes: u64, disk: &Disk) -> Result<NewFile> {
        let file = fulmen_durable::NewFile::create(path)
            .map_err(|source| Error::io(path, "cannot create the file", source))?;
        let new = NewFile { file, path: path.to_owned(), bytes };
        match disk.take(bytes).and_then(|()| new.file.reserve(bytes)) {
            Ok(()) => Ok(new),
            Err(source) => {
                // This frees the space that was reserved.
                drop(new);
                Err(write_error(path, bytes, source))
            }
        }
    }

    /// Writes at a position in the file.
    pub(crate) fn write_at(&self, bytes: &[u8], offset: u64) -> Result<()> {
        self.file
            .file()
            .write_all_at(bytes, offset)
            .map_err(|source| write_error(&self.path, self.bytes, source))
    }

    /// Syncs the file, renames it to its final name, and returns the SHA-256 of its content.
    pub(crate) fn finish(&self) -> Result<String> {
        let path = &self.path;
        let file = self.file.file();
        let doing = |operation: &'static str| move |source| Error::io(path, operation, source);
        let hash = checksum::<Sha256>(file, |_| {}).map_err(doing("cannot read the file"))?;
        let mut permissions =
            file.metadata().map_err(doing("cannot read the file's metadata"))?.permissions();
        permissions.set_readonly(true);
        file.set_permissions(permissions).map_err(doing("cannot set the file read-only"))?;
        self.file.keep().map_err(|source| write_error(path, self.bytes, source))?;
        Ok(hash)
    }
}

/// The error for a failed write, with numbers if the disk is full.
fn write_error(path: &Path, bytes: u64, source: io::Error) -> Error {
    if !fulmen_durable::is_full(&source) {
        return Error::io(path, "cannot write the file", source);
    }
    let free = match path.parent().map(fulmen_durable::available_space) {
        Some(Ok(free)) => format!(", the disk has {} free", size(free)),
        _ => String::new(),
    };
    let message = format!(
        "not enough disk space for this file of {}{free}; free some space, or put the cache on another disk, and run \
         it again: it continues after the last complete part",
        size(bytes)
    );
    Error::io(path, &message, source)
}

/// Writes a small file atomically.
pub(crate) fn write_whole(path: &Path, bytes: &[u8]) -> Result<()> {
    store::write_whole(path, bytes).map_err(|source| write_error(path, bytes.len() as u64, source))
}

/// The SHA-256 of a file. Calls `read` with the size of each chunk.
pub(crate) fn sha256(path: &Path, read: impl FnMut(u64)) -> Result<String> {
    let hash = fulmen_durable::open_regular(path).and_then(|file| checksum::<Sha256>(file, read));
    hash.map_err(|source| Error::io(path, "cannot read the file", source))
}
