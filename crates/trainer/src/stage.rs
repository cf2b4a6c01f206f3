//! [`Stage`]: validation, test or prediction, and its names.

/// Which of a module's steps that do not train.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    Validation,
    Test,
    Prediction,
}

impl Stage {
    /// The method of the module.
    pub(crate) fn step(self) -> &'static str {
        match self {
            Stage::Validation => "validation_step",
            Stage::Test => "test_step",
            Stage::Prediction => "predict_step",
        }
    }

    /// What it is.
    pub(crate) fn noun(self) -> &'static str {
        match self {
            Stage::Validation => "validation",
            Stage::Test => "test",
            Stage::Prediction => "prediction",
        }
    }

    /// The method of the Trainer.
    pub(crate) fn verb(self) -> &'static str {
        match self {
            Stage::Validation => "validate",
            Stage::Test => "test",
            Stage::Prediction => "predict",
        }
    }

    /// What a pass over a set of this name is called in messages.
    pub(crate) fn title(self, dataset: &str) -> String {
        if dataset.is_empty() { self.noun().into() } else { format!("{} `{dataset}`", self.noun()) }
    }
}
