//! Parquet files as a table.
//!
//! Out of scope: their row groups (`parquet_blocks`).

use std::sync::Arc;

use super::arrow_files::{check_same, columns};
use super::block_reader::BlockReader;
use super::parquet_blocks::{ParquetBlocks, ParquetFile};
use super::source_file::{SourceFile, expand};
use super::table::table_of_rows;
use fulmen_data::internal::in_parallel;
use fulmen_data::{Error, Result};
use fulmen_files::Location;
use fulmen_files::MAX_CONCURRENT_REQUESTS;

/// Rows of Parquet files by index.
///
/// A row group, or a part of a large one, is decoded when one of its rows is requested. Recently
/// used parts are cached ([`cache_bytes`](Parquet::cache_bytes)). Only the selected columns are
/// read, so select those you need: with a dataset of columns ([`Table`](crate::Table)), or with
/// [`select`](Parquet::select).
///
/// If the table is larger than the cache and its row groups are large, reading in random order
/// decodes a block for each row. In this case, read the table as a [`stream`](Parquet::stream) with
/// a shuffle buffer, or write it with row groups of a few hundred rows and a page index, as Hugging
/// Face's `datasets` does.
///
/// ```
/// use fulmen_data::{DType, HostBatch, Source};
/// use fulmen_tables::{Parquet, Table};
/// # use std::sync::Arc;
/// # use arrow_array::{ArrayRef, Float64Array, Int64Array, RecordBatch};
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("points.parquet");
/// # let x: ArrayRef = Arc::new(Float64Array::from(vec![0.5, 1.5, 2.5]));
/// # let y: ArrayRef = Arc::new(Int64Array::from(vec![7, 8, 9]));
/// # let batch = RecordBatch::try_from_iter([("x", x), ("y", y)])?;
/// # let mut writer = parquet::arrow::ArrowWriter::try_new(std::fs::File::create(&path)?, batch.schema(), None)?;
/// # writer.write(&batch)?;
/// # writer.close()?;
///
/// let points = Parquet::open(&path)?;
/// assert_eq!(points.get(2)?.get::<i32>("y")?, 9);
///
/// let dataset = points.column("x", DType::F32).column("y", DType::I32).build()?;
/// assert_eq!(HostBatch::collate(&dataset, &[2, 0])?.values::<f32>(0)?, [2.5, 0.5]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use]
pub struct Parquet {
    pub(crate) rows: BlockReader,
}

table_of_rows!(Parquet, with stream);

impl Parquet {
    /// Opens a file, the files that match a pattern (`train-*.parquet`), or all `.parquet` files in
    /// a folder, sorted by name.
    ///
    /// # Errors
    /// Files that do not exist, are not Parquet files or are truncated; files with different
    /// columns.
    pub fn open(location: impl Into<Location>) -> Result<Parquet> {
        let location = location.into();
        let files = expand(&location, &[".parquet"])?;
        Ok(Parquet { rows: open(&files, location.to_string())? })
    }
}

/// Opens these files as one table.
pub(crate) fn open(locations: &[Location], name: String) -> Result<BlockReader> {
    let files =
        in_parallel(&SourceFile::open_all(locations)?, MAX_CONCURRENT_REQUESTS, ParquetFile::open)?;
    let Some(first) = files.first() else {
        return Err(Error::missing(format!("{name}: there are no Parquet files")));
    };
    let (columns, features) = columns(first.metadata.schema());
    files[1..].iter().try_for_each(|file| {
        check_same(&first.input, &columns, &file.input, file.metadata.schema())
    })?;
    let blocks = ParquetBlocks::new(Arc::new(files), None)?;
    Ok(BlockReader::new(Arc::new(blocks), columns, features, name))
}
