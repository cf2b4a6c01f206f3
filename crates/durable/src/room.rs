//! The disk that is full: which errors say so, and how much is missing.

use std::io::{self, ErrorKind};
use std::path::Path;

use crate::folder_of;

/// Whether an error says that the disk, a quota or the largest size of a file does not allow more.
///
/// ```
/// let full = std::io::Error::from(std::io::ErrorKind::StorageFull);
/// assert!(fulmen_durable::is_full(&full));
/// ```
pub fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge)
}

/// Says in the error of a write to `to` how much room is missing, if that is what the error is about. The file has
/// `bytes` bytes, where that is known. Any other error stays what it is, and the kind stays in any case.
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
    // A quota has its own limit, whatever the disk has free.
    let free = match error.kind() {
        ErrorKind::StorageFull => fs4::available_space(folder_of(to)).ok(),
        _ => None,
    };
    let why = match (bytes, free) {
        (Some(bytes), Some(free)) if bytes > free => format!(
            "; the file needs {} and the disk has {} free, so {} are missing",
            size(bytes),
            size(free),
            size(bytes - free)
        ),
        (Some(bytes), Some(free)) => format!("; the file needs {} and the disk has {} free", size(bytes), size(free)),
        (Some(bytes), None) => format!("; the file needs {}", size(bytes)),
        (None, Some(free)) => format!("; the file needs more than the {} that the disk has free", size(free)),
        (None, None) => String::new(),
    };
    io::Error::new(error.kind(), format!("{error}{why}"))
}

/// A number of bytes in words, as disks are sold: 1 GB is 10⁹ bytes.
fn size(bytes: u64) -> String {
    let units = [(1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB")];
    match units.iter().find(|(unit, _)| bytes as f64 >= *unit) {
        Some((unit, name)) => format!("{:.1} {name}", bytes as f64 / unit),
        None => format!("{bytes} bytes"),
    }
}
