//! CSV files as rows in order, plain or compressed.
//!
//! Not here: rows by index (`csv`).

use std::fmt;
use std::io::BufRead;
use std::sync::Arc;

use super::csv::{CsvRow, Shared, check_header};
use super::csv_index::Scan;
use super::csv_options::CsvOptions;
use super::input::{Input, describe, expand, fingerprint_inputs};
use fulmen_data::{Fingerprint, Items, Result, Stream, StreamItem};
use fulmen_files::Location;

/// Rows of CSV files in order. Made by [`Csv::stream`](crate::Csv::stream) and [`CsvOptions::stream`].
///
/// After a record with more or fewer values than the first line comes the next record; after a file that cannot be read
/// further, the next file.
///
/// ```
/// use fulmen_tables::Csv;
/// use fulmen_data::Stream;
///
/// let folder = tempfile::tempdir()?;
/// let path = folder.path().join("points.csv");
/// std::fs::write(&path, "x,y\n1,2\n3,4\n")?;
/// let rows = Csv::stream(&path)?;
/// let xs = rows.items(0)?.map(|row| row?.item.get::<f32>("x")).collect::<Result<Vec<_>, _>>()?;
/// assert_eq!(xs, [1.0, 3.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct CsvStream {
    files: Arc<[Arc<Input>]>,
    shared: Arc<Shared>,
}

impl CsvStream {
    pub(crate) fn open_with(location: &Location, options: CsvOptions) -> Result<CsvStream> {
        options.check()?;
        let files =
            Input::open_all(&expand(location, &[".csv", ".tsv", ".csv.gz", ".tsv.gz", ".csv.zst", ".tsv.zst"])?)?;
        let Some(first) = files.first() else { return Err(location.error("there are no files")) };
        let columns = Scan::new(&options, first).header(first, &mut first.decompressed()?, &options)?.names;
        Ok(CsvStream { files: files.into(), shared: Shared::new(columns, options) })
    }
}

impl fmt::Debug for CsvStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CsvStream").field("files", &self.files).finish_non_exhaustive()
    }
}

impl Stream for CsvStream {
    type Item = CsvRow;

    fn len(&self) -> Option<usize> {
        None
    }

    fn items(&self, _epoch: u64) -> Result<Items<CsvRow>> {
        Ok(Box::new(Walk {
            files: Arc::clone(&self.files),
            shared: Arc::clone(&self.shared),
            next: 0,
            rows: None,
            index: 0,
        }))
    }

    fn fingerprint(&self, fingerprint: &mut Fingerprint) -> Result<()> {
        self.shared.options.fingerprint(fingerprint);
        fingerprint_inputs(self.files.iter().map(|file| &**file), fingerprint)
    }

    fn describe(&self) -> String {
        describe("CsvStream", &self.files)
    }
}

struct Walk {
    files: Arc<[Arc<Input>]>,
    shared: Arc<Shared>,
    /// The file to be opened next.
    next: usize,
    /// Of the file before it.
    rows: Option<Rows>,
    index: u64,
}

/// A file that is being read.
struct Rows {
    file: Arc<Input>,
    name: Arc<str>,
    scan: Scan,
    reader: Box<dyn BufRead + Send>,
    /// The first line, where it is a row, and its number.
    first: Option<(Vec<u8>, Vec<usize>)>,
    first_line: u64,
}

impl Walk {
    fn open(&self, file: &Arc<Input>) -> Result<Rows> {
        let mut scan = Scan::new(&self.shared.options, file);
        let mut reader = file.decompressed()?;
        let header = scan.header(file, &mut reader, &self.shared.options)?;
        let expected: Vec<String> = self.shared.columns.iter().map(|column| column.name.clone()).collect();
        check_header(file, &header.names, &self.files[0], &expected)?;
        let (first, first_line) = (header.first_row, header.start.1);
        Ok(Rows { file: Arc::clone(file), name: file.name().into(), scan, reader, first, first_line })
    }

    /// The next record. A file that cannot be read further is let go.
    fn read(&mut self) -> Result<Option<CsvRow>> {
        loop {
            let mut rows = match self.rows.take() {
                Some(rows) => rows,
                None => {
                    let Some(file) = self.files.get(self.next) else { return Ok(None) };
                    self.next += 1;
                    self.open(file)?
                }
            };
            let (mut bytes, mut ends) = (Vec::new(), Vec::new());
            let mut line = rows.first_line;
            let mut checked = Ok(());
            if let Some(first) = rows.first.take() {
                (bytes, ends) = first;
            } else if rows.scan.skip_blank(&rows.file, &mut rows.reader)? {
                line = rows.scan.line();
                let count = rows.scan.record(&rows.file, &mut rows.reader, Some((&mut bytes, &mut ends)))?;
                checked = rows.scan.check_count(&rows.file, line, count, self.shared.columns.len());
            } else {
                continue;
            }
            let (shared, file) = (Arc::clone(&self.shared), Arc::clone(&rows.name));
            self.index += 1;
            self.rows = Some(rows);
            return checked.map(|()| Some(CsvRow { bytes, ends, shared, file, line }));
        }
    }
}

impl Iterator for Walk {
    type Item = Result<StreamItem<CsvRow>>;

    fn next(&mut self) -> Option<Self::Item> {
        let index = self.index;
        let item = self.read().transpose()?;
        Some(item.map(|item| StreamItem { index, origin: item.origin(), item }))
    }
}
