//! The program `gcloud`: each call is printed as a shell command.

use std::collections::HashSet;
use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use fulmen_signals::Signal;

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

/// The output of a process, and how it ended.
#[derive(Debug)]
pub struct ProcessOutput {
    /// The exit status. `None` if the process was killed here.
    pub status: Option<ExitStatus>,
    /// Its standard output, if it was piped.
    pub out: String,
    /// Its standard error, if it was piped.
    pub err: String,
}

/// Reads the output of a process until it ends. Kills it after `limit`, or once `interrupted`
/// returns true.
///
/// ```
/// use std::process::{Child, Command, ExitStatus, Stdio};
/// use std::time::Duration;
///
/// let mut child = Command::new("echo").arg("ready").stdout(Stdio::piped()).spawn()?;
/// let output = fulmen_gcloud::wait_with_output(&mut child, Duration::from_secs(60), &mut || false);
/// assert_eq!((output.status.map(|status| status.success()), output.out.as_str()), (Some(true), "ready\n"));
/// # Ok::<(), std::io::Error>(())
/// ```
pub fn wait_with_output(
    child: &mut Child,
    limit: Duration,
    interrupted: &mut dyn FnMut() -> bool,
) -> ProcessOutput {
    let out = child.stdout.take();
    let err = child.stderr.take();
    thread::scope(|scope| {
        let out = scope.spawn(|| read_text(out));
        let err = scope.spawn(|| read_text(err));
        let end = Instant::now() + limit;
        let status = loop {
            match child.try_wait() {
                Ok(Some(status)) => break Some(status),
                Ok(None) if Instant::now() < end && !interrupted() => {
                    thread::sleep(Duration::from_millis(20))
                }
                Ok(None) | Err(_) => {
                    let _ = child.kill();
                    let _ = child.wait();
                    break None;
                }
            }
        };
        ProcessOutput {
            status,
            out: out.join().unwrap_or_default(),
            err: err.join().unwrap_or_default(),
        }
    })
}

fn read_text(pipe: Option<impl Read>) -> String {
    let mut bytes = Vec::new();
    // Output read before a failure still counts.
    let _ = pipe.map(|mut pipe| pipe.read_to_end(&mut bytes));
    String::from_utf8_lossy(&bytes).into_owned()
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

/// Quotes the text as one word for a POSIX shell.
///
/// ```
/// assert_eq!(fulmen_gcloud::quote("it's"), r"'it'\''s'");
/// assert_eq!(fulmen_gcloud::quote("--lr=0.1"), "--lr=0.1");
/// ```
pub fn quote(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,@%+".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shell_reads_quoted_words_as_they_were() {
        for word in ["a", "", "it's", "a b", "$HOME `x` \\ \"y\"\n*", "--lr=0.1"] {
            let output = Command::new("sh")
                .args(["-c", &format!("printf %s {}", quote(word))])
                .output()
                .unwrap();
            assert_eq!(String::from_utf8(output.stdout).unwrap(), word);
        }
    }
}
