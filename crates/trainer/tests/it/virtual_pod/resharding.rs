//! A run that continues on fewer and on more processes and devices: each pod reads what all
//! processes of the one before have written.

use std::path::Path;

use fulmen_data::DataLoader;
use fulmen_tensor::Devices;
use fulmen_trainer::{Result, Resume, Strategy};

use super::{check_checkpoints, checkpoints, count, run};
use crate::common::{Net, Record, files, samples, trainer};
use crate::test_processes::say;

/// All numbers of devices divide it.
const BATCH: usize = 24;

/// The pods that train an epoch each, one after the other. The first and the last have as many
/// devices as others in between.
const PODS: [&str; 6] = ["4x2", "2x4", "1x1", "3x2", "1x8", "4x2"];

const STRATEGIES: [Strategy; 2] = [Strategy::Ddp, Strategy::Fsdp];

/// Continues the run in this folder for one epoch, with both strategies. Returns the bits of the
/// losses, with the steps.
fn continue_run(folder: &Path, devices: &Devices, epoch: u64) -> Result<Vec<(u64, u64)>> {
    let mut bits = Vec::new();
    for strategy in STRATEGIES {
        let record = Record::default();
        let mut trainer = trainer(&folder.join(strategy.to_string()))
            .devices(devices.clone())
            .strategy(strategy)
            .max_epochs(epoch + 1)
            .resume(Resume::Auto)
            .log_every_n_steps(1)
            .callback(record.clone())
            .build()?;
        let data = DataLoader::builder(samples(2 * BATCH)).batch_size(BATCH).shuffle(true);
        trainer.fit(&Net::new(), &data.build().unwrap(), None)?;
        bits.extend(record.bits("train_loss"));
    }
    Ok(bits)
}

/// The process of a pod.
pub(super) fn member(folder: &Path, epoch: &str) -> Result<()> {
    // Holds the group: its port is not known in advance, so that it cannot be joined again.
    let _group = trainer(folder).build()?;
    let bits = continue_run(folder, &Devices::auto(), epoch.parse().unwrap())?;
    say(format!("ended {bits:x?}"));
    Ok(())
}

#[test]
#[ignore = "slow: ci/slow"]
fn a_run_continues_on_fewer_and_more_processes_and_devices_as_in_one_process() {
    let [pods, one] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    for (epoch, shape) in PODS.into_iter().enumerate() {
        let (processes, devices) = shape.split_once('x').unwrap();
        let all = count(shape) * devices.parse::<usize>().unwrap();
        let expected = continue_run(one.path(), &Devices::from(all), epoch as u64).unwrap();
        // Two steps with each strategy, and the steps continue.
        let first = 2 * epoch as u64 + 1;
        let steps: Vec<u64> = expected.iter().map(|(step, _)| *step).collect();
        assert_eq!(steps, [first, first + 1, first, first + 1]);
        let endings = if processes == "1" {
            let own = continue_run(pods.path(), &Devices::from(all), epoch as u64).unwrap();
            vec![format!("{own:x?}")]
        } else {
            run(pods.path(), shape, &format!("reshard: {epoch}"), &[])
        };
        for (process, ending) in endings.iter().enumerate() {
            assert_eq!(ending, &format!("{expected:x?}"), "{shape}, process {process}");
        }
        for strategy in STRATEGIES {
            let [written, expected] =
                [&pods, &one].map(|folder| folder.path().join(strategy.to_string()));
            check_checkpoints(&written, &expected, &format!("{strategy} after {shape}"));
            // The manifest, and a shard of each process.
            let last = checkpoints(&written).pop().unwrap();
            assert_eq!(files(&last).len(), 1 + count(shape), "{strategy} after {shape}");
        }
    }
}
