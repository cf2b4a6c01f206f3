//! The user's training step, recorded: a loss, what it logs, and what the model has changed of itself.

use fulmen_tensor::{DType, Tensor, autocast, random, recording};

use super::checks::check_loss;
use super::values::Values;
use crate::logged::{Logged, LoggedValue, refused};
use crate::logs::{GRAD_NORM, LogLayout};
use crate::placeholders::Placeholders;
use crate::setting::Setting;
use crate::{Batch, Result, StepContext, TrainingModule};

/// What an error says where a step asks for a value.
pub(super) const LOG_IT: &str = "to see the value, log it: `cx.log(\"name\", &tensor)`";

/// The name that the training loss is logged under unless the user logs it.
const TRAIN_LOSS: &str = "train_loss";

/// What a training step recorded.
pub(super) struct Forward {
    pub(super) loss: Tensor,
    /// The name under which the loss is logged.
    pub(super) loss_name: String,
    pub(super) logged: Vec<Logged>,
    pub(super) layout: LogLayout,
    /// What the model saw of its values, in the order of the entries.
    pub(super) used: Vec<Tensor>,
}

impl Forward {
    /// Calls `training_step`, with `key` and the number of this step for its random numbers.
    pub(super) fn record(
        module: &dyn TrainingModule,
        batch: &Batch,
        values: &mut Values<'_>,
        (key, step): (&Tensor, &Tensor),
        setting: &Setting,
        seed: u64,
    ) -> Result<Forward> {
        let cells = Placeholders::new(module, values.layout.module());
        module.train();
        module.set_random_key(&random::fold_in_tensor(key, &step.to_dtype(DType::U32)));
        let mut cx = StepContext::default();
        let loss = recording("training_step", LOG_IT, || {
            autocast(setting.options.precision.autocast(), || module.training_step(batch, &mut cx))
        });
        let mut logged = cx.into_logged();
        values.set_module(cells.placeholders(), cells.after());
        let used = cells.used();
        drop(cells);
        // The step's key means nothing outside of it.
        module.set_random_key(&random::key(seed));
        check_loss(&loss, batch)?;
        if let Some(entry) = logged.iter().find(|l| l.name == TRAIN_LOSS).filter(|l| !l.is(&loss)) {
            let message = "this name is that of the loss, which training_step returns; choose another";
            return Err(refused(entry, message));
        }
        if let Some(entry) = logged.iter().find(|l| setting.options.log_grad_norm && l.name == GRAD_NORM) {
            let message = "log_grad_norm logs a value of this name; choose another";
            return Err(refused(entry, message));
        }
        let loss_name = match logged.iter().find(|l| l.is(&loss)) {
            Some(entry) => entry.name.clone(),
            None => {
                let value = LoggedValue::Value(loss.clone());
                logged.insert(0, Logged::new(TRAIN_LOSS, value, loss.location()));
                TRAIN_LOSS.into()
            }
        };
        let layout = LogLayout::new(&logged, batch, None)?.with_grad_norm(setting.options.log_grad_norm);
        Ok(Forward { loss, loss_name, logged, layout, used })
    }
}
