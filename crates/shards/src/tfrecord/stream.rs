//! The records of TFRecord files in sequence.
//!
//! Out of scope: records by index (`source`).

use std::io::{Cursor, Read};

use super::Example;
use super::record::{DEFAULT_LIMIT, HEADER, Records, length};
use crate::files::{FileItem, FileItems, FileList};
use fulmen_data::internal::fill;
use fulmen_data::{Fingerprint, Items, Result, Stream};
use fulmen_files::{Location, gunzip};

/// TFRecord files, on a local disk or in a store, read in sequence. They may be compressed with
/// gzip, which is detected from their content. Checksums are verified.
///
/// ```
/// use fulmen_shards::{Example, Feature, TfRecordWriter, TfRecords};
/// use fulmen_data::Stream;
///
/// let folder = tempfile::tempdir()?;
/// let mut writer = TfRecordWriter::create(folder.path().join("train.tfrecord"))?;
/// for label in 0..3i64 {
///     writer.write_example(&Example::new().with("label", Feature::Ints(vec![label])))?;
/// }
/// writer.finish()?;
///
/// let labels = TfRecords::open(folder.path().join("*.tfrecord"))?.examples().map(|example| example.int("label"));
/// let read: Vec<i64> = labels.items(0)?.map(|item| Ok(item?.item)).collect::<fulmen_data::Result<_>>()?;
/// assert_eq!(read, [0, 1, 2]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// The index of an item ([`StreamItem::index`](fulmen_data::StreamItem::index)) is the number of
/// its file in the list, times 2³², plus its number in the file. A record with a wrong checksum is
/// an error, and the next record follows; if a file cannot be read further, the next file follows.
#[derive(Clone, Debug)]
pub struct TfRecords {
    files: FileList,
    limit: u64,
}

impl TfRecords {
    /// Reads the files of a location or a pattern ([`Location::expand`]), in the order of the
    /// expansion.
    pub fn open(files: impl Into<Location>) -> Result<TfRecords> {
        TfRecords::from_list(files.into().expand()?)
    }

    /// Reads these files in this order.
    pub fn from_list(files: impl IntoIterator<Item = impl Into<Location>>) -> Result<TfRecords> {
        let files = FileList::new(files, "files to read; expected one TFRecord file")?;
        Ok(TfRecords { files, limit: DEFAULT_LIMIT })
    }

    /// Reads the files in a different order in each epoch, determined by the seed and the epoch.
    #[must_use]
    pub fn shuffle_files(mut self, seed: u64) -> TfRecords {
        self.files.seed = Some(seed);
        self
    }

    /// The maximum size of a record; 1 GiB unless set.
    #[must_use]
    pub fn max_record_bytes(mut self, bytes: u64) -> TfRecords {
        self.limit = bytes;
        self
    }

    /// Sets the number of records in all files together, if it is known.
    #[must_use]
    pub fn num_records(mut self, records: usize) -> TfRecords {
        self.files.len = Some(records);
        self
    }

    /// Parses the records as `tf.train.Example` messages.
    pub fn examples(self) -> impl Stream<Item = Example> {
        self.map(|record: Vec<u8>| Example::parse(&record))
    }

    /// The files.
    pub fn files(&self) -> &[Location] {
        &self.files.files
    }
}

impl Stream for TfRecords {
    type Item = Vec<u8>;

    fn len(&self) -> Option<usize> {
        self.files.len
    }

    fn items(&self, epoch: u64) -> Result<Items<Vec<u8>>> {
        let limit = self.limit;
        Ok(self.files.items(epoch, move |file| records(file, limit)))
    }

    fn fingerprint(&self, fingerprint: &mut Fingerprint) -> Result<()> {
        self.files.fingerprint("tfrecord files", self.describe(), fingerprint)
    }

    fn describe(&self) -> String {
        self.files.describe("TfRecords", "")
    }
}

fn records(file: &Location, limit: u64) -> Result<FileItems<Vec<u8>>> {
    let mut records = Records::new(file, open_records(file)?, limit);
    Ok(Box::new(std::iter::from_fn(move || {
        let item = records.next().transpose()?;
        let number = records.last();
        Some(item.map(|item| FileItem { number, position: format!("record {number}"), item }))
    })))
}

/// Opens a file, and decompresses it if necessary. A plain file may also start with gzip's two
/// magic bytes, but only as a part of a length with a valid checksum.
pub(super) fn open_records(location: &Location) -> Result<Box<dyn Read + Send>> {
    let mut reader = location.open()?;
    let mut start = [0; HEADER];
    let count = fill(&mut reader, &mut start).map_err(|source| location.read_error(source))?;
    let packed = start.starts_with(&[0x1f, 0x8b]) && (count < HEADER || length(&start).is_none());
    let reader = Cursor::new(start[..count].to_vec()).chain(reader);
    Ok(if packed { gunzip(reader) } else { Box::new(reader) })
}
