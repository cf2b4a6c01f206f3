//! [`TrainingModule`]: the trait that users implement.

pub(crate) mod step_context;
pub(crate) mod training_fn;

use fulmen_data::DataLoader;
use fulmen_nn::Module;
use fulmen_nn::optim::Optimizer;
use fulmen_tensor::Tensor;

use crate::hooks::{
    CheckpointFile, EvaluationProgress, FitStart, ProgramOutput, Progress, hook_table,
};
use crate::{Actions, Batch, Error, FitSummary, LogPoint, Plan, Predictions, Result, StepContext};

macro_rules! module_methods {
    ($($(#[$doc:meta])* $hook:ident($($arg:ident: $ty:ty),*);)*) => {$(
        $(#[$doc])*
        fn $hook(&self, $($arg: $ty),*) {
            $(let _ = $arg;)*
        }
    )*};
}

/// A model together with how it is trained: Lightning's `LightningModule`.
///
/// Each step is called **once**, with symbolic tensors, and records the program to compile. A step
/// therefore never sees a number. To show a value, [log](StepContext::log) it.
/// ```
/// use fulmen_data::{DataLoader, TensorDataset};
/// use fulmen_nn::loss::{Reduction, mse_loss};
/// use fulmen_nn::optim::{AdamW, Optimizer};
/// use fulmen_nn::{Linear, Module};
/// use fulmen_tensor::Tensor;
/// use fulmen_trainer::{Batch, Plan, StepContext, Trainer, TrainingModule};
///
/// #[derive(Module)]
/// struct Line {
///     linear: Linear,
/// }
///
/// impl TrainingModule for Line {
///     fn training_step(&self, batch: &Batch, _: &mut StepContext) -> Tensor {
///         let predicted = self.linear.forward(batch.get("x"));
///         mse_loss(predicted, batch.get("y"), Reduction::Mean)
///     }
///
///     fn validation_step(&self, batch: &Batch, cx: &mut StepContext) {
///         let error = (self.linear.forward(batch.get("x")) - batch.get("y")).abs();
///         cx.log("val_error", batch.mean(error.mean(1)));
///     }
///
///     fn configure_optimizers(&self, _: &Plan) -> Box<dyn Optimizer> {
///         Box::new(AdamW::new(0.1))
///     }
/// }
///
/// let x: Vec<f32> = (0..64).map(|i| i as f32 / 64.0).collect();
/// let y: Vec<f32> = x.iter().map(|x| 3.0 * x + 1.0).collect();
/// let data = TensorDataset::builder().array("x", [64, 1], x).array("y", [64, 1], y).build()?;
/// let loader = DataLoader::builder(data).batch_size(16).shuffle(true).build()?;
///
/// let line = Line { linear: Linear::new(1, 1) };
/// # let folder = tempfile::tempdir()?;
/// let trainer = Trainer::builder().max_epochs(20);
/// # let trainer = trainer.default_root_dir(folder.path()).accelerator(fulmen_tensor::Accelerator::Cpu);
/// let fit = trainer.build()?.fit(&line, &loader, &loader)?;
/// assert_eq!((fit.global_step, fit.train_compilations), (80, 1));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait TrainingModule: Module {
    /// Records the loss of one batch, a floating-point scalar. With several optimizers, pass each
    /// loss to [`StepContext::minimize`]; the returned value is then only logged.
    fn training_step(&self, batch: &Batch, cx: &mut StepContext) -> Tensor;

    /// Records what to log for one validation batch. The default logs nothing, and validation is
    /// skipped.
    fn validation_step(&self, batch: &Batch, cx: &mut StepContext) {
        let _ = (batch, cx);
    }

    /// Records what to log for one test batch. The default logs nothing, and
    /// [`Trainer::test`](crate::Trainer::test) returns an error.
    fn test_step(&self, batch: &Batch, cx: &mut StepContext) {
        let _ = (batch, cx);
    }

    /// Records the predictions for one batch: a tensor, or several named ones, each with one row
    /// per sample. The default returns none, and [`Trainer::predict`](crate::Trainer::predict)
    /// returns an error.
    fn predict_step(&self, batch: &Batch) -> Predictions {
        let _ = batch;
        Predictions::default()
    }

    /// Makes the training loader for `epoch` (from 0) and the epochs after it. With the option
    /// `reload_dataloaders_every_n_epochs`, it is called at that interval. The first epochs use the
    /// loader passed to the fit. The new loader needs the same number of batches and the same
    /// shapes. The default returns `None`, which is an error with that option.
    ///
    /// # Errors
    /// Any error ends the fit.
    fn train_dataloader(&self, epoch: u64) -> Result<Option<DataLoader>> {
        let _ = epoch;
        Ok(None)
    }

    /// Called before each fit, validation, test, prediction and preflight, once the devices are
    /// known and before anything is recorded. It must be safe to call again. Use it to tie the
    /// weights of layers that were made separately.
    ///
    /// ```ignore
    /// fn on_after_setup(&self) -> Result<()> {
    ///     Ok(self.head.weight.tie(&self.embedding.weight)?)
    /// }
    /// ```
    ///
    /// If this changes the number of parameters, the Trainer prints the names of those parameters.
    ///
    /// # Errors
    /// Any error ends the run before it begins.
    fn on_after_setup(&self) -> Result<()> {
        Ok(())
    }

    /// Makes the optimizer, given the length of the training. For several, return
    /// [`Optimizers`](crate::Optimizers).
    fn configure_optimizers(&self, plan: &Plan) -> Box<dyn Optimizer>;

    /// Records named programs that callbacks can [run](Actions::run_program) during a fit, such as
    /// samples of a generator or predictions for a few fixed inputs. They are compiled before the
    /// first step. They run in evaluation mode with the current weights, or their average if
    /// weights are averaged. The default has none.
    ///
    /// ```ignore
    /// fn programs(&self) -> Vec<(&'static str, Predictions)> {
    ///     vec![("samples", self.generator.forward(&self.latents).into())]
    /// }
    /// ```
    fn programs(&self) -> Vec<(&'static str, Predictions)> {
        Vec::new()
    }

    /// The type of the model, so that notes about compiled programs compare only those of one model.
    #[doc(hidden)]
    fn type_of_model(&self) -> &'static str {
        std::any::type_name::<Self>()
    }

    hook_table!(module_methods);
}
