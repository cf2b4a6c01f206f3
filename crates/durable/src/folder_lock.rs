//! [`FolderLock`]: the right to be the only writer of a folder.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use crate::try_lock;

/// The name of the locked file in the folder. The file stays, because removing it would let two
/// processes lock two files of this name.
const NAME: &str = ".lock";

/// The most bytes that are read of a holder's description.
const MAX_HOLDER_BYTES: u64 = 200;

/// A lock on a folder. It ends when this is dropped, or when the process ends in any way.
///
/// The lock only keeps out others that take it too. Machines that share a folder, but not its locks,
/// are not kept out.
///
/// ```
/// use fulmen_durable::FolderLock;
///
/// let folder = tempfile::tempdir()?;
/// let lock = FolderLock::take(folder.path(), "process 7 on host-a")?;
/// let error = FolderLock::take(folder.path(), "process 8 on host-b").unwrap_err();
/// assert_eq!(error.kind(), std::io::ErrorKind::WouldBlock);
/// assert_eq!(error.to_string(), "process 7 on host-a is using it");
/// drop(lock);
/// FolderLock::take(folder.path(), "process 8 on host-b")?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
#[must_use]
pub struct FolderLock {
    /// Holds the lock, unless the file system has none.
    _file: File,
}

impl FolderLock {
    /// Takes the lock of an existing folder. `holder` describes this process to others.
    ///
    /// # Errors
    /// Another holder has the lock ([`io::ErrorKind::WouldBlock`]); the folder cannot be written.
    pub fn take(folder: &Path, holder: &str) -> io::Result<FolderLock> {
        let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .custom_flags(flags.bits().cast_signed())
            .open(folder.join(NAME))?;
        if !file.metadata()?.is_file() {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("its file {NAME} is not a regular file"),
            ));
        }
        if let Ok(false) = try_lock(&file) {
            let mut other = Vec::new();
            file.take(MAX_HOLDER_BYTES).read_to_end(&mut other)?;
            let other = String::from_utf8_lossy(&other);
            let other = if other.trim().is_empty() { "another process" } else { other.trim() };
            return Err(io::Error::new(
                io::ErrorKind::WouldBlock,
                format!("{} is using it", other.escape_debug()),
            ));
        }
        // The description only helps others: a full disk does not matter.
        let _ = file.set_len(0).and_then(|()| file.write_all(holder.as_bytes()));
        Ok(FolderLock { _file: file })
    }
}
