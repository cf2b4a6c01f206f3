//! Arrow IPC files as a table, and a check that several files have the same columns.
//!
//! Out of scope: the format (`arrow_blocks`).

use std::sync::Arc;

use arrow_schema::Schema;
use fulmen_data::internal::quantity;

use super::arrow_blocks::{ArrowBlocks, ArrowFile};
use super::arrow_scalar::{kind, type_name};
use super::block_reader::BlockReader;
use super::column::Column;
use super::features::HfFeatures;
use super::source_file::{SourceFile, expand};
use super::table::table_of_rows;
use fulmen_data::internal::in_parallel;
use fulmen_data::{Error, Result};
use fulmen_files::Location;
use fulmen_files::MAX_CONCURRENT_REQUESTS;

/// Rows of Arrow IPC files by index, in the file format (also Feather V2) or the stream format.
///
/// Opening the files finds the batches. A batch is read and decoded when one of its rows is
/// requested. Recently used batches are cached ([`cache_bytes`](ArrowFiles::cache_bytes)).
///
/// [`Row`](crate::Row) has an example. To turn columns into the fields of samples, see
/// [`Table`](crate::Table).
#[derive(Debug)]
#[must_use]
pub struct ArrowFiles {
    pub(crate) rows: BlockReader,
}

table_of_rows!(ArrowFiles, with stream);

impl ArrowFiles {
    /// Opens a file, or all `.arrow`, `.arrows`, `.feather` and `.ipc` files in a folder, sorted by
    /// name.
    ///
    /// # Errors
    /// Files that do not exist, are not Arrow files or are truncated; files with different columns.
    pub fn open(location: impl Into<Location>) -> Result<ArrowFiles> {
        let location = location.into();
        let files = expand(&location, &[".arrow", ".arrows", ".feather", ".ipc"])?;
        Ok(ArrowFiles { rows: open(&files, location.to_string())? })
    }
}

/// Opens these files as one table.
pub(crate) fn open(locations: &[Location], name: String) -> Result<BlockReader> {
    let files =
        in_parallel(&SourceFile::open_all(locations)?, MAX_CONCURRENT_REQUESTS, ArrowFile::open)?;
    let Some(first) = files.first() else {
        return Err(Error::missing(format!("{name}: there are no Arrow files")));
    };
    let (columns, features) = columns(&first.schema);
    files[1..]
        .iter()
        .try_for_each(|file| check_same(&first.input, &columns, &file.input, &file.schema))?;
    let blocks = ArrowBlocks::new(Arc::new(files), None)?;
    Ok(BlockReader::new(Arc::new(blocks), columns, features, name))
}

/// The columns of a schema, with the metadata of `datasets`.
pub(crate) fn columns(schema: &Schema) -> (Vec<Column>, HfFeatures) {
    let features = schema
        .metadata()
        .get("huggingface")
        .and_then(|text| HfFeatures::parse(text).ok())
        .unwrap_or_default();
    let column = |field: &arrow_schema::FieldRef| Column {
        name: field.name().clone(),
        kind: kind(field.data_type()),
        type_name: type_name(field.data_type()),
        classes: features.classes(field.name()),
    };
    (schema.fields().iter().map(column).collect(), features)
}

/// Rejects a file whose columns differ from those of the first file.
pub(crate) fn check_same(
    first: &SourceFile,
    expected: &[Column],
    file: &SourceFile,
    schema: &Schema,
) -> Result<()> {
    let fields = schema.fields();
    for (column, field) in expected.iter().zip(fields) {
        if column.name != *field.name() {
            return Err(file.error(format!(
                "the file has the column `{}` where {} has `{}`; the files of one table must have the same columns",
                field.name(),
                first.name(),
                column.name
            )));
        }
        let actual = type_name(field.data_type());
        if column.type_name != actual {
            return Err(file.error(format!(
                "column `{}` has the type {actual}, expected {}, which it has in {}",
                column.name,
                column.type_name,
                first.name()
            )));
        }
    }
    if fields.len() == expected.len() {
        Ok(())
    } else {
        Err(file.error(format!(
            "the file has {}, but {} has {}; the files of one table must have the same columns",
            quantity(fields.len(), "column"),
            first.name(),
            expected.len()
        )))
    }
}
