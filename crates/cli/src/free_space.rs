//! The free space of a disk, before much is written to it.

use std::io::ErrorKind;
use std::path::Path;

use fulmen_data::{Error, Result};
use fulmen_durable::messages::size;

/// Bytes that stay free for other programs.
const RESERVED_BYTES: u64 = 64 << 20;

/// Whether the disk of a folder has room for this many bytes more, which `what` names, in the plural.
///
/// # Errors
/// It has less room; it cannot be queried.
pub(crate) fn check_free_space(folder: &Path, bytes: u64, what: &str) -> Result<()> {
    let room = fulmen_durable::available_space(folder)
        .map_err(|source| Error::io(folder, "cannot query the free disk space", source))?;
    let needed = bytes.saturating_add(if bytes == 0 { 0 } else { RESERVED_BYTES });
    if needed <= room {
        return Ok(());
    }
    let message = format!(
        "{what} need {}, but the disk has {} free: {} are missing; free some space, or use a folder on another disk",
        size(needed),
        size(room),
        size(needed - room)
    );
    Err(Error::io(folder, &message, ErrorKind::StorageFull.into()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_without_enough_space_is_an_error_with_numbers() {
        let folder = tempfile::tempdir().unwrap();
        check_free_space(folder.path(), 0, "the files").unwrap();
        let error = check_free_space(folder.path(), 1 << 60, "the files").unwrap_err();
        assert!(error.is_disk_full());
        let error = error.to_string();
        assert!(error.contains("the files need 1152921.5 TB"), "{error}");
        assert!(error.contains("are missing"), "{error}");
    }
}
