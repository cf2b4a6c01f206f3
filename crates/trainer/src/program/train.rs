//! The training step as one function: forward, backward, optimizer, averages, counters and logs.

use fulmen_nn::optim::{Optimizer, Step};
use fulmen_tensor::{Anomalies, DType, Tensor, TensorType};

use super::checks::check_statistics;
use super::forward::Forward;
use super::gradients::gradients;
use super::step_program::{RecordedStep, StepProgram};
use super::update::update;
use super::values::Values;
use crate::epoch::{Epoch, counted};
use crate::logs::StepFacts;
use crate::setting::Setting;
use crate::state::{Average, StateLayout, names};
use crate::{Batch, Error, Result, TrainingModule, media};

/// A training step as a program.
pub(crate) struct TrainProgram {
    pub(crate) step: StepProgram,
    /// The name under which the loss is logged.
    pub(crate) loss: String,
}

/// Records the training step on a batch of each shape; an epoch has so many of all of them together.
pub(crate) fn train(
    module: &dyn TrainingModule,
    optimizer: &dyn Optimizer,
    shapes: &[Batch],
    batches: u64,
    layout: &StateLayout,
    setting: &Setting,
    seed: u64,
) -> Result<TrainProgram> {
    if setting.options.detect_anomaly && shapes.len() > 1 {
        let message = "detect_anomaly: the training loader has buckets, and only steps of one shape can be watched; train \
                       without buckets to find the operation";
        return Err(Error::option(message));
    }
    let mut loss = None;
    let step = StepProgram::of_shapes(shapes, "training_step", |batch| {
        let (step, name) = record(module, optimizer, batch, batches, layout, setting, seed)?;
        loss.get_or_insert(name);
        Ok(step)
    })?;
    Ok(TrainProgram { step, loss: loss.unwrap_or_default() })
}

/// Records the training step on a batch, with the name under which its loss is logged.
fn record(
    module: &dyn TrainingModule,
    optimizer: &dyn Optimizer,
    batch: &Batch,
    batches: u64,
    layout: &StateLayout,
    setting: &Setting,
    seed: u64,
) -> Result<(StepProgram, String)> {
    let (counters, mut values) = (&layout.counters, Values::new(layout));
    let step = values.before(counters.step).clone();
    let key = Tensor::placeholder(names::KEY, TensorType::new(DType::U32, [2]));
    let forward = Forward::record(module, batch, &mut values, (&key, &step), setting, seed)?;
    let epoch = counters.epoch.map(|ids| Epoch::new(values.all_of(ids), batches));
    let gradients = gradients(&forward, &mut values, batch, setting, epoch.as_ref());

    // A step that changed nothing is none for the optimizer.
    let updates = values.before(layout.optimizer.updates).clone();
    let mut turn = Step::new(&updates).scaled(setting.learning_rate_factor());
    if let Some(factor) = layout.optimizer.lr_factor {
        turn = turn.scaled_by(values.before(factor));
    }
    update(optimizer, &turn, &mut values, &gradients)?;
    let counted_updates = match &gradients.updates {
        Some(done) => done.select(&(&updates + 1.0), &updates),
        None => &updates + 1.0,
    };
    average(&mut values, setting, &counted_updates, gradients.updates.as_ref(), epoch.as_ref());
    if let (Some(ids), Some(epoch)) = (counters.epoch, &epoch) {
        values.set_all(ids, epoch.next());
    }
    values.set(layout.optimizer.updates, counted_updates);
    values.set(counters.step, &step + 1.0);
    if batch.is_padded() {
        check_statistics(&values, batch)?;
    }
    values.check()?;

    let watched = || [forward.loss.clone()].into_iter().chain(values.changes().map(|id| values.after(id).clone()));
    let anomalies = setting.options.detect_anomaly.then(|| Anomalies::watch(&watched().collect::<Vec<_>>()));
    let logs = forward.layout.with_anomalies(anomalies);
    let so_far = Tensor::placeholder(names::LOGS, logs.ty());
    let facts = StepFacts {
        loss: &forward.loss,
        // Counted as the host counts: groups of batches.
        step: match (layout.optimizer.group, &gradients.updates) {
            (Some([_, groups]), _) => values.before(groups),
            (None, Some(_)) => &step,
            (None, None) => &updates,
        },
        learning_rate: &optimizer.learning_rate(&turn),
        // Of a step that overflowed too: that is what it shows.
        grad_norm: gradients.norm.as_ref().map(|norm| (norm, gradients.due.as_ref())),
    };
    // Counted as the host finds its log points.
    let at = (facts.step + 1.0).remainder(counted(setting.options.log_every_n_steps)).eq(0.0);
    let at = gradients.due.as_ref().map_or(at.clone(), |due| due.and(&at));
    let outputs = media::outputs(&forward.logged, batch, Some(&at))?;
    let sums = [so_far.clone(), logs.accumulate(&so_far, &forward.logged, batch, Some(&facts))];
    let step = RecordedStep {
        name: "train_step",
        entries: layout.entries(),
        state: values.all_before().to_vec(),
        changes: values.changes().map(|id| (id, values.after(id).clone())).collect(),
        logs,
        sums,
        key: Some(key),
        batch,
        outputs,
    };
    Ok((StepProgram::new(step, setting)?, forward.loss_name))
}

/// Moves the averages to the new weights.
fn average(values: &mut Values<'_>, setting: &Setting, updates: &Tensor, done: Option<&Tensor>, epoch: Option<&Epoch>) {
    let layout = values.layout;
    let (Some(averaging), Some(count)) = (&setting.averaging, layout.counters.averaged) else { return };
    let averaging = averaging.step(updates, values.before(count), done, epoch);
    for Average { of, average } in &layout.averages {
        values.set(*average, averaging.of(values.before(*average), values.after(*of)));
    }
    values.set(count, averaging.next);
}
