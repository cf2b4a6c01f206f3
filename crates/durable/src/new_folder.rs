//! [`NewFolder`]: a folder under a temporary name until all its files are written.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use crate::{folder_of, sync_folder, temporary_name};

/// A folder that is being filled under a temporary name next to its target. [`NewFolder::keep`]
/// renames it to the target. If it is dropped earlier, it is removed with its content.
///
/// ```
/// let parent = tempfile::tempdir()?;
/// let path = parent.path().join("model");
/// let folder = fulmen_durable::NewFolder::create(&path)?;
/// std::fs::write(folder.path().join("weights"), "all of it")?;
/// folder.keep()?;
/// assert_eq!(std::fs::read(path.join("weights"))?, b"all of it");
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct NewFolder {
    /// Holds the lock.
    _lock: File,
    temporary: PathBuf,
    to: PathBuf,
    persisted: bool,
}

impl NewFolder {
    /// Creates the temporary folder for `to`.
    ///
    /// # Errors
    /// The parent folder does not exist or cannot be written to.
    pub fn create(to: &Path) -> io::Result<NewFolder> {
        let make = |path: &Path| fs::create_dir(path).and_then(|()| File::open(path));
        let (lock, temporary) =
            temporary_name::create(folder_of(to), temporary_name::FOLDER, make)?;
        Ok(NewFolder { _lock: lock, temporary, to: to.to_owned(), persisted: false })
    }

    /// The folder to write the files to.
    pub fn path(&self) -> &Path {
        &self.temporary
    }

    /// Renames the folder, whose files must be synced, and syncs the parent folder.
    ///
    /// # Errors
    /// The target is a file, or a folder that is not empty.
    pub fn keep(mut self) -> io::Result<()> {
        sync_folder(&self.temporary.join("."))?;
        fs::rename(&self.temporary, &self.to)?;
        self.persisted = true;
        sync_folder(&self.to)
    }
}

impl Drop for NewFolder {
    fn drop(&mut self) {
        if !self.persisted {
            // If this fails, the next process that writes here removes the folder.
            let _ = fs::remove_dir_all(&self.temporary);
        }
    }
}
