//! [`Weights`]: which weights a module is tested and predicts with, and how it gets those of a file.

use std::path::{Path, PathBuf};

use fulmen_nn::{Module, safetensors};

use crate::checkpoint::choose;
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
    /// Those in this file.
    File(PathBuf),
}

/// Gives a module the values in a file, which must have them all; nothing is changed if it has not.
pub(crate) fn load_values(module: &dyn Module, path: &Path) -> Result<()> {
    let (mut tensors, _) = safetensors::read(path).map_err(Error::checkpoint_file)?;
    let state = module.state();
    let types: Vec<_> = state.iter().map(|(_, v)| v.ty()).collect();
    let names = state.iter().map(|(name, _)| name.as_str()).zip(&types);
    let literals = choose(names, &mut tensors).map_err(|e| Error::checkpoint(path, e))?;
    if let Some(name) = tensors.keys().find(|name| !is_of_training(name)) {
        return Err(Error::checkpoint(path, format!("it has `{name}`, which this module has not")));
    }
    for ((_, variable), literal) in state.iter().zip(literals) {
        variable.set(literal.to_tensor());
    }
    Ok(())
}
