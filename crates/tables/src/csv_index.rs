//! Finding the records of a CSV file: line ends in quotes do not end one, and all must have the same number of values.
//!
//! Not here: the values of a record (`csv`).

use std::collections::HashSet;
use std::io::BufRead;
use std::sync::Arc;

use csv_core::{ReadRecordResult, Reader};

use super::csv_options::CsvOptions;
use super::input::Input;
use super::records::{LONGEST, RecordFile};
use fulmen_data::Result;

/// Reads the names of the columns, and finds where each record begins.
pub(crate) fn index(input: &Arc<Input>, keep: bool, options: &CsvOptions) -> Result<(Vec<String>, RecordFile)> {
    input.refuse_compressed("`CsvOptions::stream`")?;
    let kept = match keep {
        true => Some(input.read_range(0, input.size() as usize)?),
        false => None,
    };
    let mut scan = Scan::new(options, input);
    let mut file = RecordFile::new(input, kept);
    let header = match file.kept.take() {
        Some(kept) => {
            let header = scan.all(&mut file, &kept[..], options)?;
            file.kept = Some(kept);
            header
        }
        None => {
            let reader = file.input.reader()?;
            scan.all(&mut file, reader, options)?
        }
    };
    file.finish();
    Ok((header, file))
}

/// Goes through a file, record by record.
pub(crate) struct Scan {
    parser: Reader,
    line: u64,
    offset: u64,
    comment: Option<u8>,
    output: Vec<u8>,
    ends: Vec<usize>,
}

/// What the first line says.
pub(crate) struct Header {
    pub(crate) names: Vec<String>,
    /// The first line's values and their ends, where it is a row.
    pub(crate) first_row: Option<(Vec<u8>, Vec<usize>)>,
    /// The byte and the line in which the first line begins that is not blank.
    pub(crate) start: (u64, u64),
}

impl Scan {
    pub(crate) fn new(options: &CsvOptions, file: &Input) -> Scan {
        Scan {
            parser: options.reader(options.delimiter_of(file)),
            line: 1,
            offset: 0,
            comment: options.comment,
            output: vec![0; 1 << 16],
            ends: vec![0; 1 << 10],
        }
    }

    /// The line that is reached, from 1.
    pub(crate) fn line(&self) -> u64 {
        self.line
    }

    /// Reads the first line.
    pub(crate) fn header(&mut self, file: &Input, reader: &mut impl BufRead, options: &CsvOptions) -> Result<Header> {
        self.skip_mark(file, reader)?;
        let (mut bytes, mut ends) = (Vec::new(), Vec::new());
        let more = self.skip_blank(file, reader)?;
        let start = (self.offset, self.line);
        if more {
            self.record(file, reader, Some((&mut bytes, &mut ends)))?;
        }
        let names = names(file, (&bytes, &ends), options)?;
        Ok(Header { names, first_row: (!options.header).then_some((bytes, ends)), start })
    }

    fn all(&mut self, file: &mut RecordFile, mut reader: impl BufRead, options: &CsvOptions) -> Result<Vec<String>> {
        let header = self.header(&file.input, &mut reader, options)?;
        if header.first_row.is_some() {
            file.push(header.start.0, header.start.1);
        }
        while self.skip_blank(&file.input, &mut reader)? {
            let (start, line) = (self.offset, self.line);
            let count = self.record(&file.input, &mut reader, None)?;
            self.check_count(&file.input, line, count, header.names.len())?;
            file.push(start, line);
        }
        Ok(header.names)
    }

    /// Refuses a record that has not as many values as the first line.
    pub(crate) fn check_count(&self, file: &Input, line: u64, count: usize, expected: usize) -> Result<()> {
        if count == expected {
            return Ok(());
        }
        let hint = match self.line > line + 1 {
            true => format!(" (it goes on to line {}: is a quote not closed?)", self.line - 1),
            false => String::new(),
        };
        let values = if count == 1 { "1 value".to_owned() } else { format!("{count} values") };
        Err(file.error(format!("line {line}: the record has {values}{hint}, expected {expected} as in the first line")))
    }

    /// Passes over the mark with which some programs begin a UTF-8 file.
    fn skip_mark(&mut self, file: &Input, reader: &mut impl BufRead) -> Result<()> {
        let buffer = reader.fill_buf().map_err(|source| file.reading_failed("the first line", source))?;
        if buffer.starts_with(&[0xef, 0xbb, 0xbf]) {
            reader.consume(3);
            self.offset = 3;
        }
        Ok(())
    }

    /// Goes to the next record: past line ends and comments. False at the end of the file.
    pub(crate) fn skip_blank(&mut self, file: &Input, reader: &mut impl BufRead) -> Result<bool> {
        let mut in_comment = false;
        loop {
            let line = self.line;
            let buffer = reader.fill_buf().map_err(|source| file.reading_failed(&format!("line {line}"), source))?;
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
            let found = skipped < buffer.len();
            reader.consume(skipped);
            self.offset += skipped as u64;
            if found {
                return Ok(true);
            }
        }
    }

    /// Reads over one record, and counts its values. Its bytes and their ends are kept if there is a place for them.
    pub(crate) fn record(
        &mut self,
        file: &Input,
        reader: &mut impl BufRead,
        mut keep: Option<(&mut Vec<u8>, &mut Vec<usize>)>,
    ) -> Result<usize> {
        let (mut values, begun) = (0, self.line);
        self.parser.set_line(begun);
        loop {
            let line = self.line;
            let buffer = reader.fill_buf().map_err(|source| file.reading_failed(&format!("line {line}"), source))?;
            let at_end = buffer.is_empty();
            // A line end ends any record that is not within quotes; csv_core takes the end of the file for one there too.
            let buffer = if at_end { b"\n" } else { buffer };
            let (result, mut read, written, ended) = self.parser.read_record(buffer, &mut self.output, &mut self.ends);
            if at_end {
                read = 0;
            }
            reader.consume(read);
            self.offset += read as u64;
            values += ended;
            if let Some((bytes, all)) = &mut keep {
                bytes.extend_from_slice(&self.output[..written]);
                all.extend_from_slice(&self.ends[..ended]);
                if bytes.len() as u64 > LONGEST {
                    return Err(file.error(format!(
                        "line {line}: a record has more than {LONGEST} bytes; is a quote not closed?"
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
                        "line {begun}: the record that begins here has a quote that is not closed before the file ends"
                    )));
                }
                _ => {}
            }
        }
    }
}

/// The names of the columns.
fn names(input: &Input, (bytes, ends): (&[u8], &[usize]), options: &CsvOptions) -> Result<Vec<String>> {
    let columns = ends.len();
    if columns == 0 {
        let what = if options.header { "a line with the names of the columns" } else { "lines of values" };
        return Err(input.error(format!("the file is empty; expected {what}")));
    }
    if !options.header {
        return Ok((0..columns).map(|column| column.to_string()).collect());
    }
    let mut names: Vec<String> = Vec::with_capacity(columns);
    let mut taken = HashSet::with_capacity(columns);
    let mut start = 0;
    for &end in ends {
        let name = std::str::from_utf8(&bytes[start..end])
            .map_err(|_| input.error(format!("the name of column {} is no UTF-8; convert the file", names.len())))?;
        let name = name.trim();
        if !name.is_empty() && !taken.insert(name) {
            return Err(input.error(format!("the header names two columns `{name}`")));
        }
        names.push(name.to_owned());
        start = end;
    }
    // A first line of numbers alone is a row: reading it as a header would lose it silently.
    if names.iter().all(|name| name.parse::<f64>().is_ok()) {
        return Err(input.error(
            "the first line holds only numbers, expected the names of the columns; if the file has no header, open it with \
             `Csv::options().header(false)`",
        ));
    }
    Ok(names)
}
