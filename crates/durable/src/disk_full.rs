//! Full disks: detects the errors, and reports how much space is missing.

use std::io::{self, ErrorKind};
use std::path::Path;

use rustix::fs::statvfs;

use crate::folder_of;
use crate::messages::size;

/// Whether an error means that the disk is full, or that a quota or the maximum file size is
/// exceeded.
///
/// ```
/// let full = std::io::Error::from(std::io::ErrorKind::StorageFull);
/// assert!(fulmen_durable::is_full(&full));
/// ```
pub fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge
    )
}

/// The free bytes of the disk with this file or folder, without those that only root may use.
///
/// ```
/// assert!(fulmen_durable::available_space(std::path::Path::new("/"))? > 0);
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Errors
/// The file does not exist.
pub fn available_space(path: &Path) -> io::Result<u64> {
    let disk = statvfs(path)?;
    Ok(disk.f_frsize.saturating_mul(disk.f_bavail))
}

/// Adds to the error of a write to `to` how much space is missing, if a full disk caused the error.
/// `bytes` is the size of the file, if it is known. Other errors are returned unchanged. The kind
/// of the error never changes.
///
/// ```
/// let folder = tempfile::tempdir()?;
/// let full = std::io::Error::from(std::io::ErrorKind::StorageFull);
/// let error = fulmen_durable::explain(full, &folder.path().join("x"), Some(u64::MAX));
/// assert!(error.to_string().contains("missing"));
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn explain(error: io::Error, to: &Path, bytes: Option<u64>) -> io::Error {
    if !is_full(&error) {
        return error;
    }
    // A quota has its own limit, independent of the free space.
    let free = match error.kind() {
        ErrorKind::StorageFull => available_space(folder_of(to)).ok(),
        _ => None,
    };
    let detail = match (bytes, free) {
        (Some(bytes), Some(free)) if bytes > free => format!(
            "; the file needs {} and the disk has {} free, so {} are missing",
            size(bytes),
            size(free),
            size(bytes - free)
        ),
        (Some(bytes), Some(free)) => {
            format!("; the file needs {} and the disk has {} free", size(bytes), size(free))
        }
        (Some(bytes), None) => format!("; the file needs {}", size(bytes)),
        (None, Some(free)) => {
            format!("; the file needs more than the {} that the disk has free", size(free))
        }
        (None, None) => String::new(),
    };
    io::Error::new(error.kind(), format!("{error}{detail}"))
}
