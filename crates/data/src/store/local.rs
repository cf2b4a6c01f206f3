//! Files and folders of the local disk: listing, wildcards, copying into place.
//!
//! Not here: object stores (`remote`).

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt as _, PermissionsExt};
use std::path::{Path, PathBuf};

use fs4::{FileExt, TryLockError};
use tempfile::{NamedTempFile, PersistError};

use super::pattern::{has_wildcard, name_fits};
use crate::{Error, Result};

/// A part of a copy, after which progress is told.
const COPY: usize = 1 << 20;

/// The path made of these bytes.
pub(super) fn path(bytes: Vec<u8>) -> PathBuf {
    PathBuf::from(std::ffi::OsString::from_vec(bytes))
}

/// The size of a file. Whatever is no regular file is refused: to open a pipe would wait for a writer.
pub(super) fn size(path: &Path) -> Result<u64> {
    let metadata = fs::metadata(path).map_err(|source| Error::io(path, "cannot open the file", source))?;
    match metadata.is_file() {
        true => Ok(metadata.len()),
        false if metadata.is_dir() => Err(Error::file(path, "this is a folder; expected a file")),
        false => Err(Error::file(path, "this is no regular file")),
    }
}

pub(super) fn open(path: &Path) -> Result<File> {
    size(path)?;
    File::open(path).map_err(|source| Error::io(path, "cannot open the file", source))
}

/// The bytes from `start` on, `length` of them, which are known to be there.
pub(super) fn read_at(path: &Path, start: u64, length: usize) -> Result<Vec<u8>> {
    let file = open(path)?;
    let mut bytes = vec![0; length];
    let doing = || format!("reading {length} bytes from byte {start} on");
    file.read_exact_at(&mut bytes, start).map_err(|source| Error::io(path, &doing(), source))?;
    Ok(bytes)
}

/// All files under a folder, sorted by the bytes of their paths. Links are followed, but not into a folder that they lie
/// in.
pub(super) fn list(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    // A folder to look into, and the true paths of those it lies in if links led there.
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        let refused = |source| Error::io(&folder, "cannot list the folder", source);
        for entry in fs::read_dir(&folder).map_err(refused)? {
            let path = entry.map_err(refused)?.path();
            match fs::metadata(&path) {
                Ok(metadata) if metadata.is_dir() => {
                    if !leads_upwards(&path)? {
                        folders.push(path);
                    }
                }
                Ok(_) => files.push(path),
                // A link to nowhere is as good as no file.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(source) => return Err(Error::io(&path, "looking at the file", source)),
            }
        }
    }
    sort(&mut files);
    Ok(files)
}

/// Whether a folder is a link to one that it lies in, so that following it would not end.
fn leads_upwards(folder: &Path) -> Result<bool> {
    let refused = |source| Error::io(folder, "looking at the folder", source);
    if !fs::symlink_metadata(folder).map_err(refused)?.is_symlink() {
        return Ok(false);
    }
    let target = fs::canonicalize(folder).map_err(refused)?;
    let parent = folder.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    Ok(fs::canonicalize(parent).map_err(refused)?.starts_with(target))
}

fn sort(paths: &mut [PathBuf]) {
    paths.sort_by(|a, b| a.as_os_str().as_bytes().cmp(b.as_os_str().as_bytes()));
}

/// The files and folders that fit a pattern, sorted by the bytes of their paths.
pub(super) fn matching(pattern: &Path) -> Result<Vec<PathBuf>> {
    let parts: Vec<&[u8]> = pattern.components().map(|part| part.as_os_str().as_bytes()).collect();
    let mut found = Vec::new();
    descend(PathBuf::new(), &parts, &mut found)?;
    sort(&mut found);
    found.dedup();
    Ok(found)
}

fn descend(at: PathBuf, parts: &[&[u8]], found: &mut Vec<PathBuf>) -> Result<()> {
    let Some((&part, rest)) = parts.split_first() else {
        if fs::metadata(&at).is_ok() {
            found.push(at);
        }
        return Ok(());
    };
    if !has_wildcard(part) {
        return descend(at.join(path(part.to_vec())), rest, found);
    }
    let anywhere = part == b"**";
    if anywhere {
        descend(at.clone(), rest, found)?;
    }
    let folder = if at.as_os_str().is_empty() { Path::new(".") } else { &at };
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => return Ok(()),
        Err(source) => return Err(Error::io(folder, "cannot list the folder", source)),
    };
    for entry in entries {
        let entry = entry.map_err(|source| Error::io(folder, "cannot list the folder", source))?;
        let (name, next) = (entry.file_name(), at.join(entry.file_name()));
        if anywhere {
            if name.as_bytes().first() != Some(&b'.') && next.is_dir() && !leads_upwards(&next)? {
                descend(next, parts, found)?;
            }
        } else if name_fits(part, name.as_bytes()) {
            descend(next, rest, found)?;
        }
    }
    Ok(())
}

/// Copies a file to a temporary name beside its destination, and gives it its name when it is all there. Folders that are
/// missing are made.
pub(super) fn copy(from: &Path, to: &Path, progress: &dyn Fn(u64)) -> Result<()> {
    let mut source = open(from)?;
    let mut file = temporary_file(to)?;
    let mut part = vec![0; COPY];
    let mut copied = 0;
    loop {
        let read = source.read(&mut part);
        let count = match read {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(Error::io(from, "cannot read the file", error)),
        };
        file.write_all(&part[..count]).map_err(|error| Error::io(to, "cannot write the file", error))?;
        copied += count as u64;
        progress(copied);
    }
    keep(file, to)
}

fn folder_of(file: &Path) -> &Path {
    file.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// What the name of such a file begins with; letters and digits follow.
const BEGUN: &str = ".part-";
const BEGUN_LETTERS: usize = 6;

/// A temporary file in the folder of `to`, which is made if it is missing. It is locked while it is open, so that
/// [`remove_leftovers`] leaves it alone.
pub(crate) fn temporary_file(to: &Path) -> Result<NamedTempFile> {
    let folder = folder_of(to);
    fs::create_dir_all(folder).map_err(|error| Error::io(folder, "cannot make the folder", error))?;
    loop {
        let file = tempfile::Builder::new()
            .prefix(BEGUN)
            .rand_bytes(BEGUN_LETTERS)
            // As any other file of the user's, under the umask; a temporary file would be readable by its owner alone.
            .permissions(PermissionsExt::from_mode(0o666))
            .tempfile_in(folder)
            .map_err(|error| Error::io(folder, "cannot make a temporary file", error))?;
        // On a file system without locks nobody gets one, and nothing is removed.
        let taken = matches!(FileExt::try_lock(file.as_file()), Err(TryLockError::WouldBlock));
        // Another process may have taken it for left over before it was locked.
        if !taken && file.path().exists() {
            return Ok(file);
        }
    }
}

/// Removes the temporary files in a folder whose writers were killed; of those that are being written the lock cannot be
/// had.
pub(crate) fn remove_leftovers(folder: &Path) -> Result<()> {
    let refused = |source| Error::io(folder, "cannot list the folder", source);
    for entry in fs::read_dir(folder).map_err(refused)? {
        let entry = entry.map_err(refused)?;
        let (name, path) = (entry.file_name(), entry.path());
        let letters = name.as_bytes().strip_prefix(BEGUN.as_bytes()).unwrap_or_default();
        let is_ours = letters.len() == BEGUN_LETTERS && letters.iter().all(u8::is_ascii_alphanumeric);
        if !is_ours || !entry.file_type().is_ok_and(|kind| kind.is_file()) {
            continue;
        }
        // One that was given its name in this moment is gone.
        let Ok(file) = File::open(&path) else { continue };
        if FileExt::try_lock(&file).is_ok() {
            match fs::remove_file(&path) {
                Err(source) if source.kind() != io::ErrorKind::NotFound => {
                    return Err(Error::io(&path, "cannot remove what is half written", source));
                }
                _ => {}
            }
        }
    }
    Ok(())
}

/// Syncs a temporary file that lies in the folder of `to`, and gives it that name.
pub(crate) fn keep(file: NamedTempFile, to: &Path) -> Result<()> {
    give_name(file, to, |file| file.persist(to))
}

/// The same where there is no such file yet; one that is there is left as it is.
pub(crate) fn keep_new(file: NamedTempFile, to: &Path) -> Result<()> {
    give_name(file, to, |file| file.persist_noclobber(to).or_else(|refused| name_if_free(refused, to)))
}

/// Mounts of object stores can neither rename to a name that must be free nor link: there it is looked at just before.
fn name_if_free(refused: PersistError, to: &Path) -> Result<File, PersistError> {
    let free = || fs::symlink_metadata(to).is_err_and(|error| error.kind() == io::ErrorKind::NotFound);
    match refused.error.kind() != io::ErrorKind::AlreadyExists && free() {
        true => refused.file.persist(to),
        false => Err(refused),
    }
}

fn give_name(
    file: NamedTempFile,
    to: &Path,
    persist: impl FnOnce(NamedTempFile) -> Result<File, PersistError>,
) -> Result<()> {
    let refused = |error| Error::io(to, "cannot write the file", error);
    file.as_file().sync_all().map_err(refused)?;
    persist(file).map_err(|error| refused(error.error))?;
    sync_folder(to).map_err(refused)
}

/// Writes a small file of which there is one writer at a time, whole or not at all.
pub(crate) fn write_whole(to: &Path, bytes: &[u8]) -> io::Result<()> {
    let temporary = temporary(to);
    let write = || {
        let mut file = File::create(&temporary)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        fs::rename(&temporary, to)
    };
    write().inspect_err(|_| drop(fs::remove_file(&temporary)))?;
    sync_folder(to)
}

/// What the name of a file that is being written ends in.
pub(crate) const TEMPORARY: &str = ".tmp";

/// The name of a file while it is being written.
pub(crate) fn temporary(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(TEMPORARY);
    PathBuf::from(name)
}

/// Brings the names in a file's folder to the disk: a new name is safe when the folder is.
pub(crate) fn sync_folder(file: &Path) -> io::Result<()> {
    File::open(folder_of(file))?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn where_a_free_name_cannot_be_asked_for_a_file_still_gets_it_and_takes_none_away() {
        let dir = tempfile::tempdir().unwrap();
        let (free, taken) = (dir.path().join("free"), dir.path().join("taken"));
        fs::write(&taken, "old").unwrap();
        let refused = |to: &Path, kind: io::ErrorKind| {
            let mut file = temporary_file(to).unwrap();
            file.write_all(b"new").unwrap();
            PersistError { error: kind.into(), file }
        };
        assert!(name_if_free(refused(&free, io::ErrorKind::AlreadyExists), &free).is_err());
        assert!(name_if_free(refused(&free, io::ErrorKind::Unsupported), &free).is_ok());
        assert!(name_if_free(refused(&taken, io::ErrorKind::Unsupported), &taken).is_err());
        assert_eq!((fs::read(free).unwrap(), fs::read(taken).unwrap()), (b"new".to_vec(), b"old".to_vec()));
    }
}
