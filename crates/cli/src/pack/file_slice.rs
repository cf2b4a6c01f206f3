//! A part of a local file with random access from many threads: an archive, or an archive inside
//! another archive.
//!
//! Out of scope: the meaning of the bytes (`entries`), and files in a store
//! (`fulmen-files`).

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use fulmen_data::{Error, Result};
use fulmen_files::Location;
use fulmen_shards::{TarEntry, tar_entries};

/// `len` bytes of a file from `start` on, with a separate position. A clone is cheap and shares the
/// open file.
#[derive(Clone, Debug)]
pub(crate) struct FileSlice {
    file: Arc<File>,
    path: Arc<Path>,
    start: u64,
    len: u64,
    position: u64,
}

impl FileSlice {
    /// Opens a whole file.
    pub(crate) fn open(path: &Path) -> Result<FileSlice> {
        let file = fulmen_durable::open_regular(path)
            .map_err(|source| Error::io(path, "opening the archive", source))?;
        let metadata =
            file.metadata().map_err(|source| Error::io(path, "looking at the archive", source))?;
        Ok(FileSlice {
            file: Arc::new(file),
            path: path.into(),
            start: 0,
            len: metadata.len(),
            position: 0,
        })
    }

    /// `len` bytes of this slice from `start` on; `None` if they are out of range.
    pub(crate) fn part(&self, start: u64, len: u64) -> Option<FileSlice> {
        let end = start.checked_add(len)?;
        (end <= self.len).then(|| FileSlice {
            start: self.start + start,
            len,
            position: 0,
            ..self.clone()
        })
    }

    /// The path of the file.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// The number of bytes.
    pub(crate) fn len(&self) -> u64 {
        self.len
    }

    /// The files of this slice, which is a tar, with their offsets. `name` is the tar's name in
    /// messages. Links are left out if `allow_links` is set, and otherwise they are an error.
    pub(crate) fn tar_entries(
        &self,
        name: &str,
        allow_links: bool,
    ) -> impl Iterator<Item = Result<TarEntry>> {
        let part = self.start..self.start + self.len;
        let entries = tar_entries(Location::from(name), &self.file, part, allow_links);
        entries.map(|entry| entry.map_err(|error| Error::file(&self.path, error.to_string())))
    }

    /// Reads all bytes, which must fit in memory.
    pub(crate) fn read_all(&self) -> io::Result<Vec<u8>> {
        let length = usize::try_from(self.len).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let mut bytes = Vec::new();
        bytes.try_reserve_exact(length).map_err(|_| io::ErrorKind::OutOfMemory)?;
        bytes.resize(length, 0);
        let mut section = FileSlice { position: 0, ..self.clone() };
        section.read_exact(&mut bytes)?;
        Ok(bytes)
    }
}

impl Read for FileSlice {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let remaining = self.len.saturating_sub(self.position);
        let length = usize::try_from(remaining).unwrap_or(usize::MAX).min(buffer.len());
        let read = self.file.read_at(&mut buffer[..length], self.start + self.position)?;
        self.position += read as u64;
        Ok(read)
    }
}

impl Seek for FileSlice {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let position = match to {
            SeekFrom::Start(position) => Some(position),
            SeekFrom::End(by) => self.len.checked_add_signed(by),
            SeekFrom::Current(by) => self.position.checked_add_signed(by),
        };
        self.position = position.ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.position)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_stop_at_the_end_of_a_part() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("bytes");
        std::fs::write(&path, b"0123456789").unwrap();
        let all = FileSlice::open(&path).unwrap();
        let part = all.part(2, 5).unwrap().part(1, 3).unwrap();
        assert_eq!(part.read_all().unwrap(), b"345");
        assert!(all.part(8, 3).is_none());
        assert!(all.part(u64::MAX, 2).is_none());
        let mut part = part;
        part.seek(SeekFrom::End(-1)).unwrap();
        let mut rest = Vec::new();
        part.read_to_end(&mut rest).unwrap();
        assert_eq!(rest, b"5");
        assert_eq!(part.seek(SeekFrom::Start(99)).unwrap(), 99);
        assert_eq!(part.read(&mut [0; 4]).unwrap(), 0);
        assert!(part.seek(SeekFrom::Current(-100)).is_err());
    }

    fn tar_of(files: &[(&str, &[u8])]) -> Vec<u8> {
        let mut builder = tar::Builder::new(Vec::new());
        for (name, bytes) in files {
            let mut header = tar::Header::new_gnu();
            header.set_size(bytes.len() as u64);
            header.set_mode(0o644);
            builder.append_data(&mut header, name, *bytes).unwrap();
        }
        builder.into_inner().unwrap()
    }

    fn index(bytes: &[u8]) -> Result<Vec<TarEntry>> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.tar");
        std::fs::write(&path, bytes).unwrap();
        FileSlice::open(&path)?.tar_entries("a.tar", false).collect()
    }

    #[test]
    fn entries_have_their_offsets() {
        let long = format!("{}/x.txt", "long".repeat(40));
        let bytes = tar_of(&[("a.txt", b"hello"), (&long, &[7; 1000]), ("empty", b"")]);
        let entries = index(&bytes).unwrap();
        let names: Vec<&str> = entries.iter().map(|entry| entry.name.as_str()).collect();
        assert_eq!(names, ["a.txt", &long, "empty"]);
        let content = |entry: &TarEntry| {
            bytes[entry.offset as usize..(entry.offset + entry.size) as usize].to_vec()
        };
        assert_eq!(content(&entries[0]), b"hello");
        assert_eq!(content(&entries[1]), [7; 1000]);
    }

    #[test]
    fn a_truncated_tar_is_detected_at_every_length() {
        let bytes = tar_of(&[("a.txt", &[1; 700]), ("b.txt", &[2; 700])]);
        for length in (0..=3 * 1024 + 1024 / 2).step_by(64) {
            let Err(error) = index(&bytes[..length.min(bytes.len())]) else {
                assert!(length > 3 * 1024, "a tar file of {length} bytes was taken for whole");
                continue;
            };
            let text = error.to_string();
            assert!(
                text.contains("a.tar: ")
                    && (text.contains("truncated") || text.contains("is empty")),
                "{text}"
            );
        }
    }

    #[test]
    fn a_file_that_is_not_a_tar_is_refused() {
        assert!(index(&[b'x'; 2048]).unwrap_err().to_string().contains("not a tar file"));
    }
}
