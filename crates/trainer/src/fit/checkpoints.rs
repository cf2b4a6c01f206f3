//! Saves checkpoints when a callback or a signal requests them.
//!
//! `callbacks/model_checkpoint.rs` decides when to save; `checkpoint` has the format of the files.

use std::path::{Path, PathBuf};
use std::time::Duration;

use fulmen_checkpoint::Run;
use fulmen_durable::messages::memory;
use fulmen_tensor::Literal;
use tracing::debug_span;

use super::Fit;
use crate::checkpoint::save::{CopyProgram, SaveOutcome, StateTensor};
use crate::checkpoint::{self, Position, locations};
use crate::console::{note, warning};
use crate::goodput::TimeBucket;
use crate::hooks::CheckpointFile;
use crate::hooks::actions::{CheckpointRole, Save};
use crate::process_group;
use crate::session::Session;
use crate::state::names;
use crate::step::TrainStep;
use crate::{Options, Result, Signal, error};

/// How many saves in a row may fail because the disk is full before training ends.
const MAX_FAILED_SAVES: u32 = 5;

/// The time between two tries to save the state at the end of training.
const RETRY_WAIT: Duration =
    if cfg!(test) { Duration::from_millis(1) } else { Duration::from_secs(3) };

impl Fit<'_> {
    /// Saves the state after a signal, within the epoch.
    pub(super) fn save_interrupted(&mut self, signal: Signal) -> Result<()> {
        self.summary.stopped = Some(format!("interrupted by {signal}"));
        (self.summary.interrupted, self.summary.signal) = (true, Some(signal));
        let logs = self.open_logs()?;
        self.save_last(logs)
    }

    /// Handles a failure: waits for the checkpoint that is being written, then saves what callbacks
    /// request, if the state is still complete.
    pub(super) fn save_after_exception(&mut self) {
        let saves = self.actions.take().saves;
        let mut saved = self.finish_saving();
        // A complete checkpoint needs all processes, and the others have ended.
        if self.step.executor.process_group().is_none() {
            saved = saved
                .and_then(|()| self.save(&saves, Vec::new()))
                .and_then(|()| self.finish_saving());
        }
        if let Err(error) = saved.and_then(|()| self.finish_copies()) {
            warning!("cannot save the state after the failure: {error}");
        }
    }

    /// Waits for the checkpoints that are being written.
    pub(super) fn finish_saving(&mut self) -> Result<()> {
        let Some(save) = self.running_save.take() else { return Ok(()) };
        let before = self.session.clock.enter(TimeBucket::Checkpoint);
        let SaveOutcome { last, best, failure } = save.wait();
        self.session.clock.enter(before);
        self.summary.last_checkpoint = last.or(self.summary.last_checkpoint.take());
        self.summary.best_checkpoint = best.or(self.summary.best_checkpoint.take());
        failure.map_or(Ok(()), Err)
    }

    /// Like [`Fit::finish_saving`], but a full disk is not an error until several saves in a row have
    /// failed: the state is in memory, and the next save tries again. Returns whether it must.
    fn finish_or_retry(&mut self) -> Result<bool> {
        let was_saving = self.running_save.is_some();
        match self.finish_saving() {
            Err(error) if error.is_disk_full() && self.failed_saves + 1 < MAX_FAILED_SAVES => {
                self.failed_saves += 1;
                warning!(
                    "{error}\nTraining continues, and the next save tries again. After {MAX_FAILED_SAVES} saves in a \
                     row that fail, training ends; {} failed so far",
                    self.failed_saves
                );
                Ok(true)
            }
            finished => {
                if was_saving && finished.is_ok() {
                    self.failed_saves = 0;
                }
                self.running_removals.clear();
                finished.map(|()| false)
            }
        }
    }

    /// Waits for the last checkpoints. If the disk is full, tries again after a while.
    pub(super) fn finish_last_save(&mut self) -> Result<()> {
        if !self.options().enable_checkpointing {
            return self.finish_saving();
        }
        while self.finish_or_retry()? {
            std::thread::sleep(RETRY_WAIT);
            let logs = self.open_logs()?;
            self.save_last(logs)?;
        }
        Ok(())
    }

    /// Waits until the checkpoints are copied to their final store.
    pub(super) fn finish_copies(&mut self) -> Result<()> {
        self.session.clock.enter(TimeBucket::Checkpoint);
        let Options { checkpoint_dir, grace, .. } = self.options();
        (self.session.open_store)(checkpoint_dir).finish(*grace).map_err(error::checkpoint_file)
    }

    /// Reads the values logged since the last log point, for a checkpoint within an epoch. It
    /// finishes all earlier log points first.
    pub(super) fn open_logs(&mut self) -> Result<Vec<(String, Literal)>> {
        self.finish_reads()?;
        let mut logs = Vec::new();
        if let Some(sums) = &self.step.sums {
            let pending = self.session.runtime.read(&[sums])?;
            for literal in
                process_group::wait_for_literals(self.step.executor.process_group(), pending)?
            {
                self.check_finite(&self.step.program().logs().read(&literal)?)?;
                logs.push((names::LOGS.to_owned(), literal));
            }
            self.step.position.log_names = self.step.program().logs().keys();
        }
        Ok(logs)
    }

    /// Saves the state as `last`, if checkpoints are enabled.
    pub(super) fn save_last(&mut self, logs: Vec<(String, Literal)>) -> Result<()> {
        match self.session.record.run_dir.as_ref().filter(|_| self.options().enable_checkpointing) {
            Some(folder) => {
                let path = locations::folder(self.options(), folder).join("last");
                let save =
                    Save { path, role: CheckpointRole::Last, weights_only: false, score: None };
                self.save_with(&[save], Vec::new(), logs)
            }
            None => Ok(()),
        }
    }

    /// Saves the training state in the background, from one read of the device, and then removes
    /// these checkpoints. All processes save the same checkpoints.
    pub(super) fn save(&mut self, saves: &[Save], removals: Vec<PathBuf>) -> Result<()> {
        if saves.is_empty() && removals.is_empty() {
            return Ok(());
        }
        let logs = if saves.is_empty() { Vec::new() } else { self.open_logs()? };
        self.save_with(saves, removals, logs)
    }

    fn save_with(
        &mut self,
        saves: &[Save],
        removals: Vec<PathBuf>,
        logs: Vec<(String, Literal)>,
    ) -> Result<()> {
        let _checkpoint = debug_span!("checkpoint").entered();
        let before = self.session.clock.enter(TimeBucket::Checkpoint);
        self.start_saving(saves, removals, logs)?;
        self.session.clock.enter(before);
        self.write_goodput(true);
        Ok(())
    }

    fn start_saving(
        &mut self,
        saves: &[Save],
        removals: Vec<PathBuf>,
        logs: Vec<(String, Literal)>,
    ) -> Result<()> {
        let mut removals = removals;
        if self.finish_or_retry()? {
            removals.append(&mut self.running_removals);
        }
        self.running_removals.clone_from(&removals);
        let saves: Vec<Save> = saves
            .iter()
            .map(|save| Save { path: self.fill_path(&save.path), ..save.clone() })
            .collect();
        let mut tensors = Vec::new();
        if !saves.is_empty() {
            tensors = self.step.take_state(self.copy_program.as_ref())?;
            let process_group = self.step.executor.process_group();
            let logs = logs
                .iter()
                .map(|(name, literal)| StateTensor::replicated(name, literal, process_group));
            tensors.extend(logs.collect::<Result<Vec<_>>>()?);
        }
        if let Some(best) = saves.iter().find(|save| save.role == CheckpointRole::Best) {
            self.step.position.best_checkpoint = Some(best.path.clone());
        }
        let Position { epoch, global_step, .. } = self.step.position;
        for Save { path, weights_only, .. } in &saves {
            let path = path.clone();
            let weights_only = *weights_only;
            self.hooks.on_save_checkpoint(&CheckpointFile {
                path,
                epoch,
                global_step,
                weights_only,
            });
        }
        let states = &mut self.step.position.callbacks;
        states.clear();
        self.hooks.callbacks.each_named(|name, callback| {
            states.extend(callback.state().map(|state| (name, state)));
        });
        let seconds = self.step.limits.time.map(|_| self.training_time().as_secs_f64());
        let saves = saves
            .into_iter()
            .map(|save| {
                let position = Position {
                    seconds,
                    weights_only: save.weights_only,
                    ..self.step.position.clone()
                };
                let run = checkpoint::run(&position, self.options(), self.session.runtime.mesh());
                (save.clone(), Run { score: save.score, ..run })
            })
            .collect();
        let last = self.summary.last_checkpoint.clone();
        let best = self.summary.best_checkpoint.clone();
        let open = self.session.open_store.clone();
        let job = self.step.job(
            open,
            tensors,
            saves,
            removals,
            SaveOutcome { last, best, failure: None },
        );
        self.running_save = Some(job.start()?);
        Ok(())
    }

    /// Replaces `{epoch}` and `{step}` in the file name of a path with the numbers of the saved
    /// state.
    fn fill_path(&self, path: &Path) -> PathBuf {
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else {
            return path.to_owned();
        };
        let Position { epoch, batch, global_step, .. } = self.step.position;
        // At the end of an epoch, the position is already in the next one.
        let epoch = if batch == 0 { epoch.saturating_sub(1) } else { epoch };
        path.with_file_name(
            name.replace("{epoch}", &epoch.to_string()).replace("{step}", &global_step.to_string()),
        )
    }
}

/// The program that copies the state on the devices. Training continues while the copy goes to the
/// host. It copies as much as fits in memory next to the step; training waits for the rest. There
/// is no such program if the devices share the host's memory.
pub(super) fn copy_program(
    session: &mut Session,
    step: &TrainStep<'_>,
) -> Result<Option<CopyProgram>> {
    if !session.choices.options.saves() {
        return Ok(None);
    }
    let layout = step.state.layout();
    let mesh = session.runtime.mesh();
    let limit = session
        .runtime
        .local_devices()
        .filter_map(|device| device.memory_stats().ok()?.bytes_limit)
        .min();
    let programs = step.steps.iter().flat_map(|step| step.programs());
    let step_bytes = programs
        .filter_map(|program| Some(program.executable().memory_analysis().ok()?.total_bytes()))
        .max();
    let room = limit.map_or(0, |limit| {
        limit.saturating_sub(step_bytes.unwrap_or_default()).try_into().unwrap_or(0)
    });
    // All processes run the same copy program, so use the least room.
    let room = session
        .process_group
        .as_ref()
        .map_or(Ok(room), |process_group| process_group.minimum("room for a copy", room))?;
    let copied = layout.fitting(room, mesh);
    let [whole, part] =
        [layout.ids().collect(), copied.clone()].map(|ids: Vec<_>| layout.device_bytes(ids, mesh));
    if limit.is_some() && part < whole {
        note!(
            "in addition to the step, each device has memory for a copy of {} of the {} of training state; \
             at each checkpoint, training waits while the rest goes to the host. The strategy fsdp on more devices makes \
             the state of each device smaller",
            memory(part),
            memory(whole)
        );
    }
    if copied.is_empty() {
        return Ok(None);
    }
    let compiled = session.compile_one("checkpoint", &layout.to_copy(&copied))?;
    Ok(Some(CopyProgram { compiled, entries: copied }))
}

#[cfg(test)]
mod tests;
