//! The row groups of Parquet files as blocks of rows: a whole row group, or a part of a large one.
//!
//! Out of scope: the table (`parquet`), and the format, which the `parquet` crate reads.

use std::io::{self, BufReader, Read};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use arrow_array::RecordBatch;
use bytes::Bytes;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReader,
    ParquetRecordBatchReaderBuilder,
};
use parquet::errors::ParquetError;
use parquet::file::metadata::{PageIndexPolicy, ParquetMetaData};
use parquet::file::reader::{ChunkReader, Length};

use super::block_reader::{Block, BlockSource, RowNumbers, RowOrigin, Sequence, guard};
use super::parquet_depth;
use super::source_file::{SourceFile, fingerprint_inputs};
use fulmen_data::internal::catch_quietly;
use fulmen_data::{Error, Fingerprint, Result};

/// Row groups with more uncompressed bytes are read in parts of about this size.
const BLOCK_BYTES: u64 = 32 << 20;

/// The maximum number of rows in a block. Without it, a block of dictionary-encoded values could
/// become very large when it is decoded.
const BLOCK_ROWS: usize = 1 << 16;

/// A row group with more rows is rejected as damaged.
const MAX_GROUP_ROWS: i64 = 1 << 32;

/// The size of a read when the crate scans page headers.
const READ_AHEAD: usize = 16 << 10;

/// One file and its metadata.
pub(crate) struct ParquetFile {
    pub(crate) input: Arc<SourceFile>,
    pub(crate) metadata: ArrowReaderMetadata,
}

/// A file for the `parquet` crate. It keeps the first read error, because the crate keeps only the
/// text of the error.
#[derive(Clone)]
struct ParquetInput {
    input: Arc<SourceFile>,
    failed: Arc<Mutex<Option<Error>>>,
}

impl ParquetInput {
    fn new(input: &Arc<SourceFile>) -> ParquetInput {
        ParquetInput { input: Arc::clone(input), failed: Arc::default() }
    }

    /// Records a read error, and returns its text.
    fn record(&self, error: Error) -> String {
        let text = error.to_string();
        self.failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
        text
    }

    /// The read error, if there is one.
    fn failed(&self) -> Option<Error> {
        self.failed.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// The read error, if there is one; otherwise an error that says the file is damaged.
    fn error(&self, reason: impl std::fmt::Display) -> Error {
        self.failed().unwrap_or_else(|| damaged(&self.input, reason))
    }
}

impl Length for ParquetInput {
    fn len(&self) -> u64 {
        self.input.size()
    }
}

impl ChunkReader for ParquetInput {
    type T = BufReader<ParquetRead>;

    fn get_read(&self, start: u64) -> parquet::errors::Result<BufReader<ParquetRead>> {
        Ok(BufReader::with_capacity(READ_AHEAD, ParquetRead { bytes: self.clone(), next: start }))
    }

    fn get_bytes(&self, start: u64, length: usize) -> parquet::errors::Result<Bytes> {
        let read = self.input.read_range(start, length);
        read.map(Bytes::from).map_err(|error| ParquetError::General(self.record(error)))
    }
}

/// The bytes from an offset on.
struct ParquetRead {
    bytes: ParquetInput,
    next: u64,
}

impl Read for ParquetRead {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let input = &self.bytes.input;
        let count = input.size().saturating_sub(self.next).min(into.len() as u64) as usize;
        input
            .read_at(self.next, &mut into[..count])
            .map_err(|error| io::Error::other(self.bytes.record(error)))?;
        self.next += count as u64;
        Ok(count)
    }
}

impl ParquetFile {
    /// Reads the metadata of a file.
    pub(crate) fn open(input: &Arc<SourceFile>) -> Result<ParquetFile> {
        let mut start = [0; 4];
        if input.size() < 12 {
            return Err(input.error(format!(
                "the file has {} bytes, too few for a Parquet file; copy or download it again",
                input.size()
            )));
        }
        input.read_at(0, &mut start)?;
        if &start != b"PAR1" {
            return Err(input.error(format!(
                "not a Parquet file: it starts with the bytes {start:02x?}, expected `PAR1`"
            )));
        }
        parquet_depth::check(input)?;
        let options = ArrowReaderOptions::new().with_page_index_policy(PageIndexPolicy::Optional);
        let bytes = ParquetInput::new(input);
        let metadata = guard(input, || {
            ArrowReaderMetadata::load(&bytes, options).map_err(|error| bytes.error(error))
        })?;
        check_rows(metadata.metadata()).map_err(|reason| damaged(input, reason))?;
        Ok(ParquetFile { input: Arc::clone(input), metadata })
    }

    /// The positions of the columns in the file.
    fn mask(&self, columns: Option<&[usize]>) -> ProjectionMask {
        match columns {
            Some(columns) => {
                ProjectionMask::roots(self.metadata.parquet_schema(), columns.iter().copied())
            }
            None => ProjectionMask::all(),
        }
    }

    /// How many rows of a row group are read at a time.
    fn block_rows(&self, group: usize, mask: &ProjectionMask) -> usize {
        let group = self.metadata.metadata().row_group(group);
        let columns =
            group.columns().iter().enumerate().filter(|(leaf, _)| mask.leaf_included(*leaf));
        let bytes: u64 = columns.map(|(_, column)| column.uncompressed_size().max(0) as u64).sum();
        let rows = group.num_rows().max(0) as u64;
        let parts = bytes.div_ceil(BLOCK_BYTES).max(1);
        (rows.div_ceil(parts).max(1) as usize).min(BLOCK_ROWS)
    }

    /// A reader of some rows of a row group, `batch` at a time.
    fn reader(
        &self,
        group: usize,
        mask: &ProjectionMask,
        rows: Range<usize>,
        batch: usize,
    ) -> Result<RowGroupReader> {
        let input = ParquetInput::new(&self.input);
        let builder = ParquetRecordBatchReaderBuilder::new_with_metadata(
            input.clone(),
            self.metadata.clone(),
        )
        .with_row_groups(vec![group])
        .with_projection(mask.clone())
        .with_batch_size(batch)
        .with_offset(rows.start)
        .with_limit(rows.len());
        match builder.build() {
            Ok(batches) => Ok(RowGroupReader { batches, input }),
            Err(error) => Err(input.error(error)),
        }
    }

    /// The error for rows that cannot be decoded. The `parquet` crate does not report where the
    /// damage is, so this function reads each column separately until one fails.
    fn undecodable(
        &self,
        group: usize,
        mask: &ProjectionMask,
        end: usize,
        error: impl std::fmt::Display,
    ) -> Error {
        let schema = self.metadata.parquet_schema();
        let mut roots: Vec<usize> = (0..schema.num_columns())
            .filter(|&leaf| mask.leaf_included(leaf))
            .map(|leaf| schema.get_column_root_idx(leaf))
            .collect();
        roots.dedup();
        let fails = |root: usize| {
            let alone = ProjectionMask::roots(schema, [root]);
            guard(&self.input, || {
                let RowGroupReader { mut batches, input } =
                    self.reader(group, &alone, 0..end, end.min(BLOCK_ROWS))?;
                batches.try_for_each(|batch| batch.map(drop)).map_err(|error| input.error(error))
            })
            .is_err()
        };
        let column = roots
            .into_iter()
            .find(|&root| fails(root))
            .map(|root| format!(", column `{}`", schema.root_schema().get_fields()[root].name()));
        damaged(&self.input, format!("row group {group}{}: {error}", column.unwrap_or_default()))
    }
}

/// Rejects impossible numbers of rows, for which memory would be allocated.
fn check_rows(metadata: &ParquetMetaData) -> Result<(), String> {
    let mut total = 0i64;
    for (number, group) in metadata.row_groups().iter().enumerate() {
        let rows = group.num_rows();
        let sum = total.checked_add(rows).filter(|_| (0..=MAX_GROUP_ROWS).contains(&rows));
        total = sum.ok_or_else(|| format!("row group {number} claims to have {rows} rows"))?;
    }
    let claim = metadata.file_metadata().num_rows();
    if claim == total {
        Ok(())
    } else {
        Err(format!("it claims to have {claim} rows, but its row groups have {total}"))
    }
}

fn damaged(input: &SourceFile, error: impl std::fmt::Display) -> Error {
    let prefix = format!("{}: ", input.name());
    let error = error.to_string().replace(&prefix, "");
    input.error(format!(
        "the Parquet file is damaged or truncated ({error}); copy or download it again"
    ))
}

/// A part of a row group.
struct Part {
    file: usize,
    group: usize,
    /// The position of the rows in the row group.
    rows: Range<usize>,
    /// The position of the first row in the file.
    first_row: usize,
}

/// The row groups of several files, with the same columns of each file.
pub(crate) struct ParquetBlocks {
    files: Arc<Vec<ParquetFile>>,
    masks: Vec<ProjectionMask>,
    parts: Vec<Part>,
}

impl ParquetBlocks {
    pub(crate) fn new(
        files: Arc<Vec<ParquetFile>>,
        columns: Option<&[usize]>,
    ) -> Result<ParquetBlocks> {
        let masks: Vec<ProjectionMask> = files.iter().map(|file| file.mask(columns)).collect();
        let mut parts = Vec::new();
        for (number, (file, mask)) in files.iter().zip(&masks).enumerate() {
            let mut first_row = 0;
            for group in 0..file.metadata.metadata().num_row_groups() {
                let rows = file.metadata.metadata().row_group(group).num_rows() as usize;
                let size = file.block_rows(group, mask);
                let mut start = 0;
                while start < rows {
                    let end = rows.min(start + size);
                    parts.push(Part {
                        file: number,
                        group,
                        rows: start..end,
                        first_row: first_row + start,
                    });
                    start = end;
                }
                first_row += rows;
            }
        }
        Ok(ParquetBlocks { files, masks, parts })
    }
}

/// A reader of a row group, and its file.
struct RowGroupReader {
    batches: ParquetRecordBatchReader,
    input: ParquetInput,
}

impl ParquetBlocks {
    fn block(&self, part: &Part, batch: RecordBatch) -> Block {
        let bytes = batch.get_array_memory_size();
        Block::new(
            batch,
            RowOrigin::new(&self.files[part.file].input, RowNumbers::Rows(part.first_row)),
            bytes,
        )
    }

    /// The rows of this part, which is the next one in the row group.
    fn next(&self, part: &Part, reader: &mut RowGroupReader) -> Result<Option<RecordBatch>> {
        let RowGroupReader { batches, input } = reader;
        let file = &self.files[part.file];
        let mask = &self.masks[part.file];
        let undecodable = |reason: &dyn std::fmt::Display| {
            input
                .failed()
                .unwrap_or_else(|| file.undecodable(part.group, mask, part.rows.end, reason))
        };
        match catch_quietly(|| batches.next()) {
            Ok(batch) => batch.transpose().map_err(|error| undecodable(&error)),
            // The crate panics on some kinds of damage.
            Err(message) => Err(undecodable(&message)),
        }
    }
}

impl BlockSource for ParquetBlocks {
    fn block_rows(&self) -> Vec<usize> {
        self.parts.iter().map(|part| part.rows.len()).collect()
    }

    fn row_origin(&self, block: usize) -> Option<RowOrigin> {
        let part = &self.parts[block];
        Some(RowOrigin::new(&self.files[part.file].input, RowNumbers::Rows(part.first_row)))
    }

    fn decode(&self, block: usize) -> Result<Block> {
        let part = &self.parts[block];
        let file = &self.files[part.file];
        let mask = &self.masks[part.file];
        let rows = part.rows.len();
        let mut reader =
            guard(&file.input, || file.reader(part.group, mask, part.rows.clone(), rows))?;
        match self.next(part, &mut reader)? {
            Some(batch) => Ok(self.block(part, batch)),
            None => Err(damaged(
                &file.input,
                format!("row group {} has fewer rows than it declares", part.group),
            )),
        }
    }

    fn sequence(self: Arc<Self>) -> Sequence {
        Box::new(Parts { blocks: self, next: 0, reader: None })
    }

    fn select(&self, columns: &[usize]) -> Result<Arc<dyn BlockSource>> {
        Ok(Arc::new(ParquetBlocks::new(Arc::clone(&self.files), Some(columns))?))
    }

    fn fingerprint(&self, fingerprint: &mut Fingerprint) -> Result<()> {
        fingerprint_inputs(self.files.iter().map(|file| &*file.input), fingerprint)
    }
}

/// All parts in order. One reader reads all parts of a row group, so that it decodes each page
/// once. After an error, the rest of the row group is lost, and the next row group follows.
struct Parts {
    blocks: Arc<ParquetBlocks>,
    next: usize,
    reader: Option<RowGroupReader>,
}

impl Parts {
    fn read(&mut self, part: &Part) -> Result<RecordBatch> {
        let file = &self.blocks.files[part.file];
        let mask = &self.blocks.masks[part.file];
        if part.rows.start == 0 {
            let rows = file.metadata.metadata().row_group(part.group).num_rows() as usize;
            self.reader = Some(guard(&file.input, || {
                file.reader(part.group, mask, 0..rows, part.rows.len())
            })?);
        }
        match self
            .reader
            .as_mut()
            .map(|reader| self.blocks.next(part, reader))
            .transpose()?
            .flatten()
        {
            Some(batch) if batch.num_rows() == part.rows.len() => Ok(batch),
            _ => Err(damaged(
                &file.input,
                format!("row group {} does not have the rows that it declares", part.group),
            )),
        }
    }
}

impl Iterator for Parts {
    type Item = Result<(usize, Block)>;

    fn next(&mut self) -> Option<Self::Item> {
        let blocks = Arc::clone(&self.blocks);
        let number = self.next;
        let part = blocks.parts.get(self.next)?;
        let read = self.read(part);
        let group = (part.file, part.group);
        let is_lost = |part: &&Part| read.is_err() && (part.file, part.group) == group;
        self.next += 1 + blocks.parts[number + 1..].iter().take_while(is_lost).count();
        Some(read.map(|batch| (number, blocks.block(part, batch))))
    }
}

#[cfg(test)]
mod tests {
    use parquet::file::metadata::FileMetaData;
    use parquet::schema::types::{SchemaDescriptor, Type};

    use super::*;

    #[test]
    fn a_file_has_the_rows_of_its_groups() {
        let schema = Arc::new(Type::group_type_builder("schema").build().unwrap());
        let schema = Arc::new(SchemaDescriptor::new(schema));
        let without_groups = |rows| {
            let file = FileMetaData::new(1, rows, None, None, Arc::clone(&schema), None);
            check_rows(&ParquetMetaData::new(file, Vec::new()))
        };
        assert_eq!(without_groups(0), Ok(()));
        assert_eq!(
            without_groups(5).unwrap_err(),
            "it claims to have 5 rows, but its row groups have 0"
        );
    }
}
