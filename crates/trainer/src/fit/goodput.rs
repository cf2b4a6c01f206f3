//! `goodput.json` in the run's folder: where the time of this run went, and of those that it goes on with.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use fulmen_loggers::unix_seconds;
use serde::{Deserialize, Serialize};

use super::Fit;
use crate::checkpoint::runs;
use crate::{Goodput, Options};

const NAME: &str = "goodput.json";
/// Time between two writes of a run that goes on.
const EVERY: Duration = Duration::from_secs(10);

/// What the file says: the runs, the oldest first.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Runs {
    runs: Vec<Run>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Run {
    /// Seconds since 1970.
    started: f64,
    ended: f64,
    /// Optimizer steps that were finished at the beginning and at the end.
    first_step: u64,
    last_step: u64,
    seconds: Goodput,
}

/// The file of a fit.
pub(super) struct GoodputFile {
    /// None where the run leaves no files, or another process writes them.
    path: Option<PathBuf>,
    before: Vec<Run>,
    started: f64,
    first_step: u64,
    written: Instant,
}

impl GoodputFile {
    /// For a run in this folder that goes on after a step, from a checkpoint if there is one.
    pub(super) fn new(run_dir: Option<&Path>, first_step: u64, checkpoint: Option<&Path>, options: &Options) -> Self {
        let mut before =
            checkpoint.and_then(|checkpoint| before(run_dir, checkpoint, options)).unwrap_or_default().runs;
        lose(&mut before, first_step);
        let path = run_dir.map(|folder| folder.join(NAME));
        GoodputFile { path, before, started: unix_seconds(), first_step, written: Instant::now() }
    }
}

/// What the file of the run says that wrote a checkpoint. Where checkpoints lie apart, that is the newest run with a file.
fn before(run_dir: Option<&Path>, checkpoint: &Path, options: &Options) -> Option<Runs> {
    let read = |folder: &Path| serde_json::from_slice(&std::fs::read(folder.join(NAME)).ok()?).ok();
    if options.checkpoint_dir.as_os_str().is_empty() {
        return read(checkpoint.parent()?.parent()?);
    }
    let earlier = runs(&options.default_root_dir).ok()?.into_iter().filter(|(_, folder)| Some(&**folder) != run_dir);
    earlier.into_iter().find_map(|(_, folder)| read(&folder))
}

/// Counts the steps after this one as lost.
fn lose(runs: &mut [Run], step: u64) {
    for run in runs.iter_mut().rev().take_while(|run| run.last_step > step) {
        let (all, again) = (run.last_step - run.first_step, run.last_step - step.max(run.first_step));
        run.seconds.lose(again as f64 / all.max(1) as f64);
        run.last_step = step.max(run.first_step);
    }
}

impl Fit<'_> {
    /// Where the time went, that of the runs before included. It is written on the loggers' thread: now and then, or in any
    /// case where something `ended`.
    pub(super) fn write_goodput(&mut self, ended: bool) -> Goodput {
        let GoodputFile { path, before, started, first_step, written } = &mut self.goodput;
        let seconds = self.session.clock.spent();
        let mut total = seconds;
        before.iter().for_each(|run| total.add(&run.seconds));
        if let (Some(path), true) = (path, ended || written.elapsed() > EVERY) {
            *written = Instant::now();
            let last_step = self.step.position.global_step;
            let run = Run { started: *started, ended: unix_seconds(), first_step: *first_step, last_step, seconds };
            let (path, runs) = (path.clone(), Runs { runs: before.iter().cloned().chain([run]).collect() });
            self.session.loggers.run("goodput", move || {
                // Without it a later run counts from its own beginning.
                let text = serde_json::to_vec(&runs).unwrap_or_default();
                let _ = fulmen_durable::write_unsynced(&path, Some(text.len() as u64), |file| file.write_all(&text));
            });
        }
        total
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_that_are_done_again_are_lost_in_each_run_that_made_them() {
        let run = |first_step, last_step| {
            let seconds = Goodput { compile: 3.0, steps: 10.0, data: 2.0, ..Goodput::default() };
            Run { started: 0.0, ended: 0.0, first_step, last_step, seconds }
        };
        let mut all = [run(0, 100), run(100, 200), run(200, 210)];
        lose(&mut all, 150);
        let lost: Vec<f64> = all.iter().map(|run| run.seconds.lost).collect();
        assert_eq!(lost, [0.0, 6.0, 12.0]);
        assert_eq!((all[1].seconds.steps, all[1].seconds.data, all[1].last_step), (5.0, 1.0, 150));
        assert!(all.iter().all(|run| run.seconds.total() == 15.0));
    }
}
