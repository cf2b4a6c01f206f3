//! [`Start`]: what a fit begins with, which is nothing or the checkpoint that `ckpt_path` names. A checkpoint must fit
//! before anything changes. How one is read and written is not here but in `checkpoint.rs`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use fulmen_data::DataLoader;
use fulmen_tensor::Literal;

use crate::checkpoint::{self, LOGS, Position};
use crate::program::TrainProgram;
use crate::setting::Setting;
use crate::state::{self, Entry};
use crate::{Error, Options, Result, loss_scale};

/// What a fit begins with.
pub(crate) struct Start {
    pub(crate) position: Position,
    /// The path of the checkpoint to go on from, if there is one, and what it holds.
    checkpoint: Option<(PathBuf, BTreeMap<String, Literal>)>,
}

/// The state in a checkpoint.
pub(crate) struct Saved {
    /// A value for each entry of the training state.
    pub(crate) values: Vec<Literal>,
    /// What was logged since the last log point, if the step still logs the same.
    pub(crate) logs: Option<Literal>,
}

impl Start {
    /// Reads the checkpoint that the options name, if they name one.
    pub(crate) fn new(options: &Options) -> Result<Start> {
        let path = &options.ckpt_path;
        if path.as_os_str().is_empty() {
            let position = Position { seed: options.seed, ..Position::default() };
            return Ok(Start { position, checkpoint: None });
        }
        let (tensors, position) = checkpoint::load(path)?;
        Ok(Start { position, checkpoint: Some((path.clone(), tensors)) })
    }

    /// Takes the state out of the checkpoint, if there is one; it must be that of this step on batches as these.
    pub(crate) fn take_state(
        &mut self,
        train: &DataLoader,
        entries: &[Entry],
        program: &TrainProgram,
        setting: &Setting,
    ) -> Result<Option<Saved>> {
        let Some((path, tensors)) = &mut self.checkpoint else { return Ok(None) };
        check_position(&self.position, train).map_err(|e| Error::checkpoint(path, e))?;
        loss_scale::adapt(tensors, setting)?;
        let logs = tensors.remove(LOGS).filter(|_| self.position.log_names == program.layout.names());
        let names = entries.iter().map(|e| (e.name.as_str(), &e.ty));
        let values = state::choose(names, tensors).map_err(|e| Error::checkpoint(path, e))?;
        if let Some(name) = tensors.keys().next() {
            let message =
                format!("it has `{name}`, which this module and optimizer have not; resume with those of that run");
            return Err(Error::checkpoint(path, message));
        }
        Ok(Some(Saved { values, logs }))
    }

    /// The checkpoint to go on from.
    pub(crate) fn checkpoint(&self) -> Option<&Path> {
        self.checkpoint.as_ref().map(|(path, _)| path.as_path())
    }

    /// The best checkpoint of the run before. Its folder may have been moved: then the best lies beside the checkpoint.
    pub(crate) fn best_checkpoint(&self) -> Option<PathBuf> {
        let (path, best) = (self.checkpoint()?, self.position.best_checkpoint.as_ref()?);
        let beside = best.file_name().map(|name| path.with_file_name(name));
        [Some(best.clone()), beside].into_iter().flatten().find(|path| path.exists())
    }
}

/// A position within an epoch means something only for the same batches.
fn check_position(position: &Position, train: &DataLoader) -> Result<()> {
    let here = train.description();
    if position.batch > 0 && here != position.data {
        return Err(Error::usage(format!(
            "it was saved after batch {} of an epoch of other batches ({}) than those of this loader ({here}). Resume with \
             the loader of that run",
            position.batch, position.data
        )));
    }
    Ok(())
}
