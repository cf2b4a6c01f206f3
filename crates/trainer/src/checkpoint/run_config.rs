//! [`RunConfig`]: the configuration of a run, for its checkpoints, loggers and folder: the
//! hyperparameters from code, the program's arguments, and all options as a file.

use serde_json::{Map, Value as Json};

use crate::secret::{hide_in_values, without_secrets};

/// The configuration of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct RunConfig {
    pub(crate) hyperparameters: Map<String, Json>,
    /// The arguments that the program defines, by flag.
    pub(crate) arguments: Map<String, Json>,
    /// All options, as a file for `--config`.
    pub(crate) config: Option<String>,
}

impl RunConfig {
    /// Hides the secrets of this process.
    pub(crate) fn without_secrets(mut self) -> RunConfig {
        hide_in_values(&mut self.arguments);
        hide_in_values(&mut self.hyperparameters);
        self.config = self.config.map(|text| without_secrets(&text).into_owned());
        self
    }

    /// The arguments and hyperparameters, for loggers.
    pub(crate) fn for_loggers(&self) -> Map<String, Json> {
        self.arguments.clone().into_iter().chain(self.hyperparameters.clone()).collect()
    }
}
