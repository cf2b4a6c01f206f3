//! Axes with names, split over devices of several processes.

use std::path::Path;

use fulmen_tensor::Devices;
use fulmen_trainer::{Result, Strategy};

use crate::common::{Record, trainer};
use crate::strategies::{Language, Own, loader};

/// The bits of the losses of two epochs.
pub(super) fn fit(folder: &Path, devices: Devices, strategy: &str) -> Result<Vec<u64>> {
    let record = Record::default();
    let strategy: Strategy = strategy.parse()?;
    let builder = trainer(folder).devices(devices).strategy(strategy).max_epochs(2);
    let mut trainer = builder.log_every_n_steps(1).callback(record.clone()).build()?;
    let data = loader(4, 8, 64);
    trainer.fit(&Language { model: Own::new() }, &data, Some(&data))?;
    let bits = |name| record.bits(name).into_iter().map(|(_, bits)| bits);
    Ok(bits("train_loss").collect())
}

#[test]
fn axes_are_split_over_processes_as_in_one_process() {
    super::check("axes: fsdp=2,tp=4", &["2x4", "4x2"]);
    super::check("axes: fsdp=2,context=4", &["2x4"]);
}
