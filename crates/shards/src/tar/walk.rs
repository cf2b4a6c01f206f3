//! Going through a tar file from entry to entry, reading or passing over what they hold.
//!
//! Not here: what a header says (`header`), and which files make up a sample (`group`).

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;

use super::header::{BLOCK, Extended, Header, Kind, parse, parse_extended};
use fulmen_data::internal::fill;
use fulmen_data::{Error, Result};
use fulmen_files::Location;
use fulmen_files::explain;

/// Names and extended headers are refused when they are larger: no file system has such names.
const MOST_OF_A_NAME: u64 = 1 << 20;

/// What can be read, and passed over.
pub(super) trait Bytes: Read {
    /// Passes over as many bytes as there are, up to `count`, and says how many.
    fn skip(&mut self, count: u64) -> io::Result<u64>;
}

/// Bytes that come one after the other; passing over them is reading them.
pub(super) struct Sequential<R>(pub(super) R);

impl<R: Read> Read for Sequential<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.0.read(into)
    }
}

impl<R: Read> Bytes for Sequential<R> {
    fn skip(&mut self, count: u64) -> io::Result<u64> {
        io::copy(&mut self.0.by_ref().take(count), &mut io::sink())
    }
}

/// A file of which only what is asked for is read.
pub(super) struct Positioned<'a> {
    file: &'a File,
    at: u64,
    size: u64,
}

impl<'a> Positioned<'a> {
    pub(super) fn new(file: &'a File, size: u64) -> Positioned<'a> {
        Positioned { file, at: 0, size }
    }
}

impl Read for Positioned<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read_at(into, self.at)?;
        self.at += count as u64;
        Ok(count)
    }
}

impl Bytes for Positioned<'_> {
    fn skip(&mut self, count: u64) -> io::Result<u64> {
        let count = count.min(self.size.saturating_sub(self.at));
        self.at += count;
        Ok(count)
    }
}

/// A file in a tar.
#[derive(Debug)]
pub(super) struct Entry {
    pub(super) name: String,
    /// Where its content begins.
    pub(super) offset: u64,
    pub(super) size: u64,
}

/// A tar file, and how far it has been gone through.
pub(super) struct Walk<B> {
    location: Location,
    bytes: B,
    /// How many bytes have been read or passed over.
    at: u64,
    /// Where the next header begins.
    next: u64,
    /// The latest entry and where its content begins, for messages.
    latest: Option<(String, u64)>,
    ended: bool,
}

impl<B: Bytes> Walk<B> {
    pub(super) fn new(location: Location, bytes: B) -> Walk<B> {
        Walk { location, bytes, at: 0, next: 0, latest: None, ended: false }
    }

    /// The next file; folders, links and the like are passed over. Nothing after the end or an error.
    pub(super) fn next(&mut self) -> Result<Option<Entry>> {
        if self.ended {
            return Ok(None);
        }
        let found = self.find();
        self.ended = !matches!(found, Ok(Some(_)));
        found
    }

    fn find(&mut self) -> Result<Option<Entry>> {
        let mut long_name = None;
        let mut extended = Extended::default();
        loop {
            self.skip_to_header()?;
            let begins = self.at;
            let Some(block) = self.block()? else {
                if long_name.is_some() || extended != Extended::default() {
                    return Err(self.error("it ends after the name of an entry, without the entry"));
                }
                return self.end().map(|()| None);
            };
            let header = parse(&block).map_err(|why| self.bad_header(begins, &block, &why))?;
            let named = header.kind == Kind::File || header.kind == Kind::Sparse || header.kind == Kind::Nothing;
            let size = match extended.size {
                Some(size) if named => size,
                _ => header.size,
            };
            let held = if header.kind == Kind::Nothing { 0 } else { size };
            let padded = held.checked_next_multiple_of(BLOCK as u64);
            self.next = padded.and_then(|size| self.at.checked_add(size)).ok_or_else(|| {
                self.error(format!("the header at byte {begins} claims {held} bytes, which no file has"))
            })?;
            match header.kind {
                Kind::LongName => long_name = Some(self.name(&header)?),
                Kind::Extended => {
                    let records = self.name(&header)?;
                    extended =
                        parse_extended(&records).map_err(|why| self.error(format!("at byte {begins}: {why}")))?;
                }
                Kind::Other => {}
                Kind::Nothing => {
                    long_name = None;
                    extended = Extended::default();
                }
                Kind::File | Kind::Sparse => {
                    // A pax name counts more than GNU's, and both more than the header's.
                    let long_name = long_name.map(|name| name.strip_suffix(b"\0").unwrap_or(&name).to_vec());
                    let name = readable(&extended.name.or(long_name).unwrap_or(header.name));
                    self.latest = Some((name.clone(), self.at));
                    if header.kind == Kind::Sparse || extended.sparse {
                        return Err(self.error("it is a file with holes (GNU tar --sparse); pack it without --sparse"));
                    }
                    return Ok(Some(Entry { name, offset: self.at, size }));
                }
            }
        }
    }

    /// The content of the entry that [`next`](Walk::next) gave last. What is allocated grows with what is there.
    pub(super) fn content(&mut self, entry: &Entry) -> Result<Vec<u8>> {
        let mut content = Vec::with_capacity(usize::try_from(entry.size.min(MOST_OF_A_NAME)).unwrap_or(0));
        let read = self.bytes.by_ref().take(entry.size).read_to_end(&mut content);
        read.map_err(|source| self.broken(source))?;
        self.at += content.len() as u64;
        match content.len() as u64 == entry.size {
            true => Ok(content),
            false => Err(self.cut_off(format!("after {} of the entry's {} bytes", content.len(), entry.size))),
        }
    }

    /// What follows a header that is about the next one.
    fn name(&mut self, header: &Header) -> Result<Vec<u8>> {
        if header.size > MOST_OF_A_NAME {
            return Err(self.error(format!(
                "the name or extended header before byte {} claims {} bytes, and more than {MOST_OF_A_NAME} are refused",
                self.at, header.size
            )));
        }
        self.content(&Entry { name: String::new(), offset: self.at, size: header.size })
    }

    fn skip_to_header(&mut self) -> Result<()> {
        let wanted = self.next - self.at;
        if wanted == 0 {
            return Ok(());
        }
        let skipped = self.bytes.skip(wanted).map_err(|source| self.broken(source))?;
        self.at += skipped;
        match skipped == wanted {
            true => Ok(()),
            false => Err(self.cut_off(format!("{} bytes before the entry does", self.next - self.at))),
        }
    }

    /// The next block, unless it is all zeros, which ends the tar.
    fn block(&mut self) -> Result<Option<[u8; BLOCK]>> {
        let mut block = [0; BLOCK];
        let filled = fill(&mut self.bytes, &mut block).map_err(|source| self.broken(source))?;
        self.at += filled as u64;
        match filled {
            BLOCK if block == [0; BLOCK] => Ok(None),
            BLOCK => {
                self.next = self.at;
                Ok(Some(block))
            }
            0 if self.at == 0 => Err(self.location.error("the file is empty; expected a tar")),
            0 => Err(self.cut_off("without the zeros that end a tar".to_owned())),
            _ => Err(self.cut_off(format!("within a header, at byte {}", self.at))),
        }
    }

    /// What follows the end: zeros, which some programs fill up with. It is read so that a checksum behind it is too.
    fn end(&mut self) -> Result<()> {
        let mut rest = vec![0; 64 << 10];
        loop {
            let count = match self.bytes.read(&mut rest) {
                Ok(0) => return Ok(()),
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(source) => return Err(self.broken(source)),
            };
            if rest[..count].iter().any(|&byte| byte != 0) {
                return Err(self.error(format!(
                    "after the zeros at byte {} that end the tar there are more bytes, as when tars are written one after \
                     the other into a file; make one tar of them",
                    self.at - BLOCK as u64
                )));
            }
            self.at += count as u64;
        }
    }

    /// An error at the latest entry.
    fn error(&self, message: impl std::fmt::Display) -> Error {
        match &self.latest {
            Some((name, at)) => self.location.error(format!("entry {name}, at byte {at}: {message}")),
            None => self.location.error(message.to_string()),
        }
    }

    fn bad_header(&self, begins: u64, block: &[u8; BLOCK], why: &str) -> Error {
        if begins > 0 {
            let latest = self.latest.as_ref().map_or("", |(name, _)| name);
            return self.location.error(format!(
                "the header at byte {begins}, after the entry {latest}, is damaged: {why}; copy or download the file again"
            ));
        }
        let hint = match block {
            [b'<', ..] => " (it looks like a web page: did the download fail?)",
            [b'P', b'K', ..] => " (it looks like a zip file)",
            [0x28, 0xb5, 0x2f, 0xfd, ..] => " (it is compressed with zstd; gzip is what is read)",
            _ => "",
        };
        self.location.error(format!("this is no tar file, plain or gzip: {why}{hint}"))
    }

    fn cut_off(&self, place: String) -> Error {
        self.error(format!("the file ends {place}; it is cut short: copy or download it again"))
    }

    fn broken(&self, source: io::Error) -> Error {
        let place = match &self.latest {
            Some((name, at)) => format!("entry {name}, at byte {at}"),
            None => format!("after {} bytes", self.at),
        };
        explain(&self.location, &place, source)
    }
}

/// A name as text: bytes that are not UTF-8 are written as `\xNN`, so that different names stay different.
fn readable(name: &[u8]) -> String {
    let mut text = String::with_capacity(name.len());
    for chunk in name.utf8_chunks() {
        text.push_str(chunk.valid());
        chunk.invalid().iter().for_each(|byte| text.push_str(&format!("\\x{byte:02x}")));
    }
    text
}
