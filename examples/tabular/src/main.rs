//! Trains a network on the rows of a CSV table, to predict a class or a number from numbers and
//! categories.

mod columns;
mod model;

use std::path::PathBuf;
use std::process::ExitCode;

use fulmen::cli::{self, CliApp, FitData, clap};
use fulmen::data::tables::Csv;
use fulmen::prelude::*;

use columns::{Columns, Task, mean_and_deviation};
use model::{Recipe, Standardization, Tabular};

/// Trains a network on the rows of a CSV table
#[derive(clap::Args)]
struct Args {
    /// A .csv or .tsv file whose first line names the columns.
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/data/penguins.csv"))]
    table: PathBuf,
    /// The column to predict. Rows without it are left out.
    #[arg(long, default_value = "species")]
    target: String,
    /// Whether the target is a class or a number.
    #[arg(long, value_enum, default_value_t = Task::Classification)]
    task: Task,
    /// Numeric columns that are categories, for example codes. Other columns are always categories.
    #[arg(long, value_delimiter = ',')]
    categorical: Vec<String>,
    /// Columns to leave out: names, row numbers, anything that is not known before the target.
    #[arg(long, value_delimiter = ',')]
    ignore: Vec<String>,
    /// The table for `predict`, with or without the target; by default the test rows.
    #[arg(long)]
    predict_table: Option<PathBuf>,
    /// Use random rows instead of --table.
    #[arg(long)]
    fake_data: bool,
    /// The batch size.
    #[arg(long, default_value_t = 32)]
    batch_size: usize,
    /// The number of worker threads that read data.
    #[arg(long, default_value_t = 1)]
    num_workers: usize,
    #[command(flatten)]
    recipe: Recipe,
}

impl Args {
    fn columns(&self) -> cli::Result<Columns> {
        if self.fake_data {
            return Ok(Columns::fake(self.task));
        }
        let table = Csv::open(&self.table)?;
        let columns =
            Columns::find(&table, &self.target, self.task, &self.categorical, &self.ignore);
        Ok(columns.map_err(|error| format!("{}: {error}", self.table.display()))?)
    }

    /// Eight tenths of the rows for training, a tenth for validation and a tenth for testing.
    fn parts(&self, columns: &Columns) -> cli::Result<[impl Dataset + use<>; 3]> {
        let rows = if self.fake_data {
            columns.fake_rows(10_000)
        } else {
            columns.labelled_rows(Csv::open(&self.table)?)?
        };
        let len = rows.len();
        Ok(random_split(rows, [len - 2 * (len / 10), len / 10, len / 10], 0)?)
    }

    /// All rows, each once.
    fn ordered_loader(&self, rows: impl Dataset) -> cli::Result<DataLoader> {
        Ok(DataLoader::builder(rows)
            .batch_size(self.batch_size)
            .num_workers(self.num_workers)
            .build()?)
    }
}

impl CliApp for Args {
    type Module = Tabular;

    fn module(&self) -> cli::Result<Tabular> {
        let columns = self.columns()?;
        let [train, ..] = self.parts(&columns)?;
        let standardization = |field: &str| -> cli::Result<Standardization> {
            let [mean, deviation] = mean_and_deviation(&train, field)?;
            Ok(Standardization::new(mean, deviation))
        };
        let numbers = standardization("numbers")?;
        let target = match self.task {
            Task::Classification => None,
            Task::Regression => Some(standardization("target")?),
        };
        Ok(Tabular::new(&columns, numbers, target, self.recipe.clone()))
    }

    fn fit_data(&self, options: &Options) -> cli::Result<FitData> {
        let [train, validation, _] = self.parts(&self.columns()?)?;
        let train = DataLoader::builder(train)
            .batch_size(self.batch_size)
            .shuffle(true)
            .seed(options.seed)
            .num_workers(self.num_workers)
            .build()?;
        Ok(FitData { train, validation: self.ordered_loader(validation)?.into() })
    }

    fn test_data(&self, _: &Options) -> cli::Result<EvaluationSets> {
        let [_, _, test] = self.parts(&self.columns()?)?;
        Ok(self.ordered_loader(test)?.into())
    }

    fn predict_data(&self, _: &Options) -> cli::Result<Option<DataLoader>> {
        let columns = self.columns()?;
        Ok(Some(match &self.predict_table {
            Some(path) => self.ordered_loader(columns.all_rows(Csv::open(path)?)?)?,
            None => {
                let [_, _, test] = self.parts(&columns)?;
                self.ordered_loader(test)?
            }
        }))
    }

    fn trainer(&self, builder: TrainerBuilder) -> TrainerBuilder {
        builder.callback(ModelCheckpoint::new().monitor("val_loss", Mode::Min))
    }
}

fn main() -> ExitCode {
    cli::main::<Args>()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use fulmen::data::HostBatch;

    use super::*;

    /// Fits, validates and tests in one run, without data and without leaving anything behind.
    #[test]
    fn the_program_runs_on_fake_data() {
        for task in ["classification", "regression"] {
            let args =
                ["tabular", "--fake-data", "--fast-dev-run", "--task", task, "--hidden", "8"];
            assert_eq!(cli::main_from::<Args>(args), ExitCode::SUCCESS);
        }
    }

    /// The penguins have numbers, categories and missing values.
    #[test]
    fn column_types_are_detected_and_missing_values_are_marked() {
        let path = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/data/penguins.csv"));
        let table = || Csv::open(path).unwrap();
        let find = |target: &str, task| {
            Columns::find(&table(), target, task, &["year".to_owned()], &["island".to_owned()])
        };
        let columns = find("species", Task::Classification).unwrap();
        assert_eq!(
            columns.numbers,
            ["bill_length_mm", "bill_depth_mm", "flipper_length_mm", "body_mass_g"]
        );
        let expected = [
            ("sex", vec!["(missing)", "female", "male"]),
            ("year", vec!["(missing)", "2007", "2008", "2009"]),
        ];
        let actual: Vec<(&str, Vec<&str>)> = columns
            .categories
            .iter()
            .map(|(name, names)| (&**name, names.iter().map(|name| &**name).collect()))
            .collect();
        assert_eq!(actual, expected);
        let rows = columns.labelled_rows(table()).unwrap();
        let batch = HostBatch::collate(&rows, &[3, 4]).unwrap();
        let numbers = batch.values::<f32>(0).unwrap();
        assert!(
            numbers[..4].iter().all(|x| x.is_nan()) && numbers[4..] == [36.7, 19.3, 193.0, 3450.0],
            "{numbers:?}"
        );
        let codes = [1, 2, 3].map(|field| batch.values::<i32>(field).unwrap());
        assert_eq!(codes, [[0, 1], [1, 1], [0, 0]]); // sex, year, species
        let [mean, deviation] = mean_and_deviation(&rows, "numbers").unwrap();
        assert!(
            (mean[3] - 4201.754).abs() < 1e-2 && (deviation[0] - 5.4516).abs() < 1e-3,
            "{mean:?} {deviation:?}"
        );
        // Rows without a target are left out.
        let mass = find("body_mass_g", Task::Regression).unwrap();
        assert_eq!((rows.len(), mass.labelled_rows(table()).unwrap().len()), (344, 342));
        for (target, task) in [
            ("sex", Task::Regression),
            ("mass", Task::Regression),
            ("body_mass_g", Task::Classification),
        ] {
            assert!(find(target, task).is_err(), "{target}");
        }
    }
}
