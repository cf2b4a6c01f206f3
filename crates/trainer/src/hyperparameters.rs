//! What a run was told, for its checkpoints, loggers and folder: the hyperparameters that code gave, the arguments of a
//! program's command line, and all options as a file.

use std::panic::Location;
use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value as Json};

use crate::{Error, Result, TrainerBuilder, checkpoint};

/// What a run was told.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Told {
    pub(crate) hyperparameters: Map<String, Json>,
    /// The program's own arguments, by their flags.
    pub(crate) arguments: Map<String, Json>,
    /// All options, as a file that `--config` reads.
    pub(crate) config: Option<String>,
}

impl Told {
    /// What loggers are told.
    pub(crate) fn for_loggers(&self) -> Map<String, Json> {
        self.arguments.clone().into_iter().chain(self.hyperparameters.clone()).collect()
    }
}

impl TrainerBuilder {
    /// Keeps what the run was made with, a struct or a map with names: Lightning's `save_hyperparameters`. It goes into
    /// every checkpoint, from which [`load_hyperparameters`] reads it, and to the loggers. The arguments of a program with a
    /// [command line](crate::cli) are kept without this.
    ///
    /// ```
    /// use fulmen_trainer::Trainer;
    ///
    /// #[derive(serde::Serialize)]
    /// struct Config {
    ///     hidden: usize,
    ///     dropout: f64,
    /// }
    ///
    /// let trainer = Trainer::builder().hyperparameters(Config { hidden: 64, dropout: 0.1 }).build()?;
    /// # drop(trainer);
    /// # Ok::<(), fulmen_trainer::Error>(())
    /// ```
    ///
    /// A value without names, a number say, is an error of [`build`](TrainerBuilder::build).
    #[track_caller]
    pub fn hyperparameters(mut self, hyperparameters: impl Serialize) -> Self {
        let why = match serde_json::to_value(hyperparameters) {
            Ok(Json::Object(named)) => {
                self.told.hyperparameters = named;
                return self;
            }
            Ok(other) => format!("a struct or a map is expected, whose values have names, not {other}"),
            Err(error) => error.to_string(),
        };
        self.refuse("hyperparameters", &why, Location::caller());
        self
    }
}

/// Reads the hyperparameters in a checkpoint, as [`TrainerBuilder::hyperparameters`] kept them.
///
/// # Errors
/// The file cannot be read, has no hyperparameters, or others than `T` has.
pub fn load_hyperparameters<T: DeserializeOwned>(path: impl AsRef<Path>) -> Result<T> {
    let path = path.as_ref();
    let found = checkpoint::told(path)?.hyperparameters;
    if found.is_empty() {
        let message = "it has no hyperparameters; the run that wrote it did not call TrainerBuilder::hyperparameters";
        return Err(Error::checkpoint(path, message));
    }
    serde_json::from_value(Json::Object(found))
        .map_err(|e| Error::checkpoint(path, format!("its hyperparameters are not those that are asked for: {e}")))
}
