//! Trains a small convolutional network on handwritten digits, keeps the best checkpoint and tests
//! it.

mod model;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use fulmen::cli::{self, CliApp, FitData, clap};
use fulmen::data::{FakeDataset, Mnist, Split, k_fold};
use fulmen::prelude::*;

use model::Digits;

/// Trains a small convolutional network on handwritten digits
#[derive(clap::Args)]
struct Args {
    /// A folder with MNIST in IDX format: train-images-idx3-ubyte[.gz] and so on.
    #[arg(long, default_value = concat!(env!("CARGO_MANIFEST_DIR"), "/data"))]
    data_dir: PathBuf,
    /// Use random pixels instead of --data-dir.
    #[arg(long)]
    fake_data: bool,
    /// Validate on this fifth of the training digits, 0 to 4, instead of a random tenth.
    #[arg(long, value_parser = clap::value_parser!(u8).range(..5))]
    fold: Option<u8>,
    /// The batch size.
    #[arg(long, default_value_t = 32)]
    batch_size: usize,
    /// The highest learning rate of the one-cycle schedule.
    #[arg(long, default_value_t = 4e-3)]
    learning_rate: f64,
    /// The number of worker threads that read data.
    #[arg(long, default_value_t = 1)]
    num_workers: usize,
    /// Keep the checkpoint of every epoch.
    #[arg(long)]
    every_epoch: bool,
}

impl CliApp for Args {
    type Module = Digits;

    fn module(&self) -> cli::Result<Digits> {
        Ok(Digits::new(self.learning_rate))
    }

    fn fit_data(&self, options: &Options) -> cli::Result<FitData> {
        // A part of the training digits is held out for validation.
        let digits = self.digits(Split::Train)?;
        let held_back = digits.len() / 10;
        let lengths = [digits.len() - held_back, held_back];
        let [train, validation] = match self.fold {
            None => random_split(digits, lengths, 0)?,
            Some(fold) => {
                k_fold(digits.len(), 5, Some(0))?[usize::from(fold)].datasets(&Arc::new(digits))?
            }
        };
        let train = DataLoader::builder(train)
            .batch_size(self.batch_size)
            .shuffle(true)
            .seed(options.seed)
            .num_workers(self.num_workers)
            .drop_last(true)
            .build()?;
        Ok(FitData { train, validation: self.ordered_loader(validation)?.into() })
    }

    fn test_data(&self, _: &Options) -> cli::Result<EvaluationSets> {
        Ok(self.ordered_loader(self.digits(Split::Test)?)?.into())
    }

    fn predict_data(&self, _: &Options) -> cli::Result<Option<DataLoader>> {
        Ok(Some(self.ordered_loader(self.digits(Split::Test)?)?))
    }

    fn trainer(&self, builder: TrainerBuilder) -> TrainerBuilder {
        builder.callback(
            ModelCheckpoint::new().monitor("val_acc", Mode::Max).keep_all(self.every_epoch),
        )
    }
}

impl Args {
    /// The fields `image`, `u8[1, 28, 28]`, and `label`, `i32[]`.
    fn digits(&self, split: Split) -> cli::Result<Box<dyn Dataset>> {
        if self.fake_data {
            return Ok(Box::new(FakeDataset::new(10_000).pixels("image", [1, 28, 28]).integers(
                "label",
                [],
                10,
            )));
        }
        Ok(Box::new(Mnist::open(&self.data_dir, split)?))
    }

    /// All samples, each once.
    fn ordered_loader(&self, dataset: impl Dataset) -> cli::Result<DataLoader> {
        Ok(DataLoader::builder(dataset)
            .batch_size(self.batch_size)
            .num_workers(self.num_workers)
            .build()?)
    }
}

fn main() -> ExitCode {
    cli::main::<Args>()
}
