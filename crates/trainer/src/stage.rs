//! [`Stage`]: validation, test or prediction, and its names.

/// A step of a module that does not train.
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

    /// The noun for messages.
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

    /// The name of a pass over this data set, for messages.
    pub(crate) fn title(self, dataset: &str) -> String {
        if dataset.is_empty() { self.noun().into() } else { format!("{} `{dataset}`", self.noun()) }
    }
}
