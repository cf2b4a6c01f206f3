//! The rows of an Arrow table in blocks. A block is decoded when one of its rows is read; recently
//! used blocks are cached.
//!
//! Out of scope: decoding a block (`parquet_blocks`, `arrow_blocks`, `text_blocks`), and reading
//! values from a row (`row`).

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arrow_array::{Array, RecordBatch, StructArray};
use lru::LruCache;

use super::column::{Column, Positions};
use super::features::HfFeatures;
use super::row::{BorrowedRow, Row};
use super::row_stream::{RowStream, SequentialTable};
use super::source_file::SourceFile;
use fulmen_data::internal::{Offsets, catch_quietly};
use fulmen_data::{Error, Fingerprint, Result};

/// The default size of the cache of decoded blocks in bytes.
pub(crate) const DEFAULT_CACHE: usize = 256 << 20;

/// Consecutive rows of one file.
#[derive(Debug)]
pub(crate) struct Block {
    pub(crate) columns: Arc<StructArray>,
    pub(crate) row_origin: Arc<RowOrigin>,
    /// The size of the block in memory.
    bytes: usize,
}

impl Block {
    pub(crate) fn new(batch: RecordBatch, row_origin: RowOrigin, bytes: usize) -> Block {
        Block {
            columns: Arc::new(StructArray::from(batch)),
            row_origin: Arc::new(row_origin),
            bytes,
        }
    }
}

/// Where the rows of a block come from.
#[derive(Debug)]
pub(crate) struct RowOrigin {
    pub(crate) file: Arc<SourceFile>,
    pub(crate) numbers: RowNumbers,
    /// The rows and columns of values with invalid UTF-8, which are null in the arrays.
    pub(crate) not_utf8: Vec<(usize, usize)>,
}

/// How the rows of a block are numbered in their file.
#[derive(Debug)]
pub(crate) enum RowNumbers {
    /// The rows are numbered, starting at this number.
    Rows(usize),
    /// Each row has a line, starting at this line.
    Lines(u64),
    /// Each row starts in one of these lines.
    Each(Vec<u64>),
}

impl RowOrigin {
    pub(crate) fn new(file: &Arc<SourceFile>, numbers: RowNumbers) -> RowOrigin {
        RowOrigin { file: Arc::clone(file), numbers, not_utf8: Vec::new() }
    }

    /// `row 3`, or `line 4`.
    fn number(&self, row: usize) -> String {
        match &self.numbers {
            RowNumbers::Rows(first) => format!("row {}", first + row),
            RowNumbers::Lines(first) => format!("line {}", first + row as u64),
            RowNumbers::Each(lines) => format!("line {}", lines[row]),
        }
    }

    pub(crate) fn origin(&self, row: usize) -> String {
        format!("{}, {}", self.file.name(), self.number(row))
    }

    /// An error of a row.
    pub(crate) fn error(&self, row: usize, message: impl fmt::Display) -> Error {
        self.file.error(format!("{}: {message}", self.number(row)))
    }
}

/// Files whose rows come in blocks.
pub(crate) trait BlockSource: Send + Sync + 'static {
    /// The number of rows in each block.
    fn block_rows(&self) -> Vec<usize>;

    /// The origin of a block, if it is known before the block is decoded.
    fn row_origin(&self, block: usize) -> Option<RowOrigin>;

    /// Decodes a block.
    fn decode(&self, block: usize) -> Result<Block>;

    /// The blocks in order, each with its number. After an error, the next readable block is
    /// returned.
    fn sequence(self: Arc<Self>) -> Sequence {
        Box::new((0..self.block_rows().len()).map(move |number| Ok((number, self.decode(number)?))))
    }

    /// The same files, reading only these columns.
    fn select(&self, columns: &[usize]) -> Result<Arc<dyn BlockSource>>;

    /// Adds all files.
    fn fingerprint(&self, fingerprint: &mut Fingerprint) -> Result<()>;
}

/// The blocks of some files, each with its number.
pub(crate) type Sequence = Box<dyn Iterator<Item = Result<(usize, Block)>> + Send>;

/// The rows of several files as one list.
pub struct BlockReader {
    decode: Arc<dyn BlockSource>,
    offsets: Offsets,
    pub(crate) columns: Vec<Column>,
    /// The metadata of Hugging Face's `datasets`.
    pub(crate) features: HfFeatures,
    /// For each column of the table, its position in a block, if it is read.
    positions: Vec<Option<usize>>,
    /// For each column of a block, its position in the table.
    names: Arc<Positions>,
    cache: Cache,
    pub(crate) name: String,
}

impl BlockReader {
    pub(crate) fn new(
        decode: Arc<dyn BlockSource>,
        columns: Vec<Column>,
        features: HfFeatures,
        name: String,
    ) -> BlockReader {
        BlockReader {
            offsets: Offsets::new(decode.block_rows()),
            decode,
            positions: (0..columns.len()).map(Some).collect(),
            names: Arc::new(Positions::new(&columns)),
            columns,
            features,
            cache: Cache::new(DEFAULT_CACHE),
            name,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.offsets.len()
    }

    /// The columns that are read.
    pub(crate) fn selected(&self) -> impl Iterator<Item = &Column> {
        self.columns
            .iter()
            .zip(&self.positions)
            .filter(|(_, position)| position.is_some())
            .map(|(column, _)| column)
    }

    /// Restricts reading to these columns.
    pub(crate) fn select(&mut self, columns: &[usize]) -> Result<()> {
        let mut columns = columns.to_vec();
        columns.sort_unstable();
        columns.dedup();
        self.decode = self.decode.select(&columns)?;
        // With fewer columns, a block may have more rows.
        self.offsets = Offsets::new(self.decode.block_rows());
        self.positions =
            (0..self.columns.len()).map(|column| columns.binary_search(&column).ok()).collect();
        self.names = Arc::new(Positions::new(self.selected()));
        self.cache = Cache::new(self.cache.limit);
        Ok(())
    }

    pub(crate) fn set_cache(&mut self, bytes: usize) {
        self.cache = Cache::new(bytes);
    }

    fn locate(&self, index: usize) -> Result<(usize, usize)> {
        self.offsets.find(index).ok_or_else(|| out_of_range(index, self.len()))
    }

    /// The block that contains a row, and the row's number in it.
    pub(crate) fn find(&self, index: usize) -> Result<(Arc<Block>, usize)> {
        let (number, row) = self.locate(index)?;
        let expected = self.offsets.first(number + 1) - self.offsets.first(number);
        let block = self.cache.get(number, || {
            let block = self.decode.decode(number)?;
            match block.columns.len() {
                rows if rows == expected => Ok(block),
                rows => Err(block.row_origin.file.error(format!(
                    "{rows} rows were read in the block of the table's row {index}, expected {expected}; the file is \
                     damaged, or was changed"
                ))),
            }
        })?;
        Ok((block, row))
    }

    pub(crate) fn row(&self, index: usize) -> Result<Row> {
        let (block, row) = self.find(index)?;
        Ok(Row::new(&block, row, &self.names))
    }

    /// A row from which fields are written.
    pub(crate) fn borrow_row(&self, index: usize) -> Result<BorrowedRow<'_>> {
        let (block, row) = self.find(index)?;
        Ok(BorrowedRow { block, row, positions: &self.positions })
    }

    /// The origin of a row, and its number in that origin.
    fn row_origin(&self, index: usize) -> Result<(Arc<RowOrigin>, usize)> {
        let (number, row) = self.locate(index)?;
        match self.decode.row_origin(number) {
            Some(row_origin) => Ok((Arc::new(row_origin), row)),
            None => self.find(index).map(|(block, row)| (Arc::clone(&block.row_origin), row)),
        }
    }

    pub(crate) fn origin(&self, index: usize) -> String {
        match self.row_origin(index) {
            Ok((row_origin, row)) => row_origin.origin(row),
            Err(_) if index < self.len() => format!("{}, item {index}", self.name),
            Err(_) => format!("item {index}, which does not exist"),
        }
    }

    pub(crate) fn error(&self, index: usize, message: &str) -> Error {
        self.row_origin(index)
            .map_or_else(|error| error, |(row_origin, row)| row_origin.error(row, message))
    }

    /// The rows in sequence.
    pub(crate) fn stream(&self) -> RowStream {
        let columns = self.selected().map(|column| column.name.clone()).collect();
        let table = SequentialTable {
            decode: Arc::clone(&self.decode),
            offsets: self.offsets.clone(),
            columns,
        };
        RowStream::new(Arc::new(table), Arc::clone(&self.names))
    }

    pub(crate) fn fingerprint(&self, fingerprint: &mut Fingerprint) -> Result<()> {
        self.selected().for_each(|column| fingerprint.add("read", &column.name));
        self.decode.fingerprint(fingerprint)
    }
}

impl fmt::Debug for BlockReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rows")
            .field("name", &self.name)
            .field("rows", &self.len())
            .finish_non_exhaustive()
    }
}

/// A cache of recently used blocks. It is limited to a number of bytes, but holds at least one
/// block.
struct Cache {
    limit: usize,
    state: Mutex<State>,
}

struct State {
    /// The blocks, with their sizes once they are decoded.
    slots: LruCache<usize, (Arc<Slot>, usize)>,
    /// The total size.
    bytes: usize,
}

/// Locked while a thread decodes, so that other threads do not decode the same block.
type Slot = Mutex<Option<Arc<Block>>>;

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Cache {
    fn new(limit: usize) -> Cache {
        Cache { limit, state: Mutex::new(State { slots: LruCache::unbounded(), bytes: 0 }) }
    }

    fn get(&self, number: usize, decode: impl FnOnce() -> Result<Block>) -> Result<Arc<Block>> {
        let slot = Arc::clone(&lock(&self.state).slots.get_or_insert(number, Default::default).0);
        let mut slot_guard = lock(&slot);
        if let Some(block) = &*slot_guard {
            return Ok(Arc::clone(block));
        }
        let block = Arc::clone(slot_guard.insert(Arc::new(decode()?)));
        let State { slots, bytes: sum } = &mut *lock(&self.state);
        // Other threads may have evicted the slot in the meantime.
        if let Some((_, slot_bytes)) =
            slots.peek_mut(&number).filter(|(other, _)| Arc::ptr_eq(other, &slot))
        {
            (*slot_bytes, *sum) = (block.bytes, *sum + block.bytes);
        }
        while *sum > self.limit
            && slots.len() > 1
            && let Some((_, (_, bytes))) = slots.pop_lru()
        {
            *sum -= bytes;
        }
        Ok(block)
    }
}

/// The error for an index out of range.
pub(crate) fn out_of_range(index: usize, len: usize) -> Error {
    Error::usage(format!("there is no item {index}; there are {len}"))
}

/// Runs code that parses a file. A panic on unexpected content becomes an error of the file.
pub(crate) fn guard<T>(file: &SourceFile, read: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_quietly(read)
        .unwrap_or_else(|message| Err(file.error(format!("the file is damaged: {message}"))))
}

#[cfg(test)]
mod tests {
    use arrow_array::{ArrayRef, Int32Array};

    use super::*;

    #[test]
    fn the_cache_keeps_what_was_used_last_within_its_bytes_and_at_least_one_block() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let input = SourceFile::open_all(&[file.path().into()]).unwrap().remove(0);
        let row_origin = || RowOrigin::new(&input, RowNumbers::Rows(0));
        let block = |bytes| {
            let column: ArrayRef = Arc::new(Int32Array::from(vec![1]));
            Block::new(RecordBatch::try_from_iter([("x", column)]).unwrap(), row_origin(), bytes)
        };
        let cache = Cache::new(20);
        let decoded = Mutex::new(Vec::new());
        let get = |number: usize, bytes: usize| {
            cache.get(number, || {
                decoded.lock().unwrap().push(number);
                Ok(block(bytes))
            })
        };
        for number in [0, 1, 0, 2, 0, 1] {
            get(number, 10).unwrap();
        }
        // Block 2 evicted block 1, which was used before block 0.
        assert_eq!(*decoded.lock().unwrap(), [0, 1, 2, 1]);
        get(7, 1000).unwrap();
        get(7, 1000).unwrap();
        assert_eq!(decoded.lock().unwrap().len(), 5);
        assert_eq!(lock(&cache.state).bytes, 1000);
        assert!(cache.get(8, || Err(Error::new("no"))).is_err());
        get(8, 5).unwrap();
        assert_eq!(lock(&cache.state).bytes, 5);
        // A block that is evicted while it is decoded does not count.
        let inner = || cache.get(10, || Ok(block(30)));
        cache.get(9, || inner().map(|_| block(40))).unwrap();
        let state = lock(&cache.state);
        assert_eq!((state.bytes, state.slots.len()), (30, 1));
    }
}
