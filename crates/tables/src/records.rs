//! Where the records of text files begin, so that each can be read by its number.
//!
//! Not here: what a record is; `lines` and `csv_index` find them.

use std::borrow::Cow;
use std::sync::Arc;

use super::input::{Input, fingerprint_inputs};
use fulmen_data::internal::Starts;
use fulmen_data::{Error, Fingerprint, Result};

/// Files up to this size are kept in memory, all of one collection together.
pub(crate) const KEPT: u64 = 64 << 20;

/// Longer records are refused: a file without line ends would be read as one.
pub(crate) const LONGEST: u64 = 1 << 30;

/// The records of one file.
#[derive(Debug)]
pub(crate) struct RecordFile {
    pub(crate) input: Arc<Input>,
    /// The whole file, where it is small.
    pub(crate) kept: Option<Vec<u8>>,
    /// Where each record begins.
    starts: Vec<u64>,
    /// The line in which each record begins, if that is not `first_line` and its number.
    lines: Option<Vec<u32>>,
    first_line: u32,
}

impl RecordFile {
    pub(crate) fn new(input: &Arc<Input>, kept: Option<Vec<u8>>) -> RecordFile {
        RecordFile { input: Arc::clone(input), kept, starts: Vec::new(), lines: None, first_line: 1 }
    }

    /// Takes in the next record, which begins at byte `start`, in line `line`.
    pub(crate) fn push(&mut self, start: u64, line: u64) {
        let line = u32::try_from(line).unwrap_or(u32::MAX);
        let number = self.starts.len();
        if number == 0 {
            self.first_line = line;
        } else if self.lines.is_none() && u64::from(line) != u64::from(self.first_line) + number as u64 {
            // Up to here, each record had a line of its own.
            self.lines = Some((0..number as u32).map(|record| self.first_line.saturating_add(record)).collect());
        }
        if let Some(lines) = &mut self.lines {
            lines.push(line);
        }
        self.starts.push(start);
    }

    pub(crate) fn finish(&mut self) {
        self.starts.shrink_to_fit();
        self.lines.iter_mut().for_each(Vec::shrink_to_fit);
    }

    pub(crate) fn len(&self) -> usize {
        self.starts.len()
    }

    /// The line in which a record begins, from 1.
    pub(crate) fn line(&self, record: usize) -> u64 {
        match &self.lines {
            Some(lines) => u64::from(lines[record]),
            None => u64::from(self.first_line) + record as u64,
        }
    }

    /// The bytes from the beginning of a record to that of the next one, the line end and blank lines included.
    pub(crate) fn read<'a>(&'a self, record: usize, scratch: &'a mut Vec<u8>) -> Result<&'a [u8]> {
        let start = self.starts[record];
        let end = self.starts.get(record + 1).copied().unwrap_or(self.input.size());
        match &self.kept {
            Some(kept) => Ok(&kept[start as usize..(end as usize).min(kept.len())]),
            None => {
                let len = end - start;
                if len > LONGEST {
                    let line = self.line(record);
                    return Err(self.input.error(format!(
                        "line {line}: this record has {len} bytes, over the limit of {LONGEST}; are line ends missing?"
                    )));
                }
                // What the last record left there is overwritten; only growth is filled with zeros.
                scratch.resize(len as usize, 0);
                self.input.read_at(start, scratch)?;
                Ok(scratch)
            }
        }
    }

    /// An error of a record, with its line.
    pub(crate) fn error(&self, record: usize, message: impl Into<Cow<'static, str>>) -> Error {
        self.input.error(format!("line {}: {}", self.line(record), message.into()))
    }
}

/// The records of several files as one list.
#[derive(Debug)]
pub(crate) struct RecordFiles {
    files: Vec<RecordFile>,
    starts: Starts,
}

impl RecordFiles {
    pub(crate) fn new(files: Vec<RecordFile>) -> RecordFiles {
        let starts = Starts::new(files.iter().map(RecordFile::len));
        RecordFiles { files, starts }
    }

    pub(crate) fn len(&self) -> usize {
        self.starts.len()
    }

    /// The number of a record's file, and the record's number there.
    pub(crate) fn find(&self, index: usize) -> Result<(usize, usize)> {
        self.starts.find(index).ok_or_else(|| outside(index, self.len()))
    }

    pub(crate) fn file(&self, number: usize) -> &RecordFile {
        &self.files[number]
    }

    /// The file of a record, and its number there.
    pub(crate) fn locate(&self, index: usize) -> Result<(&RecordFile, usize)> {
        self.find(index).map(|(file, record)| (self.file(file), record))
    }

    pub(crate) fn origin(&self, index: usize) -> String {
        match self.locate(index) {
            Ok((file, record)) => format!("{}, line {}", file.input.name(), file.line(record)),
            Err(_) => format!("item {index}, which is not there"),
        }
    }

    pub(crate) fn fingerprint(&self, fingerprint: &mut Fingerprint) -> Result<()> {
        fingerprint_inputs(self.files.iter().map(|file| &*file.input), fingerprint)
    }
}

/// The error for an index that is not there.
pub(crate) fn outside(index: usize, len: usize) -> Error {
    Error::usage(format!("there is no item {index}; there are {len}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_kept_only_from_the_first_record_that_needs_them() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("x");
        std::fs::write(&path, "a\nb\n\nc\n").unwrap();
        let mut records = RecordFile::new(&Arc::new(Input::open(&path.into()).unwrap()), None);
        records.push(0, 1);
        records.push(2, 2);
        assert!(records.lines.is_none());
        records.push(5, 4);
        assert_eq!((records.line(0), records.line(1), records.line(2)), (1, 2, 4));
        let mut scratch = Vec::new();
        assert_eq!(records.read(1, &mut scratch).unwrap(), b"b\n\n");
        assert_eq!(records.read(2, &mut scratch).unwrap(), b"c\n");
        let files = RecordFiles::new(vec![records]);
        assert!(files.locate(3).unwrap_err().is_usage());
    }
}
