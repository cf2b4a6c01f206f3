//! Records the user's training step: its loss and its logged values.

use fulmen_tensor::internal::with_eval_advice;
use fulmen_tensor::{DType, Tensor, autocast, random};

use super::set_random_key;
use crate::logs::log_entry::LogEntry;
use crate::recorder::{Recorder, RecorderOutput, check_loss, log_loss};
use crate::step_config::StepConfig;
use crate::{Batch, Result, StepContext, TrainingModule};

/// The advice in an error if a step reads a value.
pub(super) const LOG_IT: &str = "to see the value, log it: `cx.log(\"name\", &tensor)`";

/// The name of the logged training loss, unless the user logs the loss under another name.
const TRAIN_LOSS: &str = "train_loss";

/// A recorded training step.
pub(super) struct Forward {
    pub(super) loss: Tensor,
    /// The name under which the loss is logged.
    pub(super) loss_name: String,
    pub(super) logged: Vec<LogEntry>,
    pub(super) recorded: RecorderOutput,
}

impl Forward {
    /// Calls `training_step`. Its random numbers come from `key` and the number of the step.
    pub(super) fn record(
        module: &dyn TrainingModule,
        batch: &Batch,
        mut recorder: Recorder,
        key: &Tensor,
        config: &StepConfig,
        seed: u64,
    ) -> Result<Forward> {
        module.train();
        recorder.freeze_batch_norms(module);
        let step = recorder.values().before(recorder.values().layout.counters.step);
        let step_key = random::fold_in_tensor(key, &step.to_dtype(DType::U32));
        set_random_key(module, &step_key);
        recorder.set_random_key(&step_key);
        let param_values = recorder.param_values(0);
        let mut cx = StepContext::recording(recorder);
        let loss = with_eval_advice("training_step", LOG_IT, || {
            autocast(config.options.precision.autocast(), || module.training_step(batch, &mut cx))
        });
        // The step's key is not valid outside the step.
        set_random_key(module, &random::key(seed));
        let recorder = cx.take_recorder()?;
        let mut logged = cx.into_logged()?;
        check_loss(&loss, "training_step", batch)?;
        let loss_name = log_loss(&mut logged, TRAIN_LOSS, &loss)?;
        let recorded = recorder.finish(&loss, param_values)?;
        Ok(Forward { loss, loss_name, logged, recorded })
    }
}
