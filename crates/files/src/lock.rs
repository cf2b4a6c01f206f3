//! One writer at a time: a lock on a file in the folder that is written, which the system gives back when the writer dies.
//!
//! Not here: readers. They need no lock, since parts and manifest appear whole.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use fs4::{FileExt, TryLockError};

use fulmen_data::{Error, Result};

/// The name of the file that is locked in a cache's folder. It stays after the writer is done.
pub const LOCK: &str = "cache.lock";
/// A process that only asks who writes holds the lock for a moment.
const MOMENT: Duration = Duration::from_millis(500);

/// Takes a lock, or says that another process holds it for longer than a moment. A process that another thread starts shares
/// this process's locks until it runs its program, also those that were given back meanwhile.
pub fn lock_soon(mut take: impl FnMut() -> Result<(), TryLockError>) -> Result<(), TryLockError> {
    let begun = Instant::now();
    loop {
        match take() {
            Err(TryLockError::WouldBlock) if begun.elapsed() < MOMENT => std::thread::sleep(MOMENT / 10),
            taken => return taken,
        }
    }
}

/// Held while a folder is written.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

impl Lock {
    /// Waits until no other process writes. `waiting` is told which one does, several times a second.
    pub fn wait(dir: &Path, waiting: &mut dyn FnMut(&str)) -> Result<Lock> {
        loop {
            match Lock::try_take(dir, LOCK)? {
                Ok(lock) => return Ok(lock),
                Err(holder) => waiting(&holder),
            }
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Who holds the lock, if anybody does. Nothing is written.
    pub fn holder(dir: &Path) -> Option<String> {
        let mut file = File::open(dir.join(LOCK)).ok()?;
        match FileExt::try_lock_shared(&file) {
            Err(TryLockError::WouldBlock) => Some(written(&mut file)),
            _ => None,
        }
    }

    /// The lock, or an error that says who writes.
    pub fn take(dir: &Path, name: &str) -> Result<Lock> {
        let begun = Instant::now();
        loop {
            match Lock::try_take(dir, name)? {
                Ok(lock) => return Ok(lock),
                Err(_) if begun.elapsed() < MOMENT => std::thread::sleep(MOMENT / 10),
                Err(holder) => {
                    let message =
                        format!("{} is being written by {holder}; wait for it, or end it first", dir.display());
                    return Err(Error::usage(message));
                }
            }
        }
    }

    /// The lock by the file of this name, or who has it.
    fn try_take(dir: &Path, name: &str) -> Result<Result<Lock, String>> {
        let path = dir.join(name);
        let failed = |doing: &'static str| {
            let path = path.clone();
            move |source| Error::io(&path, doing, source)
        };
        loop {
            fs::create_dir_all(dir).map_err(|source| Error::io(dir, "cannot make the folder", source))?;
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true).truncate(false);
            let mut file = match options.open(&path) {
                Ok(file) => file,
                // Somebody cleared the cache in this moment.
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                Err(error) => return Err(failed("cannot open the lock")(error)),
            };
            match FileExt::try_lock(&file) {
                Ok(()) => {}
                Err(TryLockError::WouldBlock) => return Ok(Err(written(&mut file))),
                Err(TryLockError::Error(error)) => {
                    return Err(failed("cannot lock; this file system may not have locks, use another")(error));
                }
            }
            // Who waited for `clear` now holds a file that is no longer there.
            if !is_same(&file, &path) {
                continue;
            }
            file.set_len(0).map_err(failed("cannot write who holds the lock"))?;
            file.rewind().map_err(failed("cannot write who holds the lock"))?;
            write!(file, "process {}{}", std::process::id(), host())
                .map_err(failed("cannot write who holds the lock"))?;
            return Ok(Ok(Lock { _file: file }));
        }
    }
}

/// Who wrote into the file that it holds it.
fn written(file: &mut File) -> String {
    let mut holder = String::new();
    // It is only for a message.
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
