//! Tables and texts: CSV, JSON lines, text files, Parquet, Arrow, Hugging Face's `datasets`
//! folders.
//!
//! All tables are blocks of rows in Arrow's format, which `block_reader` decodes and caches. A
//! block is a row group of a Parquet file, a batch of an Arrow file, or a number of records of a
//! text file (`text_blocks`). Values are read as `scalar`s, and `table_dataset` writes them into
//! the fields of samples.
//!
//! Out of scope: access to the files (`fulmen-files`), and tokens.

mod arrow_blocks;
mod arrow_files;
mod arrow_scalar;
mod block_reader;
mod column;
mod csv;
mod csv_options;
mod csv_records;
mod features;
mod front_matter;
mod hugging_face;
mod hugging_face_files;
mod json_lines;
mod labels;
mod lines;
#[cfg(feature = "parquet")]
mod parquet;
#[cfg(feature = "parquet")]
mod parquet_blocks;
#[cfg(feature = "parquet")]
mod parquet_depth;
mod row;
mod row_stream;
mod scalar;
mod source_file;
mod table;
mod table_dataset;
mod text_blocks;
mod text_file;

pub use arrow_files::ArrowFiles;
pub use column::ColumnRef;
pub use csv::Csv;
pub use csv_options::CsvOptions;
pub use features::{HfFeature, HfFeatures};
pub use hugging_face::{HfDataset, HfFolder};
pub use json_lines::JsonLines;
pub use lines::LineStream;
#[cfg(feature = "parquet")]
pub use parquet::Parquet;
pub use row::Row;
pub use row_stream::RowStream;
pub use scalar::Value;
pub use table::Table;
pub use table_dataset::{TableBuilder, TableDataset};
pub use text_file::{TextFile, TextFolder};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
