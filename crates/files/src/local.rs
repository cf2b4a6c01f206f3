//! Files and folders of the local disk: listing, wildcards, copying into place.
//!
//! Not here: object stores (`remote`).

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use fulmen_durable::NewFile;

use super::pattern::{has_wildcard, name_fits};
use fulmen_data::{Error, Result};

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

/// A file that gets its name when it is whole. Its folder is made if it is missing.
pub fn temporary_file(to: &Path) -> Result<NewFile> {
    let folder = to.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder).map_err(|error| Error::io(folder, "cannot make the folder", error))?;
    NewFile::create(to).map_err(|error| Error::io(to, "cannot make the file", error))
}

/// Removes the temporary files in a folder whose writers were killed.
pub fn remove_leftovers(folder: &Path) -> Result<()> {
    fulmen_durable::remove_leftovers(folder)
        .map_err(|source| Error::io(folder, "cannot remove what is half written in the folder", source))
}

/// Syncs a temporary file of `to`, and gives it that name.
pub fn keep(file: NewFile, to: &Path) -> Result<()> {
    file.keep().map_err(|error| Error::io(to, "cannot write the file", error))
}

/// The same where there is no such file yet; one that is there is left as it is.
pub fn keep_new(file: NewFile, to: &Path) -> Result<()> {
    file.keep_new().map_err(|error| Error::io(to, "cannot write the file", error))
}

/// Writes a small file, whole or not at all.
pub fn write_whole(to: &Path, bytes: &[u8]) -> io::Result<()> {
    fulmen_durable::write(to, Some(bytes.len() as u64), |file| file.write_all(bytes))
}
