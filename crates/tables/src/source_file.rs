//! A file of a table or a text, with random access or read in sequence, plain or compressed.
//!
//! Out of scope: its content, and access to stores (`fulmen-files`).

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use flate2::bufread::MultiGzDecoder;

use fulmen_data::internal::{LeftOut, in_parallel};
use fulmen_data::{Error, Fingerprint, Result};
use fulmen_files::Location;
use fulmen_files::{MAX_CONCURRENT_REQUESTS, explain, fingerprint_all, zeros};

/// The buffer size for reading in sequence.
const BUFFER: usize = 1 << 18;

/// How many local files of a table stay open; a process may not open many more.
const MAX_OPEN_FILES: usize = 128;

/// A file of known size.
#[derive(Debug)]
pub(crate) struct SourceFile {
    location: Location,
    /// The local file, if it stays open.
    file: Option<File>,
    size: u64,
}

impl SourceFile {
    /// Opens the files of a table, or queries a store for them.
    pub(crate) fn open_all(locations: &[Location]) -> Result<Vec<Arc<SourceFile>>> {
        let numbered: Vec<(usize, &Location)> = locations.iter().enumerate().collect();
        // In parallel, because a store takes time for each response.
        in_parallel(&numbered, MAX_CONCURRENT_REQUESTS, |&(number, location)| {
            let size = location.size()?;
            let open = |path| {
                fulmen_durable::open_regular(path)
                    .map_err(|source| Error::io(path, "cannot open the file", source))
            };
            let file =
                location.local().filter(|_| number < MAX_OPEN_FILES).map(open).transpose()?;
            Ok(Arc::new(SourceFile { location: location.clone(), file, size }))
        })
    }

    /// The size that the file had when it was opened.
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// The name of the file, for `origin`.
    pub(crate) fn name(&self) -> String {
        self.location.to_string()
    }

    /// Whether the name has one of these extensions.
    pub(crate) fn is_named(&self, extensions: &[&str]) -> bool {
        ends_in(&self.location, extensions)
    }

    /// An error about this file.
    pub(crate) fn error(&self, message: impl Into<String>) -> Error {
        self.location.error(message)
    }

    /// The error for a failed operation on this file.
    pub(crate) fn io(&self, doing: &str, source: io::Error) -> Error {
        match self.location.local() {
            Some(path) => Error::io(path, doing, source),
            None => self.location.error(format!("{doing}: {source}")),
        }
    }

    /// Fills `into` with the bytes from `offset` on.
    pub(crate) fn read_at(&self, offset: u64, into: &mut [u8]) -> Result<()> {
        let read = match (&self.file, self.location.local()) {
            (Some(file), _) => file.read_exact_at(into, offset),
            (None, Some(path)) => {
                fulmen_durable::open_regular(path).and_then(|file| file.read_exact_at(into, offset))
            }
            (None, None) => {
                let bytes =
                    self.location.read_range(offset..offset.saturating_add(into.len() as u64))?;
                if bytes.len() != into.len() {
                    return Err(self.size_error(offset, into.len()));
                }
                into.copy_from_slice(&bytes);
                Ok(())
            }
        };
        read.map_err(|source| match source.kind() {
            io::ErrorKind::UnexpectedEof => self.size_error(offset, into.len()),
            _ => self.io(&format!("cannot read {} bytes at byte {offset}", into.len()), source),
        })
    }

    fn size_error(&self, offset: u64, len: usize) -> Error {
        self.error(format!(
            "the file ends before byte {}; it had {} bytes when it was opened: was it changed since?",
            offset.saturating_add(len as u64),
            self.size
        ))
    }

    /// `len` bytes from `offset` on. Memory is allocated only up to the size of the file.
    pub(crate) fn read_range(&self, offset: u64, len: usize) -> Result<Vec<u8>> {
        let end = offset.checked_add(len as u64);
        if end.is_none_or(|end| end > self.size) {
            return Err(self.error(format!(
                "the file should have {len} bytes at byte {offset}, but it ends after {} bytes; it is damaged or \
                 truncated: copy or download it again",
                self.size
            )));
        }
        let mut bytes = zeros(Path::new(&self.name()), len)?;
        self.read_at(offset, &mut bytes)?;
        Ok(bytes)
    }

    /// The bytes of the file in sequence.
    pub(crate) fn reader(&self) -> Result<Box<dyn BufRead + Send>> {
        Ok(Box::new(BufReader::with_capacity(BUFFER, self.location.open()?)))
    }

    /// The bytes in sequence, decompressed if the content is gzip or zstd.
    pub(crate) fn decompressed(&self) -> Result<Box<dyn BufRead + Send>> {
        let mut reader = self.reader()?;
        let start = reader.fill_buf().map_err(|source| self.location.read_error(source))?;
        match start {
            [0x1f, 0x8b, ..] => {
                Ok(Box::new(BufReader::with_capacity(BUFFER, MultiGzDecoder::new(reader))))
            }
            [0x28, 0xb5, 0x2f, 0xfd, ..] => self.zstd(reader),
            _ => Ok(reader),
        }
    }

    #[cfg(feature = "parquet")]
    fn zstd(&self, reader: Box<dyn BufRead + Send>) -> Result<Box<dyn BufRead + Send>> {
        let decoder = zstd::Decoder::with_buffer(reader)
            .map_err(|source| self.io("cannot read the zstd file", source))?;
        Ok(Box::new(BufReader::with_capacity(BUFFER, decoder)))
    }

    #[cfg(not(feature = "parquet"))]
    fn zstd(&self, _reader: Box<dyn BufRead + Send>) -> Result<Box<dyn BufRead + Send>> {
        Err(self.error("the file is compressed with zstd; build fulmen with its feature `parquet`"))
    }

    /// Rejects a compressed file, which does not support random access.
    pub(crate) fn refuse_compressed(&self, alternative: &str) -> Result<()> {
        let mut start = [0; 4];
        let len = self.size.min(4) as usize;
        self.read_at(0, &mut start[..len])?;
        let kind = match start {
            [0x1f, 0x8b, ..] => "gzip",
            [0x28, 0xb5, 0x2f, 0xfd] => "zstd",
            _ => return Ok(()),
        };
        Err(self.error(format!(
            "the file is compressed with {kind}, so its items can only be read in sequence; use {alternative}, or \
             decompress it"
        )))
    }

    /// The error for reading this file in sequence, at this position.
    pub(crate) fn read_error(&self, position: &str, source: io::Error) -> Error {
        explain(&self.location, position, source)
    }
}

pub(crate) fn fingerprint_inputs<'a>(
    inputs: impl IntoIterator<Item = &'a SourceFile>,
    fingerprint: &mut Fingerprint,
) -> Result<()> {
    let locations: Vec<Location> = inputs.into_iter().map(|input| input.location.clone()).collect();
    fingerprint_all(&locations, fingerprint)
}

/// Describes the files in a few words, without their folders: `RowStream(3 from a.csv)`.
pub(crate) fn describe(name: &str, inputs: &[Arc<SourceFile>]) -> String {
    let first =
        inputs.first().map_or(String::new(), |first| format!(" from {}", first.location.name()));
    format!("{name}({}{first})", inputs.len())
}

/// The files of a location: those that match its pattern, and, for a folder, those
/// [below](files_below) it whose names end in one of `extensions`.
pub(crate) fn expand(location: &Location, extensions: &[&str]) -> Result<Vec<Location>> {
    let mut files = Vec::new();
    for entry in location.expand()? {
        if is_folder(&entry)? {
            files.extend(files_below(&entry, extensions)?.into_iter().map(|(file, _)| file))
        } else {
            files.push(entry)
        }
    }
    if files.is_empty() {
        Err(Error::missing(format!(
            "{location}: the folder has no file whose name ends in {}",
            extensions
                .iter()
                .map(|extension| format!("`{extension}`"))
                .collect::<Vec<_>>()
                .join(" or ")
        )))
    } else {
        Ok(files)
    }
}

/// The files below a folder whose names end in one of `extensions`, each with its path relative to
/// the folder. Folders whose names begin with `.` or `__` are skipped, because they belong to
/// tools: editors' checkpoints, download caches, metadata in archives. A note counts the other
/// files.
pub(crate) fn files_below(
    folder: &Location,
    extensions: &[&str],
) -> Result<Vec<(Location, String)>> {
    let base = folder.to_string();
    let is_hidden = |name: &str| {
        let (folders, file) = name.rsplit_once('/').unwrap_or(("", name));
        file.starts_with('.')
            || folders.split('/').any(|folder| folder.starts_with('.') || folder.starts_with("__"))
    };
    let mut files = Vec::new();
    let mut left_out = LeftOut::default();
    for file in folder.list()? {
        let path = file.to_string();
        let name = path.strip_prefix(&base).unwrap_or(&path).trim_start_matches('/').to_owned();
        if is_hidden(&name) {
            continue;
        }
        if ends_in(&file, extensions) {
            files.push((file, name));
        } else if !is_about_the_data(&name) {
            left_out.add_file(&name);
        }
    }
    if !files.is_empty() {
        left_out.note(folder, &format!("files that end in {} are read", extensions.join(", ")));
    }
    Ok(files)
}

/// Whether a file describes a dataset, and does not hold its data.
fn is_about_the_data(name: &str) -> bool {
    let file = name.rsplit('/').next().unwrap_or(name).to_lowercase();
    let is_metadata = ["dataset_", "state.json"].iter().any(|start| file.starts_with(start));
    is_metadata || ["readme", "license", "licence"].iter().any(|start| file.starts_with(start))
}

/// Whether this is a folder. In a store, a name without a dot counts as a folder if no object has
/// this name.
pub(crate) fn is_folder(location: &Location) -> Result<bool> {
    match location.local() {
        Some(path) => Ok(path.is_dir()),
        None => Ok(!location.name().contains('.') && !location.exists()?),
    }
}

/// Whether a file's name ends in one of `extensions` and does not begin with a dot.
pub(crate) fn ends_in(file: &Location, extensions: &[&str]) -> bool {
    let name = file.name().to_lowercase();
    !name.starts_with('.') && extensions.iter().any(|extension| name.ends_with(extension))
}
