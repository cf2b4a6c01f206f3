//! Small text files written by users: a configuration, a price table.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileTypeExt;
use std::path::Path;

use crate::messages::size;

/// The size limit, far above the size of files that users write.
const MAX_BYTES: u64 = 1_000_000;

/// Reads a regular file or a pipe, such as the pipe that a shell passes for `<(command)`.
///
/// # Errors
/// The file cannot be read; it is larger than 1 MB, or not UTF-8; it is a folder or a device.
///
/// ```
/// let file = tempfile::NamedTempFile::new()?;
/// std::fs::write(file.path(), "batch_size = 64")?;
/// assert_eq!(fulmen_durable::read_text(file.path())?, "batch_size = 64");
/// assert!(fulmen_durable::read_text("/dev/zero".as_ref()).unwrap_err().to_string().contains("not a regular file"));
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn read_text(path: &Path) -> io::Result<String> {
    let refuse = |reason: String| io::Error::new(io::ErrorKind::InvalidInput, reason);
    let metadata = std::fs::metadata(path)?;
    if metadata.is_dir() {
        return Err(refuse("it is a folder; use a file in it".into()));
    }
    // A device may be endless.
    if !metadata.is_file() && !metadata.file_type().is_fifo() {
        return Err(refuse("it is not a regular file".into()));
    }
    let mut text = Vec::new();
    File::open(path)?.take(MAX_BYTES + 1).read_to_end(&mut text)?;
    if text.len() as u64 > MAX_BYTES {
        return Err(refuse(format!(
            "it is larger than {}; expected a small text file",
            size(MAX_BYTES)
        )));
    }
    String::from_utf8(text).map_err(|e| refuse(format!("it is not UTF-8 text: {e}")))
}
