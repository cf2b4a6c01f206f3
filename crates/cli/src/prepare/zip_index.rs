//! What lies where in a zip file, and its files read from any thread.
//!
//! Not here: what the files are (`coco`).

use std::io::{self, BufReader, Read};

use flate2::Crc;
use flate2::read::DeflateDecoder;
use zip::{CompressionMethod, ZipArchive};

use super::section::Section;
use fulmen_data::{Error, Result};

/// What is larger is no picture.
const LARGEST: u64 = 1 << 30;

/// A zip file, whose list of files has been read.
pub(crate) struct ZipIndex {
    section: Section,
    pub(crate) entries: Vec<ZipEntry>,
}

/// One file in it.
pub(crate) struct ZipEntry {
    /// With its folders.
    pub(crate) name: String,
    /// Not compressed.
    pub(crate) size: u64,
    /// Where its data lies, which is in the file.
    data: Section,
    deflated: bool,
    crc: u32,
}

impl ZipIndex {
    pub(crate) fn open(section: Section) -> Result<ZipIndex> {
        let path = section.path().to_owned();
        let mut archive = ZipArchive::new(BufReader::new(section.clone())).map_err(|source| {
            Error::file(
                &path,
                format!("{source}: the zip file's list of files, at its end, cannot be read; is the file cut off? Download it again"),
            )
        })?;
        let mut entries = Vec::with_capacity(archive.len());
        for at in 0..archive.len() {
            let entry = archive
                .by_index_raw(at)
                .map_err(|source| Error::file(&path, format!("entry {at}: {source}; is the zip file damaged?")))?;
            let name = entry.name().map_err(|source| Error::file(&path, format!("entry {at}: {source}")))?.into_owned();
            if entry.is_dir() {
                continue;
            }
            let wrong = |what: &str| Error::file(&path, format!("entry {name}: {what}"));
            let deflated = match entry.compression() {
                CompressionMethod::Stored => false,
                CompressionMethod::Deflated => true,
                other => return Err(wrong(&format!("it is compressed by {other}, expected deflate or nothing"))),
            };
            if entry.encrypted() {
                return Err(wrong("it is encrypted"));
            }
            let data = entry.data_start().and_then(|start| section.part(start, entry.compressed_size()));
            let data = data.ok_or_else(|| wrong("its data does not lie in the file; is the zip file damaged?"))?;
            let (size, crc) = (entry.size(), entry.crc32());
            entries.push(ZipEntry { name, size, data, deflated, crc });
        }
        Ok(ZipIndex { section, entries })
    }

    pub(crate) fn path(&self) -> &std::path::Path {
        self.section.path()
    }

    /// The file whose name ends like this, after a slash or as a whole.
    pub(crate) fn find(&self, name: &str) -> Option<&ZipEntry> {
        self.entries.iter().find(|entry| {
            entry.name.strip_suffix(name).is_some_and(|before| before.is_empty() || before.ends_with('/'))
        })
    }

    /// Reads a file that fits into memory, and compares its checksum.
    pub(crate) fn read(&self, entry: &ZipEntry) -> Result<Vec<u8>> {
        if entry.size > LARGEST {
            let what = format!("it claims {} bytes, more than the {LARGEST} that one sample may have", entry.size);
            return Err(self.damaged(entry, what));
        }
        let mut bytes = Vec::new();
        let mut reader = entry.reader();
        reader.read_to_end(&mut bytes).map_err(|source| self.damaged(entry, source))?;
        Ok(bytes)
    }

    /// The error that an entry could not be read.
    pub(crate) fn damaged(&self, entry: &ZipEntry, source: impl std::fmt::Display) -> Error {
        Error::file(self.path(), format!("entry {}: {source}; the zip file is damaged, download it again", entry.name))
    }
}

impl ZipEntry {
    /// Its content from the beginning. The last read fails where size or checksum are not what the zip file says.
    pub(crate) fn reader(&self) -> Checked {
        let inner: Box<dyn Read> = match self.deflated {
            true => Box::new(DeflateDecoder::new(BufReader::new(self.data.clone()))),
            false => Box::new(self.data.clone()),
        };
        Checked { inner, left: self.size, size: self.size, crc: Crc::new(), expected: self.crc }
    }
}

/// Reads as many bytes as there should be, and compares their checksum at the end.
pub(crate) struct Checked {
    inner: Box<dyn Read>,
    left: u64,
    size: u64,
    crc: Crc,
    expected: u32,
}

impl Read for Checked {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let wrong = |what: String| Err(io::Error::new(io::ErrorKind::InvalidData, what));
        if buffer.is_empty() {
            return Ok(0);
        }
        if self.left == 0 {
            if self.inner.read(&mut [0])? != 0 {
                return wrong(format!("it has more than the {} bytes it should have", self.size));
            }
            if self.crc.sum() != self.expected {
                return wrong(format!("its checksum is {:08x}, expected {:08x}", self.crc.sum(), self.expected));
            }
            return Ok(0);
        }
        let wanted = usize::try_from(self.left).unwrap_or(usize::MAX).min(buffer.len());
        let read = self.inner.read(&mut buffer[..wanted])?;
        if read == 0 {
            return wrong(format!("it ends after {} of {} bytes", self.size - self.left, self.size));
        }
        self.crc.update(&buffer[..read]);
        self.left -= read as u64;
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use zip::write::{SimpleFileOptions, ZipWriter};

    use super::*;

    fn zip_of(files: &[(&str, &[u8], CompressionMethod)]) -> Vec<u8> {
        let mut writer = ZipWriter::new(io::Cursor::new(Vec::new()));
        for &(name, bytes, method) in files {
            writer.start_file(name, SimpleFileOptions::default().compression_method(method)).unwrap();
            writer.write_all(bytes).unwrap();
        }
        writer.finish().unwrap().into_inner()
    }

    fn index(bytes: &[u8]) -> Result<ZipIndex> {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(bytes).unwrap();
        ZipIndex::open(Section::open(file.path())?)
    }

    #[test]
    fn files_are_read_and_damage_is_named() {
        let text = b"some text ".repeat(1000);
        let bytes = zip_of(&[
            ("a/plain.txt", b"stored", CompressionMethod::Stored),
            ("a/small.txt", &text, CompressionMethod::Deflated),
        ]);
        let mut zip = index(&bytes).unwrap();
        assert_eq!(zip.read(zip.find("plain.txt").unwrap()).unwrap(), b"stored");
        assert_eq!(zip.read(zip.find("a/small.txt").unwrap()).unwrap(), text);
        assert!(zip.find("lain.txt").is_none());
        zip.entries[1].size = LARGEST + 1;
        let error = zip.read(&zip.entries[1]).unwrap_err().to_string();
        assert!(error.contains("entry a/small.txt: it claims 1073741825 bytes"), "{error}");

        let place = bytes.windows(6).position(|window| window == b"stored").unwrap();
        let mut damaged = bytes.clone();
        damaged[place] = b'S';
        let zip = index(&damaged).unwrap();
        let error = zip.read(&zip.entries[0]).unwrap_err().to_string();
        assert!(error.contains("entry a/plain.txt: its checksum is"), "{error}");
        let error = index(&bytes[..bytes.len() - 30]).err().unwrap().to_string();
        assert!(error.contains("is the file cut off?"), "{error}");
    }

    #[test]
    fn damage_is_refused_or_leaves_the_content_alone() {
        let text = b"some text ".repeat(20);
        let bytes = zip_of(&[("a", b"stored", CompressionMethod::Stored), ("b", &text, CompressionMethod::Deflated)]);
        let (mut right, mut refused) = (0, 0);
        for place in 0..bytes.len() {
            for bits in [0x01, 0x80, 0xff] {
                let mut damaged = bytes.clone();
                damaged[place] ^= bits;
                let read: Vec<_> = match index(&damaged) {
                    Ok(zip) => zip.entries.iter().map(|entry| zip.read(entry)).collect(),
                    Err(error) => vec![Err(error)],
                };
                for outcome in read {
                    match outcome {
                        // Damage elsewhere: the checksum vouches for the content.
                        Ok(content) => {
                            assert!(content == b"stored" || content == text, "byte {place}: {content:?}");
                            right += 1;
                        }
                        Err(error) => {
                            assert!(error.is_file(), "byte {place}: {error}");
                            refused += 1;
                        }
                    }
                }
            }
        }
        assert!(right > 0 && refused > 0, "{right} files were read and {refused} refused");
    }
}
