//! A row of a Parquet or Arrow file: values by the names of their columns, in the memory of the decoded block.
//!
//! Not here: reading and keeping the blocks (`blocks`).

use std::fmt;
use std::sync::Arc;

use arrow_array::cast::AsArray;
use arrow_array::{Array, StructArray};
use arrow_schema::DataType;

use super::array_cell;
use super::blocks::{Block, Place, Rows};
use super::cell::{Cell, Mismatch, Value, bytes, text};
use super::column::known;
use super::table::RowCells;
use fulmen_data::{Error, Result};

/// A row of a table, with its values by name.
///
/// A part of a struct is named `column.part`, as in `image.bytes`. Nothing is copied before a value is asked for: a row
/// holds the block of rows that it was decoded with. To keep many rows for long, keep what was taken out of them.
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
    columns: StructArray,
    row: usize,
    /// Where the row stands, and its number there.
    place: Arc<Place>,
    number: usize,
}

impl Row {
    pub(crate) fn new(block: &Block, row: usize) -> Row {
        Row { columns: block.columns.clone(), row, place: Arc::clone(&block.place), number: row }
    }

    /// The value of a column.
    ///
    /// # Errors
    /// A column that is not there, a value of another type or out of the range of `T`, and no value unless `T` is an
    /// `Option`. The message names the file and the row.
    pub fn get<T: Value>(&self, column: &str) -> Result<T> {
        T::from_cell(self.cell(column)?).map_err(|mismatch| self.mismatch(column, &mismatch))
    }

    /// The text in a column.
    pub fn str(&self, column: &str) -> Result<&str> {
        text(&self.cell(column)?).map_err(|mismatch| self.mismatch(column, &mismatch))
    }

    /// The bytes in a column; those of its UTF-8 where it holds text.
    pub fn bytes(&self, column: &str) -> Result<&[u8]> {
        bytes(&self.cell(column)?).map_err(|mismatch| self.mismatch(column, &mismatch))
    }

    /// Whether a column has no value here.
    pub fn is_missing(&self, column: &str) -> Result<bool> {
        Ok(self.cell(column)?.is_missing())
    }

    /// The struct in a column, as a row of its parts.
    pub fn row(&self, column: &str) -> Result<Row> {
        match self.find(column)? {
            (Some(array), row) if matches!(array.data_type(), DataType::Struct(_)) && array.is_valid(row) => {
                let columns = array.as_struct().clone();
                Ok(Row { columns, row, place: Arc::clone(&self.place), number: self.number })
            }
            _ => Err(self.mismatch(column, &Mismatch::kind(&self.cell(column)?, "a struct"))),
        }
    }

    /// The list of structs in a column, as rows of their parts.
    pub fn rows(&self, column: &str) -> Result<Vec<Row>> {
        match self.cell(column)? {
            Cell::List(values, start, end) if matches!(values.data_type(), DataType::Struct(_)) => {
                let columns = values.as_struct();
                let rows = (start..end).map(|row| Row {
                    columns: columns.clone(),
                    row,
                    place: Arc::clone(&self.place),
                    number: self.number,
                });
                Ok(rows.collect())
            }
            cell => Err(self.mismatch(column, &Mismatch::kind(&cell, "a list of structs"))),
        }
    }

    /// The encoded picture or sound in a column, as `datasets` keeps it: bytes, or a struct of `bytes` and `path`.
    ///
    /// # Errors
    /// A struct with a path alone: the file is not part of the dataset.
    pub fn media(&self, column: &str) -> Result<&[u8]> {
        let (array, row) = self.find(column)?;
        let inner = array.and_then(|array| array.as_struct_opt()).filter(|array| array.is_valid(row));
        let Some(inner) = inner else { return self.bytes(column) };
        let part = |name: &str| inner.column_by_name(name).map_or(Cell::Missing, |array| array_cell::cell(array, row));
        match (part("bytes"), part("path")) {
            (Cell::Missing, Cell::Text(path)) => Err(self.place.file.error(format!(
                "row {}: column `{column}` names the file `{path}` and does not hold its bytes; save the dataset with \
                 its files embedded (`embed_external_files=True`), or read that file",
                self.place.first_row + self.number
            ))),
            (cell, _) => bytes(&cell).map_err(|mismatch| self.mismatch(column, &mismatch)),
        }
    }

    /// The names of the columns, in order.
    pub fn columns(&self) -> Vec<&str> {
        self.columns.column_names()
    }

    /// Where the row stands, for messages: `train.parquet, row 3`, counted from 0.
    pub fn origin(&self) -> String {
        self.place.origin(self.number)
    }

    /// The Arrow array of a column, and this row's index in it, for types that have no way out here.
    pub fn array(&self, column: &str) -> Result<(&dyn Array, usize)> {
        let (array, row) = self.find(column)?;
        match array {
            Some(array) => Ok((array, row)),
            None => Err(self.mismatch(column, &Mismatch::Missing)),
        }
    }

    fn cell(&self, column: &str) -> Result<Cell<'_>> {
        let (array, row) = self.find(column)?;
        Ok(array.map_or(Cell::Missing, |array| array_cell::cell(array, row)))
    }

    /// The array of a column, none where the struct that it is a part of is missing.
    fn find(&self, column: &str) -> Result<(Option<&dyn Array>, usize)> {
        if let Some(array) = self.columns.column_by_name(column) {
            return Ok((Some(array.as_ref()), self.row));
        }
        let mut parts = column.split('.');
        let mut columns = &self.columns;
        while let Some(array) = parts.next().and_then(|part| columns.column_by_name(part)) {
            if array.is_null(self.row) {
                return Ok((None, self.row));
            }
            match array.as_struct_opt() {
                Some(inner) if parts.clone().next().is_some() => columns = inner,
                _ if parts.next().is_none() => return Ok((Some(array.as_ref()), self.row)),
                _ => break,
            }
        }
        let known = known(self.columns().into_iter());
        Err(Error::field(format!("{} has no column `{column}`; {known}", self.origin())))
    }

    fn mismatch(&self, column: &str, mismatch: &Mismatch) -> Error {
        let row = self.place.first_row + self.number;
        self.place.file.error(format!("row {row}: column `{column}` {}", mismatch.message()))
    }
}

impl fmt::Debug for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Row").field("origin", &self.origin()).field("columns", &self.columns()).finish()
    }
}

/// A row that is held while fields are written from it.
#[doc(hidden)]
pub struct RowLease<'a> {
    block: Arc<Block>,
    row: usize,
    positions: &'a [Option<usize>],
}

impl RowLease<'_> {
    pub(crate) fn new(rows: &Rows, index: usize) -> Result<RowLease<'_>> {
        let (block, row) = rows.row(index)?;
        Ok(RowLease { block, row, positions: rows.positions() })
    }
}

impl RowCells for RowLease<'_> {
    fn cell(&self, column: usize) -> Result<Cell<'_>, Mismatch> {
        match self.positions.get(column) {
            Some(&Some(position)) => Ok(array_cell::cell(self.block.columns.column(position).as_ref(), self.row)),
            _ => Ok(Cell::Other("a column that is not read")),
        }
    }
}

/// Makes a type with a field `rows: Rows` a table.
macro_rules! table_of_rows {
    ($type:ty) => {
        impl fulmen_data::Source for $type {
            type Item = $crate::Row;

            fn len(&self) -> usize {
                self.rows.len()
            }

            fn get(&self, index: usize) -> fulmen_data::Result<$crate::Row> {
                let (block, row) = self.rows.row(index)?;
                Ok($crate::Row::new(&block, row))
            }

            fn origin(&self, index: usize) -> String {
                self.rows.origin(index)
            }

            fn fingerprint(&self, fingerprint: &mut fulmen_data::Fingerprint) -> fulmen_data::Result<()> {
                self.rows.fingerprint(fingerprint)
            }
        }

        impl $crate::table::Cells for $type {
            type Lease<'a> = $crate::row::RowLease<'a>;

            fn schema(&self) -> &[$crate::column::Column] {
                &self.rows.columns
            }

            fn select_columns(&mut self, columns: &[usize]) -> fulmen_data::Result<()> {
                self.rows.select(columns)
            }

            fn lease(&self, index: usize) -> fulmen_data::Result<Self::Lease<'_>> {
                $crate::row::RowLease::new(&self.rows, index)
            }

            fn place(&self) -> String {
                self.rows.name.clone()
            }

            fn row_error(&self, index: usize, message: String) -> fulmen_data::Error {
                self.rows.error(index, &message)
            }
        }

        impl $type {
            /// Reads only these columns from now on. A dataset that is built of columns does this by itself.
            pub fn select<C: Into<$crate::ColumnRef>>(
                mut self,
                columns: impl IntoIterator<Item = C>,
            ) -> fulmen_data::Result<Self> {
                let place = self.rows.name.clone();
                let positions = $crate::column::Positions::of(&self.rows.columns);
                let columns: fulmen_data::Result<Vec<usize>> = columns
                    .into_iter()
                    .map(|column| column.into().find(&self.rows.columns, &positions, &place))
                    .collect();
                self.rows.select(&columns?)?;
                Ok(self)
            }

            /// Keeps up to this many bytes of decoded rows, in all threads together; 256 MiB unless this is called. The
            /// block that a row stands in is kept whatever its size.
            pub fn cache_bytes(mut self, bytes: usize) -> Self {
                self.rows.set_cache(bytes);
                self
            }

            /// The rows from the beginning to the end, each block decoded once and let go.
            pub fn stream(&self) -> $crate::RowStream {
                $crate::RowStream::new(&self.rows)
            }
        }
    };
}
pub(crate) use table_of_rows;
