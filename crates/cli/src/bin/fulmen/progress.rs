//! Progress: a bar on a terminal, otherwise a line from time to time.
//!
//! Out of scope: the work.

use std::io::{IsTerminal, Write, stderr};
use std::sync::{Mutex, MutexGuard};
use std::time::{Duration, Instant};

use fulmen_cli::prepare::Progress;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// The time between lines without a terminal.
const EVERY: Duration = Duration::from_secs(10);

/// Shows progress on the standard error stream.
pub(crate) struct Reporter {
    terminal: bool,
    now: Mutex<Now>,
}

/// The current task.
struct Now {
    work: String,
    bar: ProgressBar,
    /// When the last line was written.
    last_line: Instant,
}

impl Reporter {
    pub(crate) fn new() -> Reporter {
        let now =
            Now { work: String::new(), bar: ProgressBar::hidden(), last_line: Instant::now() };
        Reporter { terminal: stderr().is_terminal(), now: Mutex::new(now) }
    }

    fn now(&self) -> MutexGuard<'_, Now> {
        self.now.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Progress for Reporter {
    fn begin(&self, work: &str, total: u64) {
        let mut now = self.now();
        now.bar.finish_and_clear();
        now.work = work.to_owned();
        now.last_line = Instant::now();
        // A hidden bar also counts and measures.
        now.bar = if self.terminal {
            ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::stderr())
        } else {
            ProgressBar::with_draw_target(Some(total), ProgressDrawTarget::hidden())
        };
        let style = "{msg} [{wide_bar}] {bytes}/{total_bytes} {bytes_per_sec} {eta}";
        if total == 0 {
            now.bar.set_style(
                ProgressStyle::with_template("{msg} {spinner}").unwrap_or_else(|_| plain()),
            );
            now.bar.enable_steady_tick(Duration::from_millis(200));
        } else {
            now.bar.set_style(ProgressStyle::with_template(style).unwrap_or_else(|_| plain()));
        }
        now.bar.set_message(work.to_owned());
        if !self.terminal {
            say(work);
        }
    }

    fn advance(&self, by: u64) {
        let mut now = self.now();
        now.bar.inc(by);
        if !self.terminal && now.last_line.elapsed() >= EVERY {
            now.last_line = Instant::now();
            let (done, total) = (now.bar.position(), now.bar.length().unwrap_or(0));
            let left = now.bar.eta().as_secs();
            say(&format!(
                "{}: {:.1} of {:.1} GB, {left} s left",
                now.work,
                done as f64 / 1e9,
                total as f64 / 1e9
            ));
        }
    }

    fn note(&self, text: &str) {
        if self.terminal { self.now().bar.println(text) } else { say(text) }
    }
}

impl Drop for Reporter {
    fn drop(&mut self) {
        self.now().bar.finish_and_clear();
    }
}

fn plain() -> ProgressStyle {
    ProgressStyle::default_bar()
}

/// Writes a line. If the output is closed, the work continues.
fn say(line: &str) {
    let _ = writeln!(stderr(), "{line}");
}
