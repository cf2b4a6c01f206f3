//! The lines of text files, by index or in order.
//!
//! Not here: what a line is taken for (`text_file`, `json_lines`).

use std::io::{BufRead, Read};
use std::sync::Arc;

use arrow_array::builder::BinaryBuilder;
use arrow_array::cast::AsArray;
use arrow_schema::{DataType, Field, Schema};

use super::blocks::{Block, Numbers, Place, Rows};
use super::features::HfFeatures;
use super::input::{Input, expand};
use super::text_blocks::{self, BLOCK, Format, IndexedFile, KEPT, LONGEST, TextBlocks, block};
use fulmen_data::internal::make;
use fulmen_data::{Deferred, Error, Fingerprint, Items, Result, StreamItem};
use fulmen_files::Location;

/// Lines as rows of one column of bytes. With `blank`, lines of white space alone count too.
struct LineFormat {
    blank: bool,
}

impl Format for LineFormat {
    fn decode(&self, file: &Arc<Input>, first: u64, bytes: &[u8]) -> Result<Block> {
        let (mut lines, mut numbers) = (BinaryBuilder::new(), Vec::new());
        let mut rest = bytes;
        for number in first.. {
            if rest.is_empty() {
                break;
            }
            let (line, after) = rest.split_at(memchr::memchr(b'\n', rest).map_or(rest.len(), |end| end + 1));
            if self.blank || !line.trim_ascii().is_empty() {
                lines.append_value(trim(line, number));
                numbers.push(number);
            }
            rest = after;
        }
        let schema = Arc::new(Schema::new(vec![Field::new("line", DataType::Binary, false)]));
        block(Place::new(file, Numbers::Lines(first)), numbers, &schema, vec![Arc::new(lines.finish())])
    }

    fn select(&self, _columns: &[usize]) -> LineFormat {
        LineFormat { ..*self }
    }

    fn fingerprint(&self, _fingerprint: &mut Fingerprint) {}
}

/// The lines of files as rows.
pub(crate) fn index(location: &Location, extensions: &[&str], blank: bool, instead: &str) -> Result<Rows> {
    let inputs = Input::open_all(&expand(location, extensions)?)?;
    let found = text_blocks::index(&inputs, KEPT, |file, reader| {
        file.input.refuse_compressed(instead)?;
        find(file, reader, blank)
    })?;
    let blocks = TextBlocks::new(found.into_iter().map(|(file, ())| file).collect(), LineFormat { blank });
    Ok(Rows::new(Arc::new(blocks), (Vec::new(), HfFeatures::default()), location.to_string()))
}

/// Calls `read` with a line, and with what makes an error of it.
pub(crate) fn read_line<T>(
    rows: &Rows,
    index: usize,
    read: impl FnOnce(&[u8], &dyn Fn(String) -> Error) -> Result<T>,
) -> Result<T> {
    let (block, row) = rows.find(index)?;
    let lines = block.columns.column(0).as_binary::<i32>();
    read(lines.value(row), &|message| block.place.error(row, message))
}

fn find(file: &mut IndexedFile, reader: &mut dyn BufRead, blank: bool) -> Result<()> {
    // Where the line begins that is being read, and whether anything but white space was seen in it.
    let (mut start, mut line, mut offset) = (0u64, 1u64, 0u64);
    let mut filled = false;
    loop {
        let buffer = reader.fill_buf().map_err(|source| file.input.reading_failed(&format!("line {line}"), source))?;
        if buffer.is_empty() {
            break;
        }
        let mut rest = buffer;
        while !rest.is_empty() {
            let end = memchr::memchr(b'\n', rest);
            let part = &rest[..end.unwrap_or(rest.len())];
            filled = filled || !part.trim_ascii().is_empty();
            offset += part.len() as u64;
            rest = &rest[part.len()..];
            if end.is_some() {
                if filled || blank {
                    file.push(start, line, BLOCK);
                }
                offset += 1;
                rest = &rest[1..];
                (start, line, filled) = (offset, line + 1, false);
            }
        }
        let read = buffer.len();
        reader.consume(read);
    }
    if offset > start && (filled || blank) {
        file.push(start, line, BLOCK);
    }
    Ok(())
}

/// A line without its end, and in the first line without the UTF-8 mark.
pub(crate) fn trim(line: &[u8], number: u64) -> &[u8] {
    let line = match memchr::memchr(b'\n', line) {
        Some(end) => &line[..end],
        None => line,
    };
    let line = line.strip_suffix(b"\r").unwrap_or(line);
    match number {
        1 => line.strip_prefix(&[0xef, 0xbb, 0xbf]).unwrap_or(line),
        _ => line,
    }
}

/// The lines of files in order, each parsed on whatever thread needs it, so that one that cannot be parsed is one bad item.
/// With `blank`, lines of white space alone count too. A file that cannot be read further is an error, after which the
/// next one comes.
pub(crate) fn deferred<T: 'static>(
    files: &Arc<[Arc<Input>]>,
    blank: bool,
    parse: fn(&Line) -> Result<T>,
) -> Items<Deferred<T>> {
    let lines = Lines { files: Arc::clone(files), next: 0, reader: None, number: 0, line: Vec::new(), blank };
    let mut index = 0;
    Box::new(lines.map(move |line| {
        let line = line?;
        let origin = format!("{}, line {}", line.input().name(), line.number);
        index += 1;
        Ok(StreamItem { index: index - 1, origin, item: Deferred::new(move || parse(&line)) })
    }))
}

/// The same, parsed where they are read.
pub(crate) fn items<T: 'static>(files: &Arc<[Arc<Input>]>, blank: bool, parse: fn(&Line) -> Result<T>) -> Items<T> {
    make(deferred(files, blank, parse))
}

/// The lines of files in order.
struct Lines {
    files: Arc<[Arc<Input>]>,
    /// The file to be opened next.
    next: usize,
    /// Of the file before it.
    reader: Option<Box<dyn BufRead + Send>>,
    number: u64,
    line: Vec<u8>,
    blank: bool,
}

/// A line, its file and its number.
pub(crate) struct Line {
    pub(crate) bytes: Vec<u8>,
    files: Arc<[Arc<Input>]>,
    file: usize,
    number: u64,
}

impl Line {
    fn input(&self) -> &Input {
        &self.files[self.file]
    }

    pub(crate) fn error(&self, message: &str) -> Error {
        self.input().error(format!("line {}: {message}", self.number))
    }
}

impl Iterator for Lines {
    type Item = Result<Line>;

    fn next(&mut self) -> Option<Result<Line>> {
        let line = self.read();
        if line.is_err() {
            self.reader = None;
        }
        line.transpose()
    }
}

impl Lines {
    fn read(&mut self) -> Result<Option<Line>> {
        loop {
            let Some(reader) = &mut self.reader else {
                let Some(file) = self.files.get(self.next) else { return Ok(None) };
                (self.next, self.number) = (self.next + 1, 0);
                self.reader = Some(file.decompressed()?);
                continue;
            };
            let file = self.next - 1;
            let input = &self.files[file];
            self.line.clear();
            self.number += 1;
            let place = || format!("line {}", self.number);
            let read = reader.take(LONGEST).read_until(b'\n', &mut self.line);
            let count = read.map_err(|source| input.reading_failed(&place(), source))?;
            if count as u64 == LONGEST {
                return Err(input.error(format!("{} has more than {LONGEST} bytes; are line ends missing?", place())));
            }
            if count == 0 {
                self.reader = None;
            } else if self.blank || !self.line.trim_ascii().is_empty() {
                let bytes = trim(&self.line, self.number).to_vec();
                return Ok(Some(Line { bytes, files: Arc::clone(&self.files), file, number: self.number }));
            }
        }
    }
}
