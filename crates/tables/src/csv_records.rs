//! The records of a CSV file. Line ends in quotes do not end a record, and all records must have
//! the same number of values.
//!
//! Out of scope: the files of a table, and their rows (`csv`).

use std::collections::HashSet;
use std::io::BufRead;
use std::sync::Arc;

use arrow_array::ArrayRef;
use arrow_array::builder::StringBuilder;
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use csv_core::{ReadRecordResult, Reader};
use fulmen_data::internal::quantity;

use super::block_reader::Block;
use super::csv_options::CsvOptions;
use super::source_file::SourceFile;
use super::text_blocks::{self, BLOCK, Format, IndexedFile, MAX_RECORD_BYTES};
use fulmen_data::{Error, Fingerprint, Result};

/// The properties that all files of a table share.
#[derive(Clone, Debug)]
pub(crate) struct CsvFormat {
    pub(crate) options: CsvOptions,
    pub(crate) names: Arc<[String]>,
    /// The columns that are read.
    selected: Vec<usize>,
    schema: SchemaRef,
}

impl CsvFormat {
    pub(crate) fn new(names: Vec<String>, options: CsvOptions) -> CsvFormat {
        let all: Vec<usize> = (0..names.len()).collect();
        let format = CsvFormat {
            options,
            names: names.into(),
            selected: Vec::new(),
            schema: Arc::new(Schema::empty()),
        };
        format.select(&all)
    }

    /// A block with the columns that are read.
    pub(crate) fn block(&self, file: &Arc<SourceFile>, records: Records) -> Result<Block> {
        let Records { bytes, ends, lines } = records;
        let mut not_utf8 = Vec::new();
        let value = |row: usize, column: usize| {
            let end = row * self.names.len() + column;
            &bytes[end.checked_sub(1).map_or(0, |previous| ends[previous])..ends[end]]
        };
        let columns = self.selected.iter().enumerate().map(|(position, &column)| -> ArrayRef {
            let size = (0..lines.len()).map(|row| value(row, column).len()).sum();
            let mut texts = StringBuilder::with_capacity(lines.len(), size);
            for row in 0..lines.len() {
                match std::str::from_utf8(value(row, column)) {
                    Ok(text) => texts
                        .append_option(Some(text).filter(|text| !self.options.is_missing(text))),
                    Err(_) => {
                        not_utf8.push((row, position));
                        texts.append_null();
                    }
                }
            }
            Arc::new(texts.finish())
        });
        let columns = columns.collect();
        text_blocks::block(file, lines, not_utf8, &self.schema, columns)
    }
}

impl Format for CsvFormat {
    fn decode(&self, file: &Arc<SourceFile>, line: u64, bytes: &[u8]) -> Result<Block> {
        let mut scan = Scan { line, ..Scan::new(&self.options, file, bytes.len() + 1) };
        let mut records = Records::default();
        match scan.fill(file, &mut &bytes[..], self.names.len(), usize::MAX, &mut records) {
            StopReason::Bad(error) | StopReason::Failed(error) => Err(error),
            StopReason::Full | StopReason::File => self.block(file, records),
        }
    }

    fn select(&self, columns: &[usize]) -> CsvFormat {
        let fields =
            columns.iter().map(|&column| Field::new(&self.names[column], DataType::Utf8, true));
        let schema = Arc::new(Schema::new(fields.collect::<Vec<_>>()));
        CsvFormat { selected: columns.to_vec(), schema, ..self.clone() }
    }

    fn fingerprint(&self, fingerprint: &mut Fingerprint) {
        self.options.fingerprint(fingerprint);
    }
}

/// The values of consecutive records.
#[derive(Default)]
pub(crate) struct Records {
    bytes: Vec<u8>,
    /// The end of each value.
    ends: Vec<usize>,
    /// The line in which each record starts.
    lines: Vec<u64>,
}

impl Records {
    pub(crate) fn len(&self) -> usize {
        self.lines.len()
    }
}

/// The reason why reading records stopped.
pub(crate) enum StopReason {
    /// The block is full.
    Full,
    /// The file ends.
    File,
    /// A record has too many or too few values; the next one can be read.
    Bad(Error),
    /// The file cannot be read further.
    Failed(Error),
}

pub(crate) const BUFFER: usize = 1 << 16;

/// Scans a file, record by record.
pub(crate) struct Scan {
    parser: Reader,
    line: u64,
    offset: u64,
    comment: Option<u8>,
    output: Vec<u8>,
    ends: Vec<usize>,
}

/// The content of the first line.
pub(crate) struct Header {
    pub(crate) names: Vec<String>,
    /// The first line, if it is a row.
    pub(crate) first_row: Records,
    /// The offset of the first record.
    start: u64,
}

impl Scan {
    /// Starts scanning a file, with this buffer size for decompression.
    pub(crate) fn new(options: &CsvOptions, file: &SourceFile, buffer: usize) -> Scan {
        Scan {
            parser: options.reader(options.delimiter_of(file)),
            line: 1,
            offset: 0,
            comment: options.comment,
            output: vec![0; buffer.min(BUFFER)],
            ends: vec![0; 1 << 10],
        }
    }

    /// Reads the first line.
    pub(crate) fn header(
        &mut self,
        file: &SourceFile,
        reader: &mut dyn BufRead,
        options: &CsvOptions,
    ) -> Result<Header> {
        self.skip_mark(file, reader)?;
        let mut first_row = Records::default();
        if self.skip_blank(file, reader)? {
            first_row.lines.push(self.line);
        }
        let start = self.offset;
        if first_row.len() > 0 {
            self.record(file, reader, Some(&mut first_row))?;
        }
        let names = names(file, &first_row, options)?;
        if options.header {
            first_row = Records::default();
        }
        Ok(Header { names, first_row, start })
    }

    /// Reads a whole file to find its blocks, and returns the names of its columns.
    pub(crate) fn index(
        file: &mut IndexedFile,
        reader: &mut dyn BufRead,
        options: &CsvOptions,
    ) -> Result<Vec<String>> {
        let input = Arc::clone(&file.input);
        input.refuse_compressed("`CsvOptions::stream`")?;
        let mut scan = Scan::new(options, &input, BUFFER);
        let Header { names, first_row, start } = scan.header(&input, reader, options)?;
        // Each block has an array per column, which has some overhead.
        let block = BLOCK.max((names.len() as u64) << 9).min(1 << 20);
        first_row.lines.iter().for_each(|&line| file.push(start, line, block));
        while scan.skip_blank(&input, reader)? {
            let start = scan.offset;
            let line = scan.line;
            let count = scan.record(&input, reader, None)?;
            scan.check_count(&input, line, count, names.len())?;
            file.push(start, line, block);
        }
        Ok(names)
    }

    /// Reads records of `columns` values until they take `size` bytes.
    pub(crate) fn fill(
        &mut self,
        file: &SourceFile,
        reader: &mut dyn BufRead,
        columns: usize,
        size: usize,
        records: &mut Records,
    ) -> StopReason {
        while records.bytes.len() + records.ends.len() < size {
            let bytes = records.bytes.len();
            let ends = records.ends.len();
            let end = match self.skip_blank(file, reader) {
                Ok(false) => StopReason::File,
                Ok(true) => {
                    let line = self.line;
                    match self.record(file, reader, Some(records)) {
                        Ok(count) => match self.check_count(file, line, count, columns) {
                            Ok(()) => {
                                records.lines.push(line);
                                continue;
                            }
                            Err(error) => StopReason::Bad(error),
                        },
                        Err(error) => StopReason::Failed(error),
                    }
                }
                Err(error) => StopReason::Failed(error),
            };
            records.bytes.truncate(bytes);
            records.ends.truncate(ends);
            return end;
        }
        StopReason::Full
    }

    /// Rejects a record whose number of values differs from that of the first line.
    fn check_count(
        &self,
        file: &SourceFile,
        line: u64,
        count: usize,
        expected: usize,
    ) -> Result<()> {
        if count == expected {
            return Ok(());
        }
        let hint = if self.line > line + 1 {
            format!(" (it goes on to line {}: is a quote not closed?)", self.line - 1)
        } else {
            String::new()
        };
        Err(file.error(format!(
            "line {line}: the record has {}{hint}, expected {expected} as in the first line",
            quantity(count, "value")
        )))
    }

    /// Skips a UTF-8 byte order mark.
    fn skip_mark(&mut self, file: &SourceFile, reader: &mut dyn BufRead) -> Result<()> {
        let buffer =
            reader.fill_buf().map_err(|source| file.read_error("the first line", source))?;
        if buffer.starts_with(&[0xef, 0xbb, 0xbf]) {
            reader.consume(3);
            self.offset = 3;
        }
        Ok(())
    }

    /// Moves to the next record, skipping blank lines and comments. Returns false at the end of the
    /// file.
    fn skip_blank(&mut self, file: &SourceFile, reader: &mut dyn BufRead) -> Result<bool> {
        let mut in_comment = false;
        loop {
            let line = self.line;
            let buffer = reader
                .fill_buf()
                .map_err(|source| file.read_error(&format!("line {line}"), source))?;
            if buffer.is_empty() {
                return Ok(false);
            }
            let mut skipped = 0;
            for &byte in buffer {
                match byte {
                    b'\n' => (self.line, in_comment) = (self.line + 1, false),
                    b'\r' => in_comment = false,
                    _ if in_comment => {}
                    byte if Some(byte) == self.comment => in_comment = true,
                    _ => break,
                }
                skipped += 1;
            }
            let line_starts = skipped < buffer.len();
            reader.consume(skipped);
            self.offset += skipped as u64;
            if line_starts {
                return Ok(true);
            }
        }
    }

    /// Reads one record, appends it to `keep` if that is given, and returns its number of values.
    fn record(
        &mut self,
        file: &SourceFile,
        reader: &mut dyn BufRead,
        mut keep: Option<&mut Records>,
    ) -> Result<usize> {
        let mut values = 0;
        let first_line = self.line;
        let start = keep.as_ref().map_or(0, |records| records.bytes.len());
        self.parser.set_line(first_line);
        loop {
            let line = self.line;
            let data = reader
                .fill_buf()
                .map_err(|source| file.read_error(&format!("line {line}"), source))?;
            let at_end = data.is_empty();
            // A line end ends any record outside quotes, and csv_core treats the end of the file
            // like a line end.
            let buffer = if at_end { b"\n" } else { data };
            let (result, mut read, written, ended) =
                self.parser.read_record(buffer, &mut self.output, &mut self.ends);
            if at_end {
                read = 0;
            }
            reader.consume(read);
            self.offset += read as u64;
            values += ended;
            if let Some(records) = &mut keep {
                records.bytes.extend_from_slice(&self.output[..written]);
                records.ends.extend(self.ends[..ended].iter().map(|end| start + end));
                if (records.bytes.len() - start) as u64 > MAX_RECORD_BYTES {
                    return Err(file.error(format!(
                        "line {line}: a record has more than {MAX_RECORD_BYTES} bytes; is a quote not closed?"
                    )));
                }
            }
            match result {
                ReadRecordResult::Record | ReadRecordResult::End => {
                    self.line = self.parser.line();
                    return Ok(values);
                }
                _ if at_end => {
                    return Err(file.error(format!(
                        "line {first_line}: the record that begins here has a quote that is not closed before the file ends"
                    )));
                }
                _ => {}
            }
        }
    }
}

/// The names of the columns.
fn names(input: &SourceFile, first: &Records, options: &CsvOptions) -> Result<Vec<String>> {
    let Records { bytes, ends, .. } = first;
    let columns = ends.len();
    if columns == 0 {
        let expected =
            if options.header { "a line with the names of the columns" } else { "lines of values" };
        return Err(input.error(format!("the file is empty; expected {expected}")));
    }
    if !options.header {
        return Ok((0..columns).map(|column| column.to_string()).collect());
    }
    let mut names: Vec<String> = Vec::with_capacity(columns);
    let mut used = HashSet::with_capacity(columns);
    let mut start = 0;
    for &end in ends {
        let name = std::str::from_utf8(&bytes[start..end])
            .map_err(|_| {
                input.error(format!(
                    "the name of column {} is not UTF-8; convert the file",
                    names.len()
                ))
            })?
            .trim();
        if !name.is_empty() && !used.insert(name) {
            return Err(input.error(format!("the header names two columns `{name}`")));
        }
        names.push(name.to_owned());
        start = end;
    }
    // A first line with only numbers is a row. As a header, it would be lost silently.
    if names.iter().all(|name| name.parse::<f64>().is_ok()) {
        return Err(input.error(
            "the first line holds only numbers, expected the names of the columns; if the file has no header, open it \
             with `Csv::options().header(false)`",
        ));
    }
    Ok(names)
}
