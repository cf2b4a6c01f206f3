//! The error type of this crate: what was wrong, where, and what to do next.

use std::error::Error as StdError;
use std::{fmt, io};

/// The result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a checkpoint could not be written or read. The kind is private; use the `is_...` methods.
///
/// ```
/// use std::sync::Arc;
/// use fulmen_checkpoint::{Checkpoint, LocalStore};
///
/// let folder = tempfile::tempdir()?;
/// let error = Checkpoint::open(Arc::new(LocalStore::new(folder.path())), "step_10").unwrap_err();
/// assert!(error.is_not_found());
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Error {
    kind: Kind,
    message: String,
    source: Option<io::Error>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Usage,
    NotFound,
    Damaged,
    Newer,
    TimedOut,
    Io,
}

impl Error {
    pub(crate) fn usage(message: impl Into<String>) -> Error {
        Error { kind: Kind::Usage, message: message.into(), source: None }
    }

    pub(crate) fn not_found(message: impl Into<String>) -> Error {
        Error { kind: Kind::NotFound, message: message.into(), source: None }
    }

    /// Reports damage. `message` is the problem without the advice, which is the same for all
    /// damage.
    pub(crate) fn damaged(message: impl fmt::Display) -> Error {
        let message =
            format!("{message}: the checkpoint was damaged after it was written; use another one");
        Error { kind: Kind::Damaged, message, source: None }
    }

    /// Reports that the shard of a process other than 0 is not in the folder of its checkpoint. It may
    /// be on the disk of that process's host.
    pub(crate) fn shard_elsewhere(folder: &str, file: &str, process: u64) -> Error {
        let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
        let host = match host.trim() {
            "" => "this host",
            name => name,
        };
        let message = format!(
            "{folder}: the shard {file} is missing on {host}. Process {process} of that run wrote it, maybe to a folder that its \
             host does not share: copy it here from there, or use another checkpoint, and put the folder on storage that all \
             hosts see"
        );
        Error { kind: Kind::Damaged, message, source: None }
    }

    pub(crate) fn newer(message: impl Into<String>) -> Error {
        Error { kind: Kind::Newer, message: message.into(), source: None }
    }

    pub(crate) fn timeout(message: impl Into<String>) -> Error {
        Error { kind: Kind::TimedOut, message: message.into(), source: None }
    }

    pub(crate) fn io(action: &str, location: &str, source: io::Error) -> Error {
        let advice = match source.kind() {
            io::ErrorKind::PermissionDenied => {
                "; check the permissions of the folder and its files"
            }
            _ if fulmen_durable::is_full(&source) => "; free some space, or choose another folder",
            _ => "",
        };
        let kind = if source.kind() == io::ErrorKind::NotFound { Kind::NotFound } else { Kind::Io };
        Error {
            kind,
            message: format!("{location}: cannot {action}: {source}{advice}"),
            source: Some(source),
        }
    }

    /// Whether arguments are inconsistent, or do not fit the checkpoint.
    pub fn is_usage(&self) -> bool {
        self.kind == Kind::Usage
    }

    /// Whether the checkpoint, or a tensor in it, does not exist.
    pub fn is_not_found(&self) -> bool {
        self.kind == Kind::NotFound
    }

    /// Whether the checkpoint has changed since it was written: a byte differs, or a shard is
    /// missing or truncated.
    pub fn is_damaged(&self) -> bool {
        self.kind == Kind::Damaged
    }

    /// Whether a newer version of Fulmen wrote the checkpoint.
    pub fn is_newer(&self) -> bool {
        self.kind == Kind::Newer
    }

    /// Whether checkpoints were not copied in time. They are still in the store where they were
    /// written.
    pub fn is_timeout(&self) -> bool {
        self.kind == Kind::TimedOut
    }

    /// Whether a disk or a quota is full.
    pub fn is_disk_full(&self) -> bool {
        self.source.as_ref().is_some_and(fulmen_durable::is_full)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl StdError for Error {
    // The message shows the cause.
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_ref().and_then(StdError::source)
    }
}
