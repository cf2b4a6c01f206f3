//! The program `gcloud`: each call is printed as a shell command.

use std::collections::HashSet;
use std::io::{self, Write};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread;
use std::time::Duration;

use fulmen_durable::messages::quote;
use fulmen_signals::{ProcessOutput, Signal, wait_with_output};

use crate::{Error, Result};

/// The time-outs of a query and of a change.
const QUERY_TIMEOUT: Duration = Duration::from_secs(180);
const CHANGE_TIMEOUT: Duration = Duration::from_secs(1800);

/// gcloud's warning that a list is not whole. It exits with 0 then.
const PARTIAL: &str = "Some requests did not succeed";

/// The output of a call.
#[derive(Clone, Debug, Default)]
pub(crate) struct CommandOutput {
    pub(crate) ok: bool,
    pub(crate) out: String,
    pub(crate) err: String,
}

/// Runs commands of gcloud.
pub(crate) trait CommandRunner {
    /// Calls `gcloud` for at most `limit`; stops early once `interrupted` returns true.
    fn call(
        &self,
        words: &[String],
        limit: Duration,
        interrupted: &mut dyn FnMut() -> bool,
    ) -> CommandOutput;

    /// Calls `gcloud` attached to this process's terminal, and returns its exit code.
    ///
    /// # Errors
    /// The program cannot be started.
    fn call_attached(&self, words: &[String]) -> io::Result<u8>;
}

/// The program `gcloud` on this machine.
pub(crate) struct Gcloud(pub(crate) PathBuf);

impl Default for Gcloud {
    fn default() -> Gcloud {
        Gcloud("gcloud".into())
    }
}

impl CommandRunner for Gcloud {
    fn call(
        &self,
        words: &[String],
        limit: Duration,
        interrupted: &mut dyn FnMut() -> bool,
    ) -> CommandOutput {
        let mut command = Command::new(&self.0);
        command.args(words).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // In its own process group, so that Ctrl-C in the terminal does not reach it.
        command.process_group(0);
        let mut child = match command.spawn() {
            Ok(child) => child,
            Err(error) => {
                let err = format!("the program gcloud: {error}; install the Google Cloud CLI");
                return CommandOutput { err, ..CommandOutput::default() };
            }
        };
        match wait_with_output(&mut child, limit, interrupted) {
            ProcessOutput { status: Some(status), out, err } => {
                CommandOutput { ok: status.success(), out, err }
            }
            ProcessOutput { out, .. } => {
                let err = if interrupted() {
                    "interrupted".to_owned()
                } else {
                    format!("no answer in {limit:?}")
                };
                CommandOutput { ok: false, out, err }
            }
        }
    }

    fn call_attached(&self, words: &[String]) -> io::Result<u8> {
        let status = Command::new(&self.0).args(words).status()?;
        Ok(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
    }
}

impl CommandOutput {
    /// # Errors
    /// gcloud's error message.
    pub(crate) fn result(self) -> Result<String> {
        if self.ok && !self.err.contains(PARTIAL) {
            return Ok(self.out);
        }
        let lines: Vec<&str> =
            self.err.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        // Earlier lines are warnings.
        let first = lines
            .iter()
            .position(|line| line.starts_with("ERROR") || line.contains(PARTIAL))
            .unwrap_or(lines.len().saturating_sub(3));
        let text = lines[first..].iter().take(6).copied().collect::<Vec<_>>().join(" ");
        Err(Error::new(if text.is_empty() {
            "gcloud failed without a message".to_owned()
        } else {
            text
        }))
    }
}

/// When and how often to query gcloud.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PollPolicy {
    /// The pause between queries.
    pub(crate) pause: Duration,
    /// The maximum number of queries.
    pub(crate) attempts: u64,
    /// The number of queries in which something must be absent to count as gone.
    pub(crate) required_absences: u64,
}

impl Default for PollPolicy {
    fn default() -> PollPolicy {
        PollPolicy { pause: Duration::from_secs(15), attempts: 20, required_absences: 3 }
    }
}

/// The context of a command: gcloud, the output, and signals.
pub(crate) struct Tool<'a> {
    pub(crate) gcloud: &'a dyn CommandRunner,
    pub(crate) out: &'a mut dyn Write,
    pub(crate) log: &'a mut dyn Write,
    pub(crate) signals: &'a Receiver<Signal>,
    pub(crate) poll_policy: PollPolicy,
    /// Whether only Ctrl-C counts as a signal. A closed terminal must not abort a deletion.
    pub(crate) only_interrupt: bool,
    /// The commands of queries that were printed.
    printed_commands: HashSet<String>,
}

impl<'a> Tool<'a> {
    pub(crate) fn new(
        gcloud: &'a dyn CommandRunner,
        out: &'a mut dyn Write,
        log: &'a mut dyn Write,
        signals: &'a Receiver<Signal>,
        poll_policy: PollPolicy,
    ) -> Tool<'a> {
        Tool {
            gcloud,
            out,
            log,
            signals,
            poll_policy,
            only_interrupt: false,
            printed_commands: HashSet::new(),
        }
    }

    /// Prints a result. The work continues even if the output is closed.
    pub(crate) fn print(&mut self, line: &str) {
        let _ = writeln!(self.out, "{line}");
    }

    /// Prints progress.
    pub(crate) fn progress(&mut self, line: &str) {
        let _ = writeln!(self.log, "{line}");
        let _ = self.log.flush();
    }

    /// Runs a query. The command is printed once.
    ///
    /// # Errors
    /// gcloud's error.
    pub(crate) fn ask(&mut self, words: &[String]) -> Result<String> {
        let line = shell_line(words);
        if self.printed_commands.insert(line.clone()) {
            self.progress(&format!("$ {line}"));
        }
        self.gcloud.call(words, QUERY_TIMEOUT, &mut || false).result()
    }

    /// Runs a command that changes something, and does not stop for a signal.
    ///
    /// # Errors
    /// gcloud's error.
    pub(crate) fn change(&mut self, words: &[String]) -> Result<String> {
        self.progress(&format!("$ {}", shell_line(words)));
        self.gcloud.call(words, CHANGE_TIMEOUT, &mut || false).result()
    }

    /// Runs a command that changes something, until a signal arrives. After a signal, it is unknown
    /// whether the change happened.
    ///
    /// # Errors
    /// gcloud's error.
    pub(crate) fn change_until_signal(
        &mut self,
        words: &[String],
    ) -> std::result::Result<String, Stop> {
        self.progress(&format!("$ {}", shell_line(words)));
        let mut received = None;
        let output = self.gcloud.call(words, CHANGE_TIMEOUT, &mut || {
            received = received.or_else(|| self.accept_signal(self.signals.try_recv().ok()));
            received.is_some()
        });
        match received {
            Some(signal) => Err(Stop::Signal(signal)),
            None => Ok(output.result()?),
        }
    }

    fn accept_signal(&self, signal: Option<Signal>) -> Option<Signal> {
        signal.filter(|&signal| signal == Signal::Interrupt || !self.only_interrupt)
    }

    /// Waits for a moment, or until a signal arrives.
    pub(crate) fn pause(&mut self) -> Option<Signal> {
        match self.signals.recv_timeout(self.poll_policy.pause) {
            Ok(signal) => self.accept_signal(Some(signal)),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => {
                thread::sleep(self.poll_policy.pause);
                None
            }
        }
    }
}

/// Why something was not completed.
#[derive(Debug)]
pub(crate) enum Stop {
    Failed(Error),
    Signal(Signal),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Stop {
        Stop::Failed(error)
    }
}

impl Stop {
    pub(crate) fn text(&self) -> String {
        match self {
            Stop::Failed(error) => format!("error: {error}"),
            Stop::Signal(signal) => format!("{signal}"),
        }
    }

    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Stop::Failed(_) => 1,
            Stop::Signal(signal) => signal.exit_code(),
        }
    }
}

/// The command as shell input.
pub(crate) fn shell_line(words: &[String]) -> String {
    words.iter().fold("gcloud".to_owned(), |line, word| line + " " + &quote(word))
}
