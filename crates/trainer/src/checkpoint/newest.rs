//! Which checkpoint `resume: auto` and `ckpt_path: last` or `best` mean: the newest whole one of this
//! program's runs under the root folder.

use std::cmp::Reverse;
use std::path::{Path, PathBuf};

use fulmen_checkpoint::{ListedCheckpoint, list, open_store};
use serde_json::{Map, Value as Json};

use crate::checkpoint::places;
use crate::console::note;
use crate::{Error, Options, Result, Resume, checkpoint};

/// The checkpoint that options name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Named<'a> {
    Path(&'a Path),
    /// The one that is furthest in the newest run.
    Last,
    /// The best one of the newest run.
    Best,
}

impl Named<'_> {
    /// Of `ckpt_path`.
    pub(crate) fn by_path(options: &Options) -> Option<Named<'_>> {
        match options.ckpt_path.to_str() {
            Some("") => None,
            Some("last") => Some(Named::Last),
            Some("best") => Some(Named::Best),
            _ => Some(Named::Path(&options.ckpt_path)),
        }
    }

    /// Of `ckpt_path` and `resume`.
    pub(crate) fn to_resume(options: &Options) -> Result<Option<Named<'_>>> {
        match (options.resume, Named::by_path(options)) {
            (Resume::Never, named) => Ok(named),
            (Resume::Auto, None | Some(Named::Last)) => Ok(Some(Named::Last)),
            (Resume::Auto, Some(_)) => Err(Error::option(format!(
                "resume: auto means the newest checkpoint, and ckpt_path: {} another one; give one of the two options",
                options.ckpt_path.display()
            ))),
        }
    }

    /// Reads the checkpoint; `None` where there is no run to go on with. One that cannot be read is told of, and the one
    /// before it taken.
    pub(crate) fn read<T>(
        self,
        options: &Options,
        mut read: impl FnMut(&Path) -> Result<T>,
    ) -> Result<Option<(PathBuf, T)>> {
        if let Named::Path(path) = self {
            return Ok(Some((path.to_owned(), read(path)?)));
        }
        for folders in places::all(options)? {
            for path in self.checkpoints(&folders)? {
                match read(&path) {
                    Ok(whole) => return Ok(Some((path, whole))),
                    Err(error) => skipped(&error),
                }
            }
        }
        Ok(None)
    }

    /// The checkpoints of a run that this program has written, the one to take first. A run may have been killed before
    /// its first one.
    fn checkpoints(self, folders: &[PathBuf]) -> Result<Vec<PathBuf>> {
        let mut found = vec![];
        for folder in folders {
            let store = open_store(folder).map_err(Error::checkpoint_file)?;
            for ListedCheckpoint { name, checkpoint } in list(&store).map_err(Error::checkpoint_file)? {
                let path = folder.join(name);
                let position = match checkpoint {
                    Ok(checkpoint) => {
                        checkpoint::position(&checkpoint.manifest().run).map_err(|why| Error::unreadable(&path, why))
                    }
                    // One that was not finished.
                    Err(error) if error.is_not_found() => continue,
                    Err(error) => Err(Error::checkpoint_file(error)),
                };
                match position {
                    Ok(position) if position.program == checkpoint::program() => found.push((position, path)),
                    Ok(_) => {}
                    Err(error) => skipped(&error),
                }
            }
        }
        let is_last = |path: &Path| path.file_name().is_some_and(|of| of == "last");
        found.sort_by_key(|(at, path)| Reverse((at.epoch, at.batch, at.global_step, is_last(path), path.clone())));
        if self == Named::Best {
            return Ok(found.iter().filter_map(|(at, path)| at.best(path)).collect());
        }
        Ok(found.into_iter().filter(|(at, _)| !at.weights_only).map(|(_, path)| path).collect())
    }
}

/// The arguments of a program in the checkpoint that the options `ckpt_path` and `resume` name, as
/// [`TrainerBuilder::program_arguments`](crate::TrainerBuilder::program_arguments) kept them, with the path of that
/// checkpoint. `None` if they name none, or no run has such a one.
///
/// # Errors
/// Options that contradict each other; a file that cannot be read.
pub fn load_arguments(options: &Options) -> Result<Option<(PathBuf, Map<String, Json>)>> {
    let Some(named) = Named::to_resume(options)? else { return Ok(None) };
    let read = named.read(options, checkpoint::told)?;
    Ok(read.map(|(path, told)| (path, told.arguments)))
}

fn skipped(error: &Error) {
    note(&format!("warning: {error}\nThe checkpoint before it is looked for."));
}
