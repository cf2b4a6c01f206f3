//! The lines of text files, by index or in order.
//!
//! Not here: what a line is taken for (`text_file`, `json_lines`).

use std::collections::VecDeque;
use std::io::{BufRead, Read};
use std::sync::Arc;

use super::input::{Input, expand, reading_failed};
use super::records::{KEPT, LONGEST, RecordFile, RecordFiles};
use crate::{Error, Items, Location, Result, StreamItem};

/// Finds the lines of files. With `blank`, lines of white space alone count too.
pub(crate) fn index(location: &Location, extensions: &[&str], blank: bool, instead: &str) -> Result<RecordFiles> {
    let inputs = Input::open_all(&expand(location, extensions)?)?;
    let keep = inputs.iter().map(Input::size).fold(0, u64::saturating_add) <= KEPT;
    let mut files = Vec::with_capacity(inputs.len());
    for input in inputs {
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
        files.push(file);
    }
    Ok(RecordFiles::new(files))
}

fn find(file: &mut RecordFile, mut reader: impl BufRead, blank: bool) -> Result<()> {
    // Where the line begins that is being read, and whether anything but white space was seen in it.
    let (mut start, mut line, mut offset) = (0u64, 1u64, 0u64);
    let mut filled = false;
    loop {
        let buffer =
            reader.fill_buf().map_err(|source| reading_failed(&file.input, &format!("line {line}"), source))?;
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

/// What `read` makes of each line, in order. With `blank`, lines of white space alone count too. Nothing comes after an
/// error.
pub(crate) fn items<T>(
    files: &Arc<Vec<Input>>,
    blank: bool,
    read: impl Fn(&Line<'_>) -> Result<T> + Send + 'static,
) -> Items<T> {
    let mut lines = Lines::new(files, blank);
    let mut index = 0;
    let mut failed = false;
    Box::new(std::iter::from_fn(move || {
        let line = if failed { None } else { lines.next() };
        let item = line?.and_then(|line| {
            let item = read(&line)?;
            let origin = format!("{}, line {}", line.file.name(), line.number);
            index += 1;
            Ok(StreamItem { index: index - 1, origin, item })
        });
        failed = item.is_err();
        Some(item)
    }))
}

/// The lines of files in order.
struct Lines {
    files: Arc<Vec<Input>>,
    waiting: VecDeque<usize>,
    reader: Option<(usize, Box<dyn BufRead + Send>)>,
    number: u64,
    line: Vec<u8>,
    blank: bool,
}

/// A line, its file and its number.
pub(crate) struct Line<'a> {
    pub(crate) bytes: &'a [u8],
    file: &'a Input,
    number: u64,
}

impl Line<'_> {
    pub(crate) fn error(&self, message: &str) -> Error {
        self.file.error(format!("line {}: {message}", self.number))
    }
}

impl Lines {
    fn new(files: &Arc<Vec<Input>>, blank: bool) -> Lines {
        let waiting = (0..files.len()).collect();
        Lines { files: Arc::clone(files), waiting, reader: None, number: 0, line: Vec::new(), blank }
    }

    /// The next line; nothing comes after an error.
    fn next(&mut self) -> Option<Result<Line<'_>>> {
        match self.read() {
            Ok(None) => None,
            Ok(Some(file)) => {
                let line = trim(&self.line, self.number);
                Some(Ok(Line { bytes: line, file: &self.files[file], number: self.number }))
            }
            Err(error) => {
                self.waiting.clear();
                self.reader = None;
                Some(Err(error))
            }
        }
    }

    fn read(&mut self) -> Result<Option<usize>> {
        loop {
            if self.reader.is_none() {
                let Some(next) = self.waiting.pop_front() else { return Ok(None) };
                self.reader = Some((next, self.files[next].decompressed()?));
                self.number = 0;
            }
            let Some((number, reader)) = &mut self.reader else { return Ok(None) };
            let file = &self.files[*number];
            self.line.clear();
            self.number += 1;
            let place = || format!("line {}", self.number);
            let read = reader.take(LONGEST).read_until(b'\n', &mut self.line);
            let count = read.map_err(|source| reading_failed(file, &place(), source))?;
            if count as u64 == LONGEST {
                return Err(file.error(format!("{} has more than {LONGEST} bytes; are line ends missing?", place())));
            }
            if count == 0 {
                self.reader = None;
            } else if self.blank || !self.line.trim_ascii().is_empty() {
                return Ok(Some(*number));
            }
        }
    }
}
