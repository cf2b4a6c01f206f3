//! CSV files as a table, by index.
//!
//! Not here: finding the records (`csv_index`), and reading in order (`csv_stream`).

use std::cell::RefCell;
use std::fmt;
use std::sync::Arc;

use csv_core::{ReadRecordResult, Reader};

use super::cell::{Cell, Mismatch, Value, text};
use super::column::{Column, ColumnRef, Positions};
use super::csv_index::index;
use super::csv_options::{CsvOptions, Dialect};
use super::csv_stream::CsvStream;
use super::input::{Input, expand};
use super::records::RecordFiles;
use super::table::{Cells, RowCells};
use fulmen_data::{Error, Fingerprint, Result, Source};
use fulmen_data::{internal::cores, internal::in_parallel};
use fulmen_files::Location;

/// Rows of CSV files by index.
///
/// Opening reads the files once, to find where each record begins (8 bytes of memory a row) and that all have the same
/// number of values. After that a row is read when it is asked for; small files are kept in memory. A UTF-8 mark, either kind of line
/// end, and line ends in quotes are read as they should be; blank lines are passed over. For columns as fields of samples see
/// [`Table`](crate::Table).
///
/// ```
/// use fulmen_tables::Csv;
/// use fulmen_data::Source;
///
/// let folder = tempfile::tempdir()?;
/// let path = folder.path().join("reviews.csv");
/// std::fs::write(&path, "stars,text\n5,\"good,\nvery good\"\n1,bad\n")?;
/// let reviews = Csv::open(&path)?;
/// assert_eq!(reviews.get(0)?.str("text")?, "good,\nvery good");
/// assert_eq!(reviews.get(1)?.get::<i32>("stars")?, 1);
/// assert!(reviews.origin(1).ends_with("reviews.csv, line 4"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Csv {
    files: RecordFiles,
    /// Of each file.
    delimiters: Vec<u8>,
    shared: Arc<Shared>,
    name: String,
}

/// What all rows know.
pub(crate) struct Shared {
    pub(crate) columns: Vec<Column>,
    positions: Positions,
    pub(crate) options: CsvOptions,
}

impl Shared {
    pub(crate) fn new(names: Vec<String>, options: CsvOptions) -> Arc<Shared> {
        let columns: Vec<Column> = names.into_iter().map(Column::written).collect();
        Arc::new(Shared { positions: Positions::of(&columns), columns, options })
    }
}

impl Csv {
    /// Opens a file, the files of a pattern, or all `.csv` and `.tsv` files under a folder: with a header, commas (tabs in
    /// `.tsv` files) and double quotes. For all else there are [`options`](Csv::options).
    ///
    /// # Errors
    /// Files that are not there, are empty, compressed (read those with [`CsvOptions::stream`]) or have other columns than
    /// the first; a record with more or fewer values than the first line, by its line.
    pub fn open(location: impl Into<Location>) -> Result<Csv> {
        Csv::options().open(location)
    }

    /// How the files are written.
    pub fn options() -> CsvOptions {
        CsvOptions::default()
    }

    /// The rows in order, as [`CsvOptions::stream`] reads them with no options: gzip and zstd too.
    pub fn stream(location: impl Into<Location>) -> Result<CsvStream> {
        Csv::options().stream(location)
    }

    pub(crate) fn open_with(location: Location, options: CsvOptions) -> Result<Csv> {
        options.check()?;
        let inputs = Input::open_all(&expand(&location, &[".csv", ".tsv"])?)?;
        let keep = inputs.iter().map(|input| input.size()).fold(0, u64::saturating_add) <= options.keep_below;
        let found = in_parallel(&inputs, cores(), |input| index(input, keep, &options))?;
        let Some((columns, first)) = found.first() else { return Err(location.error("there are no files")) };
        found.iter().try_for_each(|(found, file)| check_header(&file.input, found, &first.input, columns))?;
        let shared = Shared::new(columns.clone(), options);
        let delimiters = inputs.iter().map(|input| shared.options.delimiter_of(input)).collect();
        let files = RecordFiles::new(found.into_iter().map(|(_, file)| file).collect());
        Ok(Csv { files, delimiters, shared, name: location.to_string() })
    }
}

/// Refuses a file whose columns are not those of the first.
pub(crate) fn check_header(file: &Input, found: &[String], first: &Input, expected: &[String]) -> Result<()> {
    match found == expected {
        true => Ok(()),
        false => Err(file.error(format!(
            "the columns are {}, expected {} as in {}; the files of one table must have the same columns",
            found.join(", "),
            expected.join(", "),
            first.name()
        ))),
    }
}

impl fmt::Debug for Csv {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Csv").field("name", &self.name).field("rows", &self.files.len()).finish_non_exhaustive()
    }
}

/// The values of a record, and the memory to read the next one into.
#[derive(Default)]
pub(crate) struct Values {
    raw: Vec<u8>,
    bytes: Vec<u8>,
    ends: Vec<usize>,
    /// With what it was built for: building one takes longer than reading a row with it, and a clone of one does not
    /// work (csv-core 0.1.13 leaves out a table).
    parser: Option<(Dialect, Reader)>,
}

impl Values {
    fn cell<'a>(&'a self, column: usize, options: &CsvOptions) -> Cell<'a> {
        cell(&self.bytes, &self.ends, column, options)
    }
}

fn cell<'a>(bytes: &'a [u8], ends: &[usize], column: usize, options: &CsvOptions) -> Cell<'a> {
    let start = if column == 0 { 0 } else { ends[column - 1] };
    match std::str::from_utf8(&bytes[start..ends[column]]) {
        Ok(text) if options.is_missing(text) => Cell::Missing,
        Ok(text) => Cell::Written(text),
        Err(_) => Cell::Other("bytes that are no UTF-8 (convert the file)"),
    }
}

thread_local! {
    static VALUES: RefCell<Values> = RefCell::default();
}

/// A row while fields are written from it. Its memory is the thread's, and goes back to it.
#[doc(hidden)]
pub struct CsvLease<'a> {
    values: Values,
    shared: &'a Shared,
}

impl Drop for CsvLease<'_> {
    fn drop(&mut self) {
        VALUES.with_borrow_mut(|place| *place = std::mem::take(&mut self.values));
    }
}

impl RowCells for CsvLease<'_> {
    fn cell(&self, column: usize) -> Result<Cell<'_>, Mismatch> {
        Ok(self.values.cell(column, &self.shared.options))
    }
}

impl Cells for Csv {
    type Lease<'a> = CsvLease<'a>;

    fn schema(&self) -> &[Column] {
        &self.shared.columns
    }

    fn select_columns(&mut self, _columns: &[usize]) -> Result<()> {
        Ok(())
    }

    fn lease(&self, index: usize) -> Result<CsvLease<'_>> {
        let (number, record) = self.files.find(index)?;
        let file = self.files.file(number);
        let mut lease = CsvLease { values: VALUES.with_borrow_mut(std::mem::take), shared: &self.shared };
        let Values { raw, bytes, ends, parser } = &mut lease.values;
        let dialect = self.shared.options.dialect(self.delimiters[number]);
        let parser = match parser {
            Some((built, parser)) if *built == dialect => {
                parser.reset();
                parser
            }
            other => &mut other.insert((dialect, self.shared.options.reader(self.delimiters[number]))).1,
        };
        let input = file.read(record, raw)?;
        // A value is never longer than it is written. The memory stays, so that little of it is made zero.
        if bytes.len() <= input.len() {
            bytes.resize(input.len() + 1, 0);
        }
        let columns = self.shared.columns.len();
        ends.clear();
        ends.resize(columns + 1, 0);
        let (mut result, _, written, mut count) = parser.read_record(input, bytes, ends);
        if result == ReadRecordResult::InputEmpty {
            // The last line has no line end.
            let last = parser.read_record(b"\n", &mut bytes[written..], &mut ends[count..]);
            (result, count) = (last.0, count + last.3);
        }
        if result != ReadRecordResult::Record || count != columns {
            return Err(file.error(record, format!("there are not {columns} values any more: was the file changed?")));
        }
        Ok(lease)
    }

    fn place(&self) -> String {
        self.name.clone()
    }

    fn row_error(&self, index: usize, message: String) -> Error {
        match self.files.locate(index) {
            Ok((file, record)) => file.error(record, message),
            Err(error) => error,
        }
    }
}

impl Source for Csv {
    type Item = CsvRow;

    fn len(&self) -> usize {
        self.files.len()
    }

    fn get(&self, index: usize) -> Result<CsvRow> {
        let (file, record) = self.files.locate(index)?;
        let lease = self.lease(index)?;
        let columns = self.shared.columns.len();
        let ends = lease.values.ends[..columns].to_vec();
        let bytes = lease.values.bytes[..ends.last().copied().unwrap_or(0)].to_vec();
        Ok(CsvRow {
            bytes,
            ends,
            shared: Arc::clone(&self.shared),
            file: file.input.name().into(),
            line: file.line(record),
        })
    }

    fn origin(&self, index: usize) -> String {
        self.files.origin(index)
    }

    fn fingerprint(&self, fingerprint: &mut Fingerprint) -> Result<()> {
        self.shared.options.fingerprint(fingerprint);
        self.files.fingerprint(fingerprint)
    }
}

/// A row of a CSV file. Its columns go by name, or by position from 0.
#[derive(Clone)]
pub struct CsvRow {
    pub(crate) bytes: Vec<u8>,
    pub(crate) ends: Vec<usize>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) file: Arc<str>,
    pub(crate) line: u64,
}

impl CsvRow {
    /// The value of a column.
    ///
    /// # Errors
    /// A column that is not there, text that is no `T`, and no value unless `T` is an `Option`. The message names the file
    /// and the line.
    pub fn get<T: Value>(&self, column: impl Into<ColumnRef>) -> Result<T> {
        let (column, cell) = self.cell(column)?;
        T::from_cell(cell).map_err(|mismatch| self.mismatch(column, &mismatch))
    }

    /// The text of a column.
    pub fn str(&self, column: impl Into<ColumnRef>) -> Result<&str> {
        let (column, cell) = self.cell(column)?;
        text(&cell).map_err(|mismatch| self.mismatch(column, &mismatch))
    }

    /// Whether a column has no value here.
    pub fn is_missing(&self, column: impl Into<ColumnRef>) -> Result<bool> {
        Ok(self.cell(column)?.1.is_missing())
    }

    /// The names of the columns, in order.
    pub fn columns(&self) -> Vec<&str> {
        self.shared.columns.iter().map(|column| column.name.as_str()).collect()
    }

    /// Where the row stands, for messages: `iris.csv, line 17`.
    pub fn origin(&self) -> String {
        format!("{}, line {}", self.file, self.line)
    }

    fn cell(&self, column: impl Into<ColumnRef>) -> Result<(usize, Cell<'_>)> {
        let column = column.into().find(&self.shared.columns, &self.shared.positions, &self.file)?;
        Ok((column, cell(&self.bytes, &self.ends, column, &self.shared.options)))
    }

    fn mismatch(&self, column: usize, mismatch: &Mismatch) -> Error {
        let name = &self.shared.columns[column].name;
        Location::from(&*self.file).error(format!("line {}: column `{name}` {}", self.line, mismatch.message()))
    }
}

impl fmt::Debug for CsvRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut start = 0;
        let values = self.ends.iter().map(|&end| {
            let value = String::from_utf8_lossy(&self.bytes[start..end]).into_owned();
            start = end;
            value
        });
        f.debug_list().entries(values.collect::<Vec<_>>()).finish()
    }
}
