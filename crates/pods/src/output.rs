//! [`Output`]: the lines that a run prints. One thread prints them, others add them. A terminal or a
//! pager that is not read does not stop the watch over the workers.

use std::collections::{BTreeMap, VecDeque};
use std::io::Write;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use fulmen_durable::messages::{quantity, size};

/// How many bytes of the workers' lines wait in memory. The hosts keep all of them.
const LIMIT: usize = 8 << 20;

/// What to do with a worker's line if too many wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WhenFull {
    /// Count it. The host keeps it.
    Skip,
    /// Wait until there is space.
    Wait,
}

/// The lines to print.
#[derive(Clone)]
pub(crate) struct Output {
    run: String,
    when_full: WhenFull,
    shared: Arc<Shared>,
}

/// Closes an output when it is dropped.
pub(crate) struct CloseOnDrop(Output);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.0.close();
    }
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Default)]
struct Queue {
    lines: VecDeque<String>,
    bytes: usize,
    /// The lines that found no space, by worker.
    skipped: BTreeMap<usize, Skipped>,
    is_closed: bool,
}

#[derive(Clone, Copy, Default)]
struct Skipped {
    lines: u64,
    bytes: u64,
}

impl Queue {
    fn push(&mut self, line: String) {
        self.bytes += line.len();
        self.lines.push_back(line);
    }

    /// Adds a line about the lines that were skipped.
    fn report_skipped(&mut self, run: &str) {
        for (worker, Skipped { lines, bytes }) in std::mem::take(&mut self.skipped) {
            let lines = quantity(lines, "line");
            self.push(format!(
                "[pod] {lines} ({}) of worker {worker} were not printed, because this output was not read. \
                 To see them: fulmen pod logs {run}",
                size(bytes)
            ));
        }
    }
}

impl Output {
    pub(crate) fn new(run: &str, when_full: WhenFull) -> Output {
        Output { run: run.to_owned(), when_full, shared: Arc::default() }
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.shared.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a message of this program.
    pub(crate) fn note(&self, text: String) {
        self.queue().push(text);
        self.shared.changed.notify_all();
    }

    /// Adds a line of a worker.
    pub(crate) fn line(&self, worker: usize, text: &str) {
        let mut queue = self.queue();
        while self.when_full == WhenFull::Wait && queue.bytes > LIMIT {
            queue = self.shared.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
        if self.when_full == WhenFull::Skip && queue.bytes + text.len() > LIMIT {
            let skipped = queue.skipped.entry(worker).or_default();
            skipped.lines += 1;
            skipped.bytes += text.len() as u64;
            return;
        }
        queue.report_skipped(&self.run);
        queue.push(format!("[worker {worker}] {text}"));
        self.shared.changed.notify_all();
    }

    /// Once the returned value is dropped, no more lines will be added.
    pub(crate) fn close_on_drop(&self) -> CloseOnDrop {
        CloseOnDrop(self.clone())
    }

    fn close(&self) {
        let mut queue = self.queue();
        queue.report_skipped(&self.run);
        queue.is_closed = true;
        self.shared.changed.notify_all();
    }

    /// Prints lines until the output is closed and all are printed.
    pub(crate) fn print_to(&self, out: &mut dyn Write) {
        loop {
            let mut queue = self.queue();
            while queue.lines.is_empty() && !queue.is_closed {
                queue = self.shared.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
            }
            let Some(line) = queue.lines.pop_front() else { return };
            queue.bytes -= line.len();
            drop(queue);
            self.shared.changed.notify_all();
            print_line(out, &line);
        }
    }
}

/// Prints a line for the user. The run continues even if the output is closed.
pub(crate) fn print_line(out: &mut dyn Write, line: &str) {
    let _ = writeln!(out, "{line}");
    let _ = out.flush();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_are_not_read_are_counted_and_memory_is_bounded() {
        let output = Output::new("r1", WhenFull::Skip);
        let line = "x".repeat(1 << 20);
        for _ in 0..20 {
            output.line(2, &line);
        }
        output.note("[pod] still here".into());
        assert!(output.queue().bytes <= LIMIT + 100, "{}", output.queue().bytes);
        output.close();
        let mut printed = Vec::new();
        output.print_to(&mut printed);
        let printed = String::from_utf8(printed).unwrap();
        let kept = printed.matches("[worker 2] x").count();
        let skipped = 20 - kept;
        let expected = format!(
            "[pod] still here\n[pod] {skipped} lines ({}) of worker 2 were not printed, because this output was not \
             read. To see them: fulmen pod logs r1\n",
            size((skipped as u64) << 20)
        );
        assert!(kept >= 7 && printed.ends_with(&expected), "{kept}");
    }

    #[test]
    fn lines_follow_once_the_output_is_read_again() {
        let output = Output::new("r1", WhenFull::Skip);
        let line = "x".repeat(LIMIT);
        output.line(0, &line);
        output.line(0, "lost");
        let first = output.queue().lines.pop_front();
        assert!(first.is_some_and(|first| first.ends_with('x')));
        output.queue().bytes = 0;
        output.line(0, "next");
        let lines: Vec<String> = output.queue().lines.iter().cloned().collect();
        assert!(lines[0].starts_with("[pod] 1 line (4 bytes) of worker 0"), "{lines:?}");
        assert_eq!(lines[1], "[worker 0] next");
    }
}
