//! What all tables have in common: rows of named columns, and the way from columns to the fields of samples.
//!
//! Not here: reading a kind of file (`csv`, `parquet`, `arrow_files`), and what the builder makes (`fields`).

use fulmen_tensor::DType;

use super::cell::{Cell, Mismatch};
use super::column::{Column, ColumnRef};
use super::fields::TableBuilder;
use fulmen_data::{Error, Result, Source};

/// A table whose columns can become fields of samples: [`Csv`](crate::Csv), [`Parquet`](crate::Parquet),
/// [`ArrowFiles`](crate::ArrowFiles), [`HfDataset`](crate::HfDataset).
///
/// Each method starts a [`TableBuilder`], on which more columns are named before
/// [`build`](TableBuilder::build) makes the dataset. The values are written straight into the batch.
///
/// ```
/// use fulmen_tables::{Csv, Table};
/// use fulmen_data::{DType, Dataset, HostBatch};
///
/// let folder = tempfile::tempdir()?;
/// let path = folder.path().join("iris.csv");
/// std::fs::write(&path, "length,width,species\n5.1,3.5,setosa\n6.3,,virginica\n4.9,3.0,setosa\n")?;
///
/// let iris = Csv::open(&path)?
///     .columns("size", ["length", "width"], DType::F32)
///     .fill(0.0)
///     .label("species")
///     .build()?;
/// assert_eq!(iris.classes("species"), Some(&["setosa".to_owned(), "virginica".to_owned()][..]));
///
/// let batch = HostBatch::collate(&iris, &[1, 0])?;
/// assert_eq!(batch.values::<f32>(0)?, [6.3, 0.0, 5.1, 3.5]);
/// assert_eq!(batch.values::<i32>(1)?, [1, 0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Table: Source + Cells + Sized {
    /// A field of single values, with the column's name: see [`TableBuilder::column`].
    fn column(self, column: impl Into<ColumnRef>, dtype: DType) -> TableBuilder<Self> {
        TableBuilder::new(self).column(column, dtype)
    }

    /// Several columns side by side as one vector field: see [`TableBuilder::columns`].
    fn columns<C: Into<ColumnRef>>(
        self,
        field: impl Into<String>,
        columns: impl IntoIterator<Item = C>,
        dtype: DType,
    ) -> TableBuilder<Self> {
        TableBuilder::new(self).columns(field, columns, dtype)
    }

    /// A column of lists, or of bytes, as an array field: see [`TableBuilder::array`].
    fn array(self, column: impl Into<ColumnRef>, dtype: DType, shape: impl Into<Vec<usize>>) -> TableBuilder<Self> {
        TableBuilder::new(self).array(column, dtype, shape)
    }

    /// Classes as their indices: see [`TableBuilder::label`].
    fn label(self, column: impl Into<ColumnRef>) -> TableBuilder<Self> {
        TableBuilder::new(self).label(column)
    }

    /// Given classes as their indices: see [`TableBuilder::label_of`].
    fn label_of<C: Into<String>>(
        self,
        column: impl Into<ColumnRef>,
        classes: impl IntoIterator<Item = C>,
    ) -> TableBuilder<Self> {
        TableBuilder::new(self).label_of(column, classes)
    }

    /// The names of the columns, in order.
    fn column_names(&self) -> Vec<&str> {
        self.schema().iter().map(|column| column.name.as_str()).collect()
    }
}

impl<T: Source + Cells + Sized> Table for T {}

/// How a table's values are reached. Only the tables of this crate have it.
pub trait Cells {
    /// A row that is held while its values are read.
    #[doc(hidden)]
    type Lease<'a>: RowCells
    where
        Self: 'a;

    /// The columns.
    #[doc(hidden)]
    fn schema(&self) -> &[Column];

    /// Reads only these columns from now on; their positions stay what they are.
    #[doc(hidden)]
    fn select_columns(&mut self, columns: &[usize]) -> Result<()>;

    /// A row.
    #[doc(hidden)]
    fn lease(&self, index: usize) -> Result<Self::Lease<'_>>;

    /// The file or folder, for messages about all of the table.
    #[doc(hidden)]
    fn place(&self) -> String;

    /// An error of a row.
    #[doc(hidden)]
    fn row_error(&self, index: usize, message: String) -> Error;
}

/// The values of a row.
pub trait RowCells {
    /// The value of the column at this position.
    #[doc(hidden)]
    fn cell(&self, column: usize) -> Result<Cell<'_>, Mismatch>;
}
