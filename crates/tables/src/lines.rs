//! The lines of text files, by index or in order.
//!
//! Not here: what a line is taken for (`text_file`, `json_lines`).

use std::io::{BufRead, Read};
use std::sync::Arc;

use super::input::{Input, expand};
use super::records::{KEPT, LONGEST, RecordFile, RecordFiles};
use fulmen_data::internal::make;
use fulmen_data::{Deferred, Error, Items, Result, StreamItem};
use fulmen_data::{internal::cores, internal::in_parallel};
use fulmen_files::Location;

/// Finds the lines of files. With `blank`, lines of white space alone count too.
pub(crate) fn index(location: &Location, extensions: &[&str], blank: bool, instead: &str) -> Result<RecordFiles> {
    let inputs = Input::open_all(&expand(location, extensions)?)?;
    let keep = inputs.iter().map(|input| input.size()).fold(0, u64::saturating_add) <= KEPT;
    let files = in_parallel(&inputs, cores(), |input| {
        input.refuse_compressed(instead)?;
        let kept = match keep {
            true => Some(input.read_range(0, input.size() as usize)?),
            false => None,
        };
        let mut file = RecordFile::new(input, kept);
        match file.kept.take() {
            Some(kept) => {
                find(&mut file, &kept[..], blank)?;
                file.kept = Some(kept);
            }
            None => {
                let reader = file.input.reader()?;
                find(&mut file, reader, blank)?;
            }
        }
        file.finish();
        Ok(file)
    })?;
    Ok(RecordFiles::new(files))
}

fn find(file: &mut RecordFile, mut reader: impl BufRead, blank: bool) -> Result<()> {
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
                    file.push(start, line);
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
        file.push(start, line);
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
