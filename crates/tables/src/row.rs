//! A row of a table: values by column name, in the memory of the decoded block.
//!
//! Out of scope: decoding and caching the blocks (`block_reader`).

use std::fmt;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{Array, StructArray};
use arrow_schema::DataType;

use super::arrow_scalar;
use super::block_reader::{Block, RowOrigin};
use super::column::{ColumnRef, Positions, known_columns};
use super::scalar::{Mismatch, ScalarRef, Value, bytes, text};
use fulmen_data::{Error, Result};

/// A row of a table, with its values by name.
///
/// Columns are selected by name, or by position from 0. A field of a struct is named
/// `column.field`, such as `image.bytes`. A value is copied only when it is read, so a row keeps
/// its decoded block in memory. To keep many rows for long, keep their values instead.
///
/// ```
/// use fulmen_tables::ArrowFiles;
/// use fulmen_data::Source;
/// # use std::sync::Arc;
/// # use arrow_array::{ArrayRef, Float64Array, RecordBatch, StringArray};
/// # let folder = tempfile::tempdir()?;
/// # let path = folder.path().join("wind.arrow");
/// # let name: ArrayRef = Arc::new(StringArray::from(vec!["breeze", "gale"]));
/// # let speed: ArrayRef = Arc::new(Float64Array::from(vec![Some(3.5), None]));
/// # let batch = RecordBatch::try_from_iter([("name", name), ("speed", speed)])?;
/// # let mut writer = arrow_ipc::writer::StreamWriter::try_new(std::fs::File::create(&path)?, &batch.schema())?;
/// # writer.write(&batch)?;
/// # writer.finish()?;
///
/// let rows = ArrowFiles::open(&path)?;
/// let row = rows.get(0)?;
/// assert_eq!((row.str("name")?, row.get::<f32>("speed")?), ("breeze", 3.5));
/// assert_eq!(rows.get(1)?.get::<Option<f64>>("speed")?, None);
/// assert!(rows.origin(1).ends_with("wind.arrow, row 1"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct Row {
    columns: Arc<StructArray>,
    row: usize,
    /// The positions of the columns; `None` for a struct in a row.
    names: Option<Arc<Positions>>,
    /// The origin of the row, and its number in that origin.
    row_origin: Arc<RowOrigin>,
    number: usize,
}

impl Row {
    pub(crate) fn new(block: &Block, row: usize, names: &Arc<Positions>) -> Row {
        let names = Some(Arc::clone(names));
        Row {
            columns: Arc::clone(&block.columns),
            row,
            names,
            row_origin: Arc::clone(&block.row_origin),
            number: row,
        }
    }

    /// The row for a struct in this row.
    fn part(&self, columns: &StructArray, row: usize) -> Row {
        Row {
            columns: Arc::new(columns.clone()),
            row,
            names: None,
            row_origin: Arc::clone(&self.row_origin),
            number: self.number,
        }
    }

    /// The value of a column.
    ///
    /// # Errors
    /// A column that does not exist; a value of a different type, or out of range for `T`; a
    /// missing value, unless `T` is an `Option`. The error names the file and the row.
    pub fn get<T: Value>(&self, column: impl Into<ColumnRef>) -> Result<T> {
        let column = &column.into();
        T::from_cell(self.cell(column)?).map_err(|mismatch| self.mismatch(column, &mismatch))
    }

    /// The text in a column.
    pub fn str(&self, column: impl Into<ColumnRef>) -> Result<&str> {
        let column = &column.into();
        text(&self.cell(column)?).map_err(|mismatch| self.mismatch(column, &mismatch))
    }

    /// The bytes in a column; for text, its UTF-8 bytes.
    pub fn bytes(&self, column: impl Into<ColumnRef>) -> Result<&[u8]> {
        let column = &column.into();
        bytes(&self.cell(column)?).map_err(|mismatch| self.mismatch(column, &mismatch))
    }

    /// Whether the value of a column is missing.
    pub fn is_missing(&self, column: impl Into<ColumnRef>) -> Result<bool> {
        Ok(self.cell(&column.into())?.is_missing())
    }

    /// The struct in a column, as a row of its fields.
    pub fn row(&self, column: impl Into<ColumnRef>) -> Result<Row> {
        let column = &column.into();
        match self
            .find(column)?
            .and_then(|array| array.as_struct_opt())
            .filter(|array| array.is_valid(self.row))
        {
            Some(parts) => Ok(self.part(parts, self.row)),
            None => Err(self.mismatch(column, &Mismatch::kind(&self.cell(column)?, "a struct"))),
        }
    }

    /// The list of structs in a column, as rows of their fields.
    pub fn rows(&self, column: impl Into<ColumnRef>) -> Result<Vec<Row>> {
        let column = &column.into();
        match self.cell(column)? {
            ScalarRef::List(values, start, end)
                if matches!(values.data_type(), DataType::Struct(_)) =>
            {
                Ok((start..end).map(|row| self.part(values.as_struct(), row)).collect())
            }
            cell => Err(self.mismatch(column, &Mismatch::kind(&cell, "a list of structs"))),
        }
    }

    /// The encoded image or audio in a column, as `datasets` stores it: bytes, or a struct of
    /// `bytes` and `path`.
    ///
    /// # Errors
    /// A struct with only a path, because that file is not part of the dataset.
    pub fn media(&self, column: impl Into<ColumnRef>) -> Result<&[u8]> {
        let column = &column.into();
        let inner = self
            .find(column)?
            .and_then(|array| array.as_struct_opt())
            .filter(|array| array.is_valid(self.row));
        let part = |name: &str| {
            inner?
                .column_by_name(name)
                .map(|array| arrow_scalar::cell(array, self.row))
                .filter(|cell| !cell.is_missing())
        };
        let cell = match (inner, part("bytes"), part("path")) {
            (None, ..) => self.cell(column)?,
            (_, None, Some(ScalarRef::Text(path))) => {
                let message = format!(
                    "column {column} names the file `{path}` and does not hold its bytes; save the dataset with its \
                     files embedded (`embed_external_files=True`), or read that file"
                );
                return Err(self.row_origin.error(self.number, message));
            }
            (_, cell, _) => cell.unwrap_or(ScalarRef::Missing),
        };
        bytes(&cell).map_err(|mismatch| self.mismatch(column, &mismatch))
    }

    /// The names of the columns, in order.
    pub fn columns(&self) -> Vec<&str> {
        self.columns.column_names()
    }

    /// The origin of the row, for messages: `train.parquet, row 3`, counted from 0, or
    /// `iris.csv, line 17`.
    pub fn origin(&self) -> String {
        self.row_origin.origin(self.number)
    }

    /// The Arrow array of a column, and this row's index in it, for types without an accessor here.
    pub fn array(&self, column: impl Into<ColumnRef>) -> Result<(&dyn Array, usize)> {
        let column = &column.into();
        match self.find(column)? {
            Some(array) => Ok((array, self.row)),
            None => Err(self.mismatch(column, &Mismatch::Missing)),
        }
    }

    fn cell(&self, column: &ColumnRef) -> Result<ScalarRef<'_>> {
        let array = self.find(column)?;
        let position = self.position(column);
        Ok(array
            .map_or(ScalarRef::Missing, |array| cell(array, self.row, position, &self.row_origin)))
    }

    /// The position of a column in this row.
    fn position(&self, column: &ColumnRef) -> Option<usize> {
        match (column, &self.names) {
            (ColumnRef::Position(position), _) => {
                Some(*position).filter(|&position| position < self.columns.num_columns())
            }
            (ColumnRef::Name(name), Some(names)) => names.get(name),
            (ColumnRef::Name(name), None) => {
                self.columns.column_names().iter().position(|column| column == name)
            }
        }
    }

    /// The array of a column; `None` if the enclosing struct is missing.
    fn find(&self, column: &ColumnRef) -> Result<Option<&dyn Array>> {
        if let Some(position) = self.position(column) {
            return Ok(Some(self.columns.column(position).as_ref()));
        }
        let mut columns = &*self.columns;
        if let ColumnRef::Name(name) = column {
            let mut parts = name.split('.');
            while let Some(array) = parts.next().and_then(|part| columns.column_by_name(part)) {
                if array.is_null(self.row) {
                    return Ok(None);
                }
                match array.as_struct_opt() {
                    Some(inner) if parts.clone().next().is_some() => columns = inner,
                    _ if parts.next().is_none() => return Ok(Some(array.as_ref())),
                    _ => break,
                }
            }
        }
        let names = known_columns(self.columns().into_iter());
        Err(Error::field(format!("{} has no column {column}; {names}", self.origin())))
    }

    fn mismatch(&self, column: &ColumnRef, mismatch: &Mismatch) -> Error {
        let name = match column {
            ColumnRef::Name(name) => name,
            ColumnRef::Position(position) => self.columns.column_names()[*position],
        };
        self.row_origin.error(self.number, format!("column `{name}` {}", mismatch.message()))
    }
}

/// The value in a row of a block.
fn cell<'a>(
    array: &'a dyn Array,
    row: usize,
    position: Option<usize>,
    row_origin: &RowOrigin,
) -> ScalarRef<'a> {
    match (arrow_scalar::cell(array, row), position) {
        (ScalarRef::Missing, Some(position)) if row_origin.not_utf8.contains(&(row, position)) => {
            ScalarRef::Other("bytes that are not UTF-8 (convert the file)")
        }
        (cell, _) => cell,
    }
}

impl fmt::Debug for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Row")
            .field("origin", &self.origin())
            .field("columns", &self.columns())
            .finish()
    }
}

/// A row that is held while fields are written from it.
pub(crate) struct BorrowedRow<'a> {
    pub(crate) block: Arc<Block>,
    pub(crate) row: usize,
    pub(crate) positions: &'a [Option<usize>],
}

impl BorrowedRow<'_> {
    /// The value of the table's column at this position.
    pub(crate) fn cell(&self, column: usize) -> ScalarRef<'_> {
        match self.positions.get(column) {
            Some(&Some(position)) => cell(
                self.block.columns.column(position),
                self.row,
                Some(position),
                &self.block.row_origin,
            ),
            _ => ScalarRef::Other("a column that is not read"),
        }
    }
}
