//! [`CliApp`]: a user's arguments, and the model and the data made from them.

use std::path::Path;

use fulmen_data::DataLoader;
use fulmen_trainer::{
    EvaluationSets, Options, PredictionWriter, Trainer, TrainerBuilder, TrainingModule,
};

/// The result of an app's methods. `?` converts any error.
pub type Result<T, E = Box<dyn std::error::Error + Send + Sync>> = std::result::Result<T, E>;

/// An app that trains: its arguments, and how to make its model and data from them.
///
/// The implementing struct derives [`clap::Args`]. Its fields are the app's flags, and its
/// documentation starts `--help`. See the [crate](crate) for an example.
pub trait CliApp: clap::Args {
    /// The module to train.
    type Module: TrainingModule;

    /// Makes the module. The Trainer initializes it and loads its weights.
    fn module(&self) -> Result<Self::Module>;

    /// Opens the data for training and validation. Pass the seed in `options` to a loader that
    /// shuffles, so that a resumed run sees the same batches.
    fn fit_data(&self, options: &Options) -> Result<FitData>;

    /// Opens the data for tests: `(&loader).into()`, or several named sets. With test data, the
    /// app without a subcommand fits and then tests.
    fn test_data(&self, options: &Options) -> Result<EvaluationSets> {
        let _ = options;
        Ok(EvaluationSets::default())
    }

    /// Called after a test, including the one after a fit. The module has the tested weights. Use
    /// it to save them in a different format, such as a Hugging Face folder. With several
    /// processes, it is called in each of them.
    fn after_test(&self, module: &Self::Module, trainer: &Trainer) -> Result<()> {
        let _ = (module, trainer);
        Ok(())
    }

    /// Opens the data to predict for. Predictions keep its order.
    fn predict_data(&self, options: &Options) -> Result<Option<DataLoader>> {
        let _ = options;
        Ok(None)
    }

    /// Makes the writer for the file of `predict --output`. If the predictions are texts or
    /// images, add your own format with [`PredictionWriter::with_format`].
    fn prediction_writer(&self, output: &Path) -> fulmen_trainer::Result<PredictionWriter> {
        PredictionWriter::new(output)
    }

    /// Adds callbacks and loggers to the Trainer, and sets the app's own defaults. The command
    /// line, files and the environment override them.
    fn trainer(&self, builder: TrainerBuilder) -> TrainerBuilder {
        builder
    }
}

/// The data of a fit.
#[derive(Debug)]
pub struct FitData {
    /// The training data.
    pub train: DataLoader,
    /// The validation data: `(&loader).into()`, several named sets, or none (`None.into()`).
    pub validation: EvaluationSets,
}
