//! Checkpoints: what is written when a callback or a signal asks for it.
//!
//! Not here: which ones are wanted (`callbacks/model_checkpoint.rs`), and what a file looks like (`checkpoint`).

use std::path::{Path, PathBuf};

use fulmen_tensor::Literal;

use super::Fit;
use crate::checkpoint::{self, Position};
use crate::hooks::CheckpointFile;
use crate::hooks::actions::{CheckpointRole, Save};
use crate::hosts;
use crate::say::note;
use crate::state::names;
use crate::{Result, Signal};

impl Fit<'_> {
    /// After a signal: saves the state in the middle of the epoch.
    pub(super) fn save_interrupted(&mut self, signal: Signal) -> Result<()> {
        self.summary.stopped = Some(format!("interrupted by {signal}"));
        (self.summary.interrupted, self.summary.signal) = (true, Some(signal));
        let logs = self.open_logs()?;
        self.save_last(logs)
    }

    /// After a failure: saves what callbacks ask for, if the state is still whole.
    pub(super) fn save_after_exception(&mut self) {
        let saves = self.asked.take().saves;
        // The others have ended, without which what lies split cannot be read.
        if self.step.executor.hosts().is_none()
            && let Err(error) = self.save(&saves)
        {
            note(&format!("warning: the state could not be saved after the failure: {error}"));
        }
    }

    /// What was logged since the last log point, for a checkpoint within an epoch. All log points arrive before.
    pub(super) fn open_logs(&mut self) -> Result<Vec<(String, Literal)>> {
        self.finish_reads()?;
        let mut logs = vec![];
        if let Some(sums) = &self.step.sums {
            let pending = self.session.runtime.read(&[sums])?;
            for literal in hosts::arrive(self.step.executor.hosts(), pending)? {
                self.check_finite(&self.step.program().logs().read(&literal)?)?;
                logs.push((names::LOGS.to_owned(), literal));
            }
            self.step.position.log_names = self.step.program().logs().keys();
        }
        Ok(logs)
    }

    /// Saves the state as the latest one, if checkpoints are on.
    pub(super) fn save_last(&mut self, logs: Vec<(String, Literal)>) -> Result<()> {
        match self.session.record.run_dir.as_ref().filter(|_| self.options().enable_checkpointing) {
            Some(folder) => {
                let path = folder.join("checkpoints").join("last.safetensors");
                self.save_with(&[Save { path, role: CheckpointRole::Last, weights_only: false }], logs)
            }
            None => Ok(()),
        }
    }

    /// Writes the training state to files, from one read of the device. All processes save alike: to read what lies split
    /// takes them all.
    pub(super) fn save(&mut self, saves: &[Save]) -> Result<()> {
        if saves.is_empty() {
            return Ok(());
        }
        let logs = self.open_logs()?;
        self.save_with(saves, logs)
    }

    fn save_with(&mut self, saves: &[Save], logs: Vec<(String, Literal)>) -> Result<()> {
        let mut tensors = self.step.values(self.summary.last_checkpoint.as_deref())?;
        tensors.extend(logs);
        let saves: Vec<Save> =
            saves.iter().map(|save| Save { path: self.filled(&save.path), ..save.clone() }).collect();
        if let Some(best) = saves.iter().find(|save| save.role == CheckpointRole::Best) {
            self.step.position.best_checkpoint = Some(best.path.clone());
        }
        let Position { epoch, global_step, .. } = self.step.position;
        for Save { path, weights_only, .. } in &saves {
            let (path, weights_only) = (path.clone(), *weights_only);
            self.hooks.on_save_checkpoint(&CheckpointFile { path, epoch, global_step, weights_only });
        }
        let states = &mut self.step.position.callbacks;
        states.clear();
        self.hooks.callbacks.each_named(|name, callback| {
            states.extend(callback.state().map(|state| (name, state)));
        });
        let seconds = self.step.limits.time.map(|_| self.trained().as_secs_f64());
        // The weights first, which a file may have alone.
        tensors.sort_by_key(|(name, _)| names::is_of_training(name));
        let weights = tensors.partition_point(|(name, _)| !names::is_of_training(name));
        let mut whole = self.summary.last_checkpoint.clone();
        for Save { path, role, weights_only } in saves {
            if self.session.writes() {
                let position = Position { seconds, weights_only, ..self.step.position.clone() };
                let written = if weights_only { &tensors[..weights] } else { &tensors };
                let saved = checkpoint::save(&path, written, &position);
                saved.map_err(|error| error.with_last_checkpoint(whole.as_deref()))?;
                if !weights_only {
                    whole = Some(path.clone());
                }
            }
            match role {
                CheckpointRole::Last => self.summary.last_checkpoint = Some(path),
                CheckpointRole::Best => self.summary.best_checkpoint = Some(path),
                CheckpointRole::Extra => {}
            }
        }
        // Nobody looks for a file that is not there yet.
        if let Some(hosts) = self.step.executor.hosts() {
            hosts.meet("saved")?;
        }
        Ok(())
    }

    /// A path with the numbers of what is being saved, in place of `{epoch}` and `{step}` in its last part.
    fn filled(&self, path: &Path) -> PathBuf {
        let Some(name) = path.file_name().and_then(|name| name.to_str()) else { return path.to_owned() };
        let Position { epoch, batch, global_step, .. } = self.step.position;
        // With the end of an epoch the next one has begun.
        let epoch = if batch == 0 { epoch.saturating_sub(1) } else { epoch };
        path.with_file_name(name.replace("{epoch}", &epoch.to_string()).replace("{step}", &global_step.to_string()))
    }
}
