//! The lines of text files, by index or in sequence.
//!
//! Out of scope: what a line contains (`text_file`, `json_lines`).

use std::fmt;
use std::io::{BufRead, Read};
use std::sync::Arc;

use arrow_array::builder::BinaryBuilder;
use arrow_array::cast::AsArray;
use arrow_schema::{DataType, Field, Schema};

use super::block_reader::{Block, BlockReader, RowNumbers, RowOrigin};
use super::features::HfFeatures;
use super::source_file::{SourceFile, describe, expand, fingerprint_inputs};
use super::text_blocks::{self, BLOCK, Format, MAX_KEPT_BYTES, MAX_RECORD_BYTES, TextBlocks};
use fulmen_data::internal::make;
use fulmen_data::{Deferred, Error, Fingerprint, Items, Result, Stream, StreamItem};
use fulmen_files::Location;

/// Reads one line after another.
#[derive(Default)]
struct LineReader {
    /// The number of the last line, from 1.
    number: u64,
    /// The offset after the last line.
    end: u64,
    line: Vec<u8>,
}

impl LineReader {
    /// Returns the next line, with its offset. Skips whitespace-only lines unless `blank` is set.
    fn next(
        &mut self,
        input: &SourceFile,
        reader: &mut dyn BufRead,
        blank: bool,
    ) -> Result<Option<(u64, &[u8])>> {
        loop {
            self.line.clear();
            self.number += 1;
            let position = || format!("line {}", self.number);
            let read = Read::take(&mut *reader, MAX_RECORD_BYTES).read_until(b'\n', &mut self.line);
            let count = read.map_err(|source| input.read_error(&position(), source))? as u64;
            if count == MAX_RECORD_BYTES {
                return Err(input.error(format!(
                    "{} has more than {MAX_RECORD_BYTES} bytes; are line ends missing?",
                    position()
                )));
            }
            self.end += count;
            if count == 0 {
                return Ok(None);
            }
            if blank || !self.line.trim_ascii().is_empty() {
                return Ok(Some((self.end - count, trim(&self.line, self.number))));
            }
        }
    }
}

/// A line without its line end, and without the byte order mark if it is the first line.
fn trim(line: &[u8], number: u64) -> &[u8] {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    match number {
        1 => line.strip_prefix(&[0xef, 0xbb, 0xbf]).unwrap_or(line),
        _ => line,
    }
}

/// Lines as rows of one column of bytes. Whitespace-only lines are skipped unless `blank` is set.
struct LineFormat {
    blank: bool,
}

impl Format for LineFormat {
    fn decode(&self, file: &Arc<SourceFile>, first: u64, mut bytes: &[u8]) -> Result<Block> {
        let mut lines = BinaryBuilder::new();
        let mut numbers = Vec::new();
        let mut reader = LineReader { number: first - 1, ..LineReader::default() };
        while let Some((_, line)) = reader.next(file, &mut bytes, self.blank)? {
            lines.append_value(line);
            numbers.push(reader.number);
        }
        let schema = Arc::new(Schema::new(vec![Field::new("line", DataType::Binary, false)]));
        text_blocks::block(file, numbers, Vec::new(), &schema, vec![Arc::new(lines.finish())])
    }

    fn select(&self, _columns: &[usize]) -> LineFormat {
        LineFormat { ..*self }
    }

    fn fingerprint(&self, _fingerprint: &mut Fingerprint) {}
}

/// Indexes the lines of files as rows.
pub(crate) fn index(
    location: &Location,
    extensions: &[&str],
    blank: bool,
    alternative: &str,
) -> Result<BlockReader> {
    let inputs = SourceFile::open_all(&expand(location, extensions)?)?;
    let files = text_blocks::index(&inputs, MAX_KEPT_BYTES, |file, reader| {
        file.input.refuse_compressed(alternative)?;
        let mut lines = LineReader::default();
        while let Some((start, _)) = lines.next(&Arc::clone(&file.input), reader, blank)? {
            file.push(start, lines.number, BLOCK);
        }
        Ok(())
    })?;
    let blocks =
        TextBlocks::new(files.into_iter().map(|(file, ())| file).collect(), LineFormat { blank });
    Ok(BlockReader::new(Arc::new(blocks), Vec::new(), HfFeatures::default(), location.to_string()))
}

/// Parses a line. The second argument makes an error of a message.
pub(crate) type Parse<T> = fn(&[u8], &dyn Fn(String) -> Error) -> Result<T>;

/// The item parsed from a line.
pub(crate) fn get<T>(rows: &BlockReader, index: usize, parse: Parse<T>) -> Result<T> {
    let (block, row) = rows.find(index)?;
    let lines = block.columns.column(0).as_binary::<i32>();
    parse(lines.value(row), &|message| block.row_origin.error(row, message))
}

/// Reads the lines of files in sequence, one item for each line. The items are the texts of
/// [`TextFile::stream`](crate::TextFile::stream), or the values of
/// [`JsonLines::stream`](crate::JsonLines::stream). The files may be compressed with gzip or zstd.
///
/// After an invalid line (not UTF-8, or not a valid value), the stream continues with the next
/// line. If a file cannot be read further, the stream continues with the next file.
pub struct LineStream<T> {
    files: Arc<[Arc<SourceFile>]>,
    /// Whether whitespace-only lines are items too.
    blank: bool,
    parse: Parse<T>,
    /// The name and value of its entry in a fingerprint.
    fingerprint_entry: (&'static str, &'static str),
}

impl<T> LineStream<T> {
    pub(crate) fn open(
        location: &Location,
        extensions: &[&str],
        blank: bool,
        parse: Parse<T>,
        fingerprint_entry: (&'static str, &'static str),
    ) -> Result<LineStream<T>> {
        let files = SourceFile::open_all(&expand(location, extensions)?)?;
        Ok(LineStream { files: files.into(), blank, parse, fingerprint_entry })
    }

    /// The same lines with another item type.
    pub(crate) fn with_parser<U>(
        self,
        parse: Parse<U>,
        fingerprint_entry: (&'static str, &'static str),
    ) -> LineStream<U> {
        LineStream { files: self.files, blank: self.blank, parse, fingerprint_entry }
    }
}

impl<T> fmt::Debug for LineStream<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&describe("LineStream", &self.files))
    }
}

impl<T: Send + 'static> Stream for LineStream<T> {
    type Item = T;

    fn len(&self) -> Option<usize> {
        None
    }

    fn items(&self, epoch: u64) -> Result<Items<T>> {
        Ok(make(self.deferred(epoch)?))
    }

    /// Lines are parsed later, on any thread, so an invalid line is only one bad item.
    fn deferred(&self, _epoch: u64) -> Result<Items<Deferred<T>>> {
        let files = Arc::clone(&self.files);
        let blank = self.blank;
        let parse = self.parse;
        let lines = Lines { files, next: 0, open: None, blank };
        Ok(Box::new(lines.scan(0, move |index, line| {
            Some(line.map(|line| {
                let origin = line.row_origin.origin(0);
                *index += 1;
                let item = Deferred::new(move || {
                    parse(&line.bytes, &|message| line.row_origin.error(0, message))
                });
                StreamItem { index: *index - 1, origin, item }
            }))
        })))
    }

    fn fingerprint(&self, fingerprint: &mut Fingerprint) -> Result<()> {
        fingerprint.add(self.fingerprint_entry.0, self.fingerprint_entry.1);
        fingerprint_inputs(self.files.iter().map(|file| &**file), fingerprint)
    }

    fn describe(&self) -> String {
        describe("LineStream", &self.files)
    }
}

/// The lines of files in sequence.
struct Lines {
    files: Arc<[Arc<SourceFile>]>,
    /// The next file to open.
    next: usize,
    /// The current file.
    open: Option<(LineReader, Box<dyn BufRead + Send>)>,
    blank: bool,
}

/// A line, and its origin.
struct Line {
    bytes: Vec<u8>,
    row_origin: RowOrigin,
}

impl Iterator for Lines {
    type Item = Result<Line>;

    fn next(&mut self) -> Option<Result<Line>> {
        let line = self.read();
        if line.is_err() {
            self.open = None;
        }
        line.transpose()
    }
}

impl Lines {
    fn read(&mut self) -> Result<Option<Line>> {
        loop {
            if let Some((lines, reader)) = &mut self.open {
                let file = &self.files[self.next - 1];
                if let Some((_, line)) = lines.next(file, reader, self.blank)? {
                    let bytes = line.to_vec();
                    return Ok(Some(Line {
                        bytes,
                        row_origin: RowOrigin::new(file, RowNumbers::Lines(lines.number)),
                    }));
                }
            }
            self.open = None;
            let Some(file) = self.files.get(self.next) else { return Ok(None) };
            self.next += 1;
            self.open = Some((LineReader::default(), file.decompressed()?));
        }
    }
}
