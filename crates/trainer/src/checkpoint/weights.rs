//! [`Weights`]: which weights a module is tested and predicts with, and how it gets those of a file.

use std::path::{Path, PathBuf};

use fulmen_nn::Module;
use fulmen_nn::weights::{StateDict, Strictness};

use crate::checkpoint;
use crate::checkpoint::newest::Named;
use crate::checkpoint::places;
use crate::console::note;
use crate::state::names::is_training_state;
use crate::{Error, Options, Result};

/// Which weights to test or to predict with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Weights {
    /// Those that the module has.
    Current,
    /// Those of the best checkpoint of the last fit.
    Best,
    /// Those of the last checkpoint of the last fit.
    Last,
    /// Those of this checkpoint, or in this weight file.
    File(PathBuf),
}

impl Weights {
    /// Those of the checkpoint that the option `ckpt_path` names, and says on standard error which that is. Without it, those
    /// that the module has.
    ///
    /// ```
    /// use fulmen_trainer::{Trainer, Weights};
    /// let options = Trainer::builder().ckpt_path("runs/version_0/checkpoints/best").options()?;
    /// assert_eq!(Weights::from_options(&options)?, Weights::File("runs/version_0/checkpoints/best".into()));
    /// # Ok::<(), fulmen_trainer::Error>(())
    /// ```
    ///
    /// # Errors
    /// `last` or `best`, where no run of this program has such a checkpoint.
    pub fn from_options(options: &Options) -> Result<Weights> {
        let Some(named) = Named::by_path(options) else {
            note("note: without ckpt_path the weights are those that the module begins with");
            return Ok(Weights::Current);
        };
        if let Named::Path(path) = named {
            return Ok(Weights::File(path.to_owned()));
        }
        let root = places::root(options);
        let (path, _) = named.read(options, checkpoint::verified)?.ok_or_else(|| {
            let which = options.ckpt_path.display();
            Error::option(format!(
                "ckpt_path: {which}: no run of this program under {} has such a checkpoint",
                root.display()
            ))
        })?;
        note(&format!("the weights are those of {}", path.display()));
        Ok(Weights::File(path))
    }
}

/// Gives a module the values in a checkpoint or a weight file, which must have them all; nothing is changed if it has not.
pub(crate) fn load_values(module: &dyn Module, path: &Path) -> Result<()> {
    let weights = StateDict::read(path)
        .and_then(|all| all.rename_with(|name| (!is_training_state(name)).then(|| name.to_owned())))
        .and_then(|weights| weights.load_into(module, Strictness::Strict));
    weights.map(drop).map_err(|e| Error::checkpoint(path, e))
}
