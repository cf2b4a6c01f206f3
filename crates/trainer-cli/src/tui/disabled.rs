//! `--tui` in a program without the feature `tui`.

use fulmen_data::DataLoader;
use fulmen_trainer::{Trainer, TrainerBuilder};

use crate::failure::Failure;

/// Never constructed.
pub(crate) enum Tui {}

impl Tui {
    /// Returns an error that names the missing feature.
    pub(crate) fn new(_: &str) -> Result<Tui, Failure> {
        let why = "--tui: this program has no full screen; give `fulmen` the feature `tui` in its Cargo.toml";
        Err(Failure::Option(why.to_owned()))
    }

    pub(crate) fn attach(&self, _: TrainerBuilder) -> TrainerBuilder {
        match *self {}
    }

    pub(crate) fn start(self, _: &Trainer, _: Option<&DataLoader>) -> Tui {
        self
    }
}
