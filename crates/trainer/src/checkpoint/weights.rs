//! [`Weights`]: which weights a module is tested and predicts with, and how it gets those of a file.

use std::path::{Path, PathBuf};

use fulmen_nn::Module;
use fulmen_nn::weights::{StateDict, Strictness};

use crate::state::names::is_of_training;
use crate::{Error, Result};

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

/// Gives a module the values in a checkpoint or a weight file, which must have them all; nothing is changed if it has not.
pub(crate) fn load_values(module: &dyn Module, path: &Path) -> Result<()> {
    let weights = StateDict::read(path)
        .and_then(|all| all.rename_with(|name| (!is_of_training(name)).then(|| name.to_owned())))
        .and_then(|weights| weights.load_into(module, Strictness::Strict));
    weights.map(drop).map_err(|e| Error::checkpoint(path, e))
}
