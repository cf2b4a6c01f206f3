//! Allows only one writer at a time, with a lock on a file in the folder that is written. The
//! system releases the lock when the writer dies.
//!
//! Out of scope: readers. They need no lock, since parts and manifest appear only when they are
//! complete.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use fulmen_durable::{try_lock, try_lock_shared};

use crate::{Error, Result};

/// The name of the lock file in a cache's folder. The file stays after the writer has finished.
pub const LOCK: &str = "cache.lock";
/// How long to retry, because a process that only checks which process writes holds the lock for a
/// moment.
const MAX_LOCK_WAIT: Duration = Duration::from_millis(500);

/// Takes a lock, or returns false if another process still holds it after a moment. A child process
/// that another thread has just started shares this process's locks until it executes its program,
/// even locks that were released in the meantime.
pub fn lock_soon(mut take: impl FnMut() -> io::Result<bool>) -> io::Result<bool> {
    let start = Instant::now();
    loop {
        match take() {
            Ok(false) if start.elapsed() < MAX_LOCK_WAIT => std::thread::sleep(MAX_LOCK_WAIT / 10),
            result => return result,
        }
    }
}

/// The lock of a writer, held while the folder is written.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

impl Lock {
    /// Waits until no other process writes. `waiting` is called with the current writer several
    /// times a second.
    pub fn wait(dir: &Path, waiting: &mut dyn FnMut(&str)) -> Result<Lock> {
        loop {
            match Lock::try_take(dir, LOCK)? {
                Ok(lock) => return Ok(lock),
                Err(holder) => waiting(&holder),
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// The current holder of the lock, if any. Nothing is written.
    pub fn holder(dir: &Path) -> Option<String> {
        let mut file = fulmen_durable::open_regular(&dir.join(LOCK)).ok()?;
        match try_lock_shared(&file) {
            Ok(false) => Some(recorded_holder(&mut file)),
            _ => None,
        }
    }

    /// Takes the lock, or returns an error that names the writer.
    pub fn take(dir: &Path, name: &str) -> Result<Lock> {
        let start = Instant::now();
        loop {
            match Lock::try_take(dir, name)? {
                Ok(lock) => return Ok(lock),
                Err(_) if start.elapsed() < MAX_LOCK_WAIT => std::thread::sleep(MAX_LOCK_WAIT / 10),
                Err(holder) => {
                    let message = format!(
                        "{} is being written by {holder}; wait for it, or end it first",
                        dir.display()
                    );
                    return Err(Error::usage(message));
                }
            }
        }
    }

    /// Takes the lock on the file with this name, or returns its current holder.
    fn try_take(dir: &Path, name: &str) -> Result<Result<Lock, String>> {
        let path = dir.join(name);
        let failed = |doing: &'static str| {
            let path = path.clone();
            move |source| Error::io(&path, doing, source)
        };
        loop {
            fs::create_dir_all(dir)
                .map_err(|source| Error::io(dir, "cannot create the folder", source))?;
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true).truncate(false);
            let mut file = match options.open(&path) {
                Ok(file) => file,
                // Another process has just cleared the cache.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                Err(error) => return Err(failed("cannot open the lock")(error)),
            };
            if !file.metadata().map_err(failed("cannot open the lock"))?.is_file() {
                return Err(Error::file(&path, "this is not a regular file; remove it"));
            }
            match try_lock(&file) {
                Ok(true) => {}
                Ok(false) => return Ok(Err(recorded_holder(&mut file))),
                Err(error) => {
                    return Err(failed(
                        "cannot lock; this file system may not have locks, use another",
                    )(error));
                }
            }
            // If `clear` held the lock in the meantime, it has removed this file.
            if !is_same(&file, &path) {
                continue;
            }
            file.set_len(0).map_err(failed("cannot write the lock's holder"))?;
            file.rewind().map_err(failed("cannot write the lock's holder"))?;
            write!(file, "process {}{}", std::process::id(), host())
                .map_err(failed("cannot write the lock's holder"))?;
            return Ok(Ok(Lock { _file: file }));
        }
    }
}

/// The holder that is recorded in the file.
fn recorded_holder(file: &mut File) -> String {
    let mut holder = String::new();
    // An error does not matter, because the text is only for a message.
    let _ = Read::by_ref(file).take(200).read_to_string(&mut holder);
    if holder.is_empty() { "another process".to_owned() } else { holder }
}

fn host() -> String {
    match fs::read_to_string("/proc/sys/kernel/hostname") {
        Ok(name) => format!(" on {}", name.trim()),
        Err(_) => String::new(),
    }
}

fn is_same(file: &File, path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let identity = |metadata: fs::Metadata| (metadata.dev(), metadata.ino());
    file.metadata().map(identity).ok() == path.metadata().map(identity).ok()
}
