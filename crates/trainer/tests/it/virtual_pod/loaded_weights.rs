//! Weights from files on several processes: each reads and holds only the parts of its own devices.

use std::path::Path;

use fulmen_nn::weights::{Strictness, load_weights};
use fulmen_tensor::{DType, Devices};
use fulmen_trainer::{Result, Strategy};

use super::{count, start};
use crate::common::trainer;
use crate::loaded_weights::{
    Tower, check_devices, measure_peak, of_this_process, tower_of_2_gb, write_file,
};
use crate::test_processes::say;

const SHAPE: &str = "4x2";

fn tower() -> Tower {
    Tower::new(512, 4)
}

/// A process of the pod. Its task is the dtype in the file, or to measure its memory.
pub(super) fn member(folder: &Path, task: &str) -> Result<()> {
    let stored = if task.contains("bf16") { DType::Bf16 } else { DType::F32 };
    if task.starts_with("memory") {
        let peak = measure_peak(folder, Devices::auto(), stored)?;
        say(format!("ended {peak:.3}"));
        return Ok(());
    }
    let path = folder.join("model.safetensors");
    let strategy = if task.starts_with("fsdp") { Strategy::Fsdp } else { Strategy::Ddp };
    // The first step opens the devices, and reads programs and plugins.
    let warm_up = Tower::new(16, 2);
    let builder = trainer(folder).devices(Devices::auto()).strategy(strategy);
    let mut trainer = builder.build()?;
    drop(trainer.train_step(&warm_up, &warm_up.loader())?);
    let module = tower();
    let before = of_this_process("io", "rchar:");
    load_weights(&module, &path, Strictness::Strict)?;
    drop(trainer.train_step(&module, &module.loader())?);
    let read = of_this_process("io", "rchar:") - before;
    load_weights(&module, &path, Strictness::Strict)?;
    let held = check_devices(&module, &path, &mut trainer)?;
    say(format!("ended {read} {}", held.iter().sum::<usize>()));
    Ok(())
}

#[test]
fn each_process_reads_and_holds_only_the_parts_of_its_devices() {
    for (strategy, share) in [("fsdp", 0.25), ("ddp", 1.0)] {
        for stored in [DType::Bf16, DType::F32] {
            let folder = tempfile::tempdir().unwrap();
            write_file(&folder.path().join("model.safetensors"), &tower(), stored);
            let task = format!("loaded weights: {strategy} {stored}");
            let endings = start(folder.path(), SHAPE, &task, |_| vec![]).endings(0..count(SHAPE));
            for ending in endings {
                let numbers: Vec<f64> =
                    ending.split(' ').map(|number| number.parse().expect(&ending)).collect();
                let part = share * tower().bytes(stored.size_in_bytes()) as f64;
                // The header, the small values and what is not about weights.
                let rest = 200e3;
                assert!(numbers[0] >= part && numbers[0] <= part + rest, "{task}: {ending}");
                let replicas = if strategy == "ddp" { 2.0 } else { 1.0 };
                let held = share * replicas * tower().bytes(4) as f64;
                assert!(numbers[1] <= 1.1 * held, "{task}: {ending}, expected {held}");
            }
        }
    }
}

#[test]
#[ignore = "writes 2 GB twice"]
fn loading_2_gb_takes_little_more_memory_than_the_devices_of_a_process_hold() {
    for stored in [DType::F32, DType::Bf16] {
        let folder = tempfile::tempdir().unwrap();
        write_file(&folder.path().join("model.safetensors"), &tower_of_2_gb(stored), stored);
        let task = format!("loaded weights: memory {stored}");
        let endings = start(folder.path(), SHAPE, &task, |_| vec![]).endings(0..count(SHAPE));
        println!("{stored}: {} × the part of the devices", endings.join(", "));
        for ending in endings {
            assert!(ending.parse::<f64>().is_ok_and(|peak| peak <= 1.2), "{ending}");
        }
    }
}
