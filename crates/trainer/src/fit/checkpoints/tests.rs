//! Saving in parallel to the loop, with stores that block or fail.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use fulmen_checkpoint::{
    Checkpoint, Entry, LocalStore, MANIFEST, NewObject, Rectangle, Store, TieredStore,
};
use fulmen_data::{DataLoader, TensorDataset};
use fulmen_nn::loss::{Reduction, mse_loss};
use fulmen_nn::optim::{Adam, Optimizer};
use fulmen_nn::{Linear, Module};
use fulmen_tensor::{Accelerator, Tensor};
use parking_lot::{Condvar, Mutex};

use crate::callbacks::{Event, on, when};
use crate::checkpoint::save::{CopyProgram, SaveOutcome};
use crate::checkpoint::{self, local};
use crate::hooks::actions::Save;
use crate::{
    Batch, CheckpointRole, Error, FitSummary, Plan, Result, StepContext, Strategy, Trainer,
    TrainerBuilder, TrainingModule,
};

#[derive(Module)]
struct Line(Linear);

impl TrainingModule for Line {
    fn training_step(&self, batch: &Batch, _: &mut StepContext) -> Tensor {
        mse_loss(&self.0.forward(&batch.get("x")), &batch.get("y"), Reduction::Mean)
    }
    fn configure_optimizers(&self, _: &Plan) -> Box<dyn Optimizer> {
        Box::new(Adam::new(0.1))
    }
}

/// A loader with eight steps per epoch.
fn loader() -> DataLoader {
    let x: Vec<f32> = (0..64 * 16).map(|i| (i as f32).sin()).collect();
    let data = TensorDataset::builder().array("y", [64, 8], &x[..64 * 8]).array("x", [64, 16], x);
    DataLoader::builder(data.build().unwrap()).batch_size(8).build().unwrap()
}

fn builder(folder: &Path) -> TrainerBuilder {
    let builder =
        Trainer::builder().accelerator(Accelerator::Cpu).devices(1).default_root_dir(folder);
    builder.max_epochs(2).enable_progress_bar(false).enable_model_summary(false)
}

fn fit(mut trainer: Trainer) -> (Result<FitSummary>, Trainer) {
    let result = trainer.fit(&Line(Linear::new(16, 8)), &loader(), None);
    (result, trainer)
}

/// The bytes of each tensor.
fn tensors(path: &Path) -> Vec<(String, Vec<u8>)> {
    let (store, name) = checkpoint::store_and_name(local, path).unwrap();
    let checkpoint = Checkpoint::open(store, &name).unwrap();
    let read = |(name, tensor): (&String, &fulmen_checkpoint::TensorEntry)| {
        (name.clone(), checkpoint.read(name, &Rectangle::whole(&tensor.shape)).unwrap())
    };
    checkpoint.manifest().tensors.iter().map(read).collect()
}

/// A local store whose writes wait for a gate, and may fail.
#[derive(Clone, Debug)]
struct GatedStore {
    inner: LocalStore,
    gate: Arc<Gate>,
}

#[derive(Debug, Default)]
struct Gate {
    open: Mutex<bool>,
    opened: Condvar,
    /// The number of started writes.
    started: AtomicU64,
    /// The number of the first write that fails, and its error.
    failure: Option<(u64, io::ErrorKind)>,
    /// The number of writes that fail; `None` if all others fail too.
    failing_writes: Option<u64>,
}

impl Gate {
    fn release(&self) {
        *self.open.lock() = true;
        self.opened.notify_all();
    }
}

impl Store for GatedStore {
    fn create(&self, name: &str, bytes: u64) -> io::Result<Box<dyn NewObject>> {
        let number = 1 + self.gate.started.fetch_add(1, Ordering::SeqCst);
        let mut open = self.gate.open.lock();
        while !*open {
            // Only a failing test waits until the timeout.
            if self.gate.opened.wait_for(&mut open, Duration::from_secs(120)).timed_out() {
                return Err(io::Error::other(
                    "the test did not open the gate: training waited for the checkpoint",
                ));
            }
        }
        match self.gate.failure {
            Some((first, kind))
                if number >= first
                    && self.gate.failing_writes.is_none_or(|count| number < first + count) =>
            {
                Err(kind.into())
            }
            _ => self.inner.create(name, bytes),
        }
    }
    fn read(&self, name: &str, start: u64, into: &mut [u8]) -> io::Result<()> {
        self.inner.read(name, start, into)
    }
    fn list(&self, folder: &str) -> io::Result<Vec<Entry>> {
        self.inner.list(folder)
    }
    fn remove(&self, name: &str) -> io::Result<()> {
        self.inner.remove(name)
    }
    fn describe(&self, name: &str) -> String {
        self.inner.describe(name)
    }
}

fn with_gate(mut trainer: Trainer, gate: &Arc<Gate>) -> Trainer {
    let gate = gate.clone();
    trainer.session.open_store = Arc::new(move |folder: &Path| {
        Arc::new(GatedStore { inner: LocalStore::new(folder), gate: gate.clone() })
    });
    trainer
}

#[test]
fn training_continues_while_a_checkpoint_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let gate = Arc::new(Gate::default());
    let manifest = folder.path().join("version_0/checkpoints/at-3").join(MANIFEST);
    let steps = Arc::new(Mutex::new(Vec::new()));
    let callback_gate = gate.clone();
    let callback_steps = steps.clone();
    let trainer = builder(folder.path())
        .callback(on(Event::TrainBatchEnd, when(|now| now.global_step == 3), {
            let path = manifest.with_file_name("");
            move |_, actions| {
                actions.save_checkpoint(path.parent().unwrap().join("at-3"), CheckpointRole::Extra)
            }
        }))
        .callback(on(Event::TrainBatchEnd, when(|now| now.global_step > 3), {
            let manifest = manifest.clone();
            move |now, _| {
                if now.global_step <= 7 {
                    callback_steps.lock().push((now.global_step, manifest.exists()));
                }
                // Before the end of the epoch, since its checkpoint waits for this one.
                if now.global_step == 7 {
                    callback_gate.release();
                }
            }
        }))
        .build()
        .unwrap();
    let (summary, _) = fit(with_gate(trainer, &gate));
    assert_eq!(summary.unwrap().global_step, 16);
    assert_eq!(
        *steps.lock(),
        [(4, false), (5, false), (6, false), (7, false)],
        "steps ran while the write waited"
    );
    // The later steps did not change the saved state.
    let other = tempfile::tempdir().unwrap();
    let (summary, _) = fit(builder(other.path()).max_steps(3).build().unwrap());
    let last = summary.unwrap().last_checkpoint.unwrap();
    assert_eq!(tensors(manifest.parent().unwrap()), tensors(&last));
}

#[test]
fn a_copy_on_the_devices_stays_unchanged_while_steps_change_the_state() {
    for (devices, strategy) in [(1, Strategy::Ddp), (8, Strategy::Fsdp)] {
        let folder = tempfile::tempdir().unwrap();
        let line = Line(Linear::new(16, 8));
        let mut trainer =
            builder(folder.path()).devices(devices).strategy(strategy).build().unwrap();
        let mut step = trainer.train_step(&line, &loader()).unwrap();
        // Copy the whole state once, and once only half of it.
        let layout = step.state.layout();
        let mesh = step.runtime.mesh();
        let all = layout.device_bytes(layout.ids(), mesh);
        let copies = [all, all / 2].map(|room| {
            let ids = layout.fitting(room, mesh);
            assert!(layout.device_bytes(ids.clone(), mesh) <= room);
            let compiled = step.runtime.compile(&layout.to_copy(&ids)).unwrap();
            CopyProgram { compiled, entries: ids }
        });
        let count = layout.entries().len();
        let counts = [&copies[0], &copies[1]].map(|copy| copy.entries.len());
        assert!(counts[0] == count && (1..count).contains(&counts[1]));
        let batches: Vec<_> = step.batches().take(4).collect::<Result<_>>().unwrap();
        step.run(&batches[0]).unwrap();
        step.logs().unwrap().wait().unwrap();
        step.save(folder.path().join("at once")).unwrap();
        let taken = copies.map(|copy| step.take_state(Some(&copy)).unwrap());
        for batch in &batches[1..] {
            step.run(batch).unwrap();
        }
        step.block_until_ready().unwrap();
        let run = checkpoint::run(&step.position, &step.config.options, step.runtime.mesh());
        step.save(folder.path().join("now")).unwrap();
        for (taken, name) in taken.into_iter().zip(["copied", "copied in part"]) {
            let path = folder.path().join(name);
            let save = Save {
                path: path.clone(),
                role: CheckpointRole::Last,
                weights_only: false,
                score: None,
            };
            let job = step.job(
                Arc::new(local),
                taken,
                vec![(save, run.clone())],
                Vec::new(),
                SaveOutcome::default(),
            );
            let outcome = job.start().unwrap().wait();
            assert!(
                outcome.failure.is_none() && outcome.last.as_ref() == Some(&path),
                "{outcome:?}"
            );
            assert_eq!(tensors(&path), tensors(&folder.path().join("at once")));
            assert_ne!(tensors(&path), tensors(&folder.path().join("now")));
        }
    }
}

#[test]
fn a_failing_store_is_an_error_and_the_previous_checkpoint_stays() {
    // Writes 3 and 4 are the shard of the second checkpoint, and its manifest.
    for (first, kind, expected) in [
        (3, io::ErrorKind::StorageFull, "free some space"),
        (4, io::ErrorKind::PermissionDenied, "check the permissions"),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let gate = Arc::new(Gate {
            open: Mutex::new(true),
            failure: Some((first, kind)),
            ..Gate::default()
        });
        let (result, trainer) = fit(with_gate(builder(folder.path()).build().unwrap(), &gate));
        let error: Error = result.unwrap_err();
        let last = folder.path().join("version_0/checkpoints/last");
        let message = error.to_string();
        assert!(
            error.is_checkpoint() && error.is_disk_full() == (kind == io::ErrorKind::StorageFull),
            "{message}"
        );
        assert!(
            message.contains(last.to_str().unwrap()) && message.contains(expected),
            "{message}"
        );
        assert!(
            message.contains("The last whole checkpoint is") && message.contains("ckpt_path"),
            "{message}"
        );
        assert_eq!(trainer.last_checkpoint(), Some(last.as_path()));
        // It is the checkpoint of the first epoch, from which the run resumes.
        assert_eq!(checkpoint::open(&last).unwrap().1.global_step, 8);
        let (summary, resumed) = fit(builder(folder.path()).resume("auto").build().unwrap());
        assert_eq!(summary.unwrap().global_step, 16);
        assert_eq!(resumed.run_dir(), Some(folder.path().join("version_1").as_path()));
    }
}

#[test]
fn a_disk_that_is_full_for_a_moment_does_not_end_training() {
    let whole = tempfile::tempdir().unwrap();
    let expected = fit(builder(whole.path()).max_epochs(3).build().unwrap()).0.unwrap();
    let expected = tensors(&expected.last_checkpoint.unwrap());
    // Writes 3 and 5 are the shards of the second and third checkpoint, the last one.
    for (first, count) in [(3, 1), (3, 2), (5, 1), (5, 4)] {
        let folder = tempfile::tempdir().unwrap();
        let gate = Arc::new(Gate {
            open: Mutex::new(true),
            failure: Some((first, io::ErrorKind::StorageFull)),
            failing_writes: Some(count),
            ..Gate::default()
        });
        let trainer = builder(folder.path()).max_epochs(3).build().unwrap();
        let summary = fit(with_gate(trainer, &gate)).0.unwrap();
        let last = summary.last_checkpoint.unwrap();
        assert_eq!(checkpoint::open(&last).unwrap().1.global_step, 24);
        assert_eq!(tensors(&last), expected, "{count} failures from write {first}");
    }
}

#[test]
fn a_store_that_fails_until_the_grace_period_ends_is_an_error_and_nothing_is_lost() {
    let folder = tempfile::tempdir().unwrap();
    let [local_dir, remote_dir] = ["local", "remote"].map(|name| folder.path().join(name));
    let options =
        || builder(folder.path()).checkpoint_local(&local_dir).checkpoint_dir(&remote_dir);
    let mut trainer = options().grace(Duration::from_millis(1)).build().unwrap();
    let failure = Some((1, io::ErrorKind::TimedOut));
    let gate = Arc::new(Gate { open: Mutex::new(true), failure, ..Gate::default() });
    let failing = Arc::new(GatedStore { inner: LocalStore::new(&remote_dir), gate });
    let tiered: Arc<dyn Store> =
        Arc::new(TieredStore::new(local(&local_dir), failing, Duration::ZERO, |_| {}));
    let dir = remote_dir.clone();
    trainer.session.open_store =
        Arc::new(move |folder| if folder == dir { tiered.clone() } else { local(folder) });
    let (result, trainer) = fit(trainer);
    let error = result.unwrap_err();
    let message = error.to_string();
    assert!(
        error.is_checkpoint() && message.contains("were not copied there within 1ms"),
        "{message}"
    );
    let has_path = |path: &Path| message.contains(path.to_str().unwrap());
    assert!(
        has_path(&local_dir)
            && has_path(&remote_dir)
            && message.contains("start the run again with the same options"),
        "{message}"
    );
    assert_eq!(trainer.last_checkpoint(), Some(remote_dir.join("last").as_path()));
    assert!(!remote_dir.join("last").exists());
    drop(trainer);
    // All steps ran, and the last state is complete in the local store. The next run copies the
    // state that it resumes from.
    assert_eq!(checkpoint::open(&local_dir.join("last")).unwrap().1.global_step, 16);
    let (summary, _) = fit(options().resume("auto").max_epochs(3).build().unwrap());
    assert_eq!(summary.unwrap().global_step, 24);
    assert_eq!(checkpoint::open(&remote_dir.join("last")).unwrap().1.global_step, 24);
}
