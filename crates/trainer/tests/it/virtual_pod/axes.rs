//! Axes with names, split over devices of several processes.

use std::path::Path;

use fulmen_tensor::Devices;
use fulmen_trainer::{Result, Resume, Strategy};

use super::{checkpoints, count, run};
use crate::common::{Record, assert_close, tensors, trainer};
use crate::strategies::{Language, Own, loader, mixtral};
use crate::test_processes::say;

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

/// Trains the epoch with this number of a decoder with experts, from the checkpoint of the epoch
/// before. Returns the losses.
fn continue_experts(
    folder: &Path,
    devices: &Devices,
    strategy: &str,
    epoch: u64,
) -> Result<Vec<f64>> {
    let record = Record::default();
    let mut trainer = trainer(folder)
        .devices(devices.clone())
        .strategy(strategy.parse::<Strategy>()?)
        .max_epochs(epoch + 1)
        .resume(Resume::Auto)
        .log_every_n_steps(1)
        .callback(record.clone())
        .build()?;
    trainer.fit(&mixtral(false), &loader(3, 8, 64), None)?;
    Ok(record.bits("train_loss").into_iter().map(|(_, bits)| f64::from_bits(bits)).collect())
}

/// The process of a pod. The task is a strategy and the number of the epoch.
pub(super) fn member(folder: &Path, task: &str) -> Result<()> {
    // Holds the group: its port is not known in advance, so that it cannot be joined again.
    let _group = trainer(folder).build()?;
    let (strategy, epoch) = task.split_once(' ').unwrap();
    let losses = continue_experts(folder, &Devices::auto(), strategy, epoch.parse().unwrap())?;
    let losses: Vec<u64> = losses.into_iter().map(f64::to_bits).collect();
    say(format!("ended {losses:?}"));
    Ok(())
}

/// Trains an epoch with each of these strategies, on pods of these shapes, one after the other from
/// the checkpoint of the one before, and all epochs on one device.
fn check_chain(legs: &[(&str, &str)]) {
    let [pods, one] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    for (epoch, &(shape, strategy)) in legs.iter().enumerate() {
        let what = format!("{strategy} on {shape}");
        let one_device = Devices::from(1);
        let expected = continue_experts(one.path(), &one_device, "ddp", epoch as u64).unwrap();
        assert_eq!(expected.len(), 3);
        for ending in run(pods.path(), shape, &format!("experts: {strategy} {epoch}"), &[]) {
            let bits = ending.trim_matches(['[', ']']).split(", ");
            let bits = bits.map(|bits| bits.parse().unwrap_or_else(|_| panic!("{what}: {ending}")));
            assert_close(&bits.map(f64::from_bits).collect::<Vec<_>>(), &expected, 1e-5);
        }
        let [saved, expected] =
            [&pods, &one].map(|folder| tensors(checkpoints(folder.path()).pop().unwrap()));
        assert_eq!(saved.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>());
        for (name, value) in &expected {
            assert_close(&saved[name].to_f64(), &value.to_f64(), 1e-5);
        }
        println!("{what}, {} processes: as on one device", count(shape));
    }
}

#[test]
#[ignore = "slow: ci/slow"]
fn experts_split_over_processes_train_as_on_one_device() {
    check_chain(&[("2x4", "fsdp=2,expert=4"), ("2x2", "expert=2,tp=2")]);
}

#[test]
#[ignore = "seven pods: cargo test -p fulmen-trainer --test it -- --ignored experts_split_in_every_way"]
fn experts_split_in_every_way_over_processes_train_as_on_one_device() {
    check_chain(&[
        ("2x4", "expert=8"),
        ("2x4", "ddp=2,expert=4"),
        ("4x2", "fsdp=4,expert=2"),
        ("2x4", "expert=2,context=4"),
        ("2x4", "expert=4,tp=2"),
        ("4x2", "fsdp=2,expert=2,tp=2"),
        ("2x4", "ddp=2,context=2,tp=2"),
    ]);
}
