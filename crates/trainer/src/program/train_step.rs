//! The training step as one function: forward, backward, optimizer, evaluated weights, counters and logs.

use std::sync::Arc;

use fulmen_nn::auto_kernels::AllTaken;
use fulmen_tensor::{Anomalies, DType, Tensor, TensorType};

use super::forward::Forward;
use super::step_program::{RecordedStep, StepProgram};
use crate::logs::{self, LogLayout, StepFacts};
use crate::recorder::{Recorder, RecorderOutput};
use crate::rules::weight;
use crate::state::{EntryId, Evaluated, StateLayout, names};
use crate::step_config::StepConfig;
use crate::step_config::optimizers::Optimizers;
use crate::{Batch, Result, TrainingModule, error};

/// The training step of each phase of a fit, as programs.
pub(crate) struct TrainProgram {
    pub(crate) steps: Vec<StepProgram>,
    /// The name under which the loss is logged.
    pub(crate) loss: String,
    /// The names of the parameters that no loss trains, although they are not frozen.
    pub(crate) without_gradient: Vec<String>,
    /// What the methods named `auto` took.
    pub(crate) taken: AllTaken,
}

impl TrainProgram {
    /// The layout of the logged values, which is the same in all phases.
    pub(crate) fn logs(&self) -> &LogLayout {
        self.steps[0].logs()
    }

    /// The step of the last phase, which trains the most parameters.
    pub(crate) fn largest(&self) -> &StepProgram {
        &self.steps[self.steps.len() - 1]
    }
}

/// Records the training step of each phase on a batch of each shape. An epoch has `batches`
/// batches, counting all shapes.
pub(crate) fn record_train_step(
    module: &dyn TrainingModule,
    optimizers: &Arc<Optimizers>,
    shapes: &[Batch],
    batches: u64,
    layout: &Arc<StateLayout>,
    config: &StepConfig,
    seed: u64,
) -> Result<TrainProgram> {
    if config.options.detect_anomaly && shapes.len() > 1 {
        let message = "detect_anomaly: the training loader has buckets, but only steps of one shape can be watched; train \
                       without buckets to find the operation";
        return Err(error::option(message));
    }
    let recording = TrainRecording { module, optimizers, batches, layout, config, seed };
    let mut loss = None;
    // A parameter may be used by batches of some shapes only. The last phase trains the most
    // parameters.
    let mut without_gradient: Option<Vec<EntryId>> = None;
    let mut taken = AllTaken::new();
    let mut steps: Vec<StepProgram> = Vec::new();
    for phase in 0..layout.phases.count() {
        without_gradient = None;
        let step = StepProgram::of_shapes(shapes, "training_step", |batch| {
            let recorded = recording.record(batch, phase)?;
            loss.get_or_insert(recorded.loss);
            for (kernel, by_step) in recorded.taken {
                taken.entry(kernel).or_default().extend(by_step);
            }
            let without = recorded.without_gradient;
            match &mut without_gradient {
                Some(all) => all.retain(|id| without.contains(id)),
                None => without_gradient = Some(without),
            }
            Ok(recorded.step)
        })?;
        let step = step.variant(module.type_of_model());
        let step = match layout.phases.count() {
            1 => step,
            _ => step.variant(&layout.phases.title(phase)),
        };
        if let Some(first) = steps.first() {
            first.logs().check_same(step.logs(), "training_step", "phase")?;
        }
        steps.push(step);
    }
    let names = |id: EntryId| layout[id].names().to_vec();
    Ok(TrainProgram {
        steps,
        loss: loss.unwrap_or_default(),
        without_gradient: without_gradient.into_iter().flatten().flat_map(names).collect(),
        taken,
    })
}

/// What the recordings of a training step have in common. There is one recording for each phase and
/// batch shape.
struct TrainRecording<'a> {
    module: &'a dyn TrainingModule,
    optimizers: &'a Arc<Optimizers>,
    /// The number of batches of an epoch.
    batches: u64,
    layout: &'a Arc<StateLayout>,
    config: &'a StepConfig,
    seed: u64,
}

/// The step of one phase on one batch.
struct RecordedTraining {
    step: StepProgram,
    /// The name of the logged loss.
    loss: String,
    without_gradient: Vec<EntryId>,
    taken: AllTaken,
}

impl TrainRecording<'_> {
    /// Records the step of a phase on a batch.
    fn record(&self, batch: &Batch, phase: usize) -> Result<RecordedTraining> {
        let TrainRecording { module, optimizers, batches, layout, config, seed } = *self;
        let counters = &layout.counters;
        let key = Tensor::placeholder(names::KEY, TensorType::new(DType::U32, [2]));
        let recorder = Recorder::new(module, optimizers, batch, batches, layout, config, phase);
        let record = || Forward::record(module, batch, recorder, &key, config, seed);
        let (forward, taken) = config.in_force(record);
        let forward = forward?;
        let mut recorded = forward.recorded;
        let logged = forward.logged;

        update_evaluated(&mut recorded, config);
        let RecorderOutput { mut values, epoch, step_ends, optimizer_steps, updated } = recorded;
        let leaves_out = optimizers.is_single() && updated.is_some();
        let facts: Vec<_> = optimizer_steps.iter().map(|step| &step.facts).collect();
        let names = optimizers.members().iter().map(|member| member.name.clone()).collect();
        let logs = LogLayout::of_training(&logged, batch, names, &facts)?;
        if let (Some(ids), Some(epoch)) = (counters.epoch, &epoch) {
            values.set_all(ids, epoch.next());
        }
        let step = values.before(counters.step).clone();
        values.set(counters.step, &step + 1.0);
        if batch.is_padded() {
            values.check_statistics(batch)?;
        }
        values.check()?;

        let losses: Vec<&Tensor> = [&forward.loss]
            .into_iter()
            .chain(optimizer_steps.iter().map(|step| &step.loss))
            .collect();
        let watched =
            || losses.iter().copied().chain(values.changes().map(|id| values.after(id))).cloned();
        let anomalies =
            config.options.detect_anomaly.then(|| Anomalies::watch(&watched().collect::<Vec<_>>()));
        let mut logs = logs.with_anomalies(anomalies);
        let sums_before = Tensor::placeholder(names::LOGS, logs.ty());
        let counted: Vec<Tensor> =
            losses.iter().map(|loss| weight::counted(loss, step_ends.is_some())).collect();
        let facts = StepFacts {
            losses: if optimizers.is_single() { &counted[..1] } else { &counted },
            step: values.finished_steps(leaves_out),
            optimizers: facts,
        };
        let is_log_point = values.is_log_point(leaves_out, step_ends.as_ref(), config);
        let outputs = logs::media_outputs(&logged, batch, Some(&is_log_point))?;
        let sums = [sums_before.clone(), logs.add_step(&sums_before, &logged, batch, Some(&facts))];
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
        let without_gradient =
            optimizer_steps.iter().flat_map(|step| &step.without_gradient).copied().collect();
        let step = StepProgram::new(step, config)?;
        Ok(RecordedTraining { step, loss: forward.loss_name, without_gradient, taken })
    }
}

/// Updates the evaluated weights with the new ones.
fn update_evaluated(recorded: &mut RecorderOutput, config: &StepConfig) {
    let RecorderOutput { values, epoch, updated, .. } = recorded;
    let layout = values.layout.clone();
    let (Some(rule), Some(count)) = (&config.evaluated, layout.counters.evaluated) else {
        return;
    };
    let updates = values.after(layout.evaluated_updates);
    let done = if rule.counts_updates_of_one_optimizer() {
        Some(updates.gt(values.before(layout.evaluated_updates)))
    } else {
        updated.clone()
    };
    let step = rule.step(updates, values.before(count), done.as_ref(), epoch.as_ref());
    for Evaluated { source, evaluated } in &layout.evaluated {
        values.set(*evaluated, step.apply(values.before(*evaluated), values.after(*source)));
    }
    values.set(count, step.next);
}
