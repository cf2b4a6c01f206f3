//! Finds the checkpoint of `resume: auto` and of `ckpt_path: last` or `best`: the newest complete
//! one of this program's runs under the root folder.

use std::cmp::Reverse;
use std::path::{Path, PathBuf};

use fulmen_checkpoint::{ListedCheckpoint, list, open_store};
use serde_json::{Map, Value as Json};

use crate::checkpoint::locations;
use crate::console::{init_logging, warning};
use crate::{Error, Options, Result, Resume, checkpoint, error};

/// The checkpoint that the options name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NamedCheckpoint<'a> {
    Path(&'a Path),
    /// The checkpoint of the newest run with the most training.
    Last,
    /// The best checkpoint of the newest run.
    Best,
}

impl NamedCheckpoint<'_> {
    /// The checkpoint of `ckpt_path`.
    pub(crate) fn by_path(options: &Options) -> Option<NamedCheckpoint<'_>> {
        match options.ckpt_path.to_str() {
            Some("") => None,
            Some("last") => Some(NamedCheckpoint::Last),
            Some("best") => Some(NamedCheckpoint::Best),
            _ => Some(NamedCheckpoint::Path(&options.ckpt_path)),
        }
    }

    /// The checkpoint of `ckpt_path` and `resume`.
    pub(crate) fn to_resume(options: &Options) -> Result<Option<NamedCheckpoint<'_>>> {
        match (options.resume, NamedCheckpoint::by_path(options)) {
            (Resume::Never, named) => Ok(named),
            (Resume::Auto, None | Some(NamedCheckpoint::Last)) => Ok(Some(NamedCheckpoint::Last)),
            (Resume::Auto, Some(_)) => Err(error::option(format!(
                "resume: auto means the newest checkpoint, but ckpt_path: {} is a different one; set only one of the two options",
                options.ckpt_path.display()
            ))),
        }
    }

    /// Reads the checkpoint. Returns `None` if there is none. If a checkpoint cannot be read, this
    /// warns and tries the one before it.
    pub(crate) fn read<T>(
        self,
        options: &Options,
        mut read: impl FnMut(&Path) -> Result<T>,
    ) -> Result<Option<(PathBuf, T)>> {
        if let NamedCheckpoint::Path(path) = self {
            return Ok(Some((path.to_owned(), read(path)?)));
        }
        for folders in locations::folders_by_run(options)? {
            for path in self.checkpoints(&folders)? {
                match read(&path) {
                    Ok(value) => return Ok(Some((path, value))),
                    Err(error) => warn_skipped(&error),
                }
            }
        }
        Ok(None)
    }

    /// The first checkpoint that [`read`](Self::read) would try, other than these.
    pub(crate) fn first_other(
        self,
        options: &Options,
        tried: &[PathBuf],
    ) -> Result<Option<PathBuf>> {
        for folders in locations::folders_by_run(options)? {
            let other = |path: &PathBuf| !tried.contains(path);
            if let Some(path) = self.checkpoints(&folders)?.into_iter().find(other) {
                return Ok(Some(path));
            }
        }
        Ok(None)
    }

    /// The checkpoints of a run of this program, in the order in which to try them. The list is
    /// empty if the run was killed before its first checkpoint.
    fn checkpoints(self, folders: &[PathBuf]) -> Result<Vec<PathBuf>> {
        let mut checkpoints = Vec::new();
        for folder in folders {
            let store = open_store(folder).map_err(error::checkpoint_file)?;
            for ListedCheckpoint { name, checkpoint } in
                list(&store).map_err(error::checkpoint_file)?
            {
                let path = folder.join(name);
                let position = match checkpoint {
                    Ok(checkpoint) => checkpoint::position(&checkpoint.manifest().run)
                        .map_err(|e| error::unreadable(&path, e)),
                    // The checkpoint was not finished.
                    Err(error) if error.is_not_found() => continue,
                    Err(error) => Err(error::checkpoint_file(error)),
                };
                match position {
                    Ok(position) if position.program == checkpoint::program() => {
                        checkpoints.push((position, path))
                    }
                    Ok(_) => {}
                    Err(error) => warn_skipped(&error),
                }
            }
        }
        let is_last = |path: &Path| path.file_name().is_some_and(|name| name == "last");
        checkpoints.sort_by_key(|(position, path)| {
            Reverse((
                position.epoch,
                position.batch,
                position.global_step,
                is_last(path),
                path.clone(),
            ))
        });
        if self == NamedCheckpoint::Best {
            return Ok(checkpoints
                .iter()
                .filter_map(|(position, path)| position.best(path))
                .collect());
        }
        let resumable = checkpoints.into_iter().filter(|(position, _)| !position.weights_only);
        Ok(resumable.map(|(_, path)| path).collect())
    }
}

/// Reads the program's arguments from the checkpoint that the options `ckpt_path` and `resume`
/// name.
///
/// Returns the path of the checkpoint and the arguments, as
/// [`TrainerBuilder::program_arguments`](crate::TrainerBuilder::program_arguments) saved them.
/// Returns `None` if the options name no checkpoint, or no run has one.
///
/// # Errors
/// The options contradict each other, or a file cannot be read.
pub fn load_arguments(options: &Options) -> Result<Option<(PathBuf, Map<String, Json>)>> {
    init_logging();
    let Some(named) = NamedCheckpoint::to_resume(options)? else { return Ok(None) };
    let read = named.read(options, checkpoint::run_config)?;
    Ok(read.map(|(path, config)| (path, config.arguments)))
}

pub(super) fn warn_skipped(error: &Error) {
    warning!("{error}\nTrying the checkpoint before it.");
}
