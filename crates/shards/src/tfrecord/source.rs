//! The records of local TFRecord files by index.
//!
//! Out of scope: files in a store or compressed with gzip, which are read in sequence (`stream`).

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;

use super::Example;
use super::record::{FOOTER, HEADER, check, header_error, length, record_error};
use crate::files::{open_local, read_part};
use fulmen_data::internal::Offsets;
use fulmen_data::{Error, Fingerprint, Result, Source};
use fulmen_data::{internal::cores, internal::in_parallel};
use fulmen_files::CachedFile;
use fulmen_files::Location;

/// Local, uncompressed TFRecord files as records by index. Opening reads the lengths of all records
/// once. The checksum of a record is verified when the record is read.
///
/// ```
/// use fulmen_data::Source;
/// use fulmen_shards::{TfRecordSource, TfRecordWriter};
///
/// let folder = tempfile::tempdir()?;
/// let mut writer = TfRecordWriter::create(folder.path().join("train.tfrecord"))?;
/// writer.write(b"first")?;
/// writer.write(b"second")?;
/// writer.finish()?;
///
/// let records = TfRecordSource::open(folder.path().join("train.tfrecord"))?;
/// assert_eq!((records.len(), records.get(1)?), (2, b"second".to_vec()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct TfRecordSource {
    files: Vec<IndexedFile>,
    offsets: Offsets,
}

#[derive(Debug)]
struct IndexedFile {
    location: Location,
    file: CachedFile,
    /// The start of each record, including its header, and the end of the last one.
    offsets: Vec<u64>,
}

impl TfRecordSource {
    /// Opens the files of a path or a pattern ([`Location::expand`]).
    ///
    /// # Errors
    /// Files in a store or compressed with gzip (use [`TfRecords`](crate::TfRecords)); a file that
    /// is damaged or truncated.
    pub fn open(files: impl Into<Location>) -> Result<TfRecordSource> {
        TfRecordSource::from_list(files.into().expand()?)
    }

    /// Opens these files.
    pub fn from_list(
        files: impl IntoIterator<Item = impl Into<Location>>,
    ) -> Result<TfRecordSource> {
        let files: Vec<Location> = files.into_iter().map(Into::into).collect();
        if files.is_empty() {
            return Err(Error::usage(
                "there are no files to read; expected at least one TFRecord file",
            ));
        }
        let numbered: Vec<(usize, Location)> = files.into_iter().enumerate().collect();
        let files = in_parallel(&numbered, cores(), |(number, location)| {
            IndexedFile::open(*number, location)
        })?;
        let offsets = Offsets::new(files.iter().map(|file| file.offsets.len() - 1));
        Ok(TfRecordSource { files, offsets })
    }

    /// Parses the records as `tf.train.Example` messages.
    pub fn examples(self) -> impl Source<Item = Example> {
        self.map(|record: Vec<u8>| Example::parse(&record))
    }
}

impl IndexedFile {
    fn open(number: usize, location: &Location) -> Result<IndexedFile> {
        let (file, size) = open_local(location, "records", "TfRecords")?;
        let mut offsets = vec![0];
        let mut offset = 0;
        while offset < size {
            let record = offsets.len() as u64 - 1;
            let cut_short = || {
                record_error(
                    location,
                    record,
                    offset,
                    "the file ends within it; copy or download it again",
                )
            };
            let mut header = [0; HEADER];
            if size - offset < HEADER as u64 {
                return Err(cut_short());
            }
            file.read_exact_at(&mut header, offset)
                .map_err(|source| location.read_error(source))?;
            if offset == 0 && header.starts_with(&[0x1f, 0x8b]) && length(&header).is_none() {
                return Err(location
                    .error("compressed records cannot be read by index; decompress it, or read it with TfRecords"));
            }
            let length =
                length(&header).ok_or_else(|| header_error(location, record, offset, &header))?;
            let end = length
                .checked_add((HEADER + FOOTER) as u64)
                .and_then(|length| length.checked_add(offset));
            offset = end.filter(|&end| end <= size).ok_or_else(cut_short)?;
            offsets.push(offset);
        }
        if size == 0 {
            return Err(location.error("the file is empty; expected a TFRecord file"));
        }
        Ok(IndexedFile {
            location: location.clone(),
            file: CachedFile::new(location.local().unwrap_or(Path::new("")), number),
            offsets,
        })
    }

    fn read(&self, number: usize, file: &File) -> Result<Vec<u8>> {
        let offset = self.offsets[number];
        let part = offset + HEADER as u64..self.offsets[number + 1];
        let mut record =
            read_part(&self.location, file, part, || format!("record {number}, at byte {offset}"))?;
        let size = record.len();
        let mut footer = [0; FOOTER];
        footer.copy_from_slice(&record[size - FOOTER..]);
        record.truncate(size - FOOTER);
        check(&self.location, number as u64, offset, &record, footer)?;
        Ok(record)
    }
}

impl Source for TfRecordSource {
    type Item = Vec<u8>;

    fn len(&self) -> usize {
        self.offsets.len()
    }

    fn get(&self, index: usize) -> Result<Vec<u8>> {
        match self.offsets.find(index) {
            Some((number, record)) => {
                let indexed_file = &self.files[number];
                indexed_file.file.with_file(|file| indexed_file.read(record, file))
            }
            None => {
                Err(Error::usage(format!("there is no record {index}; there are {}", self.len())))
            }
        }
    }

    fn origin(&self, index: usize) -> String {
        match self.offsets.find(index) {
            Some((file, number)) => format!("{}, record {number}", self.files[file].location),
            None => format!("record {index} of {}", self.len()),
        }
    }

    fn fingerprint(&self, fingerprint: &mut Fingerprint) -> Result<()> {
        fingerprint.add("tfrecord source", []);
        self.files.iter().try_for_each(|file| file.location.fingerprint(fingerprint))
    }
}
