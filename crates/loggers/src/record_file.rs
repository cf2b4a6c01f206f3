//! [`RecordFile`]: a file of records, for the loggers that write one.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::PathBuf;

/// A file that grows by whole records.
#[derive(Debug, Default)]
pub(crate) struct RecordFile {
    path: PathBuf,
    /// The open file; `None` after a failed write.
    file: Option<File>,
    /// The length of the file, without the partial record of a failed write.
    length: u64,
}

impl RecordFile {
    /// Creates an empty file. An existing file is replaced.
    pub(crate) fn new(path: PathBuf) -> io::Result<RecordFile> {
        Ok(RecordFile { file: Some(File::create(&path)?), path, length: 0 })
    }

    /// Opens the file at this path and keeps its first `length` bytes.
    pub(crate) fn open(path: PathBuf, length: u64) -> RecordFile {
        RecordFile { path, file: None, length }
    }

    /// The number of bytes of all records.
    pub(crate) fn length(&self) -> u64 {
        self.length
    }

    /// Appends a record, or leaves the file unchanged.
    pub(crate) fn append(&mut self, record: &[u8]) -> io::Result<()> {
        let mut file = match self.file.take() {
            Some(file) => file,
            None => {
                let file = OpenOptions::new().write(true).open(&self.path)?;
                file.set_len(self.length)?;
                file
            }
        };
        io::Seek::seek(&mut file, io::SeekFrom::Start(self.length))?;
        file.write_all(record)?;
        self.length += record.len() as u64;
        self.file = Some(file);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_a_failed_write_the_file_ends_with_a_whole_record() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("records");
        let mut file = RecordFile::new(path.clone()).unwrap();
        file.append(b"first\n").unwrap();
        // A file that is open only for reading rejects writes, like a full disk. Part of a record
        // was written before.
        OpenOptions::new().append(true).open(&path).unwrap().write_all(b"sec").unwrap();
        file.file = Some(File::open(&path).unwrap());
        assert!(file.append(b"second\n").is_err());
        file.append(b"third\n").unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "first\nthird\n");
    }
}
