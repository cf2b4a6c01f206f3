//! [`Values`]: the training state as a step finds it and as it leaves it.

use std::sync::Arc;

use fulmen_tensor::Tensor;

use crate::rules::accumulate::Group;
use crate::rules::epoch::counted;
use crate::state::{EntryId, StateLayout};
use crate::step_config::StepConfig;
use crate::{Batch, Error, Result};

/// A value for each entry of the state, before the step and after what has been recorded of it.
pub(crate) struct Values {
    pub(crate) layout: Arc<StateLayout>,
    before: Vec<Tensor>,
    after: Vec<Tensor>,
}

impl Values {
    /// Of a module with these placeholders; the other entries get theirs here.
    pub(crate) fn new(layout: &Arc<StateLayout>, module: Vec<Tensor>) -> Values {
        let others = layout.entries().iter().skip(module.len());
        let others = others.map(|e| Tensor::placeholder(e.name.clone(), e.ty.clone()));
        let before: Vec<Tensor> = module.into_iter().chain(others).collect();
        Values { layout: layout.clone(), after: before.clone(), before }
    }

    pub(crate) fn before(&self, id: EntryId) -> &Tensor {
        &self.before[id.index()]
    }

    /// As [`Values::before`], for several.
    pub(crate) fn all_of<const N: usize>(&self, ids: [EntryId; N]) -> [Tensor; N] {
        ids.map(|id| self.before(id).clone())
    }

    pub(crate) fn after(&self, id: EntryId) -> &Tensor {
        &self.after[id.index()]
    }

    pub(crate) fn set(&mut self, id: EntryId, value: Tensor) {
        self.after[id.index()] = value;
    }

    /// As [`Values::set`], for several.
    pub(crate) fn set_all<const N: usize>(&mut self, ids: [EntryId; N], values: [Tensor; N]) {
        ids.into_iter().zip(values).for_each(|(id, value)| self.set(id, value));
    }

    pub(crate) fn all_before(&self) -> &[Tensor] {
        &self.before
    }

    pub(crate) fn all_after(&self) -> &[Tensor] {
        &self.after
    }

    /// How many steps the host has counted before this one: groups of batches where there are groups. `leaves_out` says
    /// whether a single optimizer, which does not count them, leaves out some: those that overflow or are skipped.
    pub(crate) fn finished_steps(&self, leaves_out: bool) -> &Tensor {
        let counters = &self.layout.counters;
        self.before(match counters.group {
            Some([_, groups]) => groups,
            None if leaves_out => counters.step,
            None => counters.updates,
        })
    }

    /// Whether the host reads what is logged after this step.
    pub(crate) fn is_log_point(&self, leaves_out: bool, group: Option<&Group>, setting: &StepConfig) -> Tensor {
        let next = self.finished_steps(leaves_out) + 1.0;
        let at = next.remainder(counted(setting.options.log_every_n_steps)).eq(0.0);
        group.map_or(at.clone(), |group| group.due().and(&at))
    }

    /// The entries that the step changes.
    pub(crate) fn changes(&self) -> impl Iterator<Item = EntryId> {
        self.layout.ids().filter(|&id| !self.after(id).is(self.before(id)))
    }

    /// Each value must be right, and of the type that the next step takes.
    pub(crate) fn check(&self) -> Result<()> {
        self.layout.ids().try_for_each(|id| self.check_one(id, self.after(id)))
    }

    /// As [`Values::check`], for a value that is to be that of one entry.
    pub(crate) fn check_one(&self, id: EntryId, value: &Tensor) -> Result<()> {
        value.check()?;
        let entry = &self.layout[id];
        if *value.ty() != entry.ty {
            return Err(Error::usage(format!(
                "a step would turn `{}` from {} into {}\n  at {}",
                entry.name,
                entry.ty,
                value.ty(),
                value.location()
            )));
        }
        Ok(())
    }

    /// Padding must not get into running statistics: what a step makes of a batch must know the mask.
    pub(crate) fn check_statistics(&self, batch: &Batch) -> Result<()> {
        let layout = &self.layout;
        for id in layout.ids().take(layout.module().len()).filter(|&id| !layout.is_trained(id)) {
            let value = self.after(id);
            let from_batch = batch.inputs().any(|field| !field.is(batch.mask()) && value.depends_on(field));
            if from_batch && !value.depends_on(batch.mask()) {
                return Err(Error::usage(format!(
                    "the last batch is padded, and `{}` would take padding into its statistics; let the training loader \
                     drop the last batch\n  at {}",
                    layout[id].name,
                    value.location()
                )));
            }
        }
        Ok(())
    }
}
