//! Files and folders that appear completely or not at all.
//!
//! New content goes to a temporary file in the same folder. The file is synced, renamed, and made
//! durable by syncing the folder. If the process is killed, the power fails, or the disk is full,
//! the old file therefore stays unchanged.
//!
//! The writer holds a lock on its temporary file, and the kernel releases the lock when the process
//! dies. The next process that writes in the folder removes temporary files that are not locked. On
//! a file system without locks, nothing is removed. If machines share a folder but not its locks,
//! only one of them may write there.
//!
//! [`open_regular`], [`read_regular`] and [`inside`] are for files of others: no pipes or devices, no
//! file above a limit, no name that leads out of its folder.
//!
//! [`read_text`] reads text files written by users: a configuration, a price table. [`messages`]
//! formats the numbers in messages of all crates. [`with_dashes`] and [`seconds`] are for flags that
//! users type.
//!
//! The errors of this crate do not name the temporary file or the target: callers add the path.

mod disk_full;
mod file_lock;
mod folder_lock;
pub mod messages;
mod new_file;
mod new_folder;
mod regular_file;
mod temporary_name;
mod typed_flag;
mod user_file;

pub use disk_full::{available_space, explain, is_full};
pub use file_lock::{try_lock, try_lock_shared};
pub use folder_lock::FolderLock;
pub use new_file::{NewFile, write, write_unsynced};
pub use new_folder::NewFolder;
pub use regular_file::{inside, open_regular, read_regular};
pub use temporary_name::{is_temporary, remove_leftovers};
pub use typed_flag::{seconds, with_dashes};
pub use user_file::read_text;

use std::fs::File;
use std::io;
use std::path::Path;

/// The folder of a file.
fn folder_of(file: &Path) -> &Path {
    file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Syncs the folder of a file. A new name survives a power failure only after this.
///
/// # Errors
/// The folder cannot be opened or synced.
///
/// ```
/// let folder = tempfile::tempdir()?;
/// std::fs::rename(folder.path(), folder.path().with_extension("new"))?;
/// fulmen_durable::sync_folder(&folder.path().with_extension("new"))?;
/// # std::fs::remove_dir(folder.path().with_extension("new"))?;
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn sync_folder(file: &Path) -> io::Result<()> {
    File::open(folder_of(file))?.sync_all()
}

#[cfg(test)]
mod tests {
    mod kill;
    mod write;
}
