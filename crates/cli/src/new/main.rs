//! Trains a network that tells two spirals apart, keeps the best checkpoint and tests it.

mod data;
mod model;

use std::process::ExitCode;

use fulmen::cli::{self, CliApp, FitData, clap};
use fulmen::prelude::*;

use model::Classifier;

/// Trains a network that tells two spirals apart
#[derive(clap::Args)]
struct Args {
    /// Samples a step
    #[arg(long, default_value_t = 32)]
    batch_size: usize,
    /// The highest learning rate of the one-cycle schedule
    #[arg(long, default_value_t = 0.01)]
    learning_rate: f64,
}

impl Args {
    /// Points to train, validate and test with.
    fn parts(&self) -> cli::Result<[impl Dataset + use<>; 3]> {
        Ok(random_split(data::spirals(2000)?, [1600, 200, 200], 0)?)
    }

    /// All samples, each once.
    fn in_order(&self, dataset: impl Dataset) -> cli::Result<DataLoader> {
        Ok(DataLoader::builder(dataset)
            .batch_size(self.batch_size)
            .build()?)
    }
}

impl CliApp for Args {
    type Module = Classifier;

    fn module(&self) -> cli::Result<Classifier> {
        Ok(Classifier::new(self.learning_rate))
    }

    fn fit_data(&self, options: &Options) -> cli::Result<FitData> {
        let [train, validation, _] = self.parts()?;
        let train = DataLoader::builder(train)
            .batch_size(self.batch_size)
            .shuffle(true)
            .seed(options.seed)
            .drop_last(true)
            .build()?;
        let validation = self.in_order(validation)?.into();
        Ok(FitData { train, validation })
    }

    fn test_data(&self, _: &Options) -> cli::Result<EvaluationSets> {
        let [_, _, test] = self.parts()?;
        Ok(self.in_order(test)?.into())
    }

    fn predict_data(&self, _: &Options) -> cli::Result<Option<DataLoader>> {
        let [_, _, test] = self.parts()?;
        Ok(Some(self.in_order(test)?))
    }

    fn trainer(&self, builder: TrainerBuilder) -> TrainerBuilder {
        builder
            .max_epochs(20)
            .callback(ModelCheckpoint::new().monitor("val_acc", Mode::Max))
    }
}

fn main() -> ExitCode {
    cli::main::<Args>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_learns() -> cli::Result<()> {
        let folder = tempfile::tempdir()?;
        let args = Args {
            batch_size: 32,
            learning_rate: 0.01,
        };
        let builder = args.trainer(Trainer::builder()).accelerator("cpu");
        let mut trainer = builder.default_root_dir(folder.path()).build()?;

        let module = args.module()?;
        let FitData { train, validation } = args.fit_data(trainer.options())?;
        trainer.fit(&module, &train, validation)?;

        let test = args.test_data(trainer.options())?;
        let metrics = trainer.test(&module, test, Weights::Best)?;
        assert!(metrics.get("test_acc") > Some(0.95), "{metrics}");
        Ok(())
    }
}
