//! The files of a zip archive, with access from any thread.
//!
//! Out of scope: the content of the files (`entries`).

use std::fmt::Display;
use std::io::Read;
use std::path::Path;

use zip::{CompressionMethod, ZipArchive};

use super::file_slice::FileSlice;
use fulmen_data::{Error, Result};

/// The maximum size of a file in the archive, which is larger than any image.
const MAX_ENTRY_BYTES: u64 = 1 << 30;

/// A zip file with its directory.
pub(crate) struct ZipIndex {
    section: FileSlice,
    /// Each read uses a clone, which shares the directory and the open file.
    archive: ZipArchive<FileSlice>,
    pub(crate) entries: Vec<ZipEntry>,
}

/// A file in the archive.
pub(crate) struct ZipEntry {
    /// The name, including folders.
    pub(crate) name: String,
    /// The uncompressed size.
    pub(crate) size: u64,
    number: usize,
}

impl ZipIndex {
    pub(crate) fn open(section: FileSlice) -> Result<ZipIndex> {
        let refused = |message: String| Error::file(section.path(), message);
        let mut archive = ZipArchive::new(section.clone()).map_err(|source| {
            refused(format!(
                "{source}: the zip file's list of files, at its end, cannot be read; is the file truncated? Download \
                 it again"
            ))
        })?;
        let mut entries = Vec::with_capacity(archive.len());
        for number in 0..archive.len() {
            let entry = archive.by_index_raw(number).map_err(|error| {
                refused(format!("entry {number}: {error}; is the zip file damaged?"))
            })?;
            let name = entry
                .name()
                .map_err(|error| refused(format!("entry {number}: {error}")))?
                .into_owned();
            if entry.is_dir() {
                continue;
            }
            let method = entry.compression();
            if !matches!(method, CompressionMethod::Stored | CompressionMethod::Deflated) {
                return Err(refused(format!(
                    "entry {name}: it is compressed with {method}, expected deflate or none"
                )));
            }
            if entry.is_symlink() {
                return Err(refused(format!(
                    "entry {name}: it is a symbolic link; pack the file that it leads to"
                )));
            }
            if entry.encrypted() {
                return Err(refused(format!("entry {name}: it is encrypted")));
            }
            entries.push(ZipEntry { name, size: entry.size(), number });
        }
        Ok(ZipIndex { section, archive, entries })
    }

    pub(crate) fn path(&self) -> &Path {
        self.section.path()
    }

    /// Reads a file that fits in memory.
    pub(crate) fn read(&self, entry: &ZipEntry) -> Result<Vec<u8>> {
        if entry.size > MAX_ENTRY_BYTES {
            let message = format!(
                "it claims {} bytes, more than the {MAX_ENTRY_BYTES} that one sample may have",
                entry.size
            );
            return Err(self.damaged(entry, message));
        }
        let mut archive = self.archive.clone();
        let mut file =
            archive.by_index(entry.number).map_err(|source| self.damaged(entry, source))?;
        let mut bytes = Vec::new();
        // This fails if the size or the checksum differs from that in the directory.
        file.read_to_end(&mut bytes).map_err(|source| self.damaged(entry, source))?;
        Ok(bytes)
    }

    /// The error for an unreadable entry.
    fn damaged(&self, entry: &ZipEntry, source: impl Display) -> Error {
        Error::file(
            self.path(),
            format!("entry {}: {source}; the zip file is damaged, download it again", entry.name),
        )
    }
}

#[cfg(test)]
mod tests {
    use std::io::{self, Write};

    use zip::write::{SimpleFileOptions, ZipWriter};

    use super::*;

    fn zip_of(files: &[(&str, &[u8], CompressionMethod)]) -> Vec<u8> {
        let mut writer = ZipWriter::new(io::Cursor::new(Vec::new()));
        for &(name, bytes, method) in files {
            writer
                .start_file(name, SimpleFileOptions::default().compression_method(method))
                .unwrap();
            writer.write_all(bytes).unwrap();
        }
        writer.finish().unwrap().into_inner()
    }

    fn index(bytes: &[u8]) -> Result<ZipIndex> {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(bytes).unwrap();
        ZipIndex::open(FileSlice::open(file.path())?)
    }

    #[test]
    fn files_are_read_and_damage_is_named() {
        let text = b"some text ".repeat(1000);
        let bytes = zip_of(&[
            ("a/plain.txt", b"stored", CompressionMethod::Stored),
            ("a/small.txt", &text, CompressionMethod::Deflated),
        ]);
        let mut zip = index(&bytes).unwrap();
        assert_eq!(zip.read(&zip.entries[0]).unwrap(), b"stored");
        assert_eq!(zip.read(&zip.entries[1]).unwrap(), text);
        zip.entries[1].size = MAX_ENTRY_BYTES + 1;
        let error = zip.read(&zip.entries[1]).unwrap_err().to_string();
        assert!(error.contains("entry a/small.txt: it claims 1073741825 bytes"), "{error}");

        let position = bytes.windows(6).position(|window| window == b"stored").unwrap();
        let mut damaged = bytes.clone();
        damaged[position] = b'S';
        let zip = index(&damaged).unwrap();
        let error = zip.read(&zip.entries[0]).unwrap_err().to_string();
        assert!(error.contains("entry a/plain.txt: Invalid checksum"), "{error}");
        let error = index(&bytes[..bytes.len() - 30]).err().unwrap().to_string();
        assert!(error.contains("is the file truncated?"), "{error}");
    }

    #[test]
    fn damage_is_refused_or_leaves_the_content_alone() {
        let text = b"some text ".repeat(20);
        let bytes = zip_of(&[
            ("a", b"stored", CompressionMethod::Stored),
            ("b", &text, CompressionMethod::Deflated),
        ]);
        let mut right = 0;
        let mut refused = 0;
        for position in 0..bytes.len() {
            for bits in [0x01, 0x80, 0xff] {
                let mut damaged = bytes.clone();
                damaged[position] ^= bits;
                let read: Vec<_> = match index(&damaged) {
                    Ok(zip) => zip.entries.iter().map(|entry| zip.read(entry)).collect(),
                    Err(error) => vec![Err(error)],
                };
                for outcome in read {
                    match outcome {
                        // The damage is in unused bytes, because the checksum of the content is
                        // correct.
                        Ok(content) => {
                            assert!(
                                content == b"stored" || content == text,
                                "byte {position}: {content:?}"
                            );
                            right += 1;
                        }
                        Err(error) => {
                            assert!(error.is_file(), "byte {position}: {error}");
                            refused += 1;
                        }
                    }
                }
            }
        }
        assert!(right > 0 && refused > 0, "{right} files were read and {refused} refused");
    }
}
