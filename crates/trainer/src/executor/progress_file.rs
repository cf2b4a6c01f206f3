//! Counts the steps that this process has finished: for its profiles, and in the file
//! `FULMEN_PROGRESS_FILE` for a supervisor (`fulmen pod run`).

use std::ffi::OsString;
use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

/// The finished steps of all loops of this process.
static STEPS: AtomicU64 = AtomicU64::new(0);

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

/// Starts a thread that writes the number to a file about once a second, as long as the process
/// lives.
fn start_writer(path: OsString) {
    let write = move || {
        let mut written = 0;
        loop {
            let steps = finished_steps();
            if steps != written {
                // If this fails, the supervisor only checks that the process is alive.
                let _ = std::fs::write(&path, steps.to_string());
                written = steps;
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
            std::fs::read_to_string(&path).ok()?.parse::<u64>().ok()
        };
        let wait_for_more_than = |steps: u64| {
            step_finished();
            std::iter::repeat_with(read)
                .map(|steps| steps.unwrap_or(0))
                .find(|read| *read > steps)
                .unwrap()
        };
        let first = wait_for_more_than(0);
        assert!(wait_for_more_than(first) > first);
    }
}
