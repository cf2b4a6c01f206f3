//! The rows of files in sequence.
//!
//! Out of scope: decoding their blocks (`parquet_blocks`, `arrow_blocks`, `csv`).

use std::fmt;
use std::sync::Arc;

use arrow_array::Array;
use fulmen_data::internal::quantity;

use super::block_reader::{Block, BlockSource, Sequence};
use super::column::Positions;
use crate::Row;
use fulmen_data::internal::Offsets;
use fulmen_data::{Fingerprint, Items, Result, Stream, StreamItem};

/// The rows of files in sequence. Made by `stream` of [`Csv`](crate::Csv),
/// [`Parquet`](crate::Parquet), [`ArrowFiles`](crate::ArrowFiles) and
/// [`HfDataset`](crate::HfDataset).
///
/// Only the current block is in memory. A [`Row`] keeps its block in memory, so convert rows to the
/// values you need before a shuffle buffer.
///
/// If a row group or a batch cannot be decoded, the stream continues with the next one, whose rows
/// keep their numbers. In CSV, the stream continues with the next record after a record that has
/// more or fewer values than the first line. If a CSV file cannot be read further, the stream
/// continues with the next file.
pub struct RowStream {
    source: Arc<dyn SequentialBlocks>,
    names: Arc<Positions>,
}

/// Files that are read in sequence.
pub(crate) trait SequentialBlocks: Send + Sync + 'static {
    /// The blocks in order, each with the index of its first row.
    fn blocks(self: Arc<Self>) -> Sequence;

    /// The number of rows, if it is known.
    fn len(&self) -> Option<usize>;

    fn fingerprint(&self, fingerprint: &mut Fingerprint) -> Result<()>;

    fn describe(&self) -> String;
}

impl RowStream {
    pub(crate) fn new(source: Arc<dyn SequentialBlocks>, names: Arc<Positions>) -> RowStream {
        RowStream { source, names }
    }
}

/// The blocks of a table in order.
pub(crate) struct SequentialTable {
    pub(crate) decode: Arc<dyn BlockSource>,
    pub(crate) offsets: Offsets,
    pub(crate) columns: Vec<String>,
}

impl SequentialBlocks for SequentialTable {
    fn blocks(self: Arc<Self>) -> Sequence {
        let blocks = Arc::clone(&self.decode).sequence();
        Box::new(
            blocks
                .map(move |block| block.map(|(number, block)| (self.offsets.first(number), block))),
        )
    }

    fn len(&self) -> Option<usize> {
        Some(self.offsets.len())
    }

    fn fingerprint(&self, fingerprint: &mut Fingerprint) -> Result<()> {
        self.columns.iter().for_each(|column| fingerprint.add("read", column));
        self.decode.fingerprint(fingerprint)
    }

    fn describe(&self) -> String {
        let rows = quantity(self.offsets.len(), "row");
        format!("RowStream({} of {rows})", self.columns.join(", "))
    }
}

impl fmt::Debug for RowStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.source.describe())
    }
}

impl Stream for RowStream {
    type Item = Row;

    fn len(&self) -> Option<usize> {
        self.source.len()
    }

    fn items(&self, _epoch: u64) -> Result<Items<Row>> {
        let blocks = Arc::clone(&self.source).blocks();
        Ok(Box::new(RowIter { blocks, names: Arc::clone(&self.names), block: None, row: 0 }))
    }

    fn fingerprint(&self, fingerprint: &mut Fingerprint) -> Result<()> {
        self.source.fingerprint(fingerprint)
    }

    fn describe(&self) -> String {
        self.source.describe()
    }
}

struct RowIter {
    blocks: Sequence,
    names: Arc<Positions>,
    /// The current block, and the index of its first row.
    block: Option<(usize, Block)>,
    row: usize,
}

impl Iterator for RowIter {
    type Item = Result<StreamItem<Row>>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some((first, block)) = &self.block
                && self.row < block.columns.len()
            {
                let item = Row::new(block, self.row, &self.names);
                let index = (first + self.row) as u64;
                self.row += 1;
                return Some(Ok(StreamItem { index, origin: item.origin(), item }));
            }
            (self.block, self.row) = (None, 0);
            match self.blocks.next()? {
                Ok(block) => self.block = Some(block),
                Err(error) => return Some(Err(error)),
            }
        }
    }
}
