//! Fits over several processes on a virtual pod: the losses and the checkpoints are those of one
//! process with as many devices, bit for bit.

mod axes;
mod compile_cache;
mod console;
mod differences;
mod full_disk;
mod list;
mod loaded_weights;
mod locations;
mod loss_weights;
mod measurements;
mod preemption;
mod resharding;
mod slices;

use std::path::{Path, PathBuf};

use fulmen_tensor::{Accelerator, Devices, Runtime, Tensor};
use fulmen_trainer::{Result, Strategy};

use crate::common::{DROP_LAST, Net, Record, tensors, train_loader, trainer, val_loader};
use crate::test_processes::{TASK_VARIABLE, TestProcesses, say};

/// The process that the tests start. Its task is a strategy, or a mistake.
#[test]
#[ignore = "a part in the other tests"]
fn member() {
    let Some(task) = std::env::var_os(TASK_VARIABLE) else { return };
    let folder = std::env::var_os("FOLDER").unwrap();
    let folder = Path::new(&folder);
    let task = task.to_string_lossy();
    let own = match task.split_once(": ").unwrap_or((&task, "")) {
        ("list", _) => {
            list::member(folder);
            return;
        }
        ("experts", task) => Some(axes::member(folder, task)),
        ("compile cache", "file") => Some(compile_cache::with_file(folder)),
        ("compile cache", "killed") => Some(compile_cache::killed(folder)),
        ("compile cache", _) => Some(compile_cache::member(folder)),
        ("console", _) => Some(console::member(folder)),
        ("differences", "own loop") => Some(differences::own_loop(folder)),
        ("differences", _) => Some(differences::member(folder)),
        ("loaded weights", task) => Some(loaded_weights::member(folder, task)),
        ("locations", epochs) => Some(locations::member(folder, epochs)),
        ("measurements", _) => Some(measurements::member(folder)),
        ("outside", point) => preemption::outside(folder, point),
        ("preemption", _) => preemption::member(folder),
        ("root", strategy) => Some(locations::root_member(folder, strategy)),
        ("reshard", epoch) => Some(resharding::member(folder, epoch)),
        _ => None,
    };
    if let Some(result) = own {
        return result.unwrap_or_else(|error| say(format!("ended {error}").replace('\n', " ")));
    }
    let ending = match fit(folder, Devices::auto(), &task) {
        Ok(values) => format!("well {values:x?}"),
        Err(error) => format!("{error}"),
    };
    say(format!("ended {}", ending.replace('\n', " ")));
}

/// The bits of the losses and of the validation's results.
fn fit(folder: &Path, devices: Devices, task: &str) -> Result<Vec<u64>> {
    match task.split_once(": ") {
        Some(("axes", strategy)) => return axes::fit(folder, devices, strategy),
        Some(("weights", strategy)) => return loss_weights::fit(folder, devices, strategy),
        Some(("full disk", strategy)) => return full_disk::fit(folder, devices, strategy),
        _ => {}
    }
    let strategy = if task == "fsdp" { Strategy::Fsdp } else { Strategy::Ddp };
    if task == "evaluates first" {
        // It opens the devices of this process. The Trainer closes them, and opens those of all.
        assert_eq!(Tensor::from_slice(&[1.0f32, 4.0], [2]).sum_all().eval()?.to_f64(), [5.0]);
    }
    let held = (task == "holds devices")
        .then(|| Runtime::open(Accelerator::Cpu, &Devices::auto()))
        .transpose()?;
    let record = Record::default();
    let mut trainer = trainer(folder)
        .devices(devices)
        .strategy(strategy)
        .max_epochs(2)
        .log_every_n_steps(1)
        .callback(record.clone())
        .build()?;
    drop(held);
    let net = Net::new();
    // The last batch of the validation has four samples, and the devices are eight.
    trainer.fit(&net, &train_loader(40, DROP_LAST), Some(&val_loader(12)))?;
    // A value that a process computes alone, with the client of the fit.
    let own = Tensor::from_slice(&[1.0f32, 2.0], [2]).sum_all().eval()?.to_f64();
    assert_eq!(own, [3.0]);
    let mut values = vec![];
    for (points, name) in [(&record.logs, "train_loss"), (&record.validations, "val_loss")] {
        let points = points.lock().unwrap();
        values.extend(points.iter().filter_map(|point| point.get(name)).map(f64::to_bits));
    }
    Ok(values)
}

/// The folders of checkpoints, by name.
fn checkpoints(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        let entries: Vec<PathBuf> =
            std::fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        if entries.iter().any(|path| path.extension().is_some_and(|e| e == "safetensors")) {
            found.push(folder);
        } else {
            folders.extend(entries.into_iter().filter(|path| path.is_dir()));
        }
    }
    found.sort();
    found
}

/// The number of processes of a pod: `4x2`, or `2*2x2` for two slices of two processes.
fn count(shape: &str) -> usize {
    let (processes, _) = shape.split_once('x').unwrap();
    processes.split('*').map(|n| n.parse::<usize>().unwrap()).product()
}

/// Starts a pod of this shape. Each process has variables of its own.
fn start(
    folder: &Path,
    shape: &str,
    task: &str,
    variables: impl Fn(usize) -> Vec<(&'static str, String)>,
) -> TestProcesses {
    start_test("virtual_pod::member", folder, shape, task, variables)
}

/// Like [`start`], with another test as the process.
fn start_test(
    member: &'static str,
    folder: &Path,
    shape: &str,
    task: &str,
    variables: impl Fn(usize) -> Vec<(&'static str, String)>,
) -> TestProcesses {
    let count = count(shape);
    let plugin = fulmen_virtual_pod::library().unwrap();
    let mut processes = TestProcesses::new(member, count);
    for index in 0..count {
        let own = variables(index);
        let mut all = vec![
            ("FOLDER", folder.to_str().unwrap()),
            ("FULMEN_PJRT_PLUGIN", plugin.to_str().unwrap()),
            ("FULMEN_VIRTUAL_POD", shape),
            ("FULMEN_HEARTBEAT_TIMEOUT", "20"),
        ];
        all.extend(own.iter().map(|(name, value)| (*name, value.as_str())));
        processes.start(index, task, &all);
    }
    processes
}

/// Starts a pod of this shape, and returns how the processes end.
fn run(folder: &Path, shape: &str, task: &str, variables: &[(&'static str, &str)]) -> Vec<String> {
    let own = |_| variables.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
    start(folder, shape, task, own).endings(0..count(shape))
}

/// Checks fits over processes of these shapes, which have eight devices, against one process.
fn check(strategy: &str, shapes: &[&str]) {
    let one = tempfile::tempdir().unwrap();
    let expected = fit(one.path(), Devices::from(8), strategy).unwrap();
    assert!(expected.len() > 6, "{expected:?}");
    let expected = format!("well {expected:x?}");
    for shape in shapes {
        let folder = tempfile::tempdir().unwrap();
        let endings = run(folder.path(), shape, strategy, &[]);
        for (process, ending) in endings.iter().enumerate() {
            assert_eq!(ending, &expected, "{strategy} on {shape}, process {process}");
        }
        check_checkpoints(folder.path(), one.path(), &format!("{strategy} on {shape}"));
    }
}

/// Checks that the checkpoints in two folders are equal to the bit.
fn check_checkpoints(folder: &Path, expected: &Path, what: &str) {
    let saved = checkpoints(folder);
    let names = |folders: &[PathBuf]| -> Vec<String> {
        let name = |path: &PathBuf| path.file_name().unwrap().to_string_lossy().into_owned();
        folders.iter().map(name).collect()
    };
    assert_eq!(names(&saved), names(&checkpoints(expected)));
    assert!(!saved.is_empty());
    for (saved, expected) in saved.iter().zip(checkpoints(expected)) {
        let saved = tensors(saved);
        let expected = tensors(expected);
        assert_eq!(saved.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>());
        for (name, value) in &expected {
            assert_eq!(saved[name].bytes(), value.bytes(), "{what}: {name}");
        }
    }
}

#[test]
fn data_parallel_fits_are_those_of_one_process_to_the_bit() {
    check("ddp", &["2x4", "4x2"]);
}

#[test]
fn fully_sharded_fits_are_those_of_one_process_to_the_bit() {
    check("fsdp", &["2x4"]);
}

#[test]
fn a_platform_with_any_name_trains() {
    let folder = tempfile::tempdir().unwrap();
    let platform = [("FULMEN_VIRTUAL_POD_PLATFORM", "abacus")];
    let platform = |_| platform.iter().map(|(name, value)| (*name, (*value).to_owned())).collect();
    let endings = start(folder.path(), "2x1", "evaluates first", platform).endings(0..2);
    assert!(endings.iter().all(|ending| ending.starts_with("well ")), "{endings:?}");
    assert_eq!(endings[0], endings[1]);
}

#[test]
fn a_plugin_has_one_client() {
    let folder = tempfile::tempdir().unwrap();
    for ending in run(folder.path(), "2x1", "holds devices", &[]) {
        assert!(
            ending.contains("this process opened its devices before it joined the other processes"),
            "{ending}"
        );
    }
}
