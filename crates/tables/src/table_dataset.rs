//! Datasets from the columns of a table: numbers, vectors, arrays and classes.
//!
//! Out of scope: the indices of classes (`labels`), and conversion of values (`scalar`,
//! `arrow_scalar`).

use fulmen_tensor::DType;

use super::arrow_scalar::store_list;
use super::column::{Column, ColumnRef, Positions};
use super::labels::Labels;
use super::row::BorrowedRow;
use super::scalar::{Mismatch, ScalarRef, store};
use super::table::Table;
use fulmen_data::{Dataset, Error, Field, Fingerprint, Result, Sample, Stage};

/// A field as the user requested it.
#[derive(Clone, Debug)]
struct FieldSpec {
    name: String,
    columns: Vec<ColumnRef>,
    dtype: DType,
    shape: Vec<usize>,
    form: FieldKind,
    fill: Option<f64>,
}

#[derive(Clone, Debug)]
enum FieldKind {
    /// One value per column.
    Values,
    /// A list in one column.
    Array,
    /// A class, with the list of classes if the user gave one.
    Label(Option<Vec<String>>),
}

/// The columns that become fields. Made by the methods of [`Table`].
#[must_use = "nothing is read before `build`"]
#[derive(Debug)]
pub struct TableBuilder<T> {
    table: T,
    specs: Vec<FieldSpec>,
    fault: Option<String>,
}

impl<T: Table> TableBuilder<T> {
    pub(crate) fn new(table: T) -> TableBuilder<T> {
        TableBuilder { table, specs: Vec::new(), fault: None }
    }

    fn push(
        mut self,
        name: String,
        columns: Vec<ColumnRef>,
        dtype: DType,
        shape: Vec<usize>,
        form: FieldKind,
    ) -> TableBuilder<T> {
        self.specs.push(FieldSpec { name, columns, dtype, shape, form, fill: None });
        self
    }

    /// The default name of a field: the name of its column.
    fn name_of(&self, column: &ColumnRef) -> String {
        match column {
            ColumnRef::Name(name) => name.clone(),
            // If the position does not exist, `build` reports it.
            ColumnRef::Position(position) => self
                .table
                .rows()
                .columns
                .get(*position)
                .map_or_else(|| position.to_string(), |column| column.name.clone()),
        }
    }

    /// Adds a field of shape `[]` with the values of a column, which must be numbers or booleans.
    ///
    /// Numbers must be in the range of the dtype. Integers can be read as floats, but floats cannot
    /// be read as integers.
    pub fn column(self, column: impl Into<ColumnRef>, dtype: DType) -> TableBuilder<T> {
        let column = column.into();
        let name = self.name_of(&column);
        self.push(name, vec![column], dtype, Vec::new(), FieldKind::Values)
    }

    /// Adds a field of shape `[columns]` with the values of several columns, in this order.
    pub fn columns<C: Into<ColumnRef>>(
        self,
        field: impl Into<String>,
        columns: impl IntoIterator<Item = C>,
        dtype: DType,
    ) -> TableBuilder<T> {
        let columns: Vec<ColumnRef> = columns.into_iter().map(Into::into).collect();
        let shape = vec![columns.len()];
        self.push(field.into(), columns, dtype, shape, FieldKind::Values)
    }

    /// Adds a field of this shape from a column of lists, which may be nested, or of bytes for u8.
    ///
    /// Every list must have as many elements as the shape. If the lists are nested as deeply as the
    /// number of axes, the lengths must match axis by axis.
    pub fn array(
        self,
        column: impl Into<ColumnRef>,
        dtype: DType,
        shape: impl Into<Vec<usize>>,
    ) -> TableBuilder<T> {
        let column = column.into();
        let name = self.name_of(&column);
        self.push(name, vec![column], dtype, shape.into(), FieldKind::Array)
    }

    /// Adds a field `i32[]` of class indices.
    ///
    /// Texts are numbered in sorted order over the whole table, which is read once for this
    /// purpose. Integers (in CSV also `10.0`) are used unchanged, and must not be negative. If the
    /// file lists its classes, like Hugging Face's `ClassLabel`, their order determines the
    /// indices. A validation set needs the classes of the training set: see
    /// [`label_of`](TableBuilder::label_of).
    pub fn label(self, column: impl Into<ColumnRef>) -> TableBuilder<T> {
        let column = column.into();
        let name = self.name_of(&column);
        self.push(name, vec![column], DType::I32, Vec::new(), FieldKind::Label(None))
    }

    /// Adds a field `i32[]` of indices into the given classes. The index of a text is its position
    /// in the list; an integer must be below the number of classes. In CSV, which has no types,
    /// integers are treated as indices only if no class has a number as its name.
    pub fn label_of<C: Into<String>>(
        self,
        column: impl Into<ColumnRef>,
        classes: impl IntoIterator<Item = C>,
    ) -> TableBuilder<T> {
        let column = column.into();
        let classes = classes.into_iter().map(Into::into).collect();
        let name = self.name_of(&column);
        self.push(name, vec![column], DType::I32, Vec::new(), FieldKind::Label(Some(classes)))
    }

    /// Names the field that was added last; by default it is named like its column.
    pub fn named(mut self, name: impl Into<String>) -> TableBuilder<T> {
        match self.specs.last_mut() {
            Some(spec) => spec.name = name.into(),
            None => {
                self.fault =
                    Some("`named` names the field before it, but there is none yet".to_owned())
            }
        }
        self
    }

    /// Replaces missing values in the field that was added last: nulls, markers of missing values in
    /// CSV, and NaN, as in pandas. Without it, a row with a missing value is an error that names its
    /// line. To keep NaN, fill with `f64::NAN`.
    pub fn fill(mut self, value: f64) -> TableBuilder<T> {
        match self.specs.last_mut() {
            Some(spec) => spec.fill = Some(value),
            None => {
                self.fault =
                    Some("`fill` is for the field before it, but there is none yet".to_owned())
            }
        }
        self
    }

    /// Builds the dataset.
    ///
    /// # Errors
    /// A column that does not exist, or cannot be converted to the dtype; a fill value that the
    /// dtype cannot represent; classes that cannot be numbered.
    pub fn build(mut self) -> Result<TableDataset<T>> {
        if let Some(fault) = self.fault {
            return Err(Error::usage(fault));
        }
        let rows = self.table.rows_mut();
        let positions = Positions::new(&rows.columns);
        let mut writers = Vec::with_capacity(self.specs.len());
        for spec in &self.specs {
            writers.push(check(spec, &rows.columns, &positions, &rows.name)?);
        }
        for (writer, spec) in writers.iter_mut().zip(&self.specs) {
            if let FieldKind::Label(classes) = &spec.form {
                writer.labels =
                    Some(Labels::find(rows, writer.columns[0], classes.as_deref(), writer.fill)?);
            }
        }
        let mut columns: Vec<usize> =
            writers.iter().flat_map(|writer| writer.columns.iter().copied()).collect();
        columns.sort_unstable();
        columns.dedup();
        rows.select(&columns)?;
        Ok(TableDataset { table: self.table, writers })
    }
}

/// Validates a field against the columns of the table.
fn check(
    spec: &FieldSpec,
    schema: &[Column],
    positions: &Positions,
    table_name: &str,
) -> Result<FieldWriter> {
    let field = Field::new(spec.name.clone(), spec.dtype, spec.shape.clone());
    field.elements()?;
    let columns: Vec<usize> = spec
        .columns
        .iter()
        .map(|column| column.find(schema, positions, table_name))
        .collect::<Result<_>>()?;
    for &column in &columns {
        let column = &schema[column];
        let (is_readable, expected) = match spec.form {
            FieldKind::Values => {
                (column.kind.fits(spec.dtype), format!("values that can be read as {}", spec.dtype))
            }
            FieldKind::Array => (
                column.kind.fits_array(spec.dtype),
                format!("lists whose elements can be read as {}", spec.dtype),
            ),
            FieldKind::Label(_) => {
                (Labels::fits(&column.kind), "texts or integers, to number classes by".to_owned())
            }
        };
        if !is_readable {
            return Err(Error::field(format!(
                "{table_name}: column `{}` has the type {}, expected {expected}",
                column.name, column.type_name
            )));
        }
    }
    if let Some(fill) = spec.fill {
        let mut bytes = vec![0; spec.dtype.size_in_bytes()];
        let is_representable = spec.dtype.is_float() || fill.fract() == 0.0;
        let stored = store(std::iter::once(ScalarRef::Missing), spec.dtype, Some(fill), &mut bytes);
        if !is_representable || stored.is_err() {
            return Err(Error::field(format!("field `{field}` cannot be filled with {fill}")));
        }
    }
    Ok(FieldWriter {
        field,
        columns,
        array: matches!(spec.form, FieldKind::Array),
        labels: None,
        fill: spec.fill,
    })
}

/// A writer for one field.
#[derive(Debug)]
struct FieldWriter {
    field: Field,
    columns: Vec<usize>,
    array: bool,
    labels: Option<Labels>,
    fill: Option<f64>,
}

impl FieldWriter {
    /// Writes the field of a row as bytes. An error includes the position of the column.
    fn write(
        &self,
        row: &BorrowedRow<'_>,
        out: &mut [u8],
    ) -> std::result::Result<(), (usize, Mismatch)> {
        let dtype = self.field.dtype;
        let column = self.columns.first().copied().unwrap_or(0);
        if let Some(labels) = &self.labels {
            let label = match (row.cell(column), self.fill) {
                (ScalarRef::Missing, Some(fill)) => Ok(fill as i32),
                (cell, _) => labels.index(&cell),
            };
            out.copy_from_slice(&label.map_err(|mismatch| (column, mismatch))?.to_ne_bytes());
            return Ok(());
        }
        if self.array {
            let written = write_array(&row.cell(column), dtype, &self.field.shape, self.fill, out);
            return written.map_err(|mismatch| (column, mismatch));
        }
        for (&column, bytes) in self.columns.iter().zip(out.chunks_exact_mut(dtype.size_in_bytes()))
        {
            store(std::iter::once(row.cell(column)), dtype, self.fill, bytes)
                .map_err(|mismatch| (column, mismatch))?;
        }
        Ok(())
    }
}

/// Writes a list, or bytes.
fn write_array(
    cell: &ScalarRef<'_>,
    dtype: DType,
    shape: &[usize],
    fill: Option<f64>,
    out: &mut [u8],
) -> Result<(), Mismatch> {
    match *cell {
        ScalarRef::List(values, start, end) => {
            store_list(values, start, end, dtype, shape, fill, out)
        }
        ScalarRef::Bytes(bytes) if bytes.len() == out.len() => {
            out.copy_from_slice(bytes);
            Ok(())
        }
        ScalarRef::Bytes(_) => {
            Err(Mismatch::kind(cell, format!("{}, for the shape {shape:?}", out.len())))
        }
        ScalarRef::Missing if fill.is_some() => {
            let count = shape.iter().product();
            store(std::iter::repeat_n(ScalarRef::Missing, count), dtype, fill, out)
        }
        _ => Err(Mismatch::kind(cell, format!("a list for the shape {shape:?}"))),
    }
}

/// Samples whose fields come from the columns of a table. Made by [`TableBuilder::build`].
#[derive(Debug)]
pub struct TableDataset<T> {
    table: T,
    writers: Vec<FieldWriter>,
}

impl<T> TableDataset<T> {
    /// The names of the classes of a label field, in the order of their indices; `None` if the
    /// labels are integers without names.
    pub fn classes(&self, field: &str) -> Option<&[String]> {
        self.writers.iter().find(|writer| writer.field.name == field)?.labels.as_ref()?.names()
    }

    /// The table.
    pub fn table(&self) -> &T {
        &self.table
    }
}

impl<T: Table> Dataset for TableDataset<T> {
    fn len(&self) -> usize {
        self.table.len()
    }

    fn fields(&self) -> Vec<Field> {
        self.writers.iter().map(|writer| writer.field.clone()).collect()
    }

    fn read(&self, index: usize, sample: &mut Sample<'_>) -> Result<()> {
        let row = sample.timed(Stage::Decode, || self.table.rows().borrow_row(index))?;
        for (field, writer) in self.writers.iter().enumerate() {
            writer.write(&row, sample.field_mut(field)?).map_err(|(column, mismatch)| {
                let name = self
                    .table
                    .rows()
                    .columns
                    .get(column)
                    .map_or("?", |column| column.name.as_str());
                // The origin, which precedes the message about a sample, has the file and the line.
                Error::field(format!("column `{name}` {}", mismatch.message()))
            })?;
        }
        Ok(())
    }

    fn origin(&self, index: usize) -> Option<String> {
        Some(self.table.origin(index))
    }

    fn fingerprint(&self, fingerprint: &mut Fingerprint) -> Result<()> {
        for writer in &self.writers {
            fingerprint.add("field", writer.field.to_string());
            for &column in &writer.columns {
                fingerprint.add("column", (column as u64).to_le_bytes());
            }
            fingerprint.add("array", [u8::from(writer.array)]);
            fingerprint.add("fill", writer.fill.map_or(String::new(), |fill| fill.to_string()));
            if let Some(labels) = &writer.labels {
                fingerprint.add("label", "");
                labels
                    .names()
                    .into_iter()
                    .flatten()
                    .for_each(|name| fingerprint.add("class", name));
            }
        }
        self.table.fingerprint(fingerprint)
    }
}
