//! Tables and texts: CSV, JSON lines, text files, Parquet, Arrow, Hugging Face's `datasets` folders.
//!
//! Three kinds of places hold rows. `records` knows where each line or record of a text file begins; `blocks` decodes and
//! keeps the blocks of rows of Parquet and Arrow files. Either hands out values as `cell`s, from which `fields` makes the
//! fields of samples in the one way that there is.
//!
//! Not here: where files lie (`store`), and tokens.

mod array_cell;
mod arrow_blocks;
mod arrow_files;
mod blocks;
mod cell;
mod column;
mod csv;
mod csv_index;
mod csv_options;
mod csv_stream;
mod features;
mod fields;
mod front_matter;
mod hugging_face;
mod hugging_face_files;
mod input;
mod json_lines;
mod labels;
mod lines;
#[cfg(feature = "parquet")]
mod parquet;
#[cfg(feature = "parquet")]
mod parquet_blocks;
mod records;
mod row;
mod row_stream;
mod table;
mod text_file;

pub use arrow_files::ArrowFiles;
pub use cell::Value;
pub use column::ColumnRef;
pub use csv::{Csv, CsvRow};
pub use csv_options::CsvOptions;
pub use csv_stream::CsvStream;
pub use features::{HfFeature, HfFeatures};
pub use fields::{TableBuilder, TableDataset};
pub use hugging_face::{HfDataset, HfFolder};
pub use json_lines::{JsonLines, JsonLinesStream};
#[cfg(feature = "parquet")]
pub use parquet::Parquet;
pub use row::Row;
pub use row_stream::RowStream;
pub use table::Table;
pub use text_file::{TextFile, TextFolder, TextStream};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
