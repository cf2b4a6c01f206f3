//! Counts the steps that this process has finished: for its profiles, and in the file
//! `FULMEN_PROGRESS_FILE` for a supervisor (`fulmen pod run`).

use std::ffi::OsString;
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

/// The finished steps of all loops of this process.
static STEPS: AtomicU64 = AtomicU64::new(0);

/// The step of the latest training of this process. Unlike [`STEPS`], it continues from a
/// checkpoint, and does not count other loops.
static TRAINING_STEP: AtomicU64 = AtomicU64::new(0);

/// Records the step of a training.
pub(crate) fn training_is_at(global_step: u64) {
    TRAINING_STEP.store(global_step, Ordering::Relaxed);
}

/// Counts a step that has finished on the device.
pub(crate) fn step_finished() {
    static WRITER: Once = Once::new();
    STEPS.fetch_add(1, Ordering::Relaxed);
    WRITER.call_once(|| {
        std::env::var_os("FULMEN_PROGRESS_FILE")
            .filter(|path| !path.is_empty())
            .into_iter()
            .for_each(start_writer);
    });
}

/// The number of finished steps of all loops of this process.
pub(crate) fn finished_steps() -> u64 {
    STEPS.load(Ordering::Relaxed)
}

/// Starts a thread that writes both numbers to a file about once a second, as long as the process
/// lives.
fn start_writer(path: OsString) {
    let write = move || {
        let mut written = String::new();
        loop {
            let step = TRAINING_STEP.load(Ordering::Relaxed);
            let progress = match finished_steps() {
                steps if step == 0 => steps.to_string(),
                steps => format!("{steps} {step}"),
            };
            if progress != written {
                // If this fails, the supervisor only checks that the process is alive.
                let _ = std::fs::write(&path, &progress);
                written = progress;
            }
            thread::sleep(Duration::from_secs(1));
        }
    };
    drop(thread::Builder::new().name("fulmen-progress".into()).spawn(write));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_supervisor_reads_the_number_of_finished_steps() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("progress");
        start_writer(path.clone().into());
        let read = || {
            thread::sleep(Duration::from_millis(20));
            std::fs::read_to_string(&path).ok()
        };
        let finished = |text: &str| text.split(' ').next().and_then(|steps| steps.parse().ok());
        let wait_for_more_than = |steps: u64| -> u64 {
            step_finished();
            std::iter::repeat_with(read)
                .find_map(|text| finished(&text?).filter(|read| *read > steps))
                .unwrap()
        };
        let first = wait_for_more_than(0);
        assert!(wait_for_more_than(first) > first);
        // Other tests of this process train too.
        while read().is_none_or(|text| !text.ends_with(" 700")) {
            training_is_at(700);
        }
    }
}
