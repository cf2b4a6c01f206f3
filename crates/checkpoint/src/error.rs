//! The errors that only checkpoints have. The others are made where they are detected.

use std::{fmt, io};

use fulmen_error::{Error, Fact};

fn of(fact: Fact, message: impl Into<String>) -> Error {
    Error::of(fact, message).with(Fact::Checkpoint)
}

pub(crate) fn not_found(message: impl Into<String>) -> Error {
    of(Fact::NotFound, message)
}

/// Reports damage. `message` is the problem without the advice, which is the same for all damage.
pub(crate) fn damaged(message: impl fmt::Display) -> Error {
    let advice = "the checkpoint was damaged after it was written; use another one";
    of(Fact::Damaged, format!("{message}: {advice}"))
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
    of(Fact::Damaged, message)
}

pub(crate) fn newer(message: impl Into<String>) -> Error {
    of(Fact::Newer, message)
}

pub(crate) fn timeout(message: impl Into<String>) -> Error {
    of(Fact::TimedOut, message)
}

pub(crate) fn io(action: &str, location: &str, source: io::Error) -> Error {
    let advice = match source.kind() {
        io::ErrorKind::PermissionDenied => "; check the permissions of the folder and its files",
        _ if fulmen_durable::is_full(&source) => "; free some space, or choose another folder",
        _ => "",
    };
    let message = format!("{location}: cannot {action}: {source}{advice}");
    Error::of_io(message, source).with(Fact::Checkpoint)
}
