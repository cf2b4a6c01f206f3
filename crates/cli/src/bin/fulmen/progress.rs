//! Shows progress: a bar on a terminal, otherwise a line from time to time.
//!
//! Out of scope: the work that is in progress.

use std::io::{IsTerminal, Write, stderr};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use fulmen_cli::pack::Progress;
use fulmen_durable::messages::{duration, size};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// The time between two lines, if there is no terminal.
const LINE_INTERVAL: Duration = Duration::from_secs(10);

/// Shows progress on the standard error stream.
pub(crate) struct Reporter {
    terminal: bool,
    task: Mutex<Task>,
}

/// The current task.
struct Task {
    work: String,
    bar: ProgressBar,
    /// When the last line was written.
    last_line: Instant,
}

impl Reporter {
    pub(crate) fn new() -> Reporter {
        let task =
            Task { work: String::new(), bar: ProgressBar::hidden(), last_line: Instant::now() };
        Reporter { terminal: stderr().is_terminal(), task: Mutex::new(task) }
    }

    fn task(&self) -> MutexGuard<'_, Task> {
        self.task.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Progress for Reporter {
    fn begin(&self, work: &str, total: u64) {
        let mut task = self.task();
        task.bar.finish_and_clear();
        task.work = work.to_owned();
        task.last_line = Instant::now();
        // The bar is also used without a terminal, where it is hidden, because it counts and
        // measures.
        task.bar = if self.terminal {
            ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr())
        } else {
            ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::hidden())
        };
        let style = "{msg} [{wide_bar}] {bytes}/{total_bytes} {bytes_per_sec} {eta}";
        if total == 0 {
            task.bar.set_style(
                ProgressStyle::with_template("{msg} {spinner}").unwrap_or_else(|_| plain()),
            );
            task.bar.enable_steady_tick(Duration::from_millis(200));
        } else {
            task.bar.set_style(ProgressStyle::with_template(style).unwrap_or_else(|_| plain()));
        }
        task.bar.set_message(work.to_owned());
        if !self.terminal {
            say(work);
        }
    }

    fn advance(&self, by: u64) {
        let mut task = self.task();
        task.bar.inc(by);
        if !self.terminal && task.last_line.elapsed() >= LINE_INTERVAL {
            task.last_line = Instant::now();
            let done = task.bar.position();
            let total = task.bar.length().unwrap_or(0);
            let remaining = task.bar.eta().as_secs_f64().ceil();
            say(&format!(
                "{}: {} of {}, {} left",
                task.work,
                size(done),
                size(total),
                duration(remaining)
            ));
        }
    }

    fn note(&self, text: &str) {
        if self.terminal { self.task().bar.println(text) } else { say(text) }
    }
}

impl Drop for Reporter {
    fn drop(&mut self) {
        self.task().bar.finish_and_clear();
    }
}

fn plain() -> ProgressStyle {
    ProgressStyle::default_bar()
}

/// Writes a line to standard error. If standard error is closed, the work continues.
fn say(line: &str) {
    let _ = writeln!(stderr(), "{line}");
}
