//! Fits over several slices. Without a mesh of one's own, data parallelism is across the slices.

use std::path::Path;

use fulmen_tensor::{Devices, Mesh};
use fulmen_trainer::{Result, Strategy};

use super::{check_checkpoints, count, start_test};
use crate::common::{DROP_LAST, Net, Record, train_loader, trainer};
use crate::test_processes::{TASK_VARIABLE, say};

/// Two slices of two processes.
const SHAPE: &str = "2*2x2";

/// The process that the test starts.
#[test]
#[ignore = "a part in the other tests"]
fn member() {
    let Some(task) = std::env::var_os(TASK_VARIABLE) else { return };
    let folder = std::env::var_os("FOLDER").unwrap();
    let (losses, slices) =
        fit(Path::new(&folder), Devices::auto(), &task.to_string_lossy(), None).unwrap();
    say(format!("ended {losses:x?} {slices:?}"));
}

/// The bits of the losses, and the slice of each device.
fn fit(
    folder: &Path,
    devices: Devices,
    strategy: &str,
    mesh: Option<Mesh>,
) -> Result<(Vec<u64>, Vec<Option<i64>>)> {
    let record = Record::default();
    let strategy: Strategy = strategy.parse()?;
    let builder = trainer(folder).devices(devices).strategy(strategy).max_epochs(1);
    let builder = builder.log_every_n_steps(1).callback(record.clone());
    let builder = match mesh {
        Some(mesh) => builder.mesh(mesh),
        None => builder,
    };
    let mut trainer = builder.build()?;
    assert_eq!(trainer.runtime().mesh().to_string(), "data=2 × fsdp=4");
    let slices = trainer.runtime().devices().iter().map(|device| device.slice_index()).collect();
    trainer.fit(&Net::new(), &train_loader(40, DROP_LAST), None)?;
    let points = record.logs.lock().unwrap();
    let losses = points.iter().filter_map(|point| point.get("train_loss")).map(f64::to_bits);
    Ok((losses.collect(), slices))
}

#[test]
fn fits_over_slices_are_those_of_one_process_with_their_mesh() {
    let mesh = Mesh::new([("data", 2), ("fsdp", 4)]).unwrap();
    for strategy in ["ddp", "fsdp"] {
        let one = tempfile::tempdir().unwrap();
        let devices = Devices::from(8);
        let (losses, _) = fit(one.path(), devices, strategy, Some(mesh.clone())).unwrap();
        assert!(losses.len() > 4, "{losses:?}");
        let slices: Vec<Option<i64>> = (0..8).map(|device| Some(device / 4)).collect();
        let expected = format!("{losses:x?} {slices:?}");
        let folder = tempfile::tempdir().unwrap();
        let member = "virtual_pod::slices::member";
        let mut processes = start_test(member, folder.path(), SHAPE, strategy, |_| Vec::new());
        let endings = processes.endings(0..count(SHAPE));
        for (process, ending) in endings.iter().enumerate() {
            assert_eq!(ending, &expected, "{strategy}, process {process}");
        }
        check_checkpoints(folder.path(), one.path(), strategy);
    }
}
