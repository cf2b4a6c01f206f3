//! Tests of a Trainer with several processes, where threads replace the processes. The test of a
//! hanging process starts a real one.

use std::path::Path;
use std::process::Command;
use std::sync::mpsc::channel;
use std::thread;

use fulmen_data::{DataLoader, Dataset, Field, Sample, TensorDataset};
use fulmen_nn::optim::{Optimizer, Sgd};
use fulmen_nn::{Linear, Module};
use fulmen_tensor::Tensor;

use super::*;
use crate::callbacks::callback::Callback;
use crate::callbacks::{BackboneFinetuning, EarlyStopping, Mode, Timer};
use crate::evaluation::predicted_batches::PredictedBatches;
use crate::hooks::Progress;
use crate::tuner::{BatchSizeFinder, LearningRateFinder};
use crate::{
    Actions, Batch, CheckpointRole, LogPoint, Plan, PredictionWriter, Predictions, Signal,
    StepContext, Trainer, TrainingModule, Weights,
};

/// The variable with the coordinator's address, for a process of this test program.
const JOIN: &str = "FULMEN_TEST_JOIN";

/// Longer than any test takes on a busy machine.
const LONG: Duration = Duration::from_secs(600);

fn join(process: Process, on_listening: impl FnOnce(&str) + Send + 'static) -> ProcessGroup {
    join_within(LONG, process, on_listening).expect("it joins in time")
}

/// `None` if the processes have not joined within the timeout.
fn join_within(
    timeout: Duration,
    process: Process,
    on_listening: impl FnOnce(&str) + Send + 'static,
) -> Option<ProcessGroup> {
    let timeouts = Timeouts { join: timeout, heartbeat: LONG };
    let joining = Coordination::builder(process).timeouts(timeouts).on_listening(on_listening);
    match joining.join() {
        Ok(joined) => Some(ProcessGroup::new(joined, LONG, |_, _| Ok(()))),
        Err(error) if error.is_timeout() => None,
        Err(error) => panic!("{error}"),
    }
}

/// Runs the same in three processes, each a thread. Returns their results.
fn in_three<T: Send + 'static>(
    play: impl Fn(&Arc<ProcessGroup>) -> T + Clone + Send + 'static,
) -> Vec<T> {
    in_three_within(LONG, play).expect("they join in time")
}

/// Like [`in_three`], with a timeout to join. `None` if they have not joined within it.
fn in_three_within<T: Send + 'static>(
    timeout: Duration,
    play: impl Fn(&Arc<ProcessGroup>) -> T + Clone + Send + 'static,
) -> Option<Vec<T>> {
    let (sender, receiver) = channel();
    let first = play.clone();
    let zero = thread::spawn(move || {
        let process = Process::new(0, 3, "127.0.0.1:0").unwrap();
        let joined =
            join_within(timeout, process, move |address| sender.send(address.to_owned()).unwrap());
        joined.map(|process_group| first(&Arc::new(process_group)))
    });
    let address = receiver.recv().unwrap();
    let others = [1, 2].map(|index| {
        let play = play.clone();
        let address = address.clone();
        thread::spawn(move || {
            let joined = join_within(timeout, Process::new(index, 3, address).unwrap(), |_| {});
            joined.map(|process_group| play(&Arc::new(process_group)))
        })
    });
    [zero].into_iter().chain(others).map(|thread| thread.join().unwrap()).collect()
}

#[test]
fn all_processes_get_the_value_of_the_first() {
    let paths = in_three(|process_group| {
        let make = |n: usize| {
            Ok(PathBuf::from(format!("version_{}_{n}", process_group.process().index())))
        };
        (
            process_group.broadcast("run_dir", || make(1)).unwrap(),
            process_group.broadcast("run_dir", || make(2)).unwrap(),
        )
    });
    assert_eq!(paths, vec![("version_0_1".into(), "version_0_2".into()); 3]);
}

#[test]
fn any_is_the_same_in_all_processes() {
    let answers = in_three(|process_group| {
        let index = process_group.process().index();
        (0..5)
            .map(|step| process_group.any("interrupt", index == 1 && step == 3).unwrap())
            .collect::<Vec<_>>()
    });
    assert_eq!(answers, vec![[false, false, false, true, false]; 3]);
}

#[test]
fn all_processes_get_the_smallest_number() {
    let least = in_three(|process_group| {
        let index = process_group.process().index() as u64;
        [7, 0, u64::MAX].map(|largest| {
            process_group.minimum("room", u64::saturating_sub(largest, index)).unwrap()
        })
    });
    assert_eq!(least, vec![[5, 0, u64::MAX - 2]; 3]);
}

#[test]
fn processes_wait_for_each_other_while_they_are_alive() {
    // A busy machine may need more time to join.
    let timeouts = [2, 10, 60].map(Duration::from_secs);
    let answers = timeouts.into_iter().find_map(|timeout| {
        in_three_within(timeout, move |process_group| {
            if process_group.process().is_coordinator() {
                // Wait, as if it wrote a large file.
                thread::sleep(timeout + Duration::from_secs(1));
            }
            let shared = process_group.broadcast("run_dir", || Ok(PathBuf::from("version_0")));
            process_group.barrier("saved").and(shared).map_err(|e| e.to_string())
        })
    });
    assert_eq!(answers, Some(vec![Ok(PathBuf::from("version_0")); 3]));
}

#[test]
fn processes_with_different_actions_get_an_error() {
    let ends = in_three(|process_group| {
        let action = if process_group.process().index() == 1 { "test" } else { "fit" };
        process_group.check_consistent(action, &RunFingerprint::new()).unwrap_err().to_string()
    });
    for end in ends {
        assert!(end.contains("at `fit`; process 1 (") && end.contains("at `test`"), "{end}");
    }
}

#[test]
fn a_failure_ends_the_wait_for_a_device() {
    let ends = in_three(|process_group| {
        if process_group.process().index() == 2 {
            process_group.fail(&Error::usage("the disk is full"));
            return String::new();
        }
        let error = process_group.wait_until(|| false).unwrap_err();
        assert!(error.is_coordination());
        error.to_string()
    });
    assert!(
        ends[..2]
            .iter()
            .all(|end| end.contains("process 2 (") && end.ends_with("the disk is full")),
        "{ends:?}"
    );
}

#[test]
fn a_process_that_hangs_in_a_device_ends_when_another_is_gone() {
    if let Some(address) = std::env::var_os(JOIN) {
        crate::console::init_logging();
        let process_group = join(Process::new(1, 2, address.to_str().unwrap()).unwrap(), |_| {});
        let _fit = process_group.guard_for(Duration::from_millis(10));
        thread::sleep(LONG);
        return;
    }
    let (sender, receiver) = channel();
    let zero = thread::spawn(move || {
        let process = Process::new(0, 2, "127.0.0.1:0").unwrap();
        join(process, move |address| sender.send(address.to_owned()).unwrap())
    });
    let name = "process_group::tests::a_process_that_hangs_in_a_device_ends_when_another_is_gone";
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", name, "--nocapture"]).env(JOIN, receiver.recv().unwrap());
    let child = thread::spawn(move || child.output().unwrap());
    let process_group = zero.join().unwrap();
    let guard = process_group.guard_for(Duration::ZERO);
    // Drop the guard in time, so this process must continue.
    drop(guard);
    process_group.fail(&Error::usage("the disk is full"));
    let output = child.join().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{stderr}");
    assert!(stderr.contains("process 0 (") && stderr.contains("the disk is full"), "{stderr}");
    assert!(stderr.contains("so this process ends itself"), "{stderr}");
}

#[derive(Module)]
struct Line(Linear);

impl TrainingModule for Line {
    fn training_step(&self, batch: &Batch, _: &mut StepContext) -> Tensor {
        let error = self.0.forward(&batch.get("x")) - batch.get("y");
        (&error * &error).mean_all()
    }
    fn validation_step(&self, batch: &Batch, cx: &mut StepContext) {
        cx.log("val_x", &self.0.forward(&batch.get("x")).mean(-1));
    }
    fn predict_step(&self, batch: &Batch) -> Predictions {
        self.0.forward(&batch.get("x")).into()
    }
    fn configure_optimizers(&self, _: &Plan) -> Box<dyn Optimizer> {
        Box::new(Sgd::new(0.1))
    }
}

fn points(n: usize) -> TensorDataset {
    let x: Vec<f32> = (0..n).map(|i| i as f32 / n as f32).collect();
    TensorDataset::builder().array("x", [n, 1], x.clone()).array("y", [n, 1], x).build().unwrap()
}

/// Data with one sample that cannot be read.
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

/// Stops and saves after some epochs, in one process only.
struct StopAfter(u64, Option<PathBuf>);

impl Callback for StopAfter {
    fn name(&self) -> &'static str {
        "StopAfter"
    }
    fn on_train_epoch_end(&mut self, point: &LogPoint, actions: &mut Actions) {
        if point.epoch + 1 == self.0 {
            actions.stop("enough");
            self.1.iter().for_each(|path| actions.save_checkpoint(path, CheckpointRole::Extra));
        }
    }
}

/// The Trainer of one of several processes. Each process has its own device and computes
/// everything.
fn trainer(
    process_group: &Arc<ProcessGroup>,
    folder: &Path,
    callback: Option<StopAfter>,
) -> Trainer {
    trainer_with(process_group, folder, callback.unwrap_or(StopAfter(u64::MAX, None)))
}

fn trainer_with(
    process_group: &Arc<ProcessGroup>,
    folder: &Path,
    callback: impl Callback + 'static,
) -> Trainer {
    let builder = Trainer::builder()
        .accelerator(Accelerator::Cpu)
        .devices(1)
        .max_epochs(50)
        .log_every_n_steps(3)
        .default_root_dir(folder)
        .callback(callback);
    let choices = builder.choices(builder.options().unwrap()).unwrap();
    builder.build_with(choices, Some(process_group.clone())).unwrap()
}

#[test]
fn all_stop_together_and_the_first_process_writes() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().to_owned();
    let ends = in_three(move |process_group| {
        let index = process_group.process().index();
        let mut trainer = trainer(process_group, &root, (index == 1).then_some(StopAfter(2, None)));
        let loader = DataLoader::builder(points(40)).batch_size(4).build().unwrap();
        let line = Line(Linear::new(1, 1));
        let summary = trainer.fit(&line, &loader, None).unwrap();
        assert_eq!(trainer.process_index(), index);
        // All processes can read it.
        trainer.session.load(&line, Weights::Last).unwrap();
        let stopped = summary.stopped.unwrap();
        assert!(
            if index == 1 { stopped == "enough" } else { stopped.contains("another process") },
            "{stopped}"
        );
        (
            summary.epochs,
            trainer.run_dir().unwrap().to_owned(),
            trainer.last_checkpoint().unwrap().to_owned(),
        )
    });
    let run = folder.path().join("version_0");
    assert_eq!(ends, vec![(2, run.clone(), run.join("checkpoints/last")); 3]);
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 1, "one folder for all");
    assert!(run.join("checkpoints/last/manifest.json").is_file());
    let rows = std::fs::read_to_string(run.join("metrics.csv")).unwrap();
    // 20 steps with a log point every 3, and 2 epochs.
    assert_eq!(rows.lines().count(), 1 + 6 + 2, "{rows}");
}

/// A Trainer that unfreezes the weight of a [`Line`] after the first epoch. One process stops after
/// the second.
fn unfreezing(process_group: &Arc<ProcessGroup>, folder: &Path, pattern: &str) -> Trainer {
    let stops = process_group.process().index() == 1;
    let builder = Trainer::builder()
        .accelerator(Accelerator::Cpu)
        .devices(1)
        .max_epochs(50)
        .default_root_dir(folder);
    let builder = builder.callback(StopAfter(if stops { 2 } else { u64::MAX }, None));
    let builder = builder.callback(BackboneFinetuning::new(pattern, "1ep".parse().unwrap()));
    let choices = builder.choices(builder.options().unwrap()).unwrap();
    builder.build_with(choices, Some(process_group.clone())).unwrap()
}

#[test]
fn a_phase_begins_in_all_processes_after_the_same_step() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().to_owned();
    let ends = in_three(move |process_group| {
        let loader = DataLoader::builder(points(40)).batch_size(4).build().unwrap();
        let line = Line(Linear::new(1, 1));
        let summary =
            unfreezing(process_group, &root, "0.weight").fit(&line, &loader, None).unwrap();
        let values = || {
            [&line.0.weight]
                .into_iter()
                .chain(&line.0.bias)
                .map(|p| p.get().eval().unwrap().to_f64())
        };
        (summary.global_step, values().collect::<Vec<_>>())
    });
    assert_eq!(ends, vec![ends[0].clone(); 3]);
    let saved =
        fulmen_nn::weights::StateDict::read(folder.path().join("version_0/checkpoints/last"))
            .unwrap();
    let counts = |name: &str| saved.get(name).unwrap().unwrap().to_f64()[0];
    assert_eq!((ends[0].0, counts("trainer/unfrozen_updates/0.weight")), (20, 10.0));
}

#[test]
fn a_process_that_unfreezes_something_else_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().to_owned();
    let ends = in_three(move |process_group| {
        let pattern = if process_group.process().index() == 2 { "0.bias" } else { "0.weight" };
        let loader = DataLoader::builder(points(40)).batch_size(4).build().unwrap();
        let fit =
            unfreezing(process_group, &root, pattern).fit(&Line(Linear::new(1, 1)), &loader, None);
        fit.unwrap_err().to_string()
    });
    for end in ends {
        assert!(end.contains("`training program`: process 2 ("), "{end}");
    }
}

/// Slows down a process. The slowest one sends SIGTERM to this test program after some steps.
struct Terminate {
    slowest: bool,
}

impl Callback for Terminate {
    fn name(&self) -> &'static str {
        "Terminate"
    }
    fn on_train_batch_end(&mut self, progress: &Progress, _: &mut Actions) {
        if self.slowest && progress.global_step == 25 {
            let status =
                Command::new("kill").args(["-TERM", &std::process::id().to_string()]).status();
            assert!(status.unwrap().success());
        }
        // No process may run far ahead: the slowest takes all steps that another has taken.
        thread::sleep(Duration::from_millis(if self.slowest { 5 } else { 4 }));
    }
}

#[test]
fn a_signal_ends_all_after_the_same_step() {
    const ALONE: &str = "FULMEN_TEST_ALONE";
    if std::env::var_os(ALONE).is_none() {
        // The shell that runs the tests may ignore signals, such as SIGINT in a background job. The
        // child must not.
        let mut child = Command::new("env");
        child
            .arg("--default-signal=INT,TERM,HUP")
            .arg(std::env::current_exe().unwrap())
            .env(ALONE, "1");
        child.args([
            "--exact",
            "process_group::tests::a_signal_ends_all_after_the_same_step",
            "--nocapture",
        ]);
        let output = child.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned()
            + &String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success() && text.contains("1 passed"), "{text}");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().to_owned();
    let ends = in_three(move |process_group| {
        let mut builder =
            Trainer::builder().accelerator(Accelerator::Cpu).devices(1).default_root_dir(&root);
        // No log point and no end of an epoch come soon.
        builder = builder.max_epochs(1).log_every_n_steps(1_000_000).grace(LONG);
        builder = builder.callback(Terminate { slowest: process_group.process().index() == 1 });
        let choices = builder.choices(builder.options().unwrap()).unwrap();
        let mut trainer = builder.build_with(choices, Some(process_group.clone())).unwrap();
        let loader = DataLoader::builder(points(1_000_000)).batch_size(1).build().unwrap();
        let summary = trainer.fit(&Line(Linear::new(1, 1)), &loader, None).unwrap();
        (
            summary.signal,
            summary.global_step,
            summary.last_checkpoint.is_some_and(|path| path.join("manifest.json").is_file()),
        )
    });
    assert_eq!(ends, [ends[0]; 3]);
    let (signal, step, saved) = ends[0];
    assert!(
        signal == Some(Signal::Terminate) && (25..1_000_000).contains(&step) && saved,
        "{ends:?}"
    );
}

/// Requests actions in some processes. Twice, process 0 requests a checkpoint, a validation and
/// another learning rate; then two processes request the end. It records the steps of the
/// validations.
struct RequestActions {
    process: usize,
    file: PathBuf,
    requests: usize,
    validated: Vec<u64>,
    sender: std::sync::mpsc::Sender<Vec<u64>>,
}

impl Callback for RequestActions {
    fn name(&self) -> &'static str {
        "RequestActions"
    }
    fn changes_learning_rate(&self) -> bool {
        true
    }
    fn on_train_batch_end(&mut self, progress: &Progress, actions: &mut Actions) {
        // The next request comes some steps after the last one was served, however long that took.
        let next = self.validated.last().copied().unwrap_or_default() + 7;
        if self.requests == self.validated.len() && progress.global_step >= next {
            self.requests += 1;
            match (self.process, self.requests) {
                (0, 1 | 2) => {
                    actions.save_checkpoint(&self.file, CheckpointRole::Extra);
                    actions.validate();
                    actions.set_learning_rate_factor(0.0);
                }
                // A request of process 2 alone has no effect.
                (2, 2) => actions.validate(),
                (1 | 2, 3) => actions.stop("enough"),
                _ => {}
            }
        }
        // No process may run far ahead of another.
        thread::sleep(Duration::from_millis(3 + self.process as u64));
    }
    fn on_validation_end(&mut self, point: &LogPoint, _: &mut Actions) {
        self.validated.push(point.global_step);
    }
    fn on_fit_end(&mut self, _: &crate::FitSummary) {
        self.sender.send(std::mem::take(&mut self.validated)).unwrap();
    }
}

#[test]
fn actions_within_an_epoch_run_in_all_processes_after_the_same_step() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().to_owned();
    let ends = in_three(move |process_group| {
        let mut builder =
            Trainer::builder().accelerator(Accelerator::Cpu).devices(1).default_root_dir(&root);
        // No log point and no end of an epoch come soon.
        builder = builder.max_epochs(1).log_every_n_steps(1_000_000).enable_progress_bar(false);
        let (sender, receiver) = channel();
        let process = process_group.process().index();
        let file = root.join("{step}");
        builder = builder.callback(RequestActions {
            process,
            file,
            requests: 0,
            validated: Vec::new(),
            sender,
        });
        let choices = builder.choices(builder.options().unwrap()).unwrap();
        let mut trainer = builder.build_with(choices, Some(process_group.clone())).unwrap();
        let train = points(1_000_000);
        let val = points(8);
        let loader = |data| DataLoader::builder(data).batch_size(1).build().unwrap();
        let line = Line(Linear::new(1, 1));
        let summary = trainer.fit(&line, &loader(train), Some(&loader(val))).unwrap();
        let weight = line.0.weight.get().eval().unwrap().to_f64();
        (summary.global_step, receiver.recv().unwrap(), weight)
    });
    let (step, validated, _) = ends[0].clone();
    assert_eq!(ends, vec![ends[0].clone(); 3]);
    let [first, second] = validated[..] else { panic!("{ends:?}") };
    assert!(
        first >= 7 && second >= first + 7 && (second + 7..1_000_000).contains(&step),
        "{ends:?}"
    );
    let saved = |step: u64| folder.path().join(format!("{step}"));
    assert!(saved(first).is_dir() && saved(second).is_dir());
    // The rate was 0 from the first checkpoint on, in all processes.
    let weight = |path: PathBuf| {
        fulmen_nn::weights::StateDict::read(path)
            .unwrap()
            .get("0.weight")
            .unwrap()
            .unwrap()
            .to_f64()
    };
    assert_eq!(weight(saved(first)), ends[1].2);
}

#[test]
fn a_fit_that_fails_in_one_process_ends_in_all() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().to_owned();
    let ends = in_three(move |process_group| {
        let mut trainer = trainer(process_group, &root, None);
        let hole = if process_group.process().index() == 2 { 17 } else { 40 };
        let loader = DataLoader::builder(Broken(points(40), hole)).batch_size(4).build().unwrap();
        let error = trainer.fit(&Line(Linear::new(1, 1)), &loader, None).unwrap_err();
        (error.is_coordination(), error.is_data(), error.to_string())
    });
    assert!(
        matches!(&ends[2], (false, true, message) if message.contains("full of holes")),
        "{ends:?}"
    );
    for end in &ends[..2] {
        assert!(
            end.0 && end.2.contains("process 2 (") && end.2.contains("full of holes"),
            "{end:?}"
        );
    }
}

#[test]
fn all_processes_save_when_the_first_requests_it() {
    for alone in [0, 2] {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().to_owned();
        let reads = in_three(move |process_group| {
            let path = (process_group.process().index() == alone).then(|| root.join("further"));
            let mut trainer = trainer(process_group, &root, Some(StopAfter(3, path)));
            let loader = DataLoader::builder(points(8)).batch_size(4).build().unwrap();
            let before = trainer.runtime().metrics().value("TransferFromDeviceTime");
            trainer.fit(&Line(Linear::new(1, 1)), &loader, None).unwrap();
            trainer.runtime().metrics().value("TransferFromDeviceTime") - before
        });
        assert_eq!(reads, vec![reads[0]; 3], "all processes read the device equally often");
        assert_eq!(folder.path().join("further").is_dir(), alone == 0);
    }
}

/// Predictions. If `broken`, one sample of the data cannot be read.
fn predicted(process_group: &Arc<ProcessGroup>, root: &Path, broken: bool) -> PredictedBatches {
    let mut trainer = trainer(process_group, root, None);
    // The bad sample comes before the processes first check together for Ctrl-C.
    let hole = if broken { 9 } else { 40 };
    let loader = DataLoader::builder(Broken(points(40), hole)).batch_size(2).build().unwrap();
    trainer.predict(&Line(Linear::new(1, 1)), &loader, Weights::Current).unwrap()
}

/// The size of the first batch, and the error at the end after the run has failed.
fn first_and_end(
    process_group: &Arc<ProcessGroup>,
    mut batches: PredictedBatches,
) -> (usize, Error) {
    let first = batches.next().unwrap().unwrap().num_samples();
    process_group.barrier("all have begun").unwrap();
    while process_group.health().is_ok() {
        thread::sleep(Duration::from_millis(5));
    }
    let error = batches.find_map(|batch| batch.err()).unwrap();
    assert!(batches.next().is_none(), "an error is the last item");
    (first, error)
}

#[test]
fn all_processes_get_predictions_for_any_number_of_batches() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().to_owned();
    let ends = in_three(move |process_group| {
        let predicted = predicted(process_group, &root, false).concat().unwrap();
        // The processes can still work together.
        (predicted.num_samples(), process_group.any("interrupt", false).unwrap())
    });
    assert_eq!(ends, [(40, false); 3]);
}

#[test]
fn a_prediction_that_fails_in_one_process_ends_in_all() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().to_owned();
    let ends = in_three(move |process_group| {
        let batches = predicted(process_group, &root, process_group.process().index() == 2);
        if process_group.process().index() == 2 {
            process_group.barrier("all have begun").unwrap();
            let error = batches.concat().unwrap_err();
            return (error.is_data(), error.to_string());
        }
        let (rows, error) = first_and_end(process_group, batches);
        (rows == 2 && error.is_coordination(), error.to_string())
    });
    assert!(ends[2].0 && ends[2].1.contains("full of holes"), "{ends:?}");
    for end in &ends[..2] {
        assert!(
            end.0 && end.1.contains("process 2 (") && end.1.contains("full of holes"),
            "{ends:?}"
        );
    }
}

#[test]
fn a_process_that_stops_reading_ends_the_others() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().to_owned();
    let ends = in_three(move |process_group| {
        let mut batches = predicted(process_group, &root, false);
        if process_group.process().index() == 1 {
            batches.next().unwrap().unwrap();
            process_group.barrier("all have begun").unwrap();
            return String::new();
        }
        first_and_end(process_group, batches).1.to_string()
    });
    for end in [&ends[0], &ends[2]] {
        assert!(
            end.contains("process 1 (") && end.contains("read only 1 of its 20 batches"),
            "{ends:?}"
        );
    }
}

#[test]
fn the_clock_and_the_memory_of_one_process_count_in_all() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().to_owned();
    let ends = in_three(move |process_group| {
        let odd = process_group.process().index() == 1;
        let loader = |n| DataLoader::builder(points(64)).batch_size(n).build();
        let line = Line(Linear::new(1, 1));
        let finder = BatchSizeFinder::new().init_val(4).memory_limit(if odd { 1 } else { 1 << 40 });
        let mut tuned = trainer(process_group, &root, None);
        let refused = tuned.scale_batch_size(&line, loader, &finder).unwrap_err().to_string();
        let rates = tuned
            .lr_find(&line, &loader(4).unwrap(), &LearningRateFinder::new().num_training_steps(15))
            .unwrap();
        let mut timer = Timer::new();
        if odd {
            timer = timer.duration(Duration::from_nanos(1));
        }
        let summary = trainer_with(process_group, &root, timer)
            .fit(&line, &loader(4).unwrap(), None)
            .unwrap();
        let writer =
            PredictionWriter::new(root.join(format!("{}.csv", process_group.process().index())))
                .unwrap();
        let written = writer.write(predicted(process_group, &root, false)).unwrap();
        (refused, rates.losses().len(), summary.global_step, written)
    });
    assert!(ends[0].0.contains("no batch size fits in device memory; tried 4, 2, 1."), "{ends:?}");
    assert!(ends[0].1 == 15 && ends[0].2 < 100 && ends[0].3 == 40, "{ends:?}");
    assert_eq!(ends, vec![ends[0].clone(); 3]);
    let written = [0, 1, 2].map(|index| folder.path().join(format!("{index}.csv")).exists());
    assert_eq!(written, [true, false, false]);
}

#[test]
fn a_callback_that_fails_in_one_process_ends_all() {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().to_owned();
    let ends = in_three(move |process_group| {
        let metric = if process_group.process().index() == 1 { "train_lost" } else { "train_loss" };
        let loader = DataLoader::builder(points(40)).batch_size(4).build().unwrap();
        let mut trainer = trainer_with(
            process_group,
            &root,
            EarlyStopping::new(metric, Mode::Min).patience(1000),
        );
        trainer.fit(&Line(Linear::new(1, 1)), &loader, None).unwrap_err().to_string()
    });
    assert!(ends[1].starts_with("EarlyStopping monitors `train_lost`"), "{ends:?}");
    for end in [&ends[0], &ends[2]] {
        assert!(end.contains("process 1 (") && end.contains("`train_lost`"), "{ends:?}");
    }
}
