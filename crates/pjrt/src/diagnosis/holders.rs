//! Finds the processes that have a device file open or a library mapped, as far as this user may
//! see. It sends no signals.

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
    /// The process id.
    pub pid: u32,
    /// The name of the process.
    pub name: String,
}

/// The processes that have a file open.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Holders {
    /// The processes that this user may inspect.
    pub processes: Vec<Holder>,
    /// The number of processes that could not be inspected, because they belong to other users.
    pub unseen: usize,
}

impl fmt::Display for Holders {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let this = std::process::id();
        let name = |holder: &Holder| {
            if holder.pid == this {
                format!("this process ({this})")
            } else {
                format!("process {} ({})", holder.pid, holder.name)
            }
        };
        match &self.processes[..] {
            [] => f.write_str("open in no visible process")?,
            holders => {
                write!(f, "open in {}", holders.iter().map(name).collect::<Vec<_>>().join(", "))?
            }
        }
        match self.unseen {
            0 => Ok(()),
            1 => f.write_str(" (one process of another user could not be inspected)"),
            unseen => write!(f, " ({unseen} processes of other users could not be inspected)"),
        }
    }
}

/// The files that a process uses.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct FilesInUse {
    /// The process id.
    pub pid: u32,
    /// The name of the process.
    pub name: String,
    /// The files that it has open.
    pub open: Vec<PathBuf>,
    /// The mapped files with the library's name, with their paths as the process sees them.
    pub mapped: Vec<PathBuf>,
}

/// The processes that have one of `files` open or a file named `library` mapped, ordered by process
/// id. The second value is the number of processes that could not be inspected. Devices are
/// compared instead of paths, because a device may have several names.
///
/// ```
/// use fulmen_pjrt::diagnosis::files_in_use;
///
/// let (processes, _unseen) = files_in_use(&[std::env::current_exe()?], "libtpu.so");
/// assert!(processes.iter().all(|process| !process.open.is_empty() || !process.mapped.is_empty()));
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn files_in_use(files: &[PathBuf], library: &str) -> (Vec<FilesInUse>, usize) {
    find_in_use(files, Some(library), Path::new("/proc"))
}

/// The holders of each file.
pub(super) fn holders(files: &[PathBuf], proc: &Path) -> Vec<Holders> {
    let (processes, unseen) =
        if files.is_empty() { Default::default() } else { find_in_use(files, None, proc) };
    let holder = |process: &FilesInUse| Holder { pid: process.pid, name: process.name.clone() };
    let with = |file: &PathBuf| {
        processes.iter().filter(|process| process.open.contains(file)).map(holder).collect()
    };
    files.iter().map(|file| Holders { processes: with(file), unseen }).collect()
}

fn find_in_use(files: &[PathBuf], library: Option<&str>, proc: &Path) -> (Vec<FilesInUse>, usize) {
    let expected = files
        .iter()
        .map(|file| fs::metadata(file).ok().map(|metadata| identity(&metadata)))
        .collect::<Vec<_>>();
    let mut processes = Vec::new();
    let mut unseen = 0;
    for pid in numbers(proc) {
        let Some(folder) = living_thread(&proc.join(pid.to_string())) else { continue };
        let inspected = open_files(&folder.join("fd"), files).and_then(|open| {
            Ok((open, library.map_or(Ok(Vec::new()), |library| mapped_files(&folder, library))?))
        });
        let (identities, mapped) = match inspected {
            Ok(inspected) => inspected,
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                unseen += 1;
                continue;
            }
            // The process has ended.
            Err(_) => continue,
        };
        let is_open =
            |expected: &Option<_>| expected.is_some_and(|expected| identities.contains(&expected));
        let open = files
            .iter()
            .zip(&expected)
            .filter(|(_, expected)| is_open(expected))
            .map(|(file, _)| file.clone())
            .collect::<Vec<_>>();
        if !open.is_empty() || !mapped.is_empty() {
            let comm = fs::read_to_string(folder.join("comm")).unwrap_or_default();
            let name = if comm.trim().is_empty() { "unknown" } else { comm.trim() };
            processes.push(FilesInUse { pid, name: name.to_owned(), open, mapped });
        }
    }
    (processes, unseen)
}

/// The entries of a folder whose names are numbers, in order.
fn numbers(folder: &Path) -> Vec<u32> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut numbers =
        entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect::<Vec<u32>>();
    numbers.sort_unstable();
    numbers
}

/// The folder of the process or, if its first thread has ended, of another thread. `None` if all
/// threads have ended: a zombie holds nothing.
fn living_thread(process: &Path) -> Option<PathBuf> {
    let is_zombie = |folder: &Path| {
        let stat = fs::read_to_string(folder.join("stat")).unwrap_or_default();
        stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with('Z'))
    };
    if !is_zombie(process) {
        return Some(process.to_owned());
    }
    let threads = process.join("task");
    numbers(&threads)
        .iter()
        .map(|thread| threads.join(thread.to_string()))
        .find(|thread| !is_zombie(thread))
}

/// The identities of the open files that have the name of one of `files`. Other files are not
/// queried: a query about a file on an unreachable network file system could block forever.
fn open_files(fd: &Path, files: &[PathBuf]) -> io::Result<BTreeSet<(u64, u64)>> {
    let mut open = BTreeSet::new();
    for entry in fs::read_dir(fd)?.flatten() {
        let Ok(target) = fs::read_link(entry.path()) else { continue };
        if files.iter().any(|file| file.file_name() == target.file_name()) {
            open.extend(fs::metadata(entry.path()).ok().map(|metadata| identity(&metadata)));
        }
    }
    Ok(open)
}

/// The mapped files with this name, including deleted ones.
fn mapped_files(process: &Path, name: &str) -> io::Result<Vec<PathBuf>> {
    // A line has five fields and then the path.
    let maps = fs::read(process.join("maps"))?;
    let paths = String::from_utf8_lossy(&maps)
        .lines()
        .filter_map(|line| line.find('/').map(|begin| &line[begin..]))
        .map(|path| Path::new(path.strip_suffix(" (deleted)").unwrap_or(path)))
        .filter(|path| path.file_name() == Some(name.as_ref()))
        .map(Path::to_owned)
        .collect::<BTreeSet<_>>();
    Ok(paths.into_iter().collect())
}

/// The identity of a file: for a device file, its device; for any other file, the file itself.
fn identity(metadata: &Metadata) -> (u64, u64) {
    if metadata.file_type().is_char_device() {
        // No file system has this number.
        (u64::MAX, metadata.rdev())
    } else {
        (metadata.dev(), metadata.ino())
    }
}
