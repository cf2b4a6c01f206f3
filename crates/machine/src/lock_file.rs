//! The file with which libtpu keeps a second process off the TPU.
//!
//! Out of scope: the decision whether to remove the file (`kill.rs`).

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::Errno;

/// libtpu's lock file. libtpu removes it when its process exits. A killed process leaves it behind,
/// and libtpu then refuses to start.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct LockFile {
    /// Its path: `/tmp/libtpu_lockfile`.
    pub path: PathBuf,
    /// The id of its owner.
    pub owner: u32,
    /// The owner's name, if the machine knows it.
    pub owner_name: Option<String>,
    /// When it was last written.
    pub modified: Option<SystemTime>,
    /// The processes that hold a lock on it.
    pub locked_by: Vec<u32>,
}

impl LockFile {
    /// Finds the lock file of the machine whose files are under `root`, which is `/` except in
    /// tests.
    ///
    /// ```
    /// assert_eq!(fulmen_machine::LockFile::find("/no/such/folder".as_ref()), None);
    /// ```
    pub fn find(root: &Path) -> Option<LockFile> {
        let path = root.join("tmp/libtpu_lockfile");
        let metadata = fs::metadata(&path).ok()?;
        let owner = metadata.uid();
        let read = |name: &str| fs::read_to_string(root.join(name)).unwrap_or_default();
        Some(Self {
            owner,
            owner_name: user(&read("etc/passwd"), owner),
            modified: metadata.modified().ok(),
            locked_by: lockers(&read("proc/locks"), metadata.ino()),
            path,
        })
    }

    /// Removes the file. It is not an error if the file is already gone.
    ///
    /// # Errors
    /// A process holds a lock on it, it is no longer the same file, or this user may not remove it.
    pub fn remove(&self) -> Result<(), String> {
        let reason = match self.try_remove() {
            Ok(()) | Err(Errno::NOENT) => return Ok(()),
            Err(Errno::AGAIN) => "a process uses it".to_owned(),
            Err(error) => error.to_string(),
        };
        Err(format!("cannot remove {}: {reason}", self.path.display()))
    }

    fn try_remove(&self) -> Result<(), Errno> {
        let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = rustix::fs::open(&self.path, flags, Mode::empty())?;
        // Take both kinds of locks, because libtpu may use either. A process that opens the file
        // now finds it locked until the file is removed.
        rustix::fs::fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive)?;
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        let opened = rustix::fs::fstat(&file)?;
        let current = rustix::fs::lstat(&self.path)?;
        if (opened.st_dev, opened.st_ino) != (current.st_dev, current.st_ino) {
            return Err(Errno::AGAIN);
        }
        rustix::fs::unlink(&self.path)
    }
}

/// A line of `/etc/passwd` is `root:x:0:0:root:/root:/bin/bash`.
pub(crate) fn user(passwd: &str, number: u32) -> Option<String> {
    passwd.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(number)).then(|| name.to_owned())
    })
}

/// A line of `/proc/locks` is `1: FLOCK  ADVISORY  WRITE 1234 fd:01:131073 0 EOF`. For a process
/// that waits for the lock, `->` follows the first number.
fn lockers(locks: &str, inode: u64) -> Vec<u32> {
    let holder = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let is_held =
            *fields.get(1)? != "->" && fields.get(5)?.rsplit(':').next()?.parse() == Ok(inode);
        fields[4].parse().ok().filter(|_| is_held)
    };
    let mut holders: Vec<u32> = locks.lines().filter_map(holder).collect();
    holders.dedup();
    holders
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_files_owner_and_holders_are_read() {
        assert_eq!(
            user("daemon:x:1:1::/:/bin/sh\nanna:x:1000:1000:Anna:/home/anna:/bin/sh\n", 1000),
            Some("anna".into())
        );
        assert_eq!(user("anna:x:10001:1000:Anna:/home/anna:/bin/sh\nbroken\n", 1000), None);
        let locks = "1: POSIX  ADVISORY  WRITE 77 fd:01:42 0 EOF\n1: -> POSIX  ADVISORY  WRITE 78 fd:01:42 0 EOF\n\
                     2: FLOCK  ADVISORY  WRITE 79 fd:01:43 0 EOF\n3: FLOCK\n";
        assert_eq!(lockers(locks, 42), [77]);
        assert_eq!(lockers(locks, 41), [0; 0]);
    }
}
