//! The training step as one function: forward, backward, optimizer, averages, counters and logs.

use fulmen_nn::optim::{Optimizer, Step};
use fulmen_tensor::{DType, Function, Tensor, TensorType};

use super::checks::check_statistics;
use super::forward::Forward;
use super::gradients::gradients;
use super::update::update;
use super::values::Values;
use super::{TrainProgram, for_setting};
use crate::averaging::{AVERAGE, COUNT};
use crate::epoch::Epoch;
use crate::logs::StepFacts;
use crate::setting::Setting;
use crate::state::{Entry, LR_FACTOR, STEP, UPDATES};
use crate::{Batch, Error, Result, TrainingModule, accumulate};

/// Records the training step on a batch of each shape; an epoch has so many of all of them together.
pub(crate) fn train(
    module: &dyn TrainingModule,
    optimizer: &dyn Optimizer,
    shapes: &[Batch],
    batches: u64,
    entries: &[Entry],
    setting: &Setting,
    seed: u64,
) -> Result<TrainProgram> {
    let record = |batch| record(module, optimizer, batch, batches, entries, setting, seed);
    let (first, others) = shapes.split_first().ok_or_else(|| Error::data("the loader has batches of no shape"))?;
    let mut program = record(first)?;
    for batch in others {
        let other = record(batch)?;
        program.layout.check_same(&other.layout, "training_step")?;
        if program.changes != other.changes {
            return Err(Error::usage(
                "training_step changes other values of the module for batches of one length than for those of another; which \
                 ones it changes must not depend on the length",
            ));
        }
        program.functions.extend(other.functions);
    }
    Ok(program)
}

/// Records the training step on a batch.
fn record(
    module: &dyn TrainingModule,
    optimizer: &dyn Optimizer,
    batch: &Batch,
    batches: u64,
    entries: &[Entry],
    setting: &Setting,
    seed: u64,
) -> Result<TrainProgram> {
    let mut values = Values::new(entries);
    let step = values.before(values.expect(STEP)?).clone();
    let key = Tensor::placeholder("trainer/key", TensorType::new(DType::U32, [2]));
    let forward = Forward::record(module, batch, &mut values, (&key, &step), setting, seed)?;
    let epoch = Epoch::of(|name| values.named(name).cloned(), batches);
    let gradients = gradients(&forward, &mut values, batch, setting, epoch.as_ref())?;

    // A step that changed nothing is none for the optimizer.
    let updates = values.before(values.expect(UPDATES)?).clone();
    let mut turn = Step::new(&updates).scaled(setting.learning_rate_factor());
    if let Some(factor) = values.named(LR_FACTOR) {
        turn = turn.scaled_by(factor);
    }
    update(optimizer, &turn, &mut values, &gradients, setting)?;
    let counted = match &gradients.updates {
        Some(done) => done.select(&(&updates + 1.0), &updates),
        None => &updates + 1.0,
    };
    average(&mut values, setting, &counted, gradients.updates.as_ref(), epoch.as_ref());
    for (name, next) in epoch.iter().flat_map(Epoch::next) {
        values.set_named(name, next);
    }
    values.set_named(UPDATES, counted);
    values.set_named(STEP, &step + 1.0);
    if batch.is_padded() {
        check_statistics(entries, values.all_after(), batch)?;
    }
    values.check()?;

    let so_far = Tensor::placeholder("trainer/logs", forward.layout.ty());
    let facts = StepFacts {
        loss: &forward.loss,
        // Counted as the host counts: groups of batches.
        step: values.named(accumulate::GROUPS).unwrap_or(if gradients.updates.is_none() { &updates } else { &step }),
        learning_rate: &optimizer.learning_rate(&turn),
        // Of a step that overflowed too: that is what it shows.
        grad_norm: gradients.norm.as_ref().map(|norm| (norm, gradients.due.as_ref())),
    };
    let logs = forward.layout.accumulate(&so_far, &forward.logged, batch, Some(&facts));

    let changes = values.changes();
    let mut results: Vec<Tensor> = changes.iter().map(|&i| values.after(i).clone()).collect();
    results.push(logs);
    let mut inputs = values.all_before().to_vec();
    let (logs_in, logs_out) = (inputs.len(), changes.len());
    inputs.extend([so_far, key]);
    let first_of_batch = inputs.len();
    inputs.extend(batch.inputs().cloned());
    let mut function = Function::new("train_step", inputs, results);
    for (i, entry) in entries.iter().enumerate() {
        function = function.shard_parameter(i, entry.sharding.clone());
    }
    for (result, &entry) in changes.iter().enumerate() {
        function = function.donate(entry, result)?.shard_result(result, entries[entry].sharding.clone());
    }
    let function = for_setting(function, first_of_batch, setting).donate(logs_in, logs_out)?;
    Ok(TrainProgram { functions: vec![function], layout: forward.layout, changes, loss: forward.loss_name })
}

/// Moves the averages to the new weights.
fn average(values: &mut Values<'_>, setting: &Setting, updates: &Tensor, done: Option<&Tensor>, epoch: Option<&Epoch>) {
    let (Some(averaging), Some(count)) = (&setting.averaging, values.named(COUNT)) else { return };
    let averaging = averaging.step(updates, count, done, epoch);
    for i in 0..values.entries.len() {
        let of = values.entries[i].name.strip_prefix(AVERAGE).and_then(|name| values.place(name));
        if let Some(of) = of {
            values.set(i, averaging.of(values.before(i), values.after(of)));
        }
    }
    values.set_named(COUNT, averaging.next);
}
