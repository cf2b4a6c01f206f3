//! The rows of Parquet or Arrow files from the beginning to the end.
//!
//! Not here: how their blocks are decoded (`parquet_blocks`, `arrow_blocks`).

use std::fmt;
use std::sync::Arc;

use super::blocks::{Block, Decode, Rows, Sequence};
use crate::Row;
use fulmen_data::internal::Starts;
use fulmen_data::{Fingerprint, Items, Result, Stream, StreamItem};

/// The rows of some files in order. Made by `stream` of [`Parquet`](crate::Parquet), [`ArrowFiles`](crate::ArrowFiles)
/// and [`HfDataset`](crate::HfDataset).
///
/// Only the block that is read lies in memory. A [`Row`] holds its block: before a buffer that shuffles, take out
/// of the rows what is needed.
///
/// After a row group or a batch that cannot be decoded comes the next one; its rows keep their numbers.
pub struct RowStream {
    decode: Arc<dyn Decode>,
    starts: Starts,
    columns: Vec<String>,
}

impl RowStream {
    pub(crate) fn new(rows: &Rows) -> RowStream {
        let read = rows.columns.iter().zip(rows.positions()).filter(|(_, position)| position.is_some());
        let columns = read.map(|(column, _)| column.name.clone()).collect();
        RowStream { decode: rows.decoder(), starts: rows.starts().clone(), columns }
    }
}

impl fmt::Debug for RowStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RowStream").field("rows", &self.starts.len()).field("columns", &self.columns).finish()
    }
}

impl Stream for RowStream {
    type Item = Row;

    fn len(&self) -> Option<usize> {
        Some(self.starts.len())
    }

    fn items(&self, _epoch: u64) -> Result<Items<Row>> {
        let blocks = Arc::clone(&self.decode).sequence();
        Ok(Box::new(Walk { blocks, starts: self.starts.clone(), block: None, row: 0 }))
    }

    fn fingerprint(&self, fingerprint: &mut Fingerprint) -> Result<()> {
        self.columns.iter().for_each(|column| fingerprint.add("read", column));
        self.decode.fingerprint(fingerprint)
    }

    fn describe(&self) -> String {
        format!("RowStream({} of {} rows)", self.columns.join(", "), self.starts.len())
    }
}

struct Walk {
    blocks: Sequence,
    starts: Starts,
    block: Option<(usize, Block)>,
    row: usize,
}

impl Iterator for Walk {
    type Item = Result<StreamItem<Row>>;

    fn next(&mut self) -> Option<Self::Item> {
        use arrow_array::Array;
        loop {
            if let Some((number, block)) = &self.block
                && self.row < block.columns.len()
            {
                let index = (self.starts.first(*number) + self.row) as u64;
                let item = Row::new(block, self.row);
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
