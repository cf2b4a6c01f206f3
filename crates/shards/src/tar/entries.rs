//! Iterates over the entries of a tar file.
//!
//! The `tar` crate parses a header. This module iterates, because the crate's `Archive` accepts a
//! tar without an end, keeps names of any length, and splits extended (pax) records at line breaks,
//! which occur in the attributes that macOS writes. Checksums of signed bytes and empty numbers are
//! not supported and are rejected.
//!
//! Out of scope: which files belong to a sample (`group`).

use std::fs::File;
use std::io::{self, Read};
use std::ops::Range;
use std::os::unix::fs::FileExt;

use fulmen_data::internal::fill;
use fulmen_data::{Error, Result};
use fulmen_files::{Location, explain};
use tar::{EntryType, Header};

/// The block size of a tar in bytes.
const BLOCK: usize = 512;

/// Larger names and extended headers are rejected, because no file system has such names.
const MAX_NAME_BYTES: u64 = 1 << 20;

/// Skips up to a number of bytes, and returns how many bytes were skipped.
pub(super) type SkipBytes<R> = fn(&mut R, u64) -> io::Result<u64>;

/// Skips bytes by reading them.
pub(super) fn read_over<R: Read>(reader: &mut R, count: u64) -> io::Result<u64> {
    io::copy(&mut reader.take(count), &mut io::sink())
}

/// A part of a file, in which skipped bytes are not read.
#[derive(Debug)]
pub(super) struct FilePart<'a> {
    file: &'a File,
    remaining: Range<u64>,
}

impl FilePart<'_> {
    fn skip(&mut self, count: u64) -> io::Result<u64> {
        let count = count.min(self.remaining.end.saturating_sub(self.remaining.start));
        self.remaining.start += count;
        Ok(count)
    }
}

impl Read for FilePart<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let limit = self.remaining.end.saturating_sub(self.remaining.start).min(buffer.len() as u64)
            as usize;
        let count = self.file.read_at(&mut buffer[..limit], self.remaining.start)?;
        self.remaining.start += count as u64;
        Ok(count)
    }
}

/// A file in a tar.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The name, including folders.
    pub name: String,
    /// The offset of its content.
    pub offset: u64,
    /// The size of its content.
    pub size: u64,
}

/// The files of a tar that is a part of a local file, with offsets relative to the part. `location`
/// is for messages. Links are left out if `allow_links` is set, and otherwise they are an error.
pub fn tar_entries(
    location: Location,
    file: &File,
    part: Range<u64>,
    allow_links: bool,
) -> impl Iterator<Item = Result<Entry>> {
    let mut entries = TarEntries::of_part(location, file, part);
    std::iter::from_fn(move || {
        let was_ended = entries.ended;
        let next = entries.next();
        if allow_links || was_ended || entries.links == 0 || next.is_err() {
            return next.transpose();
        }
        entries.ended = true;
        let link = &entries.latest_link;
        Some(Err(entries.location.error(format!(
            "entry {link}: it is a link; pack the file that it leads to (tar --dereference --hard-dereference)"
        ))))
    })
}

/// A reader of a tar file.
pub(super) struct TarEntries<R> {
    location: Location,
    reader: R,
    skip: SkipBytes<R>,
    /// The number of bytes read or skipped.
    position: u64,
    /// The offset of the next header.
    next: u64,
    /// The latest entry and the offset of its content, for messages.
    latest: Option<(String, u64)>,
    /// The number of links so far, which have no content.
    pub(super) links: usize,
    /// The name of the latest link, for messages.
    latest_link: String,
    ended: bool,
}

/// The information about the next entry in extended records and long names.
#[derive(Default)]
struct PaxRecords {
    name: Option<Vec<u8>>,
    size: Option<u64>,
    /// Whether the file is sparse, so that the data after the header is not its content.
    sparse: bool,
}

impl<'a> TarEntries<FilePart<'a>> {
    pub(super) fn of_part(
        location: Location,
        file: &'a File,
        part: Range<u64>,
    ) -> TarEntries<FilePart<'a>> {
        TarEntries::new(location, FilePart { file, remaining: part }, FilePart::skip)
    }
}

impl<R: Read> TarEntries<R> {
    pub(super) fn new(location: Location, reader: R, skip: SkipBytes<R>) -> TarEntries<R> {
        TarEntries {
            location,
            reader,
            skip,
            position: 0,
            next: 0,
            latest: None,
            links: 0,
            latest_link: String::new(),
            ended: false,
        }
    }

    /// Returns the next file. Skips folders, links and other entries. `None` after the end or an
    /// error.
    pub(super) fn next(&mut self) -> Result<Option<Entry>> {
        if self.ended {
            return Ok(None);
        }
        let entry = self.find();
        self.ended = !matches!(entry, Ok(Some(_)));
        entry
    }

    fn find(&mut self) -> Result<Option<Entry>> {
        let mut long_name = None;
        let mut extended = None;
        loop {
            self.skip_to_header()?;
            let start = self.position;
            let Some(block) = self.block()? else {
                if long_name.is_some() || extended.is_some() {
                    return Err(self.error("it ends after the name of an entry, without the entry"));
                }
                return self.end().map(|()| None);
            };
            let header = Header::from_byte_slice(&block);
            let size =
                checked_size(header).map_err(|reason| self.header_error(start, &block, &reason))?;
            let kind = header.entry_type();
            let is_file =
                matches!(kind, EntryType::Regular | EntryType::Continuous | EntryType::GNUSparse);
            // Folders, links and devices have no content, whatever their size field says.
            let is_empty = matches!(kind.as_byte(), b'1'..=b'6');
            let size = match &extended {
                Some(PaxRecords { size: Some(size), .. }) if is_file => *size,
                _ if is_empty => 0,
                _ => size,
            };
            let padded = size.checked_next_multiple_of(BLOCK as u64);
            self.next =
                padded.and_then(|size| self.position.checked_add(size)).ok_or_else(|| {
                    self.error(format!(
                        "the header at byte {start} claims {size} bytes, which no file has"
                    ))
                })?;
            if kind.is_gnu_longname() {
                long_name = Some(self.name(size)?);
            } else if kind.is_pax_local_extensions() {
                let records = self.name(size)?;
                extended = Some(
                    parse(&records)
                        .map_err(|reason| self.error(format!("at byte {start}: {reason}")))?,
                );
            } else if is_empty {
                if matches!(kind, EntryType::Link | EntryType::Symlink) {
                    self.links += 1;
                    self.latest_link = entry_name(header, long_name.take(), extended.take());
                }
                (long_name, extended) = (None, None);
            } else if is_file {
                let sparse = extended.as_ref().is_some_and(|records| records.sparse);
                let name = entry_name(header, long_name, extended);
                self.latest = Some((name.clone(), self.position));
                if sparse || kind.is_gnu_sparse() {
                    return Err(self.error(
                        "it is a file with holes (GNU tar --sparse); pack it without --sparse",
                    ));
                }
                return Ok(Some(Entry { name, offset: self.position, size }));
            }
        }
    }

    /// Reads the content of the entry that [`next`](TarEntries::next) returned last. Memory is
    /// allocated only as data arrives.
    pub(super) fn content(&mut self, entry: &Entry) -> Result<Vec<u8>> {
        let mut content =
            Vec::with_capacity(usize::try_from(entry.size.min(MAX_NAME_BYTES)).unwrap_or(0));
        let read = self.reader.by_ref().take(entry.size).read_to_end(&mut content);
        read.map_err(|source| self.read_error(source))?;
        self.position += content.len() as u64;
        if content.len() as u64 == entry.size {
            return Ok(content);
        }
        Err(self.truncated_error(format!(
            "after {} of the entry's {} bytes",
            content.len(),
            entry.size
        )))
    }

    /// Reads the content of an extra header that applies to the next entry.
    fn name(&mut self, size: u64) -> Result<Vec<u8>> {
        if size > MAX_NAME_BYTES {
            return Err(self.error(format!(
                "the name or extended header before byte {} claims {size} bytes, and more than {MAX_NAME_BYTES} are \
                 refused",
                self.position
            )));
        }
        self.content(&Entry { name: String::new(), offset: self.position, size })
    }

    fn skip_to_header(&mut self) -> Result<()> {
        let count = self.next - self.position;
        if count == 0 {
            return Ok(());
        }
        let skipped =
            (self.skip)(&mut self.reader, count).map_err(|source| self.read_error(source))?;
        self.position += skipped;
        if skipped == count {
            return Ok(());
        }
        Err(self
            .truncated_error(format!("{} bytes before the entry does", self.next - self.position)))
    }

    /// Reads the next block. `None` if it is all zeros, which ends the tar.
    fn block(&mut self) -> Result<Option<[u8; BLOCK]>> {
        let mut block = [0; BLOCK];
        let filled =
            fill(&mut self.reader, &mut block).map_err(|source| self.read_error(source))?;
        self.position += filled as u64;
        match filled {
            BLOCK if block == [0; BLOCK] => Ok(None),
            BLOCK => {
                self.next = self.position;
                Ok(Some(block))
            }
            0 if self.position == 0 => {
                Err(self.location.error("the file is empty; expected a tar"))
            }
            0 => Err(self.truncated_error("without the zeros that end a tar".to_owned())),
            _ => Err(self.truncated_error(format!("within a header, at byte {}", self.position))),
        }
    }

    /// Reads the padding after the end, so that the checksum of a compressed file is read too.
    fn end(&mut self) -> Result<()> {
        let ended = self.position - BLOCK as u64;
        let mut rest = vec![0; 64 << 10];
        loop {
            let count =
                fill(&mut self.reader, &mut rest).map_err(|source| self.read_error(source))?;
            if count == 0 {
                return Ok(());
            }
            if rest[..count].iter().any(|&byte| byte != 0) {
                return Err(self.error(format!(
                    "there are more bytes after the zeros at byte {ended} that end the tar; were several tars \
                     concatenated? Make one tar of them"
                )));
            }
            self.position += count as u64;
        }
    }

    /// The error for damage at the latest entry.
    fn error(&self, message: impl std::fmt::Display) -> Error {
        match &self.latest {
            Some((name, offset)) => {
                self.location.error(format!("entry {name}, at byte {offset}: {message}"))
            }
            None => self.location.error(message.to_string()),
        }
    }

    fn header_error(&self, start: u64, block: &[u8; BLOCK], reason: &str) -> Error {
        if start > 0 {
            let predecessor = self
                .latest
                .as_ref()
                .map_or(String::new(), |(name, _)| format!(", after the entry {name},"));
            return self.location.error(format!(
                "the header at byte {start}{predecessor} is damaged: {reason}; copy or download the file again"
            ));
        }
        let hint = match block {
            [b'<', ..] => " (it looks like a web page: did the download fail?)",
            [b'P', b'K', ..] => " (it looks like a zip file)",
            [0x28, 0xb5, 0x2f, 0xfd, ..] => " (it is compressed with zstd; only gzip is supported)",
            _ => "",
        };
        self.location.error(format!("not a tar file, plain or gzip: {reason}{hint}"))
    }

    fn truncated_error(&self, position: String) -> Error {
        self.error(format!("the file ends {position}; it is truncated: copy or download it again"))
    }

    fn read_error(&self, source: io::Error) -> Error {
        let position = match &self.latest {
            Some((name, offset)) => format!("entry {name}, at byte {offset}"),
            None => format!("after {} bytes", self.position),
        };
        explain(&self.location, &position, source)
    }
}

/// The name of an entry. A pax name takes precedence over a GNU name, and a GNU name over the name in
/// the header.
fn entry_name(header: &Header, long_name: Option<Vec<u8>>, extended: Option<PaxRecords>) -> String {
    let long_name = long_name.map(|name| name.strip_suffix(b"\0").unwrap_or(&name).to_vec());
    let pax_name = extended.and_then(|records| records.name);
    readable(&pax_name.or(long_name).unwrap_or_else(|| header.path_bytes().into_owned()))
}

/// The size in a header, if its checksum is valid.
fn checked_size(header: &Header) -> Result<u64, String> {
    let block = header.as_bytes();
    let claimed = header.cksum().map_err(|_| "its checksum is not a number")?;
    // The bytes of the checksum field count as spaces.
    let sum =
        block[..148].iter().chain(&block[156..]).fold(8 * 32, |sum, &byte| sum + u32::from(byte));
    if sum != claimed {
        return Err(format!("its checksum should be {sum}, but is {claimed}"));
    }
    header.entry_size().map_err(|_| "its size is not a number".to_owned())
}

/// Parses records `length key=value\n`, where the length is that of the whole record (POSIX.1-2001
/// pax). If a key is repeated, the last value applies.
fn parse(mut records: &[u8]) -> Result<PaxRecords, String> {
    let mut extended = PaxRecords::default();
    while !records.is_empty() {
        let broken = || "a record of an extended header is not `length key=value`".to_owned();
        let space = records.iter().take(20).position(|&byte| byte == b' ').ok_or_else(broken)?;
        let length = std::str::from_utf8(&records[..space])
            .ok()
            .and_then(|digits| digits.parse::<usize>().ok())
            .filter(|&length| length > space + 1 && length <= records.len())
            .ok_or_else(broken)?;
        let (record, rest) = records.split_at(length);
        let record = record[space + 1..].strip_suffix(b"\n").ok_or_else(broken)?;
        let equals = record.iter().position(|&byte| byte == b'=').ok_or_else(broken)?;
        match (&record[..equals], &record[equals + 1..]) {
            // A record without a value deletes an earlier one.
            (b"path", name) => extended.name = (!name.is_empty()).then(|| name.to_vec()),
            (b"size", b"") => extended.size = None,
            (b"size", value) => {
                let size = std::str::from_utf8(value)
                    .ok()
                    .and_then(|digits| digits.parse().ok())
                    .ok_or_else(|| {
                    format!("the size `{}` is not a number", value.escape_ascii())
                })?;
                extended.size = Some(size);
            }
            (key, _) => extended.sparse |= key.starts_with(b"GNU.sparse."),
        }
        records = rest;
    }
    Ok(extended)
}

/// Converts a name to text. Bytes that are not UTF-8 become `\xNN`, so that different names stay
/// different.
fn readable(name: &[u8]) -> String {
    let mut text = String::with_capacity(name.len());
    for chunk in name.utf8_chunks() {
        text.push_str(chunk.valid());
        chunk.invalid().iter().for_each(|byte| text.push_str(&format!("\\x{byte:02x}")));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_of_extended_headers_are_read() {
        let read = |records: &str| parse(records.as_bytes());
        let extended = read("19 path=folder/name\n13 size=1234\n11 mtime=1\n").err().unwrap();
        assert!(extended.contains("length key=value"), "{extended}");
        let extended = read("20 path=folder/name\n13 size=1234\n14 a.b=\n1 c=2\n").unwrap();
        assert_eq!(
            (extended.name.as_deref(), extended.size),
            (Some(&b"folder/name"[..]), Some(1234))
        );
        assert!(!extended.sparse && read("22 GNU.sparse.major=1\n").unwrap().sparse);
        for broken in [
            "5",
            "0 a=b\n",
            "99999999999999999999 a=b\n",
            "6 a=b\n\n",
            "2 ",
            "3 \n",
            "7 size=\n",
            "8 size=\n\n",
        ] {
            assert!(read(broken).is_err(), "{broken:?}");
        }
        assert!(read("12 size=-12\n").err().unwrap().contains("`-12`"));
    }
}
