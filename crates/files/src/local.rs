//! Files and folders on the local disk: listing, wildcards, atomic copies.
//!
//! Out of scope: object stores (`remote`).

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use fulmen_durable::NewFile;
use walkdir::{DirEntry, WalkDir};

use super::pattern::{Wildcards, has_wildcard};
use crate::{Error, Result};

/// How much to copy between two progress reports.
const COPY_BUFFER_BYTES: usize = 1 << 20;

/// Makes a path of these bytes.
pub(super) fn path(bytes: Vec<u8>) -> PathBuf {
    PathBuf::from(std::ffi::OsString::from_vec(bytes))
}

/// The size of a file. Only regular files are accepted: opening a pipe would wait for a writer.
pub(super) fn size(path: &Path) -> Result<u64> {
    let metadata =
        fs::metadata(path).map_err(|source| Error::io(path, "cannot open the file", source))?;
    if metadata.is_file() {
        Ok(metadata.len())
    } else if metadata.is_dir() {
        Err(Error::file(path, "this is a folder; expected a file"))
    } else {
        Err(Error::file(path, "this is not a regular file"))
    }
}

pub(super) fn open(path: &Path) -> Result<File> {
    fulmen_durable::open_regular(path)
        .map_err(|source| Error::io(path, "cannot open the file", source))
}

/// Reads a whole file of at most `limit` bytes.
pub(super) fn read(path: &Path, limit: u64) -> Result<Vec<u8>> {
    fulmen_durable::read_regular(path, limit)
        .map_err(|source| Error::io(path, "cannot read the file", source))
}

/// Reads `length` bytes from `start` on, which must be within the file.
pub(super) fn read_at(path: &Path, start: u64, length: usize) -> Result<Vec<u8>> {
    let file = open(path)?;
    let mut bytes = zeros(path, length)?;
    let doing = || format!("reading {length} bytes from byte {start} on");
    file.read_exact_at(&mut bytes, start).map_err(|source| Error::io(path, &doing(), source))?;
    Ok(bytes)
}

/// Memory for `length` bytes of a file. A sparse file may be larger than the memory.
pub fn zeros(path: &Path, length: usize) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    bytes
        .try_reserve_exact(length)
        .map_err(|_| Error::file(path, format!("not enough memory for {length} bytes of it")))?;
    bytes.resize(length, 0);
    Ok(bytes)
}

/// All files in a folder and its subfolders, sorted by the bytes of their paths. Symbolic links are
/// followed, except links to an enclosing folder.
pub(super) fn list(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in walk(folder, true) {
        let entry = entry?;
        if !entry.file_type().is_dir() {
            files.push(entry.into_path());
        }
    }
    sort(&mut files);
    Ok(files)
}

/// All files and folders in a folder and its subfolders. Dangling links are left out.
fn walk(folder: &Path, hidden: bool) -> impl Iterator<Item = Result<DirEntry>> {
    let entries = WalkDir::new(folder).min_depth(1).follow_links(true).into_iter().filter_entry(
        move |entry| {
            let is_shown = hidden || !entry.file_name().as_bytes().starts_with(b".");
            let is_linked_folder = entry.path_is_symlink() && entry.file_type().is_dir();
            entry.depth() == 0 || is_shown && !(is_linked_folder && leads_upwards(entry.path()))
        },
    );
    let folder = folder.to_owned();
    entries.filter_map(move |entry| {
        let error = match entry {
            Ok(entry) => return Some(Ok(entry)),
            Err(error) => error,
        };
        let path = error.path().unwrap_or(&folder).to_owned();
        let is_dangling =
            error.io_error().is_some_and(|error| error.kind() == io::ErrorKind::NotFound)
                && path != folder;
        let skipped = is_dangling || error.loop_ancestor().is_some();
        let source = error.into_io_error().filter(|_| !skipped)?;
        Some(Err(Error::io(&path, "cannot list the folder", source)))
    })
}

/// Whether a link leads to an enclosing folder, which would repeat its content forever.
fn leads_upwards(link: &Path) -> bool {
    let parent =
        link.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    match (fs::canonicalize(link), fs::canonicalize(parent)) {
        (Ok(target), Ok(parent)) => parent.starts_with(target),
        // The error is reported when the link is listed.
        _ => false,
    }
}

fn sort(paths: &mut [PathBuf]) {
    paths.sort_by(|a, b| a.as_os_str().as_bytes().cmp(b.as_os_str().as_bytes()));
}

/// The files and folders that match a pattern, sorted by the bytes of their paths.
pub(super) fn matching(pattern: &Path) -> Result<Vec<PathBuf>> {
    let mut paths = vec![PathBuf::new()];
    for part in pattern.components() {
        let part = part.as_os_str();
        if !has_wildcard(part.as_bytes()) {
            paths.iter_mut().for_each(|path| path.push(part));
            continue;
        }
        let wildcards = Wildcards::new(part.as_bytes());
        let mut deeper = Vec::new();
        for path in paths {
            let folder = if path.as_os_str().is_empty() { Path::new(".") } else { &path };
            if !folder.is_dir() {
                continue;
            }
            let joined = |entry: &Path| path.join(entry.strip_prefix(folder).unwrap_or(entry));
            if part == "**" {
                deeper.push(path.clone());
                for entry in walk(folder, false) {
                    let entry = entry?;
                    deeper.extend(entry.file_type().is_dir().then(|| joined(entry.path())));
                }
                continue;
            }
            let refused = |source| Error::io(folder, "cannot list the folder", source);
            for entry in fs::read_dir(folder).map_err(refused)? {
                let entry = entry.map_err(refused)?;
                let fits = wildcards.matches(&entry.file_name().to_string_lossy());
                deeper.extend(fits.then(|| joined(&entry.path())));
            }
        }
        paths = deeper;
    }
    paths.retain(|path| fs::metadata(path).is_ok());
    sort(&mut paths);
    paths.dedup();
    Ok(paths)
}

/// Copies a file to a temporary name next to its destination, and renames it when it is complete.
/// Missing folders are created.
pub(super) fn copy(from: &Path, to: &Path, progress: &dyn Fn(u64)) -> Result<()> {
    let mut source = open(from)?;
    let mut file = temporary_file(to)?;
    let mut part = vec![0; COPY_BUFFER_BYTES];
    let mut copied = 0;
    loop {
        let read = source.read(&mut part);
        let count = match read {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(Error::io(from, "cannot read the file", error)),
        };
        file.write_all(&part[..count])
            .map_err(|error| Error::io(to, "cannot write the file", error))?;
        copied += count as u64;
        progress(copied);
    }
    keep(file, to)
}

/// A file that gets its name when it is complete. Its folder is created if it does not exist.
pub fn temporary_file(to: &Path) -> Result<NewFile> {
    let folder = to.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(folder)
        .map_err(|error| Error::io(folder, "cannot create the folder", error))?;
    NewFile::create(to).map_err(|error| Error::io(to, "cannot create the file", error))
}

/// Removes the temporary files of killed writers from a folder.
pub fn remove_leftovers(folder: &Path) -> Result<()> {
    fulmen_durable::remove_leftovers(folder).map_err(|source| {
        Error::io(folder, "cannot remove unfinished files from the folder", source)
    })
}

/// Syncs a temporary file for `to`, and renames it to `to`.
pub fn keep(file: NewFile, to: &Path) -> Result<()> {
    file.keep().map_err(|error| Error::io(to, "cannot write the file", error))
}

/// Like [`keep`], but leaves an existing file unchanged.
pub fn persist_noclobber(file: NewFile, to: &Path) -> Result<()> {
    file.persist_noclobber().map_err(|error| Error::io(to, "cannot write the file", error))
}

/// Writes a small file atomically.
pub fn write_whole(to: &Path, bytes: &[u8]) -> io::Result<()> {
    fulmen_durable::write(to, Some(bytes.len() as u64), |file| file.write_all(bytes))
}
