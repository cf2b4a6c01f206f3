//! [`Program`]: what a user's program says of itself.

use std::path::Path;

use fulmen_data::DataLoader;
use fulmen_trainer::{EvaluationSets, Options, PredictionWriter, Trainer, TrainerBuilder, TrainingModule};

/// The result of a program's own parts: any error will do, and `?` makes it.
pub type Result<T, E = Box<dyn std::error::Error + Send + Sync>> = std::result::Result<T, E>;

/// A program that trains: its arguments, and how they make a model and data.
///
/// The implementing struct derives [`clap::Args`]: its fields are the program's own flags, its documentation the first
/// lines of `--help`. See the [crate](crate) for a whole one.
pub trait Program: clap::Args {
    /// What is trained.
    type Module: TrainingModule;

    /// Makes the module. The Trainer initializes it and loads its weights.
    fn module(&self) -> Result<Self::Module>;

    /// Opens the data to fit and to validate on. The seed in `options` is that of the run: give it to a loader that
    /// shuffles, so that a resumed run sees the same batches.
    fn fit_data(&self, options: &Options) -> Result<FitData>;

    /// Opens the data to test on: `(&loader).into()`, or several sets with names. A program that has some and is started
    /// without a subcommand tests after it has fit.
    fn test_data(&self, options: &Options) -> Result<EvaluationSets> {
        let _ = options;
        Ok(EvaluationSets::default())
    }

    /// Called when a test has ended, also the one after a fit. The module has the weights that were tested. It is the place to
    /// save them in another form, such as a folder of Hugging Face. Of several processes, each calls it.
    fn after_test(&self, module: &Self::Module, trainer: &Trainer) -> Result<()> {
        let _ = (module, trainer);
        Ok(())
    }

    /// Opens the data to predict for, in the order of the predictions.
    fn predict_data(&self, options: &Options) -> Result<Option<DataLoader>> {
        let _ = options;
        Ok(None)
    }

    /// Writes the file of `predict --output`. A program whose predictions are texts or pictures adds a format of its own with
    /// [`PredictionWriter::with_format`].
    fn prediction_writer(&self, output: &Path) -> fulmen_trainer::Result<PredictionWriter> {
        PredictionWriter::new(output)
    }

    /// Adds callbacks and loggers to the Trainer, and sets the program's own defaults of its options, over which
    /// command line, file and environment win.
    fn trainer(&self, builder: TrainerBuilder) -> TrainerBuilder {
        builder
    }
}

/// What a fit reads.
#[derive(Debug)]
pub struct FitData {
    /// What is trained on.
    pub train: DataLoader,
    /// What is validated on: `(&loader).into()`, several sets with names, or nothing (`None.into()`).
    pub validation: EvaluationSets,
}
