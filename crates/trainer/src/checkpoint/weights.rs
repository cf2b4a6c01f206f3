//! [`Weights`]: the weights for validating, testing and predicting, and how a module loads them
//! from a file.

use std::path::{Path, PathBuf};

use fulmen_nn::Module;
use fulmen_nn::weights::{StateDict, Strictness};

use crate::checkpoint;
use crate::checkpoint::locations;
use crate::checkpoint::named_checkpoint::NamedCheckpoint;
use crate::console::{inform, note};
use crate::state::names::is_training_state;
use crate::{Options, Result, error};

/// The weights for validating, testing or predicting.
/// ```
/// use fulmen_data::DataLoader;
/// use fulmen_trainer::{Result, Trainer, TrainingModule, Weights};
///
/// /// Tests the weights of the best checkpoint of the last fit.
/// fn test(trainer: &mut Trainer, module: &impl TrainingModule, loader: &DataLoader) -> Result<()> {
///     trainer.test(module, loader, Weights::Best)?;
///     Ok(())
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Weights {
    /// The weights that the module has.
    Current,
    /// The weights of the best checkpoint of the last fit.
    Best,
    /// The weights of the last checkpoint of the last fit.
    Last,
    /// The weights of this checkpoint or weight file.
    File(PathBuf),
}

impl Weights {
    /// Returns the weights that the option `ckpt_path` names; without it, the weights that the
    /// module has. It prints the choice on standard error.
    ///
    /// ```
    /// use fulmen_trainer::{Trainer, Weights};
    /// let options = Trainer::builder().ckpt_path("runs/version_0/checkpoints/best").options()?;
    /// assert_eq!(Weights::from_options(&options)?, Weights::File("runs/version_0/checkpoints/best".into()));
    /// # Ok::<(), fulmen_trainer::Error>(())
    /// ```
    ///
    /// # Errors
    /// The option is `last` or `best`, but no run of this program has such a checkpoint.
    pub fn from_options(options: &Options) -> Result<Weights> {
        let Some(named) = NamedCheckpoint::by_path(options) else {
            note!("ckpt_path is not set, so the weights are the module's initial ones");
            return Ok(Weights::Current);
        };
        if let NamedCheckpoint::Path(path) = named {
            return Ok(Weights::File(path.to_owned()));
        }
        let root = locations::root(options);
        let (path, _) = named.read(options, checkpoint::verify_checkpoint)?.ok_or_else(|| {
            let name = options.ckpt_path.display();
            error::option(format!(
                "ckpt_path: {name}: no run of this program under {} has such a checkpoint",
                root.display()
            ))
        })?;
        inform!("using the weights of {}", path.display());
        Ok(Weights::File(path))
    }
}

/// Loads the values of a checkpoint or a weight file into a module. The file must have all of them;
/// otherwise nothing changes.
pub(crate) fn load_values(module: &dyn Module, path: &Path) -> Result<()> {
    let weights = StateDict::read(path)
        .and_then(|tensors| {
            tensors.rename_with(|name| (!is_training_state(name)).then(|| name.to_owned()))
        })
        .and_then(|weights| weights.load_into(module, Strictness::Strict));
    weights.map(drop).map_err(|e| error::checkpoint(path, e))
}
