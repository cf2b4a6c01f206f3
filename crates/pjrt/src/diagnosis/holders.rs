//! Which processes have a device's file open, as far as this user may see. It ends and signals none of them.

use std::collections::BTreeSet;
use std::fmt;
use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// A process that has a file open.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holder {
    /// The process's number.
    pub pid: u32,
    /// The name of its program.
    pub name: String,
}

/// The processes that have a file open.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holders {
    /// Those that could be seen.
    pub processes: Vec<Holder>,
    /// How many processes could not be looked into: those of other users.
    pub unseen: usize,
}

impl fmt::Display for Holders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let this = std::process::id();
        let name = |holder: &Holder| match holder.pid == this {
            true => format!("this process ({this})"),
            false => format!("process {} ({})", holder.pid, holder.name),
        };
        match &self.processes[..] {
            [] => f.write_str("open in no process that can be seen")?,
            holders => write!(f, "open in {}", holders.iter().map(name).collect::<Vec<_>>().join(", "))?,
        }
        match self.unseen {
            0 => Ok(()),
            1 => f.write_str(" (one process of another user could not be looked into)"),
            unseen => write!(f, " ({unseen} processes of other users could not be looked into)"),
        }
    }
}

/// The holders of each of the files. A device may have several names, so devices are compared, not paths.
pub(super) fn of(files: &[PathBuf], proc: &Path) -> Vec<Holders> {
    let wanted = files.iter().map(|file| fs::metadata(file).ok().map(|found| identity(&found))).collect::<Vec<_>>();
    let mut holders = vec![Holders::default(); files.len()];
    if files.is_empty() {
        return holders;
    }
    let mut unseen = 0;
    for pid in processes(proc) {
        let folder = proc.join(pid.to_string());
        let open = match open_files(&folder.join("fd"), files) {
            Ok(open) => open,
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                unseen += 1;
                continue;
            }
            // It has ended meanwhile.
            Err(_) => continue,
        };
        for (holders, wanted) in holders.iter_mut().zip(&wanted) {
            if wanted.is_some_and(|wanted| open.contains(&wanted)) {
                let name = fs::read_to_string(folder.join("comm")).unwrap_or_default();
                let name = if name.trim().is_empty() { "unknown" } else { name.trim() };
                holders.processes.push(Holder { pid, name: name.to_owned() });
            }
        }
    }
    holders.iter_mut().for_each(|holders| holders.unseen = unseen);
    holders
}

/// The numbers of all processes, in order.
fn processes(proc: &Path) -> Vec<u32> {
    let entries = fs::read_dir(proc).into_iter().flatten().flatten();
    let mut pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect::<Vec<u32>>();
    pids.sort_unstable();
    pids
}

/// What a process has open of files that have the name of one of `files`. Others are not touched: to ask after a file on
/// a network that is gone could take for ever.
fn open_files(fd: &Path, files: &[PathBuf]) -> io::Result<BTreeSet<(u64, u64)>> {
    let mut open = BTreeSet::new();
    for entry in fs::read_dir(fd)?.flatten() {
        let Ok(target) = fs::read_link(entry.path()) else { continue };
        if files.iter().any(|file| file.file_name() == target.file_name()) {
            open.extend(fs::metadata(entry.path()).ok().map(|found| identity(&found)));
        }
    }
    Ok(open)
}

/// The device that a device's file is for; for another file, the file itself.
fn identity(metadata: &Metadata) -> (u64, u64) {
    match metadata.file_type().is_char_device() {
        // No file system has this number.
        true => (u64::MAX, metadata.rdev()),
        false => (metadata.dev(), metadata.ino()),
    }
}
