//! Losses that bring their weight: the counted tokens differ by process and by batch.

use std::path::Path;

use fulmen_tensor::Devices;
use fulmen_trainer::{Result, Strategy};

use crate::common::{DROP_LAST, Record, assert_close};
use crate::loss_weights::{BATCH, Classifier, groups, ignored, loader, reference};

/// The bits of what an epoch in groups logs, with the means of the epoch and of the validation.
pub(super) fn fit(folder: &Path, devices: Devices, strategy: &str) -> Result<Vec<u64>> {
    let strategy = if strategy == "fsdp" { Strategy::Fsdp } else { Strategy::Ddp };
    let record = Record::default();
    let builder = groups(folder).enable_checkpointing(true).callback(record.clone());
    let data = loader(6 * BATCH, DROP_LAST, BATCH);
    let module = Classifier::new(ignored);
    let mut trainer = builder.devices(devices).strategy(strategy).build()?;
    let epoch = trainer.fit(&module, &data, Some(&data))?.last_epoch.unwrap();
    let mut values: Vec<f64> = Vec::new();
    for point in record.logs.lock().unwrap().iter() {
        values.extend(["train_loss", "negative"].iter().filter_map(|name| point.get(name)));
    }
    for name in ["train_loss_epoch", "negative_epoch", "val_loss"] {
        values.push(epoch.get(name).unwrap());
    }
    // The mean over the tokens of all processes.
    let [mean, validation] = ["epoch", "validation"].map(|name| reference("ignored", name));
    assert_close(&[values[values.len() - 3]], &mean, 1e-5);
    assert_close(&[values[values.len() - 1]], &validation, 1e-5);
    Ok(values.into_iter().map(f64::to_bits).collect())
}

#[test]
fn groups_weigh_the_tokens_of_all_processes_as_one_process_does() {
    super::check("weights: ddp", &["2x4", "4x2"]);
    super::check("weights: fsdp", &["2x4"]);
}
