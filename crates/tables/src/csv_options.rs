//! Options for CSV files: delimiters, quotes, missing values.
//!
//! Out of scope: parsing (`csv`, `csv_records`).

use super::csv::{self, Csv};
use super::row_stream::RowStream;
use super::source_file::SourceFile;
use fulmen_data::{Error, Fingerprint, Result};
use fulmen_files::Location;

/// The default markers of missing values, as in `pandas`.
const MISSING: [&str; 19] = [
    "", "NA", "N/A", "n/a", "#N/A", "#N/A N/A", "#NA", "<NA>", "NULL", "null", "None", "NaN",
    "nan", "-NaN", "-nan", "1.#IND", "-1.#IND", "1.#QNAN", "-1.#QNAN",
];

/// The options for CSV files. Made by [`Csv::options`].
///
/// ```
/// use fulmen_tables::Csv;
/// use fulmen_data::Source;
///
/// let folder = tempfile::tempdir()?;
/// let path = folder.path().join("points.tsv");
/// std::fs::write(&path, "1\t?\n2\t5\n")?;
/// let points = Csv::options().delimiter(b'\t').header(false).missing(["?"]).open(&path)?;
/// assert_eq!(points.get(0)?.get::<Option<f32>>(1)?, None);
/// assert_eq!(points.get(1)?.get::<f32>(1)?, 5.0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct CsvOptions {
    delimiter: Option<u8>,
    pub(crate) quote: Option<u8>,
    pub(crate) comment: Option<u8>,
    pub(crate) header: bool,
    pub(crate) missing: Vec<String>,
    pub(crate) keep_below: u64,
}

impl Default for CsvOptions {
    fn default() -> CsvOptions {
        CsvOptions {
            delimiter: None,
            quote: Some(b'"'),
            comment: None,
            header: true,
            missing: MISSING.map(str::to_owned).into(),
            keep_below: super::text_blocks::MAX_KEPT_BYTES,
        }
    }
}

impl CsvOptions {
    /// The delimiter; by default a tab in files whose names end in `.tsv`, otherwise a comma.
    pub fn delimiter(mut self, delimiter: u8) -> CsvOptions {
        self.delimiter = Some(delimiter);
        self
    }

    /// The quote character around values with delimiters or line ends; doubled inside such a value.
    /// A double quote by default. With `None`, no character quotes values.
    pub fn quote(mut self, quote: impl Into<Option<u8>>) -> CsvOptions {
        self.quote = quote.into();
        self
    }

    /// The prefix of comment lines, which are skipped. By default, there are no comments.
    pub fn comment(mut self, comment: u8) -> CsvOptions {
        self.comment = Some(comment);
        self
    }

    /// Whether the first line has the names of the columns; on by default. Otherwise the names are
    /// the positions, `0`, `1` and so on.
    pub fn header(mut self, header: bool) -> CsvOptions {
        self.header = header;
        self
    }

    /// The markers of missing values. By default those of pandas: the empty string, `NA`, `N/A`,
    /// `n/a`, `#N/A`, `#N/A N/A`, `#NA`, `<NA>`, `NULL`, `null`, `None`, `NaN`, `nan`, `-NaN`,
    /// `-nan`, `1.#IND`, `-1.#IND`, `1.#QNAN` and `-1.#QNAN`. Whatever the markers are, `nan` is
    /// missing where it is read as a number.
    pub fn missing<T: Into<String>>(mut self, markers: impl IntoIterator<Item = T>) -> CsvOptions {
        self.missing = markers.into_iter().map(Into::into).collect();
        self
    }

    /// Files with up to this many bytes in total are kept in memory; 64 MiB by default. In larger
    /// files, a block of rows is read when one of its rows is requested.
    pub fn keep_below(mut self, bytes: u64) -> CsvOptions {
        self.keep_below = bytes;
        self
    }

    /// Opens a file, the files that match a pattern, or all `.csv` and `.tsv` files in a folder,
    /// for reading rows by index.
    pub fn open(self, location: impl Into<Location>) -> Result<Csv> {
        Csv::open_with(location.into(), self)
    }

    /// Like [`open`](CsvOptions::open), for reading rows in sequence. The files may be compressed
    /// with gzip or zstd.
    pub fn stream(self, location: impl Into<Location>) -> Result<RowStream> {
        csv::stream(&location.into(), self)
    }

    pub(crate) fn check(&self) -> Result<()> {
        let special = [Some(self.delimiter.unwrap_or(b',')), self.quote, self.comment];
        let clash = (0..3).any(|i| special[i].is_some() && special[i + 1..].contains(&special[i]));
        if clash || special.iter().flatten().any(|byte| matches!(byte, b'\n' | b'\r')) {
            Err(Error::usage(
                "delimiter, quote and comment of CSV must differ, and must not be line ends",
            ))
        } else {
            Ok(())
        }
    }

    pub(crate) fn is_missing(&self, value: &str) -> bool {
        self.missing.iter().any(|marker| marker == value)
    }

    /// The delimiter of a file.
    pub(crate) fn delimiter_of(&self, file: &SourceFile) -> u8 {
        let by_name = || if file.is_named(&[".tsv", ".tsv.gz", ".tsv.zst"]) { b'\t' } else { b',' };
        self.delimiter.unwrap_or_else(by_name)
    }

    pub(crate) fn reader(&self, delimiter: u8) -> csv_core::Reader {
        let mut builder = csv_core::ReaderBuilder::new();
        builder.delimiter(delimiter).comment(self.comment);
        match self.quote {
            Some(quote) => builder.quote(quote),
            None => builder.quoting(false),
        };
        builder.build()
    }

    pub(crate) fn fingerprint(&self, fingerprint: &mut Fingerprint) {
        fingerprint.add(
            "csv",
            format!("{:?} {:?} {:?} {}", self.delimiter, self.quote, self.comment, self.header),
        );
        self.missing.iter().for_each(|marker| fingerprint.add("missing", marker));
    }
}
