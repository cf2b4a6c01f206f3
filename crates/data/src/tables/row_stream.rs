//! The rows of Parquet or Arrow files from the beginning to the end.
//!
//! Not here: how their blocks are decoded (`parquet_blocks`, `arrow_blocks`).

use std::fmt;
use std::sync::Arc;

use super::blocks::{Block, Decode, Rows};
use crate::{Fingerprint, Items, Result, Row, Stream, StreamItem};

/// The rows of some files in order. Made by `stream` of [`Parquet`](crate::Parquet), [`ArrowFiles`](crate::ArrowFiles)
/// and [`HfDataset`](crate::HfDataset).
///
/// Only the block that is read lies in memory. A [`Row`] holds its block: before a buffer that shuffles, take out
/// of the rows what is needed.
pub struct RowStream {
    decode: Arc<dyn Decode>,
    len: usize,
    columns: Vec<String>,
}

impl RowStream {
    pub(crate) fn new(rows: &Rows) -> RowStream {
        let read = rows.columns.iter().zip(rows.positions()).filter(|(_, position)| position.is_some());
        let columns = read.map(|(column, _)| column.name.clone()).collect();
        RowStream { decode: rows.decoder(), len: rows.len(), columns }
    }
}

impl fmt::Debug for RowStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RowStream").field("rows", &self.len).field("columns", &self.columns).finish()
    }
}

impl Stream for RowStream {
    type Item = Row;

    fn len(&self) -> Option<usize> {
        Some(self.len)
    }

    fn items(&self, _epoch: u64) -> Result<Items<Row>> {
        let blocks = Arc::clone(&self.decode).sequence();
        Ok(Box::new(Walk { blocks: Some(blocks), block: None, row: 0, index: 0 }))
    }

    fn fingerprint(&self, fingerprint: &mut Fingerprint) -> Result<()> {
        self.columns.iter().for_each(|column| fingerprint.add("read", column));
        self.decode.fingerprint(fingerprint)
    }
}

struct Walk {
    /// None after an error.
    blocks: Option<Box<dyn Iterator<Item = Result<Block>> + Send>>,
    block: Option<Block>,
    row: usize,
    index: u64,
}

impl Iterator for Walk {
    type Item = Result<StreamItem<Row>>;

    fn next(&mut self) -> Option<Self::Item> {
        use arrow_array::Array;
        loop {
            if let Some(block) = &self.block
                && self.row < block.columns.len()
            {
                let item = Row::new(block, self.row);
                let item = StreamItem { index: self.index, origin: item.origin(), item };
                self.row += 1;
                self.index += 1;
                return Some(Ok(item));
            }
            self.row = 0;
            self.block = match self.blocks.as_mut()?.next()? {
                Ok(block) => Some(block),
                Err(error) => {
                    (self.blocks, self.block) = (None, None);
                    return Some(Err(error));
                }
            };
        }
    }
}
