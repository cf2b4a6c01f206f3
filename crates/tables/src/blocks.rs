//! Rows that lie in blocks of an Arrow table, decoded when they are asked for; the last ones used are kept.
//!
//! Not here: how a block is decoded (`parquet_blocks`, `arrow_blocks`), and what is done with a row (`row`).

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arrow_array::{RecordBatch, StructArray};

use super::column::Column;
use super::features::HfFeatures;
use super::input::Input;
use super::records::outside;
use fulmen_data::internal::{Starts, catch_quietly};
use fulmen_data::{Error, Fingerprint, Result};

/// Bytes of decoded rows that are kept unless the user says otherwise.
pub(crate) const DEFAULT_CACHE: usize = 256 << 20;

/// Neighbouring rows of one file.
#[derive(Debug)]
pub(crate) struct Block {
    pub(crate) columns: StructArray,
    pub(crate) place: Arc<Place>,
}

/// Where the rows of a block stand.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) file: Arc<Input>,
    pub(crate) first_row: usize,
}

impl Place {
    pub(crate) fn origin(&self, row: usize) -> String {
        format!("{}, row {}", self.file.name(), self.first_row + row)
    }
}

/// Files whose rows come in blocks.
pub(crate) trait Decode: Send + Sync + 'static {
    /// How many rows each block has.
    fn block_rows(&self) -> Vec<usize>;

    /// The file of a block, and its first row there.
    fn place(&self, block: usize) -> Place;

    /// Decodes a block, and says how many bytes it takes.
    fn decode(&self, block: usize) -> Result<(RecordBatch, usize)>;

    /// The blocks in order, each with its number. After what cannot be decoded comes what stands behind it.
    fn sequence(self: Arc<Self>) -> Sequence;

    /// The same files with these columns alone.
    fn select(&self, columns: &[usize]) -> Result<Arc<dyn Decode>>;

    /// All files.
    fn fingerprint(&self, fingerprint: &mut Fingerprint) -> Result<()>;
}

/// The blocks of some files, and their numbers.
pub(crate) type Sequence = Box<dyn Iterator<Item = Result<(usize, Block)>> + Send>;

/// A block as a block: the rows of a batch and their place.
pub(crate) fn block(batch: RecordBatch, place: Place) -> Block {
    Block { columns: StructArray::from(batch), place: Arc::new(place) }
}

/// Some files as one list of rows.
pub(crate) struct Rows {
    decode: Arc<dyn Decode>,
    starts: Starts,
    pub(crate) columns: Vec<Column>,
    /// What Hugging Face's `datasets` says of them.
    pub(crate) features: HfFeatures,
    /// Where each column of the table stands in a block, if it is read.
    positions: Vec<Option<usize>>,
    cache: Cache,
    pub(crate) name: String,
}

impl Rows {
    pub(crate) fn new(decode: Arc<dyn Decode>, (columns, features): (Vec<Column>, HfFeatures), name: String) -> Rows {
        let positions = (0..columns.len()).map(Some).collect();
        Rows {
            starts: Starts::new(decode.block_rows()),
            decode,
            columns,
            features,
            positions,
            cache: Cache::new(DEFAULT_CACHE),
            name,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.starts.len()
    }

    pub(crate) fn starts(&self) -> &Starts {
        &self.starts
    }

    pub(crate) fn positions(&self) -> &[Option<usize>] {
        &self.positions
    }

    /// Reads only these columns from now on.
    pub(crate) fn select(&mut self, columns: &[usize]) -> Result<()> {
        let mut columns = columns.to_vec();
        columns.sort_unstable();
        columns.dedup();
        self.decode = self.decode.select(&columns)?;
        // Blocks may be larger where fewer columns are read.
        self.starts = Starts::new(self.decode.block_rows());
        self.positions = (0..self.columns.len()).map(|column| columns.binary_search(&column).ok()).collect();
        self.cache = Cache::new(self.cache.limit);
        Ok(())
    }

    pub(crate) fn set_cache(&mut self, bytes: usize) {
        self.cache = Cache::new(bytes);
    }

    fn locate(&self, index: usize) -> Result<(usize, usize)> {
        self.starts.find(index).ok_or_else(|| outside(index, self.len()))
    }

    /// The block in which a row stands, and its number there.
    pub(crate) fn row(&self, index: usize) -> Result<(Arc<Block>, usize)> {
        let (number, row) = self.locate(index)?;
        let expected = self.starts.first(number + 1) - self.starts.first(number);
        let found = self.cache.get(number, || {
            let place = self.decode.place(number);
            let (batch, bytes) = self.decode.decode(number)?;
            if batch.num_rows() != expected {
                return Err(place.file.error(format!(
                    "{} rows from row {} on were read, expected {expected}; the file is damaged, or was changed",
                    batch.num_rows(),
                    place.first_row
                )));
            }
            Ok((block(batch, place), bytes))
        })?;
        Ok((found, row))
    }

    pub(crate) fn origin(&self, index: usize) -> String {
        match self.locate(index) {
            Ok((block, row)) => self.decode.place(block).origin(row),
            Err(_) => format!("item {index}, which is not there"),
        }
    }

    pub(crate) fn error(&self, index: usize, message: &str) -> Error {
        match self.locate(index) {
            Ok((block, row)) => {
                let place = self.decode.place(block);
                place.file.error(format!("row {}: {message}", place.first_row + row))
            }
            Err(error) => error,
        }
    }

    pub(crate) fn decoder(&self) -> Arc<dyn Decode> {
        Arc::clone(&self.decode)
    }

    pub(crate) fn fingerprint(&self, fingerprint: &mut Fingerprint) -> Result<()> {
        for (column, position) in self.columns.iter().zip(&self.positions) {
            if position.is_some() {
                fingerprint.add("read", &column.name);
            }
        }
        self.decode.fingerprint(fingerprint)
    }
}

impl fmt::Debug for Rows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rows").field("name", &self.name).field("rows", &self.len()).finish_non_exhaustive()
    }
}

/// The blocks that were used last, up to a number of bytes; at least one.
struct Cache {
    limit: usize,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    entries: HashMap<usize, Entry>,
    bytes: usize,
    /// Counts the uses.
    clock: u64,
}

struct Entry {
    block: Option<Arc<Block>>,
    bytes: usize,
    used: u64,
    /// Held by the thread that decodes, so that no other one decodes the same.
    decoding: Arc<Mutex<()>>,
}

impl Cache {
    fn new(limit: usize) -> Cache {
        Cache { limit, state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn get(&self, number: usize, decode: impl FnOnce() -> Result<(Block, usize)>) -> Result<Arc<Block>> {
        let decoding = match self.state().touch(number) {
            Ok(block) => return Ok(block),
            Err(decoding) => decoding,
        };
        let _decoding = decoding.lock().unwrap_or_else(PoisonError::into_inner);
        // Another thread may have decoded it meanwhile.
        if let Ok(block) = self.state().touch(number) {
            return Ok(block);
        }
        let (block, bytes) = decode()?;
        let block = Arc::new(block);
        self.state().insert(number, &block, bytes, self.limit);
        Ok(block)
    }
}

impl State {
    /// A block that is there, or the lock to hold while it is decoded.
    fn touch(&mut self, number: usize) -> Result<Arc<Block>, Arc<Mutex<()>>> {
        self.clock += 1;
        let entry = self.entries.entry(number).or_insert_with(|| Entry {
            block: None,
            bytes: 0,
            used: 0,
            decoding: Arc::default(),
        });
        entry.used = self.clock;
        entry.block.clone().ok_or_else(|| Arc::clone(&entry.decoding))
    }

    fn insert(&mut self, number: usize, block: &Arc<Block>, bytes: usize, limit: usize) {
        if let Some(entry) = self.entries.get_mut(&number) {
            entry.block = Some(Arc::clone(block));
            // Another thread may have put the same block there, where it was pushed out while both decoded it.
            self.bytes = self.bytes - entry.bytes + bytes;
            entry.bytes = bytes;
        }
        while self.bytes > limit {
            let others = self.entries.iter().filter(|(key, entry)| **key != number && entry.block.is_some());
            let Some((&oldest, _)) = others.min_by_key(|(_, entry)| entry.used) else { break };
            if let Some(entry) = self.entries.remove(&oldest) {
                self.bytes -= entry.bytes;
            }
        }
    }
}

/// Runs code that reads a file's content; a panic over content that it did not expect is an error of the file.
pub(crate) fn guard<T>(file: &Input, read: impl FnOnce() -> Result<T>) -> Result<T> {
    catch_quietly(read).unwrap_or_else(|message| Err(file.error(format!("the file is damaged: {message}"))))
}

#[cfg(test)]
mod tests {
    use arrow_array::{ArrayRef, Int32Array};

    use super::*;

    #[test]
    fn the_cache_keeps_what_was_used_last_within_its_bytes_and_at_least_one_block() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let input = Arc::new(Input::open(&file.path().into()).unwrap());
        let cache = Cache::new(20);
        let decoded = Mutex::new(Vec::new());
        let get = |number: usize, bytes: usize| {
            cache.get(number, || {
                decoded.lock().unwrap().push(number);
                let column: ArrayRef = Arc::new(Int32Array::from(vec![1]));
                let batch = RecordBatch::try_from_iter([("x", column)]).unwrap();
                Ok((block(batch, Place { file: Arc::clone(&input), first_row: 0 }), bytes))
            })
        };
        for number in [0, 1, 0, 2, 0, 1] {
            get(number, 10).unwrap();
        }
        // 2 pushed out 1, which was used before 0.
        assert_eq!(*decoded.lock().unwrap(), [0, 1, 2, 1]);
        get(7, 1000).unwrap();
        get(7, 1000).unwrap();
        assert_eq!(decoded.lock().unwrap().len(), 5);
        assert_eq!(cache.state().bytes, 1000);
        assert!(cache.get(8, || Err(Error::new("no"))).is_err());
        get(8, 5).unwrap();
        assert_eq!(cache.state().bytes, 5);
        // Decoded by two threads at once, where it was pushed out between.
        let twice = get(8, 5).unwrap();
        cache.state().insert(8, &twice, 7, 20);
        assert_eq!(cache.state().bytes, 7);
    }
}
