//! Checkpoints: what is written when a callback or a signal asks for it.

use std::path::PathBuf;

use fulmen_tensor::Literal;

use super::Fit;
use crate::callback::{CheckpointRole, numbered};
use crate::checkpoint::{self, Position};
use crate::hosts;
use crate::state::names;
use crate::{Error, Result, Signal};

impl Fit<'_> {
    /// After a signal: log points that are on their way arrive, and the state in the middle of the epoch is saved, with
    /// what was logged since the last of them.
    pub(super) fn save_interrupted(&mut self, signal: Signal) -> Result<()> {
        self.summary.stopped = Some(format!("interrupted by {signal}"));
        (self.summary.interrupted, self.summary.signal) = (true, Some(signal));
        self.finish_log_points()?;
        let logs = self.open_logs()?;
        self.save_last(logs)
    }

    /// What was logged since the last log point, for a checkpoint within an epoch; all log points have arrived.
    pub(super) fn open_logs(&mut self) -> Result<Vec<(String, Literal)>> {
        let mut logs = vec![];
        if let Some(sums) = &self.sums {
            let pending = self.session.runtime.read(&[sums])?;
            for literal in hosts::arrive(self.executor.hosts(), pending)? {
                self.check_finite(&self.step.logs().read(&literal)?)?;
                logs.push((names::LOGS.to_owned(), literal));
            }
            self.position.log_names = self.step.logs().keys();
        }
        Ok(logs)
    }

    /// Saves the state as the latest one, if checkpoints are on.
    pub(super) fn save_last(&mut self, logs: Vec<(String, Literal)>) -> Result<()> {
        match self.session.record.run_dir.as_ref().filter(|_| self.options().enable_checkpointing) {
            Some(folder) => {
                let path = folder.join("checkpoints").join("last.safetensors");
                self.save(&[(path, CheckpointRole::Last)], logs)
            }
            None => Ok(()),
        }
    }

    /// Writes the training state to files, from one read of the device, with further tensors.
    pub(super) fn save(&mut self, files: &[(PathBuf, CheckpointRole)], further: Vec<(String, Literal)>) -> Result<()> {
        // To read what lies split takes all processes, so that all do what the first one's callbacks ask for.
        let files = match self.executor.hosts() {
            Some(hosts) => hosts.broadcast("saves", || Ok(Saves(files.to_vec())))?.0,
            None => files.to_vec(),
        };
        if files.is_empty() {
            return Ok(());
        }
        let mut tensors = self.state.read(&self.session.runtime, self.executor.hosts())?;
        if self.options().detect_nan {
            let finite = |l: &Literal| !l.ty().dtype.is_float() || l.to_f64().iter().all(|v| v.is_finite());
            // What no step changes may well be infinite, a mask say. Within a group of batches a sum of gradients may be
            // too, where the scale of the loss is still too large: such a group changes nothing.
            let changed = self.step.changes().iter().map(|id| &tensors[id.index()]);
            let mut changed = changed.filter(|(name, _)| !names::is_grad_sum(name));
            if let Some((name, _)) = changed.find(|(_, literal)| !finite(literal)) {
                let last = self.summary.last_checkpoint.as_deref();
                return Err(Error::not_finite(self.position.global_step, &format!("`{name}`"), last));
            }
        }
        tensors.extend(further);
        if let Some((best, _)) = files.iter().find(|(_, role)| *role == CheckpointRole::Best) {
            self.position.best_checkpoint = Some(best.clone());
        }
        let seconds = self.limits.time.map(|_| self.trained().as_secs_f64());
        let callbacks = numbered(&mut self.session.callbacks);
        self.position.callbacks = callbacks.filter_map(|(name, callback)| Some((name, callback.state()?))).collect();
        let mut whole = self.summary.last_checkpoint.clone();
        for (path, role) in files {
            if self.session.writes() {
                let saved = checkpoint::save(&path, &tensors, &Position { seconds, ..self.position.clone() });
                saved.map_err(|error| error.with_last_checkpoint(whole.as_deref()))?;
                whole = Some(path.clone());
            }
            match role {
                CheckpointRole::Last => self.summary.last_checkpoint = Some(path),
                CheckpointRole::Best => self.summary.best_checkpoint = Some(path),
                CheckpointRole::Extra => {}
            }
        }
        // Nobody looks for a file that is not there yet.
        if let Some(hosts) = self.executor.hosts() {
            hosts.meet("saved")?;
        }
        Ok(())
    }
}

/// What is to be saved, as process 0 tells the others: roles and paths in turn.
struct Saves(Vec<(PathBuf, CheckpointRole)>);

const ROLES: [(CheckpointRole, &str); 3] =
    [(CheckpointRole::Last, "last"), (CheckpointRole::Best, "best"), (CheckpointRole::Extra, "extra")];

impl hosts::Shared for Saves {
    fn to_text(&self) -> Option<String> {
        let name = |role| ROLES.iter().find(|r| r.0 == role).map(|r| r.1);
        let all: Option<Vec<_>> = self.0.iter().map(|(path, role)| Some((name(*role)?, path.to_str()?))).collect();
        serde_json::to_string(&all?).ok()
    }

    fn from_text(text: &str) -> Option<Saves> {
        let role = |name: String| ROLES.iter().find(|r| r.1 == name).map(|r| r.0);
        let all: Vec<(String, PathBuf)> = serde_json::from_str(text).ok()?;
        all.into_iter().map(|(name, path)| Some((path, role(name)?))).collect::<Option<_>>().map(Saves)
    }
}
