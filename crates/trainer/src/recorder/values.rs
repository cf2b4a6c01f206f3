//! [`Values`]: the training state before and after a step.

use std::sync::Arc;

use fulmen_tensor::Tensor;

use crate::rules::epoch::to_counter;
use crate::state::{EntryId, StateLayout};
use crate::step_config::StepConfig;
use crate::{Batch, Error, Result};

/// A value for each entry of the state: before the step, and after the recorded part of the step.
pub(crate) struct Values {
    pub(crate) layout: Arc<StateLayout>,
    before: Vec<Tensor>,
    after: Vec<Tensor>,
}

impl Values {
    /// Takes the placeholders of a module, and creates placeholders for the other entries.
    pub(crate) fn new(layout: &Arc<StateLayout>, module: Vec<Tensor>) -> Values {
        let others = layout
            .entries()
            .iter()
            .skip(module.len())
            .map(|entry| Tensor::placeholder(entry.name.clone(), entry.ty.clone()));
        let before: Vec<Tensor> = module.into_iter().chain(others).collect();
        Values { layout: layout.clone(), after: before.clone(), before }
    }

    pub(crate) fn before(&self, id: EntryId) -> &Tensor {
        &self.before[id.index()]
    }

    /// Like [`Values::before`], for several entries.
    pub(crate) fn all_of<const N: usize>(&self, ids: [EntryId; N]) -> [Tensor; N] {
        ids.map(|id| self.before(id).clone())
    }

    pub(crate) fn after(&self, id: EntryId) -> &Tensor {
        &self.after[id.index()]
    }

    pub(crate) fn set(&mut self, id: EntryId, value: Tensor) {
        self.after[id.index()] = value;
    }

    /// Like [`Values::set`], for several entries.
    pub(crate) fn set_all<const N: usize>(&mut self, ids: [EntryId; N], values: [Tensor; N]) {
        ids.into_iter().zip(values).for_each(|(id, value)| self.set(id, value));
    }

    pub(crate) fn all_before(&self) -> &[Tensor] {
        &self.before
    }

    pub(crate) fn all_after(&self) -> &[Tensor] {
        &self.after
    }

    /// The number of steps that the host has counted before this one. `leaves_out` is whether a
    /// single optimizer leaves steps out of its own count, because they overflow or are skipped.
    pub(crate) fn finished_steps(&self, leaves_out: bool) -> &Tensor {
        let counters = &self.layout.counters;
        self.before(match counters.steps {
            Some(steps) => steps,
            None if leaves_out => counters.step,
            None => counters.updates,
        })
    }

    /// Whether the host reads the logged values after this step.
    pub(crate) fn is_log_point(
        &self,
        leaves_out: bool,
        step_ends: Option<&Tensor>,
        config: &StepConfig,
    ) -> Tensor {
        let next = self.finished_steps(leaves_out) + 1.0;
        let is_due = next.remainder(to_counter(config.options.log_every_n_steps)).eq(0.0);
        step_ends.map_or(is_due.clone(), |step_ends| step_ends.and(&is_due))
    }

    /// The entries that the step changes.
    pub(crate) fn changes(&self) -> impl Iterator<Item = EntryId> {
        self.layout.ids().filter(|&id| !self.after(id).is(self.before(id)))
    }

    /// Checks that each value is valid and has the type that the next step takes.
    pub(crate) fn check(&self) -> Result<()> {
        self.layout.ids().try_for_each(|id| self.check_one(id, self.after(id)))
    }

    /// Like [`Values::check`], for the new value of one entry.
    pub(crate) fn check_one(&self, id: EntryId, value: &Tensor) -> Result<()> {
        value.check()?;
        let entry = &self.layout[id];
        if *value.ty() != entry.ty {
            return Err(Error::usage(format!(
                "a step would change the type of `{}` from {} to {}; it must stay the same\n  at {}",
                entry.name,
                entry.ty,
                value.ty(),
                value.location()
            )));
        }
        Ok(())
    }

    /// Checks that no padding gets into running statistics: values that depend on the batch must
    /// depend on the mask too.
    pub(crate) fn check_statistics(&self, batch: &Batch) -> Result<()> {
        let layout = &self.layout;
        for id in layout.ids().take(layout.module().len()).filter(|&id| !layout.is_trained(id)) {
            let value = self.after(id);
            let from_batch =
                batch.inputs().any(|field| !field.is(batch.mask()) && value.depends_on(field));
            if from_batch && !value.depends_on(batch.mask()) {
                return Err(Error::usage(format!(
                    "the last batch is padded, but the statistics `{}` would include the padding; let the training loader \
                     drop the last batch\n  at {}",
                    layout[id].name,
                    value.location()
                )));
            }
        }
        Ok(())
    }
}
