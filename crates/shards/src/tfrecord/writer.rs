//! Writes TFRecord files.
//!
//! Out of scope: reading TFRecord files (`stream`, `source`).

use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;
use fulmen_durable::NewFile;

use super::Example;
use super::record::masked_crc;
use fulmen_data::{Error, Result};
use fulmen_files as store;

/// Writes one TFRecord file, which has a temporary name until [`finish`](TfRecordWriter::finish).
///
/// ```
/// use fulmen_shards::TfRecordWriter;
///
/// let folder = tempfile::tempdir()?;
/// let path = folder.path().join("train-00000-of-00001.tfrecord.gz");
/// let mut writer = TfRecordWriter::create_gzip(&path)?;
/// writer.write(b"a record")?;
/// assert_eq!(writer.finish()?, 1);
/// assert!(path.is_file());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct TfRecordWriter {
    path: PathBuf,
    output: Output,
    records: u64,
    /// Whether a write has failed, so that the file ends within a record.
    failed: bool,
}

#[derive(Debug)]
enum Output {
    Plain(BufWriter<NewFile>),
    Gzip(Box<GzEncoder<BufWriter<NewFile>>>),
}

impl TfRecordWriter {
    /// Creates an uncompressed file. Missing folders are created; an existing file is replaced when
    /// the new one is complete.
    pub fn create(path: impl AsRef<Path>) -> Result<TfRecordWriter> {
        TfRecordWriter::open(path.as_ref(), Output::Plain)
    }

    /// Creates a file compressed with gzip.
    pub fn create_gzip(path: impl AsRef<Path>) -> Result<TfRecordWriter> {
        TfRecordWriter::open(path.as_ref(), |file| {
            Output::Gzip(Box::new(GzEncoder::new(file, Compression::default())))
        })
    }

    fn open(
        path: &Path,
        output: impl FnOnce(BufWriter<NewFile>) -> Output,
    ) -> Result<TfRecordWriter> {
        let output = output(BufWriter::with_capacity(1 << 20, store::temporary_file(path)?));
        Ok(TfRecordWriter { path: path.to_owned(), output, records: 0, failed: false })
    }

    fn refuse_after_failure(&self) -> Result<()> {
        if self.failed {
            Err(Error::file(&self.path, "an earlier write failed; start again with a new writer"))
        } else {
            Ok(())
        }
    }

    /// Writes a record.
    ///
    /// # Errors
    /// A full disk. After a failed write, nothing more can be written, and the file cannot be
    /// finished.
    pub fn write(&mut self, record: &[u8]) -> Result<()> {
        self.refuse_after_failure()?;
        let length = (record.len() as u64).to_le_bytes();
        let parts = [
            &length[..],
            &masked_crc(&length).to_le_bytes(),
            record,
            &masked_crc(record).to_le_bytes(),
        ];
        let output: &mut dyn Write = match &mut self.output {
            Output::Plain(file) => file,
            Output::Gzip(file) => file.as_mut(),
        };
        let written = parts.into_iter().try_for_each(|part| output.write_all(part));
        self.failed = written.is_err();
        let doing = || format!("writing record {}", self.records);
        written.map_err(|source| Error::io(&self.path, &doing(), source))?;
        self.records += 1;
        Ok(())
    }

    /// Writes a `tf.train.Example` message as a record.
    pub fn write_example(&mut self, example: &Example) -> Result<()> {
        self.write(&example.encode())
    }

    /// Completes the file, gives it its name, and returns the number of records.
    pub fn finish(self) -> Result<u64> {
        self.refuse_after_failure()?;
        let TfRecordWriter { path, output, records, .. } = self;
        let refused = |source: io::Error| Error::io(&path, "cannot write the file", source);
        let buffered = match output {
            Output::Plain(file) => file,
            Output::Gzip(file) => file.finish().map_err(refused)?,
        };
        let file = buffered.into_inner().map_err(|error| refused(error.into_error()))?;
        store::keep(file, &path)?;
        Ok(records)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_a_failed_write_the_file_does_not_get_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.tfrecord");
        let mut writer = TfRecordWriter::create(&path).unwrap();
        writer.write(b"first").unwrap();
        // Writing to a file that is open for reading fails, as on a full disk.
        let readable = tempfile::NamedTempFile::new().unwrap();
        let file = store::temporary_file(&path)
            .unwrap()
            .with_file(std::fs::File::open(readable.path()).unwrap());
        writer.output = Output::Plain(BufWriter::with_capacity(16, file));
        assert!(writer.write(&[7; 100]).unwrap_err().to_string().contains("writing record 1"));
        assert!(
            writer.write(b"second").unwrap_err().to_string().contains("an earlier write failed")
        );
        assert!(writer.finish().unwrap_err().to_string().contains("an earlier write failed"));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
