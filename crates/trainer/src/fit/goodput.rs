//! `goodput.json` in the run's folder: where the time went, in this run and in the runs that it
//! continues.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use fulmen_loggers::unix_seconds;
use serde::{Deserialize, Serialize};

use super::Fit;
use crate::checkpoint::runs;
use crate::{Goodput, Options};

const NAME: &str = "goodput.json";
/// Time between two writes within a run.
const INTERVAL: Duration = Duration::from_secs(10);

/// The content of the file: the runs, the oldest first.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Runs {
    runs: Vec<Run>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Run {
    /// Seconds since 1970.
    started: f64,
    ended: f64,
    /// The number of finished optimizer steps, at the beginning and at the end of the run.
    first_step: u64,
    last_step: u64,
    seconds: Goodput,
    /// The times of each process, in order, if there were several and the fit has ended. Those of
    /// process 0 are `seconds` too.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    hosts: Vec<Goodput>,
}

/// The file of a fit.
pub(super) struct GoodputFile {
    /// `None` if the run writes no files, or another process writes them.
    path: Option<PathBuf>,
    earlier_runs: Vec<Run>,
    started: f64,
    first_step: u64,
    last_write: Instant,
}

impl GoodputFile {
    /// The file of a run in this folder that begins at a step, from a checkpoint if there is one.
    pub(super) fn new(
        run_dir: Option<&Path>,
        first_step: u64,
        checkpoint: Option<&Path>,
        options: &Options,
    ) -> GoodputFile {
        let Runs { runs: mut earlier_runs } = checkpoint
            .and_then(|checkpoint| read_earlier_runs(run_dir, checkpoint, options))
            .unwrap_or_default();
        mark_lost(&mut earlier_runs, first_step);
        GoodputFile {
            path: run_dir.map(|folder| folder.join(NAME)),
            earlier_runs,
            started: unix_seconds(),
            first_step,
            last_write: Instant::now(),
        }
    }
}

/// The size limit of the file of an earlier run.
const MAX_BYTES: u64 = 64 << 20;

/// The file of the run that wrote a checkpoint. With a separate checkpoint folder, that is the
/// newest run with a file.
fn read_earlier_runs(run_dir: Option<&Path>, checkpoint: &Path, options: &Options) -> Option<Runs> {
    let read = |folder: &Path| {
        let bytes = fulmen_durable::read_regular(&folder.join(NAME), MAX_BYTES).ok()?;
        serde_json::from_slice(&bytes).ok()
    };
    if options.checkpoint_dir.as_os_str().is_empty() {
        return read(checkpoint.parent()?.parent()?);
    }
    runs(&options.default_root_dir)
        .ok()?
        .into_iter()
        .filter(|(_, folder)| Some(&**folder) != run_dir)
        .find_map(|(_, folder)| read(&folder))
}

/// Counts the steps after this one as lost.
fn mark_lost(runs: &mut [Run], step: u64) {
    for run in runs.iter_mut().rev().take_while(|run| run.last_step > step) {
        let steps = run.last_step - run.first_step;
        let lost = run.last_step - step.max(run.first_step);
        run.seconds.lose(lost as f64 / steps.max(1) as f64);
        run.last_step = step.max(run.first_step);
    }
}

impl Fit<'_> {
    /// Returns where the time went, including the earlier runs. The loggers' thread writes it to
    /// the file, at most every ten seconds unless `force` is set.
    pub(super) fn write_goodput(&mut self, force: bool) -> Goodput {
        let GoodputFile { path, earlier_runs, started, first_step, last_write } = &mut self.goodput;
        let seconds = self.session.clock.spent();
        let mut total = seconds;
        earlier_runs.iter().for_each(|run| total.add(&run.seconds));
        if let (Some(path), true) = (path, force || last_write.elapsed() > INTERVAL) {
            *last_write = Instant::now();
            let last_step = self.step.position.global_step;
            let run = Run {
                started: *started,
                ended: unix_seconds(),
                first_step: *first_step,
                last_step,
                seconds,
                hosts: self.hosts.iter().map(|host| host.seconds).collect(),
            };
            let runs = Runs { runs: earlier_runs.iter().cloned().chain([run]).collect() };
            let path = path.clone();
            self.session.loggers.run("goodput", move || {
                // If this fails, a later run doesn't include this one.
                let text = serde_json::to_vec(&runs).unwrap_or_default();
                let _ = fulmen_durable::write_unsynced(&path, Some(text.len() as u64), |file| {
                    file.write_all(&text)
                });
            });
        }
        total
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_steps_are_lost_in_each_run_that_made_them() {
        let run = |first_step, last_step| {
            let seconds = Goodput { compile: 3.0, steps: 10.0, data: 2.0, ..Goodput::default() };
            Run { started: 0.0, ended: 0.0, first_step, last_step, seconds, hosts: Vec::new() }
        };
        let mut runs = [run(0, 100), run(100, 200), run(200, 210)];
        mark_lost(&mut runs, 150);
        let lost: Vec<f64> = runs.iter().map(|run| run.seconds.lost).collect();
        assert_eq!(lost, [0.0, 6.0, 12.0]);
        assert_eq!(
            (runs[1].seconds.steps, runs[1].seconds.data, runs[1].last_step),
            (5.0, 1.0, 150)
        );
        assert!(runs.iter().all(|run| run.seconds.total() == 15.0));
    }
}
