//! Marks in the cache folder. They show that an earlier start of a plugin ended its process, so its
//! file may be damaged. Out of scope: verifying and replacing the file (`fetch`).
//!
//! Hashing 200 MB at every start would take longer than loading them. A process therefore leaves a
//! mark, a locked empty file, while it starts a plugin and for the first minute of using it. A mark
//! without a lock belongs to a process that ended in that time without exiting: it crashed or was
//! killed.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Once;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime};
use std::{env, process};

use parking_lot::Mutex;

use crate::error::Result;
use crate::{fetch, hash};

/// Most effects of a damaged file show when it first compiles and runs a program.
const TRIAL_PERIOD: Duration = Duration::from_secs(60);

/// The marks of this process, one for each started plugin.
static MARKS: Mutex<Vec<Mark>> = Mutex::new(Vec::new());
/// Whether there are any marks. Each execution checks this.
static HAS_MARKS: AtomicBool = AtomicBool::new(false);

struct Mark {
    plugin: PathBuf,
    path: PathBuf,
    since: Instant,
    /// Holds the lock, which the system releases with the process.
    _file: File,
}

/// Call this before a plugin's file is opened. If an earlier start ended its process, the file is
/// verified, and downloaded again if it is damaged. Only plugins that Fulmen downloaded are
/// verified: the right content of others is not known.
pub(crate) fn mark_start(plugin: &Path) -> Result<()> {
    if !fetch::is_published(plugin) {
        return Ok(());
    }
    let mut marks = MARKS.lock();
    if marks.iter().any(|mark| mark.plugin == plugin) {
        return Ok(());
    }
    // If no mark can be created, a damaged file is not detected, but the plugin is still used.
    let Some((folder, path, file)) =
        mark_folders(plugin).into_iter().find_map(MarkFolder::create_mark)
    else {
        return Ok(());
    };
    marks.push(Mark { plugin: plugin.to_owned(), path, since: Instant::now(), _file: file });
    HAS_MARKS.store(true, Ordering::Relaxed);
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the function has no arguments, does not unwind, and is never unloaded.
        unsafe { libc::atexit(at_exit) };
    });
    let leftovers = folder.leftover_marks();
    if !leftovers.is_empty() {
        fetch::repair(plugin)?;
        // Not earlier: if the file stays damaged, the next start must also know.
        for path in leftovers {
            let _ = fs::remove_file(path);
        }
    }
    Ok(())
}

/// Removes the marks after the first minute. Call this whenever a program runs.
pub(crate) fn remove_expired() {
    if HAS_MARKS.load(Ordering::Relaxed) {
        remove_marks(|mark| mark.since.elapsed() >= TRIAL_PERIOD);
    }
}

extern "C" fn at_exit() {
    remove_marks(|_| true);
}

fn remove_marks(is_selected: impl Fn(&Mark) -> bool) {
    // A process that exits does not wait for a thread that holds the lock.
    let Some(mut marks) = MARKS.try_lock() else { return };
    marks.retain(|mark| {
        let remove = is_selected(mark);
        if remove {
            let _ = fs::remove_file(&mark.path);
        }
        !remove
    });
    HAS_MARKS.store(!marks.is_empty(), Ordering::Relaxed);
}

/// A folder for the marks of a plugin, and the prefix of their names.
struct MarkFolder {
    folder: PathBuf,
    prefix: String,
}

/// The plugin's own folder and, for a read-only cache, the folder for temporary files.
fn mark_folders(plugin: &Path) -> Vec<MarkFolder> {
    let name = hash::hex(&hash::of_bytes(plugin.as_os_str().as_bytes())[..8]);
    let own = plugin.parent().unwrap_or(Path::new("/")).to_owned();
    vec![
        MarkFolder { folder: own, prefix: ".starting-".to_owned() },
        MarkFolder { folder: env::temp_dir(), prefix: format!(".fulmen-starting-{name}-") },
    ]
}

impl MarkFolder {
    /// Creates a mark and locks it. If another process checks for marks between the two steps, it
    /// takes this one for a leftover and verifies its file needlessly.
    fn create_mark(self) -> Option<(Self, PathBuf, File)> {
        let nanos = SystemTime::now()
            .duration_since(SystemTime::UNIX_EPOCH)
            .map_or(0, |time| time.subsec_nanos());
        let path = self.folder.join(format!("{}{}-{nanos}", self.prefix, process::id()));
        let file = File::options().write(true).create_new(true).open(&path).ok()?;
        if !lock(&file) {
            let _ = fs::remove_file(path);
            return None;
        }
        Some((self, path, file))
    }

    /// Marks whose processes have ended.
    fn leftover_marks(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(&self.folder).into_iter().flatten().flatten();
        let marks = entries.filter(|entry| {
            entry.file_name().to_str().is_some_and(|name| name.starts_with(&self.prefix))
        });
        marks
            .map(|entry| entry.path())
            .filter(|path| fulmen_durable::open_regular(path).is_ok_and(|file| lock(&file)))
            .collect()
    }
}

/// Takes the lock if it is free.
fn lock(file: &File) -> bool {
    // SAFETY: the descriptor is open.
    unsafe { libc::flock(file.as_raw_fd(), libc::LOCK_EX | libc::LOCK_NB) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark_folder(folder: &Path) -> MarkFolder {
        MarkFolder { folder: folder.to_owned(), prefix: ".starting-".to_owned() }
    }

    #[test]
    fn only_marks_of_ended_processes_count() {
        let folder = tempfile::tempdir().unwrap();
        let (_, _, mine) = mark_folder(folder.path()).create_mark().unwrap();
        let (_, gone, file) = mark_folder(folder.path()).create_mark().unwrap();
        assert!(mark_folder(folder.path()).leftover_marks().is_empty(), "both are locked");
        // Like the end of a process.
        drop(file);
        assert_eq!(mark_folder(folder.path()).leftover_marks(), [gone]);
        drop(mine);
        assert_eq!(mark_folder(folder.path()).leftover_marks().len(), 2);
    }

    #[test]
    fn a_folder_that_cannot_be_written_has_no_marks() {
        let folder = tempfile::tempdir().unwrap();
        assert!(mark_folder(&folder.path().join("missing")).create_mark().is_none());
        assert!(mark_folder(&folder.path().join("missing")).leftover_marks().is_empty());
        let folders = mark_folders(&folder.path().join("plugin.so"));
        assert_eq!(folders[0].folder, folder.path());
        assert_eq!(folders[1].folder, env::temp_dir());
    }
}
