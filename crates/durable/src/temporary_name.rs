//! Temporary names, and the removal of files left by dead writers.

use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use crate::try_lock;

/// The prefix of temporary files.
pub(crate) const FILE: &str = ".part-";
/// The prefix of temporary folders.
pub(crate) const FOLDER: &str = ".parts-";

/// The number of letters and digits after the prefix.
const LETTERS: usize = 6;
const ALPHABET: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";

/// Creates a file or a folder under a temporary name and locks it.
pub(crate) fn create(
    folder: &Path,
    prefix: &str,
    make: impl Fn(&Path) -> io::Result<File>,
) -> io::Result<(File, PathBuf)> {
    remove_leftovers_once(folder);
    loop {
        let path = folder.join(format!("{prefix}{}", letters()));
        let file = match make(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => continue,
            made => made?,
        };
        // On a file system without locks, nothing is removed.
        let taken = matches!(try_lock(&file), Ok(false));
        // Another process may have removed it as a leftover before it was locked.
        if !taken && path.exists() {
            return Ok((file, path));
        }
    }
}

fn letters() -> String {
    // Each state has different random keys.
    let mut bits = RandomState::new().build_hasher().finish();
    let mut letter = || {
        let letter = ALPHABET[(bits % 62) as usize];
        bits /= 62;
        char::from(letter)
    };
    (0..LETTERS).map(|_| letter()).collect()
}

/// Whether a path has the name of a temporary file or folder of this crate.
///
/// ```
/// use std::path::Path;
/// assert!(fulmen_durable::is_temporary(Path::new("runs/.part-4kQz0A")));
/// assert!(!fulmen_durable::is_temporary(Path::new("runs/last.safetensors")));
/// ```
pub fn is_temporary(path: &Path) -> bool {
    has_prefix(path, FILE)
}

fn has_prefix(path: &Path, prefix: &str) -> bool {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let letters = name.strip_prefix(prefix).unwrap_or_default().as_bytes();
    letters.len() == LETTERS && letters.iter().all(u8::is_ascii_alphanumeric)
}

/// Removes the temporary files and folders of dead writers. [`NewFile`](crate::NewFile) calls this
/// once per folder and process.
///
/// # Errors
/// The folder cannot be listed, or a leftover cannot be removed.
///
/// ```
/// let folder = tempfile::tempdir()?;
/// std::fs::write(folder.path().join(".part-4kQz0A"), "half")?;
/// fulmen_durable::remove_leftovers(folder.path())?;
/// assert_eq!(std::fs::read_dir(folder.path())?.count(), 0);
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn remove_leftovers(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let kind = entry.file_type()?;
        let path = entry.path();
        let is_file = kind.is_file() && has_prefix(&path, FILE);
        let is_folder = kind.is_dir() && has_prefix(&path, FOLDER);
        if !is_file && !is_folder {
            continue;
        }
        // NFS grants a lock only on a file that is open for writing, which is impossible for a
        // read-only file.
        let writable = OpenOptions::new().write(true).open(&path);
        // If the file has just been renamed, it no longer exists under this name.
        let Ok(file) = writable.or_else(|_| File::open(&path)) else { continue };
        if !matches!(try_lock(&file), Ok(true)) {
            continue;
        }
        let removed = if is_file { fs::remove_file(&path) } else { remove_flat(&path) };
        removed.or_else(|error| {
            if error.kind() == io::ErrorKind::NotFound { Ok(()) } else { Err(error) }
        })?;
    }
    Ok(())
}

/// Removes a folder of files. A folder with subfolders stays, because this crate does not create
/// such folders.
fn remove_flat(folder: &Path) -> io::Result<()> {
    let entries = fs::read_dir(folder)?.collect::<io::Result<Vec<_>>>()?;
    for entry in &entries {
        if entry.file_type()?.is_dir() {
            return Ok(());
        }
    }
    entries.iter().try_for_each(|entry| fs::remove_file(entry.path()))?;
    fs::remove_dir(folder)
}

/// Removes leftovers only once per folder, because listing a folder before each of ten thousand
/// shards would take longer than writing them.
fn remove_leftovers_once(folder: &Path) {
    static CLEANED: Mutex<BTreeSet<PathBuf>> = Mutex::new(BTreeSet::new());
    if CLEANED.lock().unwrap_or_else(PoisonError::into_inner).insert(folder.to_owned()) {
        // Errors do not matter, because a leftover only takes space.
        let _ = remove_leftovers(folder);
    }
}
