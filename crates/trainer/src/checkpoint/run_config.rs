//! What a run was told, for its checkpoints, loggers and folder: the hyperparameters that code gave, the arguments of a
//! program's command line, and all options as a file.

use serde_json::{Map, Value as Json};

/// What a run was told.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct RunConfig {
    pub(crate) hyperparameters: Map<String, Json>,
    /// The program's own arguments, by their flags.
    pub(crate) arguments: Map<String, Json>,
    /// All options, as a file that `--config` reads.
    pub(crate) config: Option<String>,
}

impl RunConfig {
    /// What loggers are told.
    pub(crate) fn for_loggers(&self) -> Map<String, Json> {
        self.arguments.clone().into_iter().chain(self.hyperparameters.clone()).collect()
    }
}
