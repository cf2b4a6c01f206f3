//! [`TrainingModule`]: what a user writes.

pub(crate) mod step_context;
pub(crate) mod training_fn;

use fulmen_data::DataLoader;
use fulmen_nn::Module;
use fulmen_nn::optim::Optimizer;
use fulmen_tensor::Tensor;

use crate::hooks::{CheckpointFile, EvaluationProgress, FitStart, ProgramOutput, Progress, hook_table};
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
/// Each step is called **once**, with symbolic tensors; what it records becomes the compiled program. A step therefore
/// never sees a number: what it wants to show, it [logs](StepContext::log).
pub trait TrainingModule: Module {
    /// Records the loss of one batch: a floating-point scalar. With several optimizers each loss is given to
    /// [`StepContext::minimize`], and what is returned is only logged.
    fn training_step(&self, batch: &Batch, cx: &mut StepContext) -> Tensor;

    /// Records what to log of one validation batch. By default nothing, and validation is skipped.
    fn validation_step(&self, batch: &Batch, cx: &mut StepContext) {
        let _ = (batch, cx);
    }

    /// Records what to log of one test batch. By default nothing, which [`Trainer::test`](crate::Trainer::test)
    /// refuses.
    fn test_step(&self, batch: &Batch, cx: &mut StepContext) {
        let _ = (batch, cx);
    }

    /// Records the predictions for one batch: a tensor, or several with names, each with a row a sample. By default
    /// none, which [`Trainer::predict`](crate::Trainer::predict) refuses.
    fn predict_step(&self, batch: &Batch) -> Predictions {
        let _ = batch;
        Predictions::default()
    }

    /// Makes the training loader for an epoch, counted from 0, and those after it: called every
    /// `reload_dataloaders_every_n_epochs` epochs, where the option says so, but not for the first epochs, whose loader the
    /// fit is given. It must have as many batches of the same shapes. By default there is none.
    ///
    /// # Errors
    /// Whatever goes wrong there; it ends the fit.
    fn train_dataloader(&self, epoch: u64) -> Result<Option<DataLoader>> {
        let _ = epoch;
        Ok(None)
    }

    /// Called before a fit, once the devices are decided and before anything is recorded, and likewise before a
    /// validation, a test, a prediction and a preflight: so a second call should change nothing. It is the place to tie
    /// weights, for a model whose layers are made apart from one another.
    ///
    /// ```ignore
    /// fn on_after_setup(&self) -> Result<()> {
    ///     Ok(self.head.weight.tie(&self.embedding.weight)?)
    /// }
    /// ```
    ///
    /// If the number of parameters is another afterwards, the Trainer says so, with their names.
    ///
    /// # Errors
    /// Whatever goes wrong there; it ends what was asked for before it begins.
    fn on_after_setup(&self) -> Result<()> {
        Ok(())
    }

    /// The optimizer, given how long training is going to be; several are [`Optimizers`](crate::Optimizers).
    fn configure_optimizers(&self, plan: &Plan) -> Box<dyn Optimizer>;

    /// Records programs that callbacks can [ask for](Actions::run_program) while a fit runs, each under a name: samples of a
    /// generator, say, or predictions for a few fixed inputs. They are compiled before the first step and run with the
    /// weights of the moment, averages where there are some, in evaluation mode. By default there are none.
    ///
    /// ```ignore
    /// fn programs(&self) -> Vec<(&'static str, Predictions)> {
    ///     vec![("samples", self.generator.forward(&self.latents).into())]
    /// }
    /// ```
    fn programs(&self) -> Vec<(&'static str, Predictions)> {
        vec![]
    }

    hook_table!(module_methods);
}
