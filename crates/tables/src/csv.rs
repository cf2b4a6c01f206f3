//! CSV files as a table, by index and in sequence.
//!
//! Out of scope: the records (`csv_records`), and the index and cache of blocks (`text_blocks`,
//! `block_reader`).

use std::io::BufRead;
use std::sync::Arc;

use super::block_reader::{Block, BlockReader, Sequence};
use super::column::{Column, Positions};
use super::csv_options::CsvOptions;
use super::csv_records::{BUFFER, CsvFormat, Records, Scan, StopReason};
use super::features::HfFeatures;
use super::row_stream::{RowStream, SequentialBlocks};
use super::source_file::{SourceFile, describe, expand, fingerprint_inputs};
use super::table::table_of_rows;
use super::text_blocks::{BLOCK, Format, TextBlocks, index};
use fulmen_data::{Error, Fingerprint, Result};
use fulmen_files::Location;

/// The rows of CSV files, read by index.
///
/// Opening reads the files once, to find the start of each block of about 8 KiB of rows and to
/// check that all rows have the same number of values. After that, a block is read when one of its
/// rows is requested, and recently used blocks are cached ([`cache_bytes`](Csv::cache_bytes)).
/// Small files are kept in memory. UTF-8 byte order marks, LF and CRLF line ends, and line ends in
/// quotes are handled; blank lines are skipped. To use columns as fields of samples, see
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
#[derive(Debug)]
#[must_use]
pub struct Csv {
    rows: BlockReader,
}

table_of_rows!(Csv);

fn columns(names: &[String]) -> Vec<Column> {
    names.iter().cloned().map(Column::untyped).collect()
}

impl Csv {
    /// Opens a file, the files that match a pattern, or all `.csv` and `.tsv` files in a folder.
    /// The format has a header, commas (tabs in `.tsv` files) and double quotes. For other formats
    /// see [`options`](Csv::options).
    ///
    /// # Errors
    /// Files that do not exist, are empty, are compressed (read them with [`CsvOptions::stream`])
    /// or have other columns than the first file; a record with more or fewer values than the first
    /// line (the error has its line number).
    pub fn open(location: impl Into<Location>) -> Result<Csv> {
        Csv::options().open(location)
    }

    /// Options for other formats.
    pub fn options() -> CsvOptions {
        CsvOptions::default()
    }

    /// The rows in sequence, like [`CsvOptions::stream`] with the default options. The files may be
    /// compressed with gzip or zstd.
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
    pub fn stream(location: impl Into<Location>) -> Result<RowStream> {
        Csv::options().stream(location)
    }

    pub(crate) fn open_with(location: Location, options: CsvOptions) -> Result<Csv> {
        options.check()?;
        let inputs = SourceFile::open_all(&expand(&location, &[".csv", ".tsv"])?)?;
        let files =
            index(&inputs, options.keep_below, |file, reader| Scan::index(file, reader, &options))?;
        let Some((first, names)) = files.first() else {
            return Err(location.error("there are no files"));
        };
        files.iter().try_for_each(|(file, file_names)| {
            check_header(&file.input, file_names, &first.input, names)
        })?;
        let columns = columns(names);
        let format = CsvFormat::new(names.clone(), options);
        let blocks = TextBlocks::new(files.into_iter().map(|(file, _)| file).collect(), format);
        Ok(Csv {
            rows: BlockReader::new(
                Arc::new(blocks),
                columns,
                HfFeatures::default(),
                location.to_string(),
            ),
        })
    }
}

/// Rejects a file whose columns differ from those of the first file.
fn check_header(
    file: &SourceFile,
    names: &[String],
    first: &SourceFile,
    expected: &[String],
) -> Result<()> {
    if names == expected {
        Ok(())
    } else {
        Err(file.error(format!(
            "the columns are {}, expected {} as in {}; the files of one table must have the same columns",
            names.join(", "),
            expected.join(", "),
            first.name()
        )))
    }
}

/// The rows of files in sequence; the files may be compressed.
pub(crate) fn stream(location: &Location, options: CsvOptions) -> Result<RowStream> {
    options.check()?;
    let files = SourceFile::open_all(&expand(
        location,
        &[".csv", ".tsv", ".csv.gz", ".tsv.gz", ".csv.zst", ".tsv.zst"],
    )?)?;
    let Some(first) = files.first() else { return Err(location.error("there are no files")) };
    let names = Scan::new(&options, first, BUFFER)
        .header(first, &mut *first.decompressed()?, &options)?
        .names;
    let positions = Positions::new(&columns(&names));
    Ok(RowStream::new(
        Arc::new(CsvFiles { files, format: CsvFormat::new(names, options) }),
        Arc::new(positions),
    ))
}

struct CsvFiles {
    files: Vec<Arc<SourceFile>>,
    format: CsvFormat,
}

impl SequentialBlocks for CsvFiles {
    fn blocks(self: Arc<Self>) -> Sequence {
        Box::new(CsvBlocks { csv: self, next: 0, open: None, pending_error: None, index: 0 })
    }

    fn len(&self) -> Option<usize> {
        None
    }

    fn fingerprint(&self, fingerprint: &mut Fingerprint) -> Result<()> {
        self.format.fingerprint(fingerprint);
        fingerprint_inputs(self.files.iter().map(|file| &**file), fingerprint)
    }

    fn describe(&self) -> String {
        describe("RowStream", &self.files)
    }
}

/// The blocks of files in sequence.
struct CsvBlocks {
    csv: Arc<CsvFiles>,
    /// The next file to open.
    next: usize,
    open: Option<OpenFile>,
    /// The error to return after the last block, and the number of records that it replaces.
    pending_error: Option<(Error, usize)>,
    /// The number of the next record.
    index: usize,
}

/// The current file.
struct OpenFile {
    file: Arc<SourceFile>,
    scan: Scan,
    reader: Box<dyn BufRead + Send>,
    /// The first line, if it is a row.
    first_row: Records,
}

impl CsvFiles {
    fn open(&self, file: &Arc<SourceFile>) -> Result<OpenFile> {
        let mut scan = Scan::new(&self.format.options, file, BUFFER);
        let mut reader = file.decompressed()?;
        let header = scan.header(file, &mut *reader, &self.format.options)?;
        check_header(file, &header.names, &self.files[0], &self.format.names)?;
        Ok(OpenFile { file: Arc::clone(file), scan, reader, first_row: header.first_row })
    }
}

impl Iterator for CsvBlocks {
    type Item = Result<(usize, Block)>;

    fn next(&mut self) -> Option<Self::Item> {
        let csv = Arc::clone(&self.csv);
        loop {
            if let Some((error, records)) = self.pending_error.take() {
                self.index += records;
                return Some(Err(error));
            }
            let Some(open) = &mut self.open else {
                let file = csv.files.get(self.next)?;
                self.next += 1;
                match csv.open(file) {
                    Ok(open) => self.open = Some(open),
                    Err(error) => return Some(Err(error)),
                }
                continue;
            };
            let mut records = std::mem::take(&mut open.first_row);
            let end = open.scan.fill(
                &open.file,
                &mut *open.reader,
                csv.format.names.len(),
                BLOCK as usize,
                &mut records,
            );
            let file = Arc::clone(&open.file);
            match end {
                StopReason::Full => {}
                StopReason::File => self.open = None,
                // The stream can continue with the next record.
                StopReason::Bad(error) => self.pending_error = Some((error, 1)),
                StopReason::Failed(error) => {
                    (self.open, self.pending_error) = (None, Some((error, 0)))
                }
            }
            if records.len() > 0 {
                let first = self.index;
                self.index += records.len();
                return Some(csv.format.block(&file, records).map(|block| (first, block)));
            }
        }
    }
}
