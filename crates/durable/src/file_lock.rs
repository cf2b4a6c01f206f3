//! Locks on open files (`flock`). The system releases a lock when its file is closed, and so when the
//! process dies.

use std::fs::File;
use std::io;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

/// Takes a lock on an open file, which nobody else can then lock. Returns false if it is locked.
///
/// ```
/// use std::fs::File;
/// use fulmen_durable::{try_lock, try_lock_shared};
///
/// let folder = tempfile::tempdir()?;
/// let path = folder.path().join("lock");
/// let first = File::create(&path)?;
/// let second = File::open(&path)?;
/// assert!(try_lock(&first)?);
/// assert!(!try_lock(&second)? && !try_lock_shared(&second)?);
/// drop(first);
/// assert!(try_lock(&second)?);
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Errors
/// The file system has no locks.
pub fn try_lock(file: &File) -> io::Result<bool> {
    locked(file, FlockOperation::NonBlockingLockExclusive)
}

/// Like [`try_lock`], but others can take the file's shared lock too.
///
/// # Errors
/// Those of [`try_lock`].
pub fn try_lock_shared(file: &File) -> io::Result<bool> {
    locked(file, FlockOperation::NonBlockingLockShared)
}

fn locked(file: &File, operation: FlockOperation) -> io::Result<bool> {
    match flock(file, operation) {
        Ok(()) => Ok(true),
        Err(Errno::WOULDBLOCK) => Ok(false),
        Err(error) => Err(error.into()),
    }
}
