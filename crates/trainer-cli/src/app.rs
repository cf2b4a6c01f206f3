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
/// documentation starts `--help`. See the [crate](crate) for a complete program.
/// ```
/// use fulmen_data::{DataLoader, TensorDataset};
/// use fulmen_nn::{Linear, Module, loss, optim};
/// use fulmen_tensor::Tensor;
/// use fulmen_trainer::{Batch, Options, Plan, StepContext, TrainingModule};
/// use fulmen_trainer_cli::{self as cli, CliApp, FitData, clap};
///
/// #[derive(Module)]
/// struct Line(Linear);
///
/// impl TrainingModule for Line {
///     fn training_step(&self, batch: &Batch, _: &mut StepContext) -> Tensor {
///         loss::mse_loss(self.0.forward(batch.get("x")), batch.get("y"), loss::Reduction::Mean)
///     }
///
///     fn configure_optimizers(&self, _: &Plan) -> Box<dyn optim::Optimizer> {
///         Box::new(optim::Sgd::new(0.1))
///     }
/// }
///
/// /// Fits a line.
/// #[derive(clap::Args)]
/// struct App {
///     /// The number of points.
///     #[arg(long, default_value_t = 100)]
///     points: usize,
/// }
///
/// impl CliApp for App {
///     type Module = Line;
///
///     fn module(&self) -> cli::Result<Line> {
///         Ok(Line(Linear::new(1, 1)))
///     }
///
///     fn fit_data(&self, options: &Options) -> cli::Result<FitData> {
///         let x: Vec<f32> = (0..self.points).map(|i| i as f32).collect();
///         let shape = [self.points, 1];
///         let data = TensorDataset::builder().array("x", shape, x.clone()).array("y", shape, x).build()?;
///         let train = DataLoader::builder(data).batch_size(10).seed(options.seed).build()?;
///         Ok(FitData { train, validation: None.into() })
///     }
/// }
///
/// let app = App { points: 30 };
/// let options = fulmen_trainer::Trainer::builder().options()?;
/// assert_eq!(app.fit_data(&options)?.train.len(), 3);
/// # Ok::<(), Box<dyn std::error::Error + Send + Sync>>(())
/// ```
pub trait CliApp: clap::Args {
    /// The module to train.
    type Module: TrainingModule;

    /// Makes the module. The Trainer initializes it and loads its weights.
    fn module(&self) -> Result<Self::Module>;

    /// Opens the data for training and validation. Pass the seed in `options` to a loader that
    /// shuffles, so that a resumed run sees the same batches.
    fn fit_data(&self, options: &Options) -> Result<FitData>;

    /// Opens the data for tests: `loader.into()`, or several named sets. With test data, the
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
    /// The validation data: `loader.into()`, several named sets, or none (`None.into()`).
    pub validation: EvaluationSets,
}
