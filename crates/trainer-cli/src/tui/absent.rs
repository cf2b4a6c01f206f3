//! `--tui` in a program without the feature `tui`.

use fulmen_data::DataLoader;
use fulmen_trainer::{Trainer, TrainerBuilder};

use crate::fail::Failure;

/// There is none.
pub(crate) enum Tui {}

impl Tui {
    /// Says what is missing.
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
