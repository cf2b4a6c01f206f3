//! [`NewFile`]: a file under a temporary name until it is complete.

use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{FallocateFlags, fallocate};

use crate::{explain, folder_of, is_full, sync_folder, temporary_name};

/// A file that is being written under a temporary name next to its target. [`NewFile::keep`]
/// renames it to the target. If it is dropped earlier, it is removed.
///
/// ```
/// use std::io::Write;
///
/// let folder = tempfile::tempdir()?;
/// let path = folder.path().join("notes.txt");
/// let mut file = fulmen_durable::NewFile::create(&path)?;
/// file.write_all(b"all of it")?;
/// assert!(!path.exists());
/// file.keep()?;
/// assert_eq!(std::fs::read(&path)?, b"all of it");
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
#[must_use]
pub struct NewFile {
    file: File,
    temporary: PathBuf,
    to: PathBuf,
    persisted: AtomicBool,
}

impl NewFile {
    /// Creates the temporary file for `to`. It is open for reading and writing, and has the
    /// permissions of any new file.
    ///
    /// # Errors
    /// The folder does not exist or cannot be written to.
    pub fn create(to: &Path) -> io::Result<NewFile> {
        let make =
            |path: &Path| OpenOptions::new().read(true).write(true).create_new(true).open(path);
        let (file, temporary) = temporary_name::create(folder_of(to), temporary_name::FILE, make)?;
        Ok(NewFile { file, temporary, to: to.to_owned(), persisted: AtomicBool::new(false) })
    }

    /// Allocates all the disk space at once, so that a full disk is detected before anything is
    /// written. The file then has this length.
    ///
    /// # Errors
    /// The disk does not have enough space.
    pub fn reserve(&self, bytes: u64) -> io::Result<()> {
        match fallocate(&self.file, FallocateFlags::empty(), 0, bytes).map_err(io::Error::from) {
            Err(error) if is_full(&error) => Err(error),
            // If the file system cannot allocate space, later writes report the full disk.
            _ => self.file.set_len(bytes),
        }
    }

    /// The open file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Syncs the file, renames it and syncs the folder. An existing file is replaced.
    ///
    /// # Errors
    /// The disk fails or is full; the target is a folder. The target is unchanged, unless only the
    /// last sync failed.
    pub fn keep(&self) -> io::Result<()> {
        self.rename_with(|| fs::rename(&self.temporary, &self.to))
    }

    /// Like [`NewFile::keep`], but without syncing: after a power failure, the file may have lost
    /// its content. Use it for files that are verified when they are read and can be created again.
    ///
    /// # Errors
    /// The target is a folder, which stays unchanged.
    pub fn persist_unsynced(&self) -> io::Result<()> {
        fs::rename(&self.temporary, &self.to)?;
        self.persisted.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Like [`NewFile::keep`], but an error if the file exists.
    ///
    /// # Errors
    /// Those of [`NewFile::keep`]; an existing file, which stays unchanged.
    pub fn persist_noclobber(&self) -> io::Result<()> {
        self.rename_with(|| match fs::hard_link(&self.temporary, &self.to) {
            Ok(()) => {
                // The file already has its name. If the temporary name remains, the next process
                // that writes here removes it.
                let _ = fs::remove_file(&self.temporary);
                Ok(())
            }
            Err(error) => self.rename_if_free(error),
        })
    }

    /// Renames without a link, for mounted object stores, which do not support links. The name is
    /// checked just before the rename.
    fn rename_if_free(&self, refused: io::Error) -> io::Result<()> {
        let free = || {
            fs::symlink_metadata(&self.to)
                .is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
        };
        if refused.kind() == io::ErrorKind::AlreadyExists || !free() {
            return Err(refused);
        }
        fs::rename(&self.temporary, &self.to)
    }

    fn rename_with(&self, name: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        self.file.sync_all()?;
        name()?;
        self.persisted.store(true, Ordering::Relaxed);
        sync_folder(&self.to)
    }

    /// For tests: redirects writes to another file, for example to one that rejects them.
    #[doc(hidden)]
    pub fn with_file(mut self, file: File) -> NewFile {
        self.file = file;
        self
    }
}

impl Write for NewFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl Seek for NewFile {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        self.file.seek(to)
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        if !self.persisted.load(Ordering::Relaxed) {
            // If this fails, the next process that writes here removes the file.
            let _ = fs::remove_file(&self.temporary);
        }
    }
}

/// Writes a file atomically: `to` has either its old content or all of the new content. With
/// `bytes`, the length of the new content, a full disk is detected before anything is written.
///
/// # Errors
/// Those of [`NewFile`] and of `fill`. For a full disk, the message says how much space is missing.
///
/// ```
/// use std::io::Write;
///
/// let folder = tempfile::tempdir()?;
/// let path = folder.path().join("notes.txt");
/// fulmen_durable::write(&path, Some(9), |file| file.write_all(b"all of it"))?;
/// assert_eq!(std::fs::read(&path)?, b"all of it");
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn write(
    to: &Path,
    bytes: Option<u64>,
    fill: impl FnOnce(&mut BufWriter<&File>) -> io::Result<()>,
) -> io::Result<()> {
    write_and(to, bytes, fill, NewFile::keep)
}

/// Like [`write()`], but with [`NewFile::persist_unsynced`].
///
/// # Errors
/// Those of [`write()`].
///
/// ```
/// use std::io::Write;
///
/// let folder = tempfile::tempdir()?;
/// let path = folder.path().join("program");
/// fulmen_durable::write_unsynced(&path, None, |file| file.write_all(b"made again if need be"))?;
/// assert_eq!(std::fs::read(&path)?, b"made again if need be");
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn write_unsynced(
    to: &Path,
    bytes: Option<u64>,
    fill: impl FnOnce(&mut BufWriter<&File>) -> io::Result<()>,
) -> io::Result<()> {
    write_and(to, bytes, fill, NewFile::persist_unsynced)
}

fn write_and(
    to: &Path,
    bytes: Option<u64>,
    fill: impl FnOnce(&mut BufWriter<&File>) -> io::Result<()>,
    keep: impl FnOnce(&NewFile) -> io::Result<()>,
) -> io::Result<()> {
    let whole = || {
        let new = NewFile::create(to)?;
        if let Some(bytes) = bytes {
            new.reserve(bytes)?;
        }
        let mut file = BufWriter::with_capacity(1 << 20, new.file());
        fill(&mut file)?;
        file.flush()?;
        drop(file);
        keep(&new)
    };
    // The temporary file has been removed at this point, so its space counts as free.
    whole().map_err(|error| explain(error, to, bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_links_a_free_name_is_used_and_a_taken_one_is_kept() {
        let folder = tempfile::tempdir().unwrap();
        let free = folder.path().join("free");
        let taken = folder.path().join("taken");
        fs::write(&taken, "old").unwrap();
        let name = |to: &Path, kind: io::ErrorKind| {
            let mut file = NewFile::create(to).unwrap();
            file.write_all(b"new").unwrap();
            file.rename_with(|| file.rename_if_free(kind.into()))
        };
        assert!(name(&free, io::ErrorKind::AlreadyExists).is_err());
        assert!(name(&free, io::ErrorKind::Unsupported).is_ok());
        assert!(name(&taken, io::ErrorKind::Unsupported).is_err());
        assert_eq!(
            (fs::read(free).unwrap(), fs::read(taken).unwrap()),
            (b"new".to_vec(), b"old".to_vec())
        );
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    }
}
