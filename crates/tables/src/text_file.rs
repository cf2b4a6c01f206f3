//! Text files as lines, and folders of text files as documents.
//!
//! Out of scope: tokens.

use std::fmt;

use super::block_reader::{BlockReader, out_of_range};
use super::lines::{self, LineStream};
use super::source_file::expand;
use fulmen_data::{Error, Fingerprint, Result, Source};
use fulmen_files::Location;
use fulmen_files::fingerprint_all;

const EXTENSIONS: [&str; 1] = [".txt"];

/// The maximum size of a document.
const MAX_DOCUMENT_BYTES: u64 = 1 << 30;

/// The lines of text files by index, including blank ones, without their line ends.
///
/// Opening reads the files once to find the start of each block of about 8 KiB of lines; small
/// files are kept in memory. The text must be UTF-8; an invalid line is an error that names it.
///
/// ```
/// use fulmen_data::Source;
/// use fulmen_tables::TextFile;
///
/// let folder = tempfile::tempdir()?;
/// let path = folder.path().join("weather.txt");
/// std::fs::write(&path, "bolt\r\nof\nlightning")?;
/// let lines = TextFile::open(&path)?;
/// assert_eq!((lines.len(), lines.get(0)?, lines.get(2)?), (3, "bolt".to_owned(), "lightning".to_owned()));
/// assert!(lines.origin(2).ends_with("weather.txt, line 3"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct TextFile {
    lines: BlockReader,
}

impl TextFile {
    /// Opens a file, the files that match a pattern, or all `.txt` files in a folder, as one list
    /// of lines.
    ///
    /// # Errors
    /// Files that do not exist or are compressed; read compressed files with
    /// [`stream`](TextFile::stream).
    pub fn open(location: impl Into<Location>) -> Result<TextFile> {
        Ok(TextFile {
            lines: lines::index(&location.into(), &EXTENSIONS, true, "`TextFile::stream`")?,
        })
    }

    /// The lines in sequence, from files that may be compressed with gzip or zstd.
    pub fn stream(location: impl Into<Location>) -> Result<LineStream<String>> {
        LineStream::open(
            &location.into(),
            &[".txt", ".txt.gz", ".txt.zst"],
            true,
            utf8,
            ("lines", ""),
        )
    }
}

fn utf8(bytes: &[u8], failed: &dyn Fn(String) -> Error) -> Result<String> {
    match std::str::from_utf8(bytes) {
        Ok(text) => Ok(text.to_owned()),
        Err(error) => Err(failed(format!(
            "the text is not UTF-8 from byte {} on; convert the file, for instance with `iconv -t utf-8`",
            error.valid_up_to()
        ))),
    }
}

impl Source for TextFile {
    type Item = String;

    fn len(&self) -> usize {
        self.lines.len()
    }

    fn get(&self, index: usize) -> Result<String> {
        lines::get(&self.lines, index, utf8)
    }

    fn origin(&self, index: usize) -> String {
        self.lines.origin(index)
    }

    fn fingerprint(&self, fingerprint: &mut Fingerprint) -> Result<()> {
        fingerprint.add("lines", "");
        self.lines.fingerprint(fingerprint)
    }
}

/// Text files as documents: the whole text of each file, by index, sorted by path.
///
/// ```
/// use fulmen_data::Source;
/// use fulmen_tables::TextFolder;
///
/// let folder = tempfile::tempdir()?;
/// std::fs::write(folder.path().join("b.txt"), "second")?;
/// std::fs::write(folder.path().join("a.txt"), "first\ndocument")?;
/// let documents = TextFolder::open(folder.path())?;
/// assert_eq!((documents.len(), documents.get(0)?), (2, "first\ndocument".to_owned()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct TextFolder {
    files: Vec<Location>,
}

impl TextFolder {
    /// All `.txt` files in a folder, or the files that match a pattern.
    pub fn open(location: impl Into<Location>) -> Result<TextFolder> {
        TextFolder::open_with(location, &EXTENSIONS)
    }

    /// All files in a folder whose names end in one of `extensions`, such as `.md`.
    pub fn open_with(location: impl Into<Location>, extensions: &[&str]) -> Result<TextFolder> {
        Ok(TextFolder { files: expand(&location.into(), extensions)? })
    }

    fn file(&self, index: usize) -> Result<&Location> {
        self.files.get(index).ok_or_else(|| out_of_range(index, self.files.len()))
    }
}

impl fmt::Debug for TextFolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TextFolder").field("documents", &self.files.len()).finish()
    }
}

impl Source for TextFolder {
    type Item = String;

    fn len(&self) -> usize {
        self.files.len()
    }

    fn get(&self, index: usize) -> Result<String> {
        let file = self.file(index)?;
        let bytes = file.read_at_most(MAX_DOCUMENT_BYTES)?;
        utf8(bytes.strip_prefix(&[0xef, 0xbb, 0xbf]).unwrap_or(&bytes), &|message| {
            file.error(message)
        })
    }

    fn origin(&self, index: usize) -> String {
        match self.file(index) {
            Ok(file) => file.to_string(),
            Err(_) => format!("document {index}, which does not exist"),
        }
    }

    fn fingerprint(&self, fingerprint: &mut Fingerprint) -> Result<()> {
        fingerprint.add("documents", "");
        fingerprint_all(&self.files, fingerprint)
    }
}
