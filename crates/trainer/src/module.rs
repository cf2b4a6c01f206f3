//! [`TrainingModule`]: what a user writes, and [`StepContext`], what its steps can say.

use std::panic::Location;

use fulmen_data::DataLoader;
use fulmen_nn::Module;
use fulmen_nn::optim::Optimizer;
use fulmen_tensor::Tensor;

use crate::callback::{CheckpointFile, EvaluationProgress, FitStart, ProgramOutput, Progress, hook_table};
use crate::logged::Logged;
use crate::program::Recorder;
use crate::{Actions, Batch, Error, FitSummary, LogPoint, Plan, Predictions, Result};

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

/// What a step can say besides its result.
#[derive(Debug, Default)]
pub struct StepContext {
    pub(crate) logged: Vec<Logged>,
    /// There while a training step is recorded.
    recorder: Option<Box<Recorder>>,
    /// The optimizer whose loss is being recorded.
    within: Option<String>,
    /// The first mistake.
    mistake: Option<Error>,
}

impl StepContext {
    /// Lets one of several [`Optimizers`](crate::Optimizers) step by the gradient of a loss, a floating-point scalar, with
    /// respect to its parameters: Lightning's manual optimization. What is recorded afterwards sees the new values of the
    /// parameters. Those of other optimizers get no gradient from this loss.
    ///
    /// Each optimizer is minimized once in `training_step`. What `training_step` returns is then only logged: as
    /// `train_loss`, unless it is one of these losses.
    ///
    /// What is recorded within `loss` belongs to this optimizer. With [`every`](crate::Optimizers::every) it is a branch of
    /// the program: a step that the optimizer skips does not compute it. What the branch alone needs should stand in it.
    ///
    /// The loss is logged as `loss-NAME`, and what `loss` logs beside it, as means over the steps that the optimizer made.
    /// Returned is the loss of this step, or of the latest that the optimizer made; no gradient flows through it.
    ///
    /// ```
    /// use fulmen_nn::{Linear, loss::{Reduction, mse_loss}};
    /// use fulmen_tensor::Tensor;
    /// use fulmen_trainer::{Batch, StepContext};
    ///
    /// fn training_step(actor: &Linear, critic: &Linear, batch: &Batch, cx: &mut StepContext) -> Tensor {
    ///     let state = batch.get("state");
    ///     cx.minimize("critic", |_| mse_loss(critic.forward(&state), batch.get("reward"), Reduction::Mean));
    ///     cx.minimize("actor", |cx| {
    ///         let value = critic.forward(actor.forward(&state)).mean_all();
    ///         cx.log("value", &value);
    ///         -value
    ///     })
    /// }
    /// ```
    ///
    /// # Errors
    /// A mistake ends the fit before it begins, with this line: an optimizer that is not there, is a single one without a
    /// name or was minimized before, a call outside of `training_step` or within another, a loss that is no scalar or
    /// depends on none of the optimizer's parameters. The tensor that is returned is poisoned then.
    #[track_caller]
    pub fn minimize(&mut self, optimizer: &str, loss: impl FnOnce(&mut StepContext) -> Tensor) -> Tensor {
        let at = Location::caller();
        let result = match (self.recorder.take(), &self.within) {
            (Some(mut recorder), _) => {
                let result = recorder.minimize(optimizer, at, &mut self.logged, loss);
                self.recorder = Some(recorder);
                result
            }
            (None, within) => Err(Error::usage(match within {
                Some(other) => format!(
                    "minimize(\"{optimizer}\"): it stands within minimize(\"{other}\"); put it before or after\n  at {at}"
                ),
                None => format!("minimize(\"{optimizer}\"): only training_step can minimize\n  at {at}"),
            })),
        };
        match result {
            Ok(loss) => loss,
            Err(mistake) => {
                let poison = Tensor::poison("minimize", mistake.to_string());
                self.mistake.get_or_insert(mistake);
                poison
            }
        }
    }

    /// The context of a training step.
    pub(crate) fn recording(recorder: Recorder) -> StepContext {
        StepContext { recorder: Some(Box::new(recorder)), ..StepContext::default() }
    }

    /// The context of the loss of an optimizer.
    pub(crate) fn within(optimizer: &str) -> StepContext {
        StepContext { within: Some(optimizer.into()), ..StepContext::default() }
    }

    pub(crate) fn take_recorder(&mut self) -> Result<Recorder> {
        let gone = || Error::usage("training_step must give back the StepContext that it was given");
        self.recorder.take().map(|recorder| *recorder).ok_or_else(gone)
    }

    /// What was logged.
    ///
    /// # Errors
    /// The first mistake.
    pub(crate) fn into_logged(self) -> Result<Vec<Logged>> {
        self.mistake.map_or(Ok(self.logged), Err)
    }
}
