//! What a Trainer asks of other processes, with threads in their place; and the end of one that hangs, in a process of its
//! own.

use std::path::Path;
use std::process::Command;
use std::sync::mpsc::channel;
use std::thread;

use fulmen_data::{DataLoader, Dataset, Field, Sample, TensorDataset};
use fulmen_nn::optim::{Optimizer, Sgd};
use fulmen_nn::{Linear, Module};
use fulmen_tensor::Tensor;

use super::*;
use crate::callback::{Actions, Callback, LogPoint};
use crate::{Batch, Plan, StepContext, Trainer, TrainingModule};

/// The variable that tells a process of this test program where to join.
const JOIN: &str = "FULMEN_TEST_JOIN";

fn join(process: Process, on_listening: impl FnOnce(&str) + Send + 'static) -> Hosts {
    let patience = Duration::from_secs(60);
    let timeouts = Timeouts { join: patience, heartbeat: patience };
    let joining = Coordination::builder(process).timeouts(timeouts).on_listening(on_listening);
    Hosts::new(joining.join().unwrap(), patience, |_, _| Ok(()))
}

/// Runs the same in three processes, each a thread, and gives what each of them got.
fn in_three<T: Send + 'static>(play: impl Fn(&Arc<Hosts>) -> T + Clone + Send + 'static) -> Vec<T> {
    let (tell, told) = channel();
    let first = play.clone();
    let zero = thread::spawn(move || {
        let process = Process::new(0, 3, "127.0.0.1:0").unwrap();
        first(&Arc::new(join(process, move |address| tell.send(address.to_owned()).unwrap())))
    });
    let address = told.recv().unwrap();
    let others = [1, 2].map(|index| {
        let (play, address) = (play.clone(), address.clone());
        thread::spawn(move || play(&Arc::new(join(Process::new(index, 3, address).unwrap(), |_| {}))))
    });
    [zero].into_iter().chain(others).map(|thread| thread.join().unwrap()).collect()
}

#[test]
fn what_the_first_process_made_is_everybodys() {
    let paths = in_three(|hosts| {
        let make = |n: usize| Ok(PathBuf::from(format!("version_{}_{n}", hosts.process().index())));
        (hosts.broadcast("run_dir", || make(1)).unwrap(), hosts.broadcast("run_dir", || make(2)).unwrap())
    });
    assert_eq!(paths, vec![("version_0_1".into(), "version_0_2".into()); 3]);
}

#[test]
fn all_get_the_same_answer_whoever_wants_it() {
    let answers = in_three(|hosts| {
        let mine = hosts.process().index();
        (0..5).map(|step| hosts.any("interrupt", mine == 1 && step == 3).unwrap()).collect::<Vec<_>>()
    });
    assert_eq!(answers, vec![[false, false, false, true, false]; 3]);
}

#[test]
fn who_waits_for_a_device_hears_of_a_failure() {
    let ends = in_three(|hosts| {
        if hosts.process().index() == 2 {
            hosts.fail(&Error::usage("the disk is full"));
            return String::new();
        }
        let error = hosts.wait_until(|| false).unwrap_err();
        assert!(error.is_coordination());
        error.to_string()
    });
    assert!(ends[..2].iter().all(|end| end.contains("process 2 (") && end.ends_with("the disk is full")), "{ends:?}");
}

#[test]
fn a_process_that_hangs_in_a_device_ends_when_another_is_gone() {
    if let Some(address) = std::env::var_os(JOIN) {
        let hosts = join(Process::new(1, 2, address.to_str().unwrap()).unwrap(), |_| {});
        let _fit = hosts.guard_for(Duration::from_millis(10));
        thread::sleep(Duration::from_secs(120));
        return;
    }
    let (tell, told) = channel();
    let zero = thread::spawn(move || {
        let process = Process::new(0, 2, "127.0.0.1:0").unwrap();
        join(process, move |address| tell.send(address.to_owned()).unwrap())
    });
    let name = "hosts::tests::a_process_that_hangs_in_a_device_ends_when_another_is_gone";
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", name, "--nocapture"]).env(JOIN, told.recv().unwrap());
    let child = thread::spawn(move || child.output().unwrap());
    let hosts = zero.join().unwrap();
    let hung = hosts.guard_for(Duration::ZERO);
    // What ended in time is not ended again: this process itself must go on.
    drop(hung);
    hosts.fail(&Error::usage("the disk is full"));
    let output = child.join().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("process 0 (") && said.contains("the disk is full"), "{said}");
    assert!(said.contains("so this process ends itself"), "{said}");
}

#[derive(Module)]
struct Line(Linear);

impl TrainingModule for Line {
    fn training_step(&self, batch: &Batch, _: &mut StepContext) -> Tensor {
        let error = self.0.forward(&batch.get("x")) - batch.get("y");
        (&error * &error).mean_all()
    }
    fn configure_optimizers(&self, _: &Plan) -> Box<dyn Optimizer> {
        Box::new(Sgd::new(0.1))
    }
}

fn points(n: usize) -> TensorDataset {
    let x: Vec<f32> = (0..n).map(|i| i as f32 / n as f32).collect();
    TensorDataset::builder().array("x", [n, 1], x.clone()).array("y", [n, 1], x).build().unwrap()
}

/// Data of which one sample cannot be read.
struct Broken(TensorDataset, usize);

impl Dataset for Broken {
    fn len(&self) -> usize {
        self.0.len()
    }
    fn fields(&self) -> Vec<Field> {
        self.0.fields()
    }
    fn read(&self, index: usize, sample: &mut Sample<'_>) -> fulmen_data::Result<()> {
        if index == self.1 {
            Err(fulmen_data::Error::new("the disk is full of holes"))
        } else {
            self.0.read(index, sample)
        }
    }
}

/// A wish that only one process has.
struct StopAfter(u64);

impl Callback for StopAfter {
    fn name(&self) -> &'static str {
        "StopAfter"
    }
    fn on_train_epoch_end(&mut self, point: &LogPoint, actions: &mut Actions) {
        if point.epoch + 1 == self.0 {
            actions.stop("enough");
        }
    }
}

/// A Trainer of one of several processes, each of which has a device of its own and computes everything.
fn trainer(hosts: &Arc<Hosts>, folder: &Path, callback: Option<StopAfter>) -> Trainer {
    let mut builder = Trainer::builder()
        .accelerator(Accelerator::Cpu)
        .devices(1)
        .max_epochs(50u64)
        .log_every_n_steps(3u64)
        .default_root_dir(folder);
    if let Some(callback) = callback {
        builder = builder.callback(callback);
    }
    let options = builder.options().unwrap();
    builder.build_with(options, Some(hosts.clone())).unwrap()
}

#[test]
fn all_stop_together_and_the_first_process_writes() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().to_owned();
    let ends = in_three(move |hosts| {
        let index = hosts.process().index();
        let mut trainer = trainer(hosts, &root, (index == 1).then_some(StopAfter(2)));
        let loader = DataLoader::builder(points(40)).batch_size(4).build().unwrap();
        let summary = trainer.fit(&Line(Linear::new(1, 1)), &loader, None).unwrap();
        assert_eq!(trainer.process_index(), index);
        let stopped = summary.stopped.unwrap();
        assert!(if index == 1 { stopped == "enough" } else { stopped.contains("another process") }, "{stopped}");
        (summary.epochs, trainer.run_dir().unwrap().to_owned(), trainer.last_checkpoint().unwrap().to_owned())
    });
    let run = folder.path().join("version_0");
    assert_eq!(ends, vec![(2, run.clone(), run.join("checkpoints/last.safetensors")); 3]);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "one folder for all");
    assert!(run.join("checkpoints/last.safetensors").is_file());
    let rows = std::fs::read_to_string(run.join("metrics.csv")).unwrap();
    // 20 steps with a log point every 3, and 2 epochs.
    assert_eq!(rows.lines().count(), 1 + 6 + 2, "{rows}");
}

#[test]
fn a_fit_that_fails_in_one_process_ends_in_all() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().to_owned();
    let ends = in_three(move |hosts| {
        let mut trainer = trainer(hosts, &root, None);
        let hole = if hosts.process().index() == 2 { 17 } else { 40 };
        let loader = DataLoader::builder(Broken(points(40), hole)).batch_size(4).build().unwrap();
        let error = trainer.fit(&Line(Linear::new(1, 1)), &loader, None).unwrap_err();
        (error.is_coordination(), error.is_data(), error.to_string())
    });
    assert!(matches!(&ends[2], (false, true, message) if message.contains("full of holes")), "{ends:?}");
    for end in &ends[..2] {
        assert!(end.0 && end.2.contains("process 2 (") && end.2.contains("full of holes"), "{end:?}");
    }
}
