//! [`Weights`]: which weights a module is tested and predicts with, and how it gets those of a file.

use std::path::{Path, PathBuf};

use fulmen_nn::{Module, safetensors};

use crate::checkpoint::restore::{Value, choose, values};
use crate::state::names::is_of_training;
use crate::{Error, Result, checkpoint};

/// Which weights to test or to predict with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Weights {
    /// Those that the module has.
    Current,
    /// Those of the best checkpoint of the last fit.
    Best,
    /// Those of the last checkpoint of the last fit.
    Last,
    /// Those of this checkpoint, or in this safetensors file.
    File(PathBuf),
}

/// Gives a module the values in a checkpoint or a safetensors file, which must have them all; nothing is changed if it has
/// not.
pub(crate) fn load_values(module: &dyn Module, path: &Path) -> Result<()> {
    let checkpoint = if path.is_file() { None } else { Some(checkpoint::open(path)?.0) };
    let mut tensors = match &checkpoint {
        Some(checkpoint) => values(checkpoint)?,
        None => {
            let (read, _) = safetensors::read(path).map_err(|e| Error::unreadable(path, e))?;
            read.into_iter().map(|(name, literal)| (name, Value::Made(literal))).collect()
        }
    };
    let state = module.state();
    let types: Vec<_> = state.iter().map(|(_, v)| v.ty()).collect();
    let names = state.iter().map(|(name, _)| name.as_str()).zip(&types);
    let chosen = choose(names, &mut tensors).map_err(|e| Error::checkpoint(path, e))?;
    if let Some(name) = tensors.keys().find(|name| !is_of_training(name)) {
        return Err(Error::checkpoint(path, format!("it has `{name}`, which this module has not")));
    }
    let literals = chosen.into_iter().zip(&types).map(|(value, ty)| value.read(checkpoint.as_ref(), ty));
    for ((_, variable), literal) in state.iter().zip(literals.collect::<Result<Vec<_>>>()?) {
        variable.set(literal.to_tensor());
    }
    Ok(())
}
