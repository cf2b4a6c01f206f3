//! CSV files as rows in order, plain or compressed.
//!
//! Not here: rows by index (`csv`).

use std::collections::VecDeque;
use std::fmt;
use std::io::BufRead;
use std::sync::Arc;

use super::column::Column;
use super::csv::{CsvRow, Shared, check_header};
use super::csv_index::Scan;
use super::csv_options::CsvOptions;
use super::input::{Input, expand};
use crate::{Fingerprint, Items, Location, Result, Stream, StreamItem};

/// Rows of CSV files in order. Made by [`Csv::stream`](crate::Csv::stream) and [`CsvOptions::stream`].
///
/// ```
/// use fulmen_data::{Csv, Stream};
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
    files: Arc<Vec<Input>>,
    shared: Arc<Shared>,
}

impl CsvStream {
    pub(crate) fn open_with(location: &Location, options: CsvOptions) -> Result<CsvStream> {
        options.check()?;
        let files =
            Input::open_all(&expand(location, &[".csv", ".tsv", ".csv.gz", ".tsv.gz", ".csv.zst", ".tsv.zst"])?)?;
        let Some(first) = files.first() else { return Err(location.error("there are no files")) };
        let columns = Scan::new(&options).header(first, &mut first.decompressed()?, &options)?.names;
        let columns = columns.into_iter().map(Column::written).collect();
        Ok(CsvStream { files: Arc::new(files), shared: Arc::new(Shared { columns, options }) })
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
            waiting: (0..self.files.len()).collect(),
            rows: None,
            index: 0,
        }))
    }

    fn fingerprint(&self, fingerprint: &mut Fingerprint) -> Result<()> {
        self.shared.options.fingerprint(fingerprint);
        self.files.iter().try_for_each(|file| file.fingerprint(fingerprint))
    }
}

struct Walk {
    files: Arc<Vec<Input>>,
    shared: Arc<Shared>,
    /// Files that are not yet read.
    waiting: VecDeque<usize>,
    rows: Option<Rows>,
    index: u64,
}

/// A file that is being read.
struct Rows {
    number: usize,
    name: Arc<str>,
    scan: Scan,
    reader: Box<dyn BufRead + Send>,
    /// The first line, where it is a row, and its number.
    first: Option<(Vec<u8>, Vec<usize>)>,
    first_line: u64,
}

impl Walk {
    fn open(&self, number: usize) -> Result<Rows> {
        let file = &self.files[number];
        let mut scan = Scan::new(&self.shared.options);
        let mut reader = file.decompressed()?;
        let header = scan.header(file, &mut reader, &self.shared.options)?;
        let expected: Vec<String> = self.shared.columns.iter().map(|column| column.name.clone()).collect();
        check_header(file, &header.names, &self.files[0], &expected)?;
        Ok(Rows { number, name: file.name().into(), scan, reader, first: header.first_row, first_line: header.start.1 })
    }

    fn read(&mut self) -> Result<Option<CsvRow>> {
        loop {
            if self.rows.is_none() {
                let Some(next) = self.waiting.pop_front() else { return Ok(None) };
                self.rows = Some(self.open(next)?);
            }
            let Some(rows) = &mut self.rows else { return Ok(None) };
            let file = &self.files[rows.number];
            let row = |bytes, ends, line| CsvRow {
                bytes,
                ends,
                shared: Arc::clone(&self.shared),
                file: Arc::clone(&rows.name),
                line,
            };
            if let Some((bytes, ends)) = rows.first.take() {
                return Ok(Some(row(bytes, ends, rows.first_line)));
            }
            if !rows.scan.skip_blank(file, &mut rows.reader)? {
                self.rows = None;
                continue;
            }
            let line = rows.scan.line();
            let mut values = (Vec::new(), Vec::new());
            let count = rows.scan.record(file, &mut rows.reader, Some(&mut values))?;
            rows.scan.check_count(file, line, count, self.shared.columns.len())?;
            return Ok(Some(row(values.0, values.1, line)));
        }
    }
}

impl Iterator for Walk {
    type Item = Result<StreamItem<CsvRow>>;

    fn next(&mut self) -> Option<Self::Item> {
        let item = match self.read() {
            Ok(row) => row?,
            Err(error) => {
                self.waiting.clear();
                self.rows = None;
                return Some(Err(error));
            }
        };
        let index = self.index;
        self.index += 1;
        Some(Ok(StreamItem { index, origin: item.origin(), item }))
    }
}
