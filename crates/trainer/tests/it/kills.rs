//! Runs that are ended from outside: by signals before anything can be saved, by two signals, by a
//! signal in a validation, and by SIGKILL during a write. Also runs that resume from the newest
//! complete checkpoint.

use std::io::BufRead as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::thread::sleep;
use std::time::Duration;

use crate::common::{
    DROP_LAST, LONG, Net, Record, files, itself, terminate, train_loader, trainer, val_loader,
};
use fulmen_data::{DataLoader, Dataset, Field, Sample, TensorDataset};
use fulmen_trainer::callbacks::{Mode, ModelCheckpoint};
use fulmen_trainer::{
    Actions, Callback, CheckpointRole, FitStart, LogPoint, Progress, Signal, TrainerBuilder,
};

const FOLDER: &str = "FULMEN_TEST_KILLS";

/// Sends a signal to this process.
fn send(signal: &str) {
    assert!(
        Command::new("kill")
            .args([signal, &std::process::id().to_string()])
            .status()
            .unwrap()
            .success()
    );
}

/// Sends a signal to this process before the first step, and waits for the end.
struct SignalAtStart(&'static str);

impl Callback for SignalAtStart {
    fn name(&self) -> &'static str {
        "SignalAtStart"
    }
    fn on_fit_start(&mut self, _: &FitStart) {
        send(self.0);
        sleep(LONG);
    }
    fn on_train_batch_end(&mut self, progress: &Progress, _: &mut Actions) {
        println!("step {} ran", progress.global_step);
    }
}

/// Runs a test of this file in its own process.
fn child(test: &str, folder: &Path) -> Output {
    let mut command = itself();
    command
        .args(["--exact", &format!("kills::{test}"), "--ignored", "--nocapture"])
        .env(FOLDER, folder);
    command.output().unwrap()
}

fn fit(folder: &Path, signal: Option<&'static str>) {
    let mut builder = trainer(folder).max_epochs(1);
    if let Some(signal) = signal {
        builder = builder.callback(SignalAtStart(signal));
    }
    builder.build().unwrap().fit(&Net::new(), &train_loader(20, DROP_LAST), None).unwrap();
}

/// The files that are not hidden. A run that ends immediately leaves the hidden file that showed
/// other processes that it was alive.
fn shown(folder: &Path) -> Vec<String> {
    files(folder).into_iter().filter(|name| !name.starts_with('.')).collect()
}

#[test]
#[ignore = "run by a_signal_before_the_first_step_ends_the_program_at_once"]
fn terminated_before_the_first_step() {
    if let Some(folder) = std::env::var_os(FOLDER).map(PathBuf::from) {
        fit(&folder, Some("-TERM"));
    }
}

#[test]
#[ignore = "run by a_signal_before_the_first_step_ends_the_program_at_once"]
fn hung_up_before_the_first_step() {
    if let Some(folder) = std::env::var_os(FOLDER).map(PathBuf::from) {
        fit(&folder, Some("-HUP"));
    }
}

#[test]
#[ignore = "run by a_signal_before_the_first_step_ends_the_program_at_once"]
fn interrupted_before_the_first_step() {
    if let Some(folder) = std::env::var_os(FOLDER).map(PathBuf::from) {
        fit(&folder, Some("-INT"));
    }
}

#[test]
fn a_signal_before_the_first_step_ends_the_program_at_once() {
    for (test, code) in [
        ("terminated_before_the_first_step", 75),
        ("hung_up_before_the_first_step", 75),
        ("interrupted_before_the_first_step", 130),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let output = child(test, folder.path());
        let text = String::from_utf8_lossy(&output.stdout).into_owned()
            + &String::from_utf8_lossy(&output.stderr);
        assert!(!text.contains("ran"), "{text}");
        assert_eq!(output.status.code(), Some(code), "{text}");
        assert!(text.contains("there is nothing to save"), "{text}");
        assert!(shown(&folder.path().join("version_0/checkpoints")).is_empty());
    }
}

#[test]
#[ignore = "run by leftovers_of_a_killed_run_are_removed_when_the_next_begins"]
fn killed_while_it_writes() {
    if let Some(folder) = std::env::var_os(FOLDER).map(PathBuf::from) {
        fulmen_durable::write(&folder.join("last/shard_0-1.safetensors"), None, |file| {
            std::io::Write::write_all(file, &[1; 3 << 20])?;
            Command::new("kill").args(["-KILL", &std::process::id().to_string()]).status()?;
            sleep(LONG);
            Ok(())
        })
        .unwrap();
    }
}

#[test]
fn leftovers_of_a_killed_run_are_removed_when_the_next_begins() {
    let folder = tempfile::tempdir().unwrap();
    fit(folder.path(), None);
    let checkpoints = folder.path().join("version_0/checkpoints");
    assert_eq!(files(&checkpoints), ["last"]);
    let whole = std::fs::read(crate::common::shard(&checkpoints.join("last"))).unwrap();
    assert_eq!(child("killed_while_it_writes", &checkpoints).status.signal(), Some(9));
    assert_eq!(files(&checkpoints.join("last")).len(), 3, "{:?}", files(&checkpoints.join("last")));
    // Killed before the manifest was written: an extra shard of `last`, and a checkpoint that was
    // never complete.
    for left in ["last/shard_0-1.safetensors", "step=7/shard_0.safetensors"] {
        std::fs::create_dir_all(checkpoints.join(left).parent().unwrap()).unwrap();
        std::fs::write(checkpoints.join(left), [0; 100]).unwrap();
    }
    std::fs::write(checkpoints.join("notes.txt"), "mine").unwrap();

    // Files that another program is writing are kept.
    let alive = fulmen_durable::NewFile::create(&checkpoints.join("alive")).unwrap();
    fit(folder.path(), None);
    assert!(checkpoints.join("step=7").exists());
    drop(alive);

    fit(folder.path(), None);
    assert_eq!(files(folder.path()), ["version_0", "version_1", "version_2"]);
    assert_eq!(files(&checkpoints), ["last", "notes.txt"]);
    assert_eq!(files(&checkpoints.join("last")), ["manifest.json", "shard_0.safetensors"]);
    assert_eq!(std::fs::read(crate::common::shard(&checkpoints.join("last"))).unwrap(), whole);
}

/// Sleeps in one step.
struct StaysIn(u64);

impl Callback for StaysIn {
    fn name(&self) -> &'static str {
        "StaysIn"
    }
    fn on_train_batch_end(&mut self, progress: &Progress, _: &mut Actions) {
        if progress.global_step == self.0 {
            println!("in step {}", self.0);
            sleep(LONG);
        }
    }
}

/// 20 steps in two epochs, with validation.
fn fit_with(builder: TrainerBuilder, validation: &DataLoader) -> fulmen_trainer::FitSummary {
    let train = train_loader(80, DROP_LAST);
    builder
        .max_epochs(2)
        .log_every_n_steps(1)
        .build()
        .unwrap()
        .fit(&Net::new(), &train, Some(validation))
        .unwrap()
}

#[test]
#[ignore = "run by a_second_signal_and_the_end_of_the_grace_end_the_program_at_once"]
fn signalled_within_a_step() {
    if let Some(folder) = std::env::var_os(FOLDER).map(PathBuf::from) {
        fit_with(trainer(&folder).callback(StaysIn(3)), &val_loader(16));
    }
}

#[test]
fn a_second_signal_and_the_end_of_the_grace_end_the_program_at_once() {
    for (second, grace, code, says) in [
        (Some("-TERM"), "10m", 75, "within 600s"),
        (Some("-INT"), "10m", 130, "within 600s"),
        (None, "100ms", 75, "100ms after SIGTERM (the option `grace`) saving is not complete"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let mut command = itself();
        command.args(["--exact", "kills::signalled_within_a_step", "--ignored", "--nocapture"]);
        let (output, input) = std::io::pipe().unwrap();
        command
            .env(FOLDER, folder.path())
            .env("FULMEN_GRACE", grace)
            .stdout(input.try_clone().unwrap())
            .stderr(input);
        let mut child = command.spawn().unwrap();
        drop(command);
        let send = |signal: &str| {
            assert!(
                Command::new("kill")
                    .args([signal, &child.id().to_string()])
                    .status()
                    .unwrap()
                    .success()
            );
        };
        let mut lines = Vec::new();
        for line in std::io::BufReader::new(output).lines().map(Result::unwrap) {
            if line.contains("in step 3") {
                send("-TERM");
            } else if line.starts_with("SIGTERM: saving") {
                if second == Some("-TERM") {
                    // A signal that comes sooner counts as the first one.
                    sleep(Duration::from_millis(1200));
                }
                second.into_iter().for_each(send);
            }
            lines.push(line);
        }
        let code_of_child = child.wait().unwrap().code();
        assert_eq!(code_of_child, Some(code), "{second:?}: {lines:#?}");
        assert!(lines.iter().any(|line| line.contains(says)), "{second:?}: {lines:#?}");
        assert!(
            shown(&folder.path().join("version_0/checkpoints")).is_empty(),
            "{second:?}: {lines:#?}"
        );
    }
}

/// A dataset that sends a signal when sample 20 is first read.
struct Signalling(TensorDataset, std::sync::Once);

impl Dataset for Signalling {
    fn len(&self) -> usize {
        self.0.len()
    }
    fn fields(&self) -> Vec<Field> {
        self.0.fields()
    }
    fn read(&self, index: usize, sample: &mut Sample<'_>) -> fulmen_data::Result<()> {
        if index == 20 {
            self.1.call_once(terminate);
        }
        self.0.read(index, sample)
    }
}

#[test]
fn a_validation_that_a_signal_ended_runs_again_when_the_fit_continues() {
    if !crate::common::has_a_process_of_its_own(
        "kills::a_validation_that_a_signal_ended_runs_again_when_the_fit_continues",
    ) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let whole = Record::default();
    fit_with(trainer(folder.path()).callback(whole.clone()), &val_loader(400));

    let before = Record::default();
    let signalling = Signalling(crate::common::samples(400), std::sync::Once::new());
    let signalling = DataLoader::builder(signalling).batch_size(8).num_workers(1).build().unwrap();
    let summary =
        fit_with(trainer(folder.path()).grace(LONG).callback(before.clone()), &signalling);
    assert_eq!(
        (summary.signal, summary.global_step, summary.epochs),
        (Some(Signal::Terminate), 10, 0)
    );
    assert_eq!(summary.stopped.as_deref(), Some("interrupted by SIGTERM"));
    assert!(before.epochs.lock().unwrap().is_empty(), "the epoch has not ended");

    let after = Record::default();
    let summary =
        fit_with(trainer(folder.path()).callback(after.clone()).resume("auto"), &val_loader(400));
    assert_eq!((summary.signal, summary.global_step), (None, 20));
    assert_eq!(
        [before.bits("train_loss"), after.bits("train_loss")].concat(),
        whole.bits("train_loss")
    );
    assert_eq!(*after.epochs.lock().unwrap(), *whole.epochs.lock().unwrap());
}

#[test]
fn a_validation_within_an_epoch_that_a_signal_ended_runs_again_too() {
    if !crate::common::has_a_process_of_its_own(
        "kills::a_validation_within_an_epoch_that_a_signal_ended_runs_again_too",
    ) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let builder =
        |record: &Record| trainer(folder.path()).val_check_interval(4).callback(record.clone());
    let whole = Record::default();
    fit_with(builder(&whole), &val_loader(400));

    let before = Record::default();
    let signalling = Signalling(crate::common::samples(400), std::sync::Once::new());
    let signalling = DataLoader::builder(signalling).batch_size(8).num_workers(1).build().unwrap();
    let summary = fit_with(builder(&before).grace(LONG), &signalling);
    assert_eq!((summary.signal, summary.global_step), (Some(Signal::Terminate), 4));
    assert!(before.validations.lock().unwrap().is_empty(), "it has not ended");

    let after = Record::default();
    let summary = fit_with(builder(&after).resume("auto"), &val_loader(400));
    assert_eq!((summary.signal, summary.global_step), (None, 20));
    assert_eq!(*after.validations.lock().unwrap(), *whole.validations.lock().unwrap());
    assert_eq!(after.validations.lock().unwrap().len(), 5);
}

/// Prints each step when it is queued, and sleeps in one of them.
struct Saying(u64);

impl Callback for Saying {
    fn name(&self) -> &'static str {
        "Saying"
    }
    fn on_train_batch_end(&mut self, progress: &Progress, _: &mut Actions) {
        println!("step {}", progress.global_step);
        if progress.global_step == self.0 {
            sleep(LONG);
        }
    }
}

const STAYS_IN: &str = "FULMEN_TEST_STAYS_IN";

/// Trains 1,800 steps in three epochs from the newest checkpoint, and saves every 50 steps.
#[test]
#[ignore = "run by a_run_that_is_killed_twenty_times_ends_as_one_that_is_not"]
fn trains_until_it_is_killed() {
    let Some(folder) = std::env::var_os(FOLDER).map(PathBuf::from) else { return };
    let stays_in = std::env::var(STAYS_IN).unwrap().parse().unwrap();
    let checkpoint =
        ModelCheckpoint::new().every_n_train_steps(50).monitor("val_loss", Mode::Min).save_top_k(2);
    let builder =
        trainer(&folder).resume("auto").max_epochs(3).log_every_n_steps(7).val_check_interval(0.3);
    let mut trainer = builder.callback(checkpoint).callback(Saying(stays_in)).build().unwrap();
    let summary =
        trainer.fit(&Net::new(), &train_loader(4800, DROP_LAST), Some(&val_loader(160))).unwrap();
    println!("ended with {:?}", summary.last_epoch.unwrap());
}

/// The step that a line reports.
fn step_of(line: &str) -> Option<u64> {
    line.split("step ").nth(1)?.trim().parse().ok()
}

#[test]
#[ignore = "takes a minute: cargo test -p fulmen-trainer --test it -- --ignored a_run_that_is_killed_twenty_times"]
fn a_run_that_is_killed_twenty_times_ends_as_one_that_is_not() {
    let folder = tempfile::tempdir().unwrap();
    let undisturbed = tempfile::tempdir().unwrap();
    let start = |folder: &Path, stays_in: u64| {
        let mut command = itself();
        command
            .args(["--exact", "kills::trains_until_it_is_killed", "--ignored", "--nocapture"])
            .env(FOLDER, folder);
        let mut child =
            command.env(STAYS_IN, stays_in.to_string()).stdout(Stdio::piped()).spawn().unwrap();
        let lines = std::io::BufReader::new(child.stdout.take().unwrap()).lines();
        (child, lines.map_while(Result::ok))
    };
    let mut random = 0x2545_f491_4f6c_dd1d_u64;
    let mut draw = |below: u64| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        random % below
    };
    let mut reached = 0;
    for kill in 0..20 {
        // The run does not reach its end, even if this test waits for long.
        let stays_in = reached + 80;
        let (mut child, mut lines) = start(folder.path(), stays_in);
        let mut steps = lines.by_ref().filter_map(|line| step_of(&line));
        let first = steps.next().unwrap();
        // The kill may have come while the newest checkpoint was being written. The one 50 steps
        // earlier is complete, because a save waits for the previous one.
        assert!(
            (reached.saturating_sub(99)..=reached + 1).contains(&first),
            "kill {kill}: {first} after {reached}"
        );
        let target = first + draw(stays_in - first);
        reached = steps.find(|&step| step >= target).unwrap_or(first);
        sleep(Duration::from_micros(draw(20_000)));
        child.kill().unwrap();
        // Lines that it printed before it died.
        reached = lines.filter_map(|line| step_of(&line)).last().unwrap_or(reached);
        child.wait().unwrap();
    }
    let end = |folder: &Path| {
        let (mut child, lines) = start(folder, u64::MAX);
        let end = lines.filter(|line| line.contains("ended with")).last().unwrap();
        assert!(child.wait().unwrap().success());
        let newest = (0..)
            .map_while(|n| Some(folder.join(format!("version_{n}"))).filter(|run| run.exists()))
            .last();
        let last = newest.unwrap().join("checkpoints/last");
        let tensors = crate::common::tensors(&last);
        let tensors: Vec<_> =
            tensors.into_iter().map(|(name, value)| (name, value.bytes().to_vec())).collect();
        (end, tensors)
    };
    let killed = end(folder.path());
    let whole = end(undisturbed.path());
    assert!(killed == whole, "{}\n{}", killed.0, whole.0);
}

/// Saves the state of each epoch.
struct Keep(PathBuf);

impl Callback for Keep {
    fn name(&self) -> &'static str {
        "Keep"
    }
    fn on_train_epoch_end(&mut self, point: &LogPoint, actions: &mut Actions) {
        let path = self.0.join(format!("version_0/checkpoints/kept={}", point.epoch));
        actions.save_checkpoint(path, CheckpointRole::Extra);
    }
}

#[test]
fn a_run_resumes_from_the_newest_whole_checkpoint_and_begins_without_one() {
    let folder = tempfile::tempdir().unwrap();
    let resume = |epochs: u64, builder: TrainerBuilder| {
        let record = Record::default();
        let mut trainer = builder
            .max_epochs(epochs)
            .log_every_n_steps(1)
            .callback(record.clone())
            .build()
            .unwrap();
        let fit = trainer.fit(&Net::new(), &train_loader(80, DROP_LAST), None);
        fit.map(|_| record.bits("train_loss").first().map(|bits| bits.0))
    };
    let auto = || trainer(folder.path()).resume("auto");
    // Nothing exists, not even the folder.
    let missing = trainer(&folder.path().join("missing")).resume("auto");
    assert_eq!(resume(1, missing).unwrap(), Some(1));
    assert_eq!(resume(2, auto().callback(Keep(folder.path().to_owned()))).unwrap(), Some(1));
    // The newest run has finished, so nothing is left to train. A run that has made no step has
    // nothing to resume from.
    assert_eq!(resume(2, auto()).unwrap(), None);
    std::fs::create_dir_all(folder.path().join("version_2/checkpoints")).unwrap();
    assert_eq!(resume(3, trainer(folder.path()).ckpt_path("last")).unwrap(), Some(21));
    assert_eq!(files(folder.path()).last().unwrap(), "version_3");

    // Damaged checkpoints are skipped, in the header or in a tensor, down to the earlier run and
    // its older checkpoints.
    let damage = |run: &str, position: f64| {
        let path = crate::common::shard(&folder.path().join(run).join("checkpoints/last"));
        let mut bytes = std::fs::read(&path).unwrap();
        let index = ((bytes.len() - 1) as f64 * position) as usize;
        bytes[index] ^= 0x10;
        std::fs::write(path, bytes).unwrap();
    };
    damage("version_3", 1.0);
    damage("version_0", 0.9);
    std::fs::remove_dir_all(folder.path().join("version_1")).unwrap();
    std::fs::remove_file(crate::common::shard(&folder.path().join("version_0/checkpoints/kept=1")))
        .unwrap();
    std::fs::create_dir(folder.path().join("version_2/checkpoints/half")).unwrap();
    std::fs::write(folder.path().join("version_2/checkpoints/half/manifest.json"), b"half")
        .unwrap();
    assert_eq!(resume(3, auto()).unwrap(), Some(11), "after the first epoch, which was kept");

    // No run has a best checkpoint, so this fit starts from the beginning.
    assert_eq!(resume(1, trainer(folder.path()).ckpt_path("best")).unwrap(), Some(1));
    let error = resume(3, auto().ckpt_path("best")).unwrap_err().to_string();
    assert!(
        error.contains(
            "resume: auto means the newest checkpoint, but ckpt_path: best is a different one"
        ),
        "{error}"
    );
}
