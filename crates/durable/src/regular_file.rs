//! Regular files: opened without waiting for a pipe, read up to a limit, and inside their folder.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Component, Path, PathBuf};

use crate::messages::size;

/// Opens a regular file, or a link to one, for reading.
///
/// A pipe would wait for a writer, and a device may be endless, or start something when it is
/// opened. Neither is opened, even if it replaces the file at the last moment.
///
/// # Errors
/// The file cannot be opened; it is a folder, a pipe, a socket or a device, or a link to one
/// ([`io::ErrorKind::InvalidInput`]).
///
/// ```
/// let file = tempfile::NamedTempFile::new()?;
/// assert_eq!(fulmen_durable::open_regular(file.path())?.metadata()?.len(), 0);
/// let error = fulmen_durable::open_regular("/dev/zero".as_ref()).unwrap_err();
/// assert_eq!(error.to_string(), "this is not a regular file");
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn open_regular(path: &Path) -> io::Result<File> {
    check(&std::fs::metadata(path)?)?;
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(rustix::fs::OFlags::NONBLOCK.bits().cast_signed())
        .open(path)?;
    check(&file.metadata()?)?;
    Ok(file)
}

fn check(metadata: &std::fs::Metadata) -> io::Result<()> {
    if metadata.is_file() {
        Ok(())
    } else if metadata.is_dir() {
        Err(refuse("this is a folder; expected a file"))
    } else {
        Err(refuse("this is not a regular file"))
    }
}

fn refuse(reason: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, reason.into())
}

/// Reads a regular file of at most `max_bytes` bytes. A larger file is not read.
///
/// # Errors
/// As for [`open_regular`]; the file is larger ([`io::ErrorKind::InvalidInput`]).
///
/// ```
/// let file = tempfile::NamedTempFile::new()?;
/// std::fs::write(file.path(), "{}")?;
/// assert_eq!(fulmen_durable::read_regular(file.path(), 2)?, b"{}");
/// let error = fulmen_durable::read_regular(file.path(), 1).unwrap_err();
/// assert_eq!(error.to_string(), "the file has 2 bytes, expected at most 1 byte");
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn read_regular(path: &Path, max_bytes: u64) -> io::Result<Vec<u8>> {
    let mut file = open_regular(path)?;
    let length = file.metadata()?.len();
    let too_large = |length: u64| {
        let limit = size(max_bytes);
        refuse(format!("the file has {}, expected at most {limit}", size(length)))
    };
    if length > max_bytes {
        return Err(too_large(length));
    }
    let mut bytes = Vec::with_capacity(usize::try_from(length).unwrap_or(0));
    // The file may grow while it is read.
    (&mut file).take(max_bytes.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > max_bytes {
        return Err(too_large(bytes.len() as u64));
    }
    Ok(bytes)
}

/// The path of a file that another file names, which must be inside `folder`.
///
/// Only the name is checked. A link in the folder may lead elsewhere: the folders of Hugging Face's
/// cache consist of such links.
///
/// # Errors
/// A name that is empty or absolute, or has a part `..` ([`io::ErrorKind::InvalidInput`]).
///
/// ```
/// use std::path::Path;
///
/// let folder = Path::new("model");
/// assert_eq!(fulmen_durable::inside(folder, "part/0.bin")?, Path::new("model/part/0.bin"));
/// assert!(fulmen_durable::inside(folder, "../0.bin").is_err());
/// assert!(fulmen_durable::inside(folder, "/etc/passwd").is_err());
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn inside(folder: &Path, name: &str) -> io::Result<PathBuf> {
    let is_inside = |part| matches!(part, Component::Normal(_) | Component::CurDir);
    let has_name = Path::new(name).components().any(|part| matches!(part, Component::Normal(_)));
    if has_name && !name.contains('\0') && Path::new(name).components().all(is_inside) {
        Ok(folder.join(name))
    } else {
        Err(refuse(format!("the name `{}` is not inside the folder", name.escape_debug())))
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    use rustix::fs::{CWD, FileType, Mode, mknodat};

    use super::*;

    #[test]
    fn only_regular_files_and_links_to_them_are_opened() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::fs::write(path("file"), "content").unwrap();
        symlink(path("file"), path("link")).unwrap();
        assert_eq!(read_regular(&path("file"), 7).unwrap(), b"content");
        assert_eq!(read_regular(&path("link"), 100).unwrap(), b"content");

        // Opening a pipe without a writer would wait forever.
        mknodat(CWD, path("pipe"), FileType::Fifo, Mode::RUSR, 0).unwrap();
        symlink(path("pipe"), path("link to a pipe")).unwrap();
        symlink("/dev/zero", path("link to a device")).unwrap();
        let _listener = UnixListener::bind(path("socket")).unwrap();
        for name in ["pipe", "link to a pipe", "link to a device", "socket", "."] {
            let error = read_regular(&path(name), 1 << 30).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{name}: {error}");
        }
        assert_eq!(open_regular(&path("no")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn a_large_file_is_refused_before_memory_is_allocated_for_it() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("sparse");
        File::create(&path).unwrap().set_len(1 << 43).unwrap();
        let error = read_regular(&path, 1 << 20).unwrap_err();
        assert_eq!(error.to_string(), "the file has 8.8 TB, expected at most 1.0 MB");
    }

    #[test]
    fn a_file_without_a_size_is_read_up_to_the_limit() {
        // The kernel reports a size of 0.
        let path = Path::new("/proc/self/status");
        assert!(!read_regular(path, 1 << 20).unwrap().is_empty());
        assert!(read_regular(path, 10).is_err());
    }

    #[test]
    fn names_lead_only_into_their_folder() {
        let folder = Path::new("root");
        for name in ["a", "a/b", "./a", "a..b", "a/./b"] {
            assert!(inside(folder, name).unwrap().starts_with(folder), "{name}");
        }
        for name in ["", ".", "..", "/", "/a", "a/../b", "../a", "a/..", "a\0b"] {
            assert!(inside(folder, name).is_err(), "{name:?}");
        }
    }
}
