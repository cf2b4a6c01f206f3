//! The common interface of tables: rows of named columns, and building datasets from columns.
//!
//! Out of scope: reading a kind of file (`csv`, `parquet`, `arrow_files`), and the datasets
//! (`table_dataset`).

use fulmen_tensor::DType;

use super::block_reader::BlockReader;
use super::column::ColumnRef;
use super::table_dataset::TableBuilder;
use fulmen_data::Source;

/// A table whose columns can become fields of samples: [`Csv`](crate::Csv),
/// [`Parquet`](crate::Parquet), [`ArrowFiles`](crate::ArrowFiles), [`HfDataset`](crate::HfDataset).
///
/// Each method starts a [`TableBuilder`]. Add more columns to it, then call
/// [`build`](TableBuilder::build). Values are written directly into the batch.
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
pub trait Table: Source + HasRows + Sized {
    /// Starts with a scalar field named like its column; see [`TableBuilder::column`].
    fn column(self, column: impl Into<ColumnRef>, dtype: DType) -> TableBuilder<Self> {
        TableBuilder::new(self).column(column, dtype)
    }

    /// Starts with several columns as one vector field; see [`TableBuilder::columns`].
    fn columns<C: Into<ColumnRef>>(
        self,
        field: impl Into<String>,
        columns: impl IntoIterator<Item = C>,
        dtype: DType,
    ) -> TableBuilder<Self> {
        TableBuilder::new(self).columns(field, columns, dtype)
    }

    /// Starts with a column of lists or bytes as an array field; see [`TableBuilder::array`].
    fn array(
        self,
        column: impl Into<ColumnRef>,
        dtype: DType,
        shape: impl Into<Vec<usize>>,
    ) -> TableBuilder<Self> {
        TableBuilder::new(self).array(column, dtype, shape)
    }

    /// Starts with a field of class indices; see [`TableBuilder::label`].
    fn label(self, column: impl Into<ColumnRef>) -> TableBuilder<Self> {
        TableBuilder::new(self).label(column)
    }

    /// Starts with a field of indices into these classes; see [`TableBuilder::label_of`].
    fn label_of<C: Into<String>>(
        self,
        column: impl Into<ColumnRef>,
        classes: impl IntoIterator<Item = C>,
    ) -> TableBuilder<Self> {
        TableBuilder::new(self).label_of(column, classes)
    }

    /// The names of the columns, in order.
    fn column_names(&self) -> Vec<&str> {
        self.rows().columns.iter().map(|column| column.name.as_str()).collect()
    }
}

impl<T: Source + HasRows> Table for T {}

/// Access to the rows of a table. Only this crate's tables implement it.
pub trait HasRows {
    #[doc(hidden)]
    fn rows(&self) -> &BlockReader;

    #[doc(hidden)]
    fn rows_mut(&mut self) -> &mut BlockReader;
}

/// Implements `Table` for a type with a field `rows: BlockReader`.
macro_rules! table_of_rows {
    ($type:ty) => {
        impl fulmen_data::Source for $type {
            type Item = $crate::Row;

            fn len(&self) -> usize {
                self.rows.len()
            }

            fn get(&self, index: usize) -> fulmen_data::Result<$crate::Row> {
                self.rows.row(index)
            }

            fn origin(&self, index: usize) -> String {
                self.rows.origin(index)
            }

            fn fingerprint(
                &self,
                fingerprint: &mut fulmen_data::Fingerprint,
            ) -> fulmen_data::Result<()> {
                self.rows.fingerprint(fingerprint)
            }
        }

        impl $crate::table::HasRows for $type {
            fn rows(&self) -> &$crate::block_reader::BlockReader {
                &self.rows
            }

            fn rows_mut(&mut self) -> &mut $crate::block_reader::BlockReader {
                &mut self.rows
            }
        }

        impl $type {
            /// Restricts reading to these columns. A dataset built from columns already reads only
            /// those.
            pub fn select<C: Into<$crate::ColumnRef>>(
                mut self,
                columns: impl IntoIterator<Item = C>,
            ) -> fulmen_data::Result<Self> {
                let positions = $crate::column::Positions::new(&self.rows.columns);
                let columns: fulmen_data::Result<Vec<usize>> = columns
                    .into_iter()
                    .map(|column| {
                        column.into().find(&self.rows.columns, &positions, &self.rows.name)
                    })
                    .collect();
                self.rows.select(&columns?)?;
                Ok(self)
            }

            /// Caches up to this many bytes of decoded rows, over all threads; 256 MiB unless set.
            /// At least one block is cached.
            pub fn cache_bytes(mut self, bytes: usize) -> Self {
                self.rows.set_cache(bytes);
                self
            }
        }
    };
    ($type:ty, with stream) => {
        $crate::table::table_of_rows!($type);

        impl $type {
            /// The rows in sequence; each block is decoded once and then dropped.
            pub fn stream(&self) -> $crate::RowStream {
                self.rows.stream()
            }
        }
    };
}
pub(crate) use table_of_rows;
