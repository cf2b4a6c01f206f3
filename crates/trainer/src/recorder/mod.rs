//! [`Recorder`]: holds the training state while a step is recorded, and runs the optimizers. A
//! single optimizer runs after the user's step. Several optimizers run within the user's step, when
//! it calls [`StepContext::minimize`](crate::StepContext::minimize).

mod chain_step;
mod gradients;
mod loss;
mod monitors;
pub(crate) mod placeholders;
mod update;
mod values;

use std::cell::Cell;
use std::collections::BTreeSet;
use std::fmt;
use std::panic::Location;
use std::sync::Arc;

use fulmen_nn::Module;
use fulmen_nn::optim::Step;
use fulmen_tensor::{DType, Tensor, Tree, autocast, cond, random};

use gradients::{Param, gradients};
use loss::loss_without_gradient;
pub(crate) use loss::{check_loss, log_loss};
use monitors::RecordedUpdate;
use update::{OptimizerSteps, update};
use values::Values;

use crate::logs::log_entry::{Branch, LogEntry, LoggedValue, log_error};
use crate::logs::{self, LogLayout, OptimizerFacts};
use crate::recorder::placeholders::Placeholders;
use crate::rules::epoch::{Epoch, to_counter};
use crate::rules::step_rule::{StepBatch, StepRule};
use crate::rules::weight;
use crate::state::{EntryId, OptimizerSlots, StateLayout};
use crate::step_config::StepConfig;
use crate::step_config::optimizers::Optimizers;
use crate::{Batch, Error, Result};

/// A training step that is being recorded. When dropped, it restores the module's values.
pub(crate) struct Recorder {
    optimizers: Arc<Optimizers>,
    config: StepConfig,
    batch: Batch,
    cells: Placeholders,
    values: Values,
    epoch: Option<Epoch>,
    /// Whether a step of several batches ends with this one, a Boolean scalar. `None` if each batch
    /// is a step.
    step_ends: Option<Tensor>,
    /// The phase of the fit.
    phase: usize,
    /// The rule that rounds updated parameters, with its random key of the step.
    rounding: Option<(Arc<dyn StepRule>, Tensor)>,
    /// The random key of the step for optimizers that draw.
    optimizer_key: Option<Tensor>,
    /// The step of each optimizer, if it was recorded.
    optimizer_steps: Vec<Option<OptimizerStep>>,
}

pub(crate) struct OptimizerStep {
    pub(crate) loss: Tensor,
    /// The name of the logged loss. It is empty for a single optimizer, whose loss
    /// `program/forward.rs` names.
    loss_name: String,
    pub(crate) facts: OptimizerFacts,
    /// Whether the optimizer changed parameters, a Boolean scalar. `None` if every step changes
    /// them.
    updated: Option<Tensor>,
    /// The parameters without a gradient that are not frozen.
    pub(crate) without_gradient: Vec<EntryId>,
}

/// An optimizer's step that is recorded in a branch.
struct TakenStep {
    step: OptimizerStep,
    logged: Vec<LogEntry>,
    /// The entries that it changes.
    changed: Vec<EntryId>,
}

/// The results of a branch for a step that may be skipped.
#[derive(Default, Tree)]
struct BranchResults {
    /// The entries that the step changes.
    changed: Vec<Tensor>,
    /// The values of the optimizer that are logged.
    monitored: Vec<Tensor>,
    /// The sums of each value that the loss logs.
    sums: Vec<Vec<Tensor>>,
}

impl BranchResults {
    /// The results of a skipped step, in which the changed entries are `kept`.
    fn skipped(&self, kept: Vec<Tensor>) -> BranchResults {
        let zeros = &mut |value: &Tensor| Tensor::zeros(value.dtype(), value.shape());
        BranchResults {
            changed: kept,
            monitored: self.monitored.map_tensors(zeros),
            sums: self.sums.map_tensors(zeros),
        }
    }
}

/// A recorded step.
pub(crate) struct RecorderOutput {
    pub(crate) values: Values,
    pub(crate) epoch: Option<Epoch>,
    /// Whether a step of several batches ends with this one, a Boolean scalar.
    pub(crate) step_ends: Option<Tensor>,
    pub(crate) optimizer_steps: Vec<OptimizerStep>,
    /// Whether the optimizers stepped, a Boolean scalar. `None` if they step after each batch.
    pub(crate) updated: Option<Tensor>,
}

/// The value of a parameter while a step is recorded.
pub(crate) struct ParamValue {
    value: Tensor,
    /// The values that the model uses, before they are gathered.
    used: Vec<Tensor>,
}

impl fmt::Debug for Recorder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Recorder").finish_non_exhaustive()
    }
}

impl Recorder {
    /// Puts placeholders into the module's variables for the step of a phase. An epoch has
    /// `batches` batches.
    pub(crate) fn new(
        module: &dyn Module,
        optimizers: &Arc<Optimizers>,
        batch: &Batch,
        batches: u64,
        layout: &Arc<StateLayout>,
        config: &StepConfig,
        phase: usize,
    ) -> Recorder {
        let cells = Placeholders::new(module, layout.module());
        let values = Values::new(layout, cells.placeholders());
        let epoch = layout.counters.epoch.map(|ids| {
            let [batch, epochs] = values.all_of(ids);
            Epoch::new(batch, epochs, batches)
        });
        let step_ends = epoch
            .as_ref()
            .filter(|_| layout.counters.steps.is_some())
            .map(|epoch| epoch.ends_step(&config.batches_per_step));
        let optimizers = optimizers.clone();
        let config = config.clone();
        let batch = batch.clone();
        let optimizer_steps = optimizers.members().iter().map(|_| None).collect();
        Recorder {
            optimizers,
            config,
            batch,
            cells,
            values,
            epoch,
            step_ends,
            phase,
            rounding: None,
            optimizer_key: None,
            optimizer_steps,
        }
    }

    /// Sets the random key of the step.
    pub(crate) fn set_random_key(&mut self, key: &Tensor) {
        let rule = self.config.rules.iter().find(|rule| rule.rounds_to().is_some());
        self.rounding = rule.map(|rule| (rule.clone(), random::fold_in_name(key, rule.name())));
        self.optimizer_key = Some(random::fold_in_name(key, "optimizer"));
    }

    /// Makes batch norm layers that are frozen in this phase compute with their running statistics.
    pub(crate) fn freeze_batch_norms(&self, module: &dyn Module) {
        self.values.layout.phases.freeze_batch_norms(self.phase, module);
    }

    pub(crate) fn values(&self) -> &Values {
        &self.values
    }

    /// The current parameters of an optimizer.
    pub(crate) fn param_values(&self, optimizer: usize) -> Vec<ParamValue> {
        let params = self.values.layout.optimizers[optimizer].params.iter();
        params
            .map(|p| ParamValue {
                value: self.values.after(p.param).clone(),
                used: vec![self.cells.value(p.param).clone()],
            })
            .collect()
    }

    /// Collects the values that the model itself wrote to its variables.
    fn collect(&mut self) {
        for (id, value) in self.values.layout.ids().zip(self.cells.collect()) {
            if let Some(value) = value {
                self.values.set(id, value);
            }
        }
    }

    /// The step that an optimizer takes.
    fn steps(&self, optimizer: usize) -> OptimizerSteps {
        let StateLayout { optimizers, counters, phases, .. } = &*self.values.layout;
        let slots = &optimizers[optimizer];
        let updates = self.values.before(slots.updates);
        let mut own = Step::new(updates).scaled(self.config.learning_rate_factor());
        if let Some(rate) = self.config.rules.iter().find_map(|rule| rule.learning_rate(updates)) {
            own = own.with_learning_rate(&rate);
        }
        if let Some(factor) = counters.lr_factor {
            own = own.scaled_by(self.values.before(factor));
        }
        let epoch = counters.epoch.map(|[_, epochs]| self.values.before(epochs));
        let frozen_parts =
            phases.frozen_parts().iter().zip(&slots.frozen_parts).zip(epoch.into_iter().cycle());
        let frozen_parts = frozen_parts
            .map(|((u, &steps), epoch)| u.step(&own, self.values.before(steps), epoch))
            .collect();
        let rounding = self.rounding.clone();
        OptimizerSteps { own, frozen_parts, rounding, key: self.optimizer_key.clone() }
    }

    /// Whether an optimizer steps in this step of the training, a Boolean scalar. `None` if it
    /// steps in every one.
    fn steps_now(&self, optimizer: usize) -> Option<Tensor> {
        let every = self.optimizers.cadence(optimizer);
        let steps = self.values.before(self.values.layout.counters.updates);
        (every > 1).then(|| steps.remainder(to_counter(every)).eq(0.0))
    }

    /// The function that computes the loss of an optimizer, for errors.
    fn source(&self, optimizer: usize) -> String {
        if self.optimizers.is_single() {
            return "training_step".into();
        }
        format!("minimize(\"{}\")", self.optimizers.members()[optimizer].name)
    }

    /// Counts an optimizer's step, unless it changed nothing.
    fn count_step(&mut self, slots: &OptimizerSlots, updates: Option<&Tensor>) {
        let phases = &self.values.layout.clone().phases;
        let trained = |part: &usize| !phases.is_frozen(*part, self.phase);
        let parts = (0..slots.frozen_parts.len()).filter(trained);
        for count in parts.map(|part| slots.frozen_parts[part]).chain([slots.updates]) {
            let before = self.values.before(count);
            let next = before + 1.0;
            let counted = updates.map_or(next.clone(), |updated| updated.select(&next, before));
            self.values.set(count, counted);
        }
    }

    /// Records an optimizer's step, from the gradient of a loss with respect to the parameters that
    /// computed it.
    fn optimize(
        &mut self,
        optimizer: usize,
        loss: &Tensor,
        param_values: Vec<ParamValue>,
    ) -> Result<OptimizerStep> {
        let layout = self.values.layout.clone();
        let optimizers = self.optimizers.clone();
        let slots = &layout.optimizers[optimizer];
        let member = &optimizers.members()[optimizer];
        let is_frozen = |part: usize| layout.phases.is_frozen(part, self.phase);
        let (params, frozen): (Vec<_>, Vec<_>) = slots
            .params
            .iter()
            .zip(param_values)
            .map(|(slots, ParamValue { value, used })| Param { slots, value, used })
            .partition(|param| !param.slots.frozen_part.is_some_and(is_frozen));
        let used: Vec<Tensor> = params.iter().flat_map(|param| &param.used).cloned().collect();
        let source = self.source(optimizer);
        let step_ends = self.step_ends.as_ref();
        let mut batch = StepBatch {
            batch: &self.batch,
            loss,
            source: &source,
            step_ends,
            mean_loss: loss.to_dtype(DType::F32),
            weight: None,
            parameters: Vec::new(),
        };
        let mut gradients =
            gradients(slots, &mut batch, params, frozen, &mut self.values, &self.config)?;
        if gradients.params.is_empty() && !(optimizers.is_single() && gradients.without.is_empty())
        {
            return Err(loss_without_gradient(loss, &source, &used));
        }
        let steps = self.steps(optimizer);
        let watches = self.config.rules.iter().any(|rule| rule.inputs().update);
        // An optimizer that skips steps may have made its latest step before the log point.
        let is_log_point = (watches && self.steps_now(optimizer).is_none()).then(|| {
            let leaves_out = optimizers.is_single() && gradients.updates.is_some();
            self.values.is_log_point(leaves_out, step_ends, &self.config)
        });
        let recorded = RecordedUpdate { member, steps: &steps };
        let mut monitored = recorded.observed(
            &mut self.values,
            &mut gradients,
            &self.config,
            is_log_point.as_ref(),
        )?;
        let logged_by_chain = update(member, &steps, &mut self.values, &gradients)?;
        self.count_step(slots, gradients.updates.as_ref());
        monitored.extend(recorded.logged(&self.values, &gradients, &self.config)?);
        monitored.extend(logged_by_chain);
        // Of rules that log the same, the first applies.
        let mut names = BTreeSet::new();
        monitored.retain(|monitored| names.insert(monitored.name.clone()));
        monitored.iter_mut().for_each(|m| m.name = logs::group_value_name(&m.name, &member.name));
        let index = monitored.iter().position(|monitored| monitored.in_epochs);
        let facts = OptimizerFacts {
            in_epochs: index.map(|index| monitored.remove(index)),
            learning_rate: member.optimizer.learning_rate(&steps.own),
            monitored,
            steps_now: None,
            has_step_values: is_log_point.or(gradients.step_ends.clone()),
        };
        Ok(OptimizerStep {
            loss: loss.clone(),
            loss_name: String::new(),
            facts,
            updated: gradients.updates.clone(),
            without_gradient: gradients.without,
        })
    }

    /// Implements [`StepContext::minimize`](crate::StepContext::minimize). `loss` records the loss
    /// and returns it with its logged values.
    pub(crate) fn minimize(
        &mut self,
        name: &str,
        location: &'static Location<'static>,
        logged: &mut Vec<LogEntry>,
        loss: impl FnOnce() -> Result<(Tensor, Vec<LogEntry>)>,
    ) -> Result<Tensor> {
        let failed = |message: String| {
            Err(Error::usage(format!("minimize(\"{name}\"): {message}\n  at {location}")))
        };
        if self.optimizers.is_single() {
            return failed(
                "configure_optimizers returns one optimizer without a name, which minimizes the loss that training_step \
                 returns; return Optimizers to minimize by name"
                    .into(),
            );
        }
        let Some(optimizer) = self.optimizers.position(name) else {
            return failed(format!(
                "there is no optimizer of this name; there are {}",
                self.optimizers.names()
            ));
        };
        if self.optimizer_steps[optimizer].is_some() {
            return failed(
                "it was already called in this step; minimize the sum of the losses".into(),
            );
        }
        let (step, mut logged_by_step) = match self.steps_now(optimizer) {
            Some(steps_now) => self.record_step_in_branch(optimizer, steps_now, loss)?,
            None => {
                self.collect();
                let (step, logged) =
                    self.record_step(optimizer, self.param_values(optimizer), loss)?;
                for slots in &self.values.layout.optimizers[optimizer].params {
                    self.cells.set(slots.param, self.values.after(slots.param));
                }
                (step, logged)
            }
        };
        let loss = step.loss.detach();
        // The detached loss identifies the value if training_step returns it.
        for entry in logged_by_step.iter_mut().filter(|entry| entry.name == step.loss_name) {
            entry.value = LoggedValue::Value(loss.clone());
        }
        logged.extend(logged_by_step);
        self.optimizer_steps[optimizer] = Some(step);
        Ok(loss)
    }

    /// Records the loss of an optimizer and its step. Returns the step with the logged values.
    fn record_step(
        &mut self,
        optimizer: usize,
        param_values: Vec<ParamValue>,
        loss: impl FnOnce() -> Result<(Tensor, Vec<LogEntry>)>,
    ) -> Result<(OptimizerStep, Vec<LogEntry>)> {
        let name = self.optimizers.members()[optimizer].name.clone();
        let (loss, mut logged) = loss()?;
        self.collect();
        check_loss(&loss, &self.source(optimizer), &self.batch)?;
        if self.batch.is_padded() {
            self.values.check_statistics(&self.batch)?;
        }
        let loss_name = log_loss(&mut logged, &logs::optimizer_value_name("loss", &name), &loss)?;
        let mut step = autocast(None, || self.optimize(optimizer, &loss, param_values))?;
        step.loss_name = loss_name;
        Ok((step, logged))
    }

    /// Like [`Recorder::record_step`], but in a branch, so that steps that the optimizer skips
    /// don't compute the loss or the update.
    fn record_step_in_branch(
        &mut self,
        optimizer: usize,
        steps_now: Tensor,
        loss: impl FnOnce() -> Result<(Tensor, Vec<LogEntry>)>,
    ) -> Result<(OptimizerStep, Vec<LogEntry>)> {
        self.collect();
        let before = self.values.all_after().to_vec();
        let param_values = self.param_values(optimizer);
        let mut outside = Vec::new();
        let recorded = Cell::new(None);
        let mut outcome = Err(Error::usage("minimize: the branch was not recorded"));
        let taken = |()| {
            outside = self.cells.regather(&before);
            outcome = self.record_taken(optimizer, &before, param_values, loss);
            let results = self.results(outcome.as_ref().ok());
            let changed = outcome.as_ref().map_or(&[][..], |taken| &taken.changed);
            let kept = changed.iter().map(|id| before[id.index()].clone()).collect();
            recorded.set(Some((results.unflatten([]), kept)));
            results
        };
        let skipped = |()| match recorded.take() {
            Some((results, kept)) => results.skipped(kept),
            None => BranchResults::default(),
        };
        let results = cond(&steps_now, (), taken, skipped);
        let TakenStep { mut step, mut logged, changed } = outcome?;
        self.cells.restore(outside);
        for (id, value) in changed.into_iter().zip(results.changed) {
            if id.index() < self.values.layout.module().len() {
                self.cells.set(id, &value);
            }
            self.values.set(id, value);
        }
        if let Some(id) = self.values.layout.optimizers[optimizer].loss {
            step.loss = self.values.after(id).to_dtype(step.loss.dtype());
        }
        let OptimizerFacts { in_epochs, monitored, .. } = &mut step.facts;
        for (monitored, value) in in_epochs.iter_mut().chain(monitored).zip(results.monitored) {
            monitored.value = value;
        }
        for (entry, sums) in logged.iter_mut().zip(results.sums) {
            entry.branch = Some(Branch { taken: steps_now.clone(), sums });
        }
        step.facts.learning_rate = self.optimizers.members()[optimizer]
            .optimizer
            .learning_rate(&self.steps(optimizer).own);
        step.facts.steps_now = Some(steps_now);
        Ok((step, logged))
    }

    /// Records a step within its branch. `before` are the values of the state outside, and
    /// `param_values` the parameters there.
    fn record_taken(
        &mut self,
        optimizer: usize,
        before: &[Tensor],
        mut param_values: Vec<ParamValue>,
        loss: impl FnOnce() -> Result<(Tensor, Vec<LogEntry>)>,
    ) -> Result<TakenStep> {
        for (param, gathered) in param_values.iter_mut().zip(self.param_values(optimizer)) {
            param.used.extend(gathered.used);
            param.used.dedup_by(|next, previous| next.is(previous));
        }
        let (step, logged) = self.record_step(optimizer, param_values, loss)?;
        let is_media = |entry: &&LogEntry| matches!(entry.value, LoggedValue::Media(..));
        if let Some(entry) = logged.iter().find(is_media) {
            let message = "images, histograms and texts cannot be logged within the loss of an optimizer that skips \
                           steps; log it outside minimize";
            return Err(log_error(entry, message));
        }
        LogLayout::new(&logged, &self.batch, None)?;
        let layout = self.values.layout.clone();
        let mut changed: Vec<EntryId> =
            layout.ids().filter(|&id| !self.values.after(id).is(&before[id.index()])).collect();
        changed.iter().try_for_each(|&id| self.values.check_one(id, self.values.after(id)))?;
        if let Some(id) = layout.optimizers[optimizer].loss {
            let loss = weight::counted(&step.loss, self.step_ends.is_some());
            self.values.set(id, loss.to_dtype(DType::F32));
            changed.push(id);
        }
        Ok(TakenStep { step, logged, changed })
    }

    /// The results of a branch; `taken` is `None` if its step has a mistake.
    fn results(&self, taken: Option<&TakenStep>) -> BranchResults {
        let Some(TakenStep { step, logged, changed }) = taken else {
            return BranchResults::default();
        };
        let monitored = step.facts.in_epochs.iter().chain(&step.facts.monitored);
        BranchResults {
            changed: changed.iter().map(|&id| self.values.after(id).clone()).collect(),
            monitored: monitored.map(|monitored| monitored.value.clone()).collect(),
            sums: logged.iter().map(|entry| logs::batch_sums(entry, &self.batch)).collect(),
        }
    }

    /// Ends the step. A single optimizer steps now; several must have stepped already.
    /// `param_values` are the parameters of the single optimizer, as they were before the user's
    /// step.
    pub(crate) fn finish(
        mut self,
        loss: &Tensor,
        param_values: Vec<ParamValue>,
    ) -> Result<RecorderOutput> {
        self.collect();
        if self.optimizers.is_single() {
            self.optimizer_steps[0] = Some(self.optimize(0, loss, param_values)?);
        }
        let Recorder {
            optimizers, mut values, epoch, step_ends, optimizer_steps: recorded, ..
        } = self;
        let mut optimizer_steps = Vec::new();
        for (step, member) in recorded.into_iter().zip(optimizers.members()) {
            optimizer_steps.push(step.ok_or_else(|| {
                Error::usage(format!(
                    "training_step: the optimizer `{0}` minimizes nothing; call cx.minimize(\"{0}\", |cx| …)\n  at {1}",
                    member.name, member.location
                ))
            })?);
        }
        let counters = &values.layout.clone().counters;
        let updated = match (optimizers.is_single(), &optimizer_steps[..]) {
            (true, [step]) => step.updated.clone(),
            _ => step_ends.clone(),
        };
        if !optimizers.is_single() {
            let steps = values.before(counters.updates);
            let next = steps + 1.0;
            let counted =
                updated.as_ref().map_or(next.clone(), |updated| updated.select(&next, steps));
            values.set(counters.updates, counted);
        }
        if let (Some(id), Some(ends)) = (counters.steps, &step_ends) {
            let steps = values.before(id);
            let next = ends.select(&(steps + 1.0), steps);
            values.set(id, next);
        }
        Ok(RecorderOutput { values, epoch, step_ends, optimizer_steps, updated })
    }
}

#[cfg(test)]
mod tests {
    use fulmen_data::{DataLoader, TensorDataset};
    use fulmen_nn::Linear;
    use fulmen_nn::optim::{Optimizer, Sgd};
    use fulmen_tensor::Mesh;

    use super::*;
    use crate::program::record_train_step;
    use crate::step_config::Choices;
    use crate::step_config::phases::Phases;
    use crate::{Plan, StepContext, Strategy, Trainer, TrainingModule};

    #[derive(Module)]
    struct Two {
        a: Linear,
        b: Linear,
        minimizes_b: bool,
    }

    impl TrainingModule for Two {
        fn training_step(&self, batch: &Batch, cx: &mut StepContext) -> Tensor {
            let y = self.a.forward(batch.get("x"));
            let loss = cx.minimize("a", |_| (&y * &y).mean_all());
            if self.minimizes_b {
                cx.minimize("b", |_| {
                    self.b.forward(self.a.forward(batch.get("x"))).tanh().mean_all()
                });
            }
            loss
        }
        fn configure_optimizers(&self, _: &Plan) -> Box<dyn Optimizer> {
            let a = Optimizers::new().add("a", ["a.*"], Sgd::new(0.1));
            Box::new(if self.minimizes_b {
                a.add("b", ["b.*"], Sgd::new(0.1)).every("b", 2)
            } else {
                a
            })
        }
    }

    #[test]
    fn the_computation_of_a_skipped_optimizer_is_in_the_branch() {
        // Counts operations outside branches. The function doesn't list those within.
        let operations = |minimizes_b: bool, operation: &str| {
            let module = Two { a: Linear::new(4, 4), b: Linear::new(4, 4), minimizes_b };
            module.b.parameters().iter().for_each(|(_, p)| p.set_requires_grad(minimizes_b));
            let data =
                TensorDataset::builder().array("x", [8, 4], vec![0.5f32; 32]).build().unwrap();
            let batch =
                Batch::of_size(&DataLoader::builder(data).batch_size(8).build().unwrap(), 8, None);
            let mesh = Mesh::new([("data", 1)]).unwrap();
            let replicas = Strategy::replicas(&mesh);
            let config =
                Choices::from(Trainer::builder().options().unwrap()).for_mesh(mesh, replicas);
            let plan = Plan { steps_per_epoch: 1, max_epochs: 1, total_steps: 1 };
            let optimizers = Arc::new(Optimizers::from_module(module.configure_optimizers(&plan)));
            let phases = Phases::new(&module, &optimizers, &config, &plan, 1).unwrap();
            let layout = Arc::new(StateLayout::new(&module, &optimizers, &config, phases, &[]));
            let program =
                record_train_step(&module, &optimizers, &[batch], 1, &layout, &config, 0).unwrap();
            let recorded = program.steps[0].functions()[0].recorded().unwrap();
            recorded.iter().filter(|value| value.operation == Some(operation)).count()
        };
        assert_eq!((operations(true, "cond"), operations(false, "cond")), (1, 0));
        assert!(operations(false, "dot_general") > 0);
        assert_eq!(operations(true, "dot_general"), operations(false, "dot_general"));
        assert_eq!(operations(true, "tanh"), 0);
    }
}
