//! Detects the types of a table's columns, and turns its rows into samples.

use std::collections::BTreeSet;

use fulmen::cli::{Result, clap};
use fulmen::data::tables::{Csv, Table};
use fulmen::data::{Dataset, FakeDataset, HostBatch, Source, Subset};
use fulmen::prelude::*;

#[derive(Clone, Copy, Debug, PartialEq, clap::ValueEnum)]
pub(crate) enum Task {
    Classification,
    Regression,
}

/// The columns that the network uses.
pub(crate) struct Columns {
    /// Numeric columns.
    pub(crate) numbers: Vec<String>,
    /// Categorical columns, with their categories in order.
    pub(crate) categories: Vec<(String, Vec<String>)>,
    target: String,
    /// The classes of the target; `None` for regression.
    pub(crate) classes: Option<Vec<String>>,
    /// The indices of the rows with a target.
    labelled: Vec<usize>,
}

/// The name of the category for missing values.
const MISSING: &str = "(missing)";

impl Columns {
    /// Inspects all rows. A column is numeric if all its values are numbers, unless `categorical`
    /// names it.
    pub(crate) fn find(
        table: &Csv,
        target: &str,
        task: Task,
        categorical: &[String],
        ignored: &[String],
    ) -> Result<Columns> {
        let names: Vec<String> = table.column_names().into_iter().map(str::to_owned).collect();
        for name in
            std::iter::once(target).chain(categorical.iter().chain(ignored).map(String::as_str))
        {
            if !names.iter().any(|column| column == name) {
                return Err(format!(
                    "the table has no column `{name}`; its columns are {}",
                    names.join(", ")
                )
                .into());
            }
        }
        let mut values = vec![BTreeSet::new(); names.len()];
        let mut labelled = Vec::new();
        for index in 0..table.len() {
            let row = table.get(index)?;
            for (name, values) in names.iter().zip(&mut values) {
                if let Some(value) = row.get::<Option<String>>(name)? {
                    values.insert(value);
                    if name == target {
                        labelled.push(index);
                    }
                }
            }
        }
        let mut columns = Columns {
            numbers: Vec::new(),
            categories: Vec::new(),
            target: target.to_owned(),
            classes: None,
            labelled,
        };
        for (name, values) in names.into_iter().zip(values) {
            let numbers = values.iter().all(|value| value.trim().parse::<f64>().is_ok());
            if name == target {
                let count = values.len();
                let rows = columns.labelled.len();
                match task {
                    Task::Regression if numbers => {}
                    Task::Regression => {
                        return Err(
                            format!("--task regression: `{name}` is not a numeric column").into()
                        );
                    }
                    Task::Classification if numbers && 10 * count > rows => {
                        let message = format!(
                            "`{name}` has {count} different numbers in {rows} rows, which are too many classes; pass --task \
                             regression"
                        );
                        return Err(message.into());
                    }
                    Task::Classification => columns.classes = Some(values.into_iter().collect()),
                }
            } else if ignored.contains(&name) || values.is_empty() {
            } else if numbers && !categorical.contains(&name) {
                columns.numbers.push(name);
            } else {
                columns
                    .categories
                    .push((name, [MISSING.to_owned()].into_iter().chain(values).collect()));
            }
        }
        Ok(columns)
    }

    /// The columns of `--fake-data`.
    pub(crate) fn fake(task: Task) -> Columns {
        let names = |count: usize| (0..count).map(|name| name.to_string()).collect::<Vec<_>>();
        Columns {
            numbers: names(8),
            categories: names(2).into_iter().map(|name| (name, names(5))).collect(),
            target: String::new(),
            classes: (task == Task::Classification).then(|| names(3)),
            labelled: Vec::new(),
        }
    }

    /// Random rows of these columns.
    pub(crate) fn fake_rows(&self, count: usize) -> Box<dyn Dataset> {
        let mut rows = FakeDataset::new(count).normal("numbers", [self.numbers.len()]);
        for (index, (_, names)) in self.categories.iter().enumerate() {
            rows = rows.integers(category(index), [], names.len());
        }
        Box::new(match &self.classes {
            Some(classes) => rows.integers("target", [], classes.len()),
            None => rows.normal("target", []),
        })
    }

    /// The rows with a target.
    pub(crate) fn labelled_rows(&self, table: Csv) -> Result<Box<dyn Dataset>> {
        Ok(Box::new(Subset::new(self.rows(table, true)?, &*self.labelled)?))
    }

    /// All rows, without the target. The fields are `numbers`, `f32[columns]`, and an `i32[]` for
    /// each categorical column. A missing number is NaN, and a missing category is 0.
    pub(crate) fn all_rows(&self, table: Csv) -> Result<Box<dyn Dataset>> {
        self.rows(table, false)
    }

    /// All rows; with a target, the additional field `target` is a class, `i32[]`, or a number,
    /// `f32[]`.
    fn rows(&self, table: Csv, with_target: bool) -> Result<Box<dyn Dataset>> {
        if self.numbers.is_empty() {
            return Err("the table needs at least one numeric column besides the target".into());
        }
        let mut rows = table.columns("numbers", &self.numbers, DType::F32).fill(f64::NAN);
        for (index, (name, categories)) in self.categories.iter().enumerate() {
            rows = rows.label_of(name, categories).named(category(index)).fill(0.0);
        }
        let rows = match &self.classes {
            _ if !with_target => rows,
            Some(classes) => rows.label_of(&self.target, classes).named("target"),
            None => rows.column(&self.target, DType::F32).named("target"),
        };
        Ok(Box::new(rows.build()?))
    }
}

/// The field of the categorical column with this index.
pub(crate) fn category(index: usize) -> String {
    format!("category_{index}")
}

/// The mean and the standard deviation of each number of a field, over the samples in which it is
/// not missing.
pub(crate) fn mean_and_deviation(dataset: &dyn Dataset, field: &str) -> Result<[Vec<f32>; 2]> {
    let mut sums: Vec<(f64, f64, f64)> = Vec::new();
    let samples: Vec<usize> = (0..dataset.len()).collect();
    for samples in samples.chunks(4096) {
        let batch = HostBatch::collate(dataset, samples)?;
        let index =
            batch.field_index(field).ok_or_else(|| format!("there is no field `{field}`"))?;
        let values = batch.values::<f32>(index)?;
        sums.resize(values.len() / samples.len(), (0.0, 0.0, 0.0));
        for row in values.chunks(sums.len().max(1)) {
            for ((count, mean, squares), &value) in
                sums.iter_mut().zip(row).filter(|(_, value)| value.is_finite())
            {
                // Welford's algorithm: a sum of squares would lose small deviations from a large
                // mean.
                *count += 1.0;
                let difference = f64::from(value) - *mean;
                *mean += difference / *count;
                *squares += difference * (f64::from(value) - *mean);
            }
        }
    }
    let deviation = |&(count, _, squares): &(f64, f64, f64)| match squares {
        0.0 => 1.0,
        squares => (squares / count).sqrt() as f32,
    };
    Ok([
        sums.iter().map(|(_, mean, _)| *mean as f32).collect(),
        sums.iter().map(deviation).collect(),
    ])
}
