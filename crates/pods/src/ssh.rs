//! Runs scripts on hosts through the program `ssh`, or on this machine without it.

use std::fs::File;
use std::io::Write;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fulmen_durable::messages::quote;
use fulmen_signals::wait_with_output;

/// A script, including the common prologue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Script(&'static str);

const PROLOGUE: &str = include_str!("scripts/common.sh");
pub(crate) const CHECK: Script = Script(include_str!("scripts/check.sh"));
pub(crate) const COPY: Script = Script(include_str!("scripts/copy.sh"));
pub(crate) const START: Script = Script(include_str!("scripts/start.sh"));
pub(crate) const SUPERVISE: Script = Script(include_str!("scripts/supervise.sh"));
pub(crate) const LIBTPU: Script = Script(include_str!("scripts/libtpu.sh"));
pub(crate) const FOLLOW: Script = Script(include_str!("scripts/follow.sh"));
pub(crate) const SIGNAL: Script = Script(include_str!("scripts/signal.sh"));
pub(crate) const STATUS: Script = Script(include_str!("scripts/status.sh"));
pub(crate) const EXEC: Script = Script(include_str!("scripts/exec.sh"));
pub(crate) const LOGS: Script = Script(include_str!("scripts/logs.sh"));

/// The prefix of a script's lines for this program.
const MESSAGE_PREFIX: &str = "fulmen-pod: ";

impl Script {
    pub(crate) fn text(self) -> String {
        format!("{PROLOGUE}\n{}", self.0)
    }

    /// The text without its comments, for a manifest.
    pub(crate) fn short_text(self) -> String {
        let text = self.text();
        let is_code = |line: &&str| !line.is_empty() && !line.trim_start().starts_with('#');
        text.lines().filter(is_code).collect::<Vec<_>>().join("\n")
    }

    /// The command for the host's shell.
    pub(crate) fn command(self, arguments: &[impl AsRef<str>]) -> String {
        let arguments: Vec<String> =
            arguments.iter().map(|a| format!(" {}", quote(a.as_ref()))).collect();
        format!("exec bash -c {} fulmen-pod{}", quote(&self.text()), arguments.concat())
    }
}

/// The message of a script to this program, in a line of its standard error.
pub(crate) fn script_message(line: &str) -> Option<&str> {
    line.strip_prefix(MESSAGE_PREFIX)
}

/// How to reach hosts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ssh {
    /// The user's options. They precede the defaults, and ssh uses the first value of an option.
    pub(crate) options: Vec<String>,
    /// Whether the only host is this machine, where a shell replaces `ssh`.
    pub(crate) is_local: bool,
    /// Once set, [queries](Ssh::ask) end without an answer.
    pub(crate) cancelled: Arc<AtomicBool>,
}

/// The options that every connection uses. Nobody can answer questions of ssh, so it asks none. It
/// detects dead connections. It starts no control master, which would keep the standard error open.
const DEFAULT_OPTIONS: [&str; 5] = [
    "-oBatchMode=yes",
    "-oConnectTimeout=10",
    "-oServerAliveInterval=5",
    "-oServerAliveCountMax=3",
    "-oControlMaster=no",
];

/// The pause between two attempts to reach a host.
pub(crate) const RECONNECT_INTERVAL: Duration = Duration::from_secs(1);

/// The exit code of `ssh` if it cannot reach the host.
const SSH_FAILED: i32 = 255;

/// The standard input of a command.
pub(crate) enum Input<'a> {
    Text(&'a str),
    /// Empty, and open until the answer has arrived, so that a script can detect that nobody waits
    /// for it any longer.
    Open,
    File(File),
}

/// The output of a finished command.
#[derive(Debug)]
pub(crate) struct CommandOutput {
    /// The exit code. `None` if a signal or the time-out ended the command.
    pub(crate) code: Option<i32>,
    /// Whether `ssh` could not be started on this machine.
    pub(crate) is_ssh_missing: bool,
    pub(crate) out: String,
    pub(crate) err: String,
}

impl Ssh {
    /// The program that reaches a host.
    fn program(&self) -> &'static str {
        if self.is_local { "sh" } else { "ssh" }
    }

    fn arguments(&self, host: &str, remote: &str) -> Vec<String> {
        if self.is_local {
            return vec!["-c".into(), remote.into()];
        }
        let options = self.options.iter().cloned().chain(DEFAULT_OPTIONS.map(str::to_owned));
        options.chain(["--".into(), host.into(), remote.into()]).collect()
    }

    /// The same, with compressed connections.
    pub(crate) fn compressing(&self) -> Ssh {
        let mut options = self.options.clone();
        options.push("-oCompression=yes".into());
        Ssh { options, ..self.clone() }
    }

    /// The command as shell input.
    pub(crate) fn shell_line(&self, host: &str, remote: &str) -> String {
        let words: Vec<String> =
            self.arguments(host, remote).iter().map(|word| quote(word)).collect();
        format!("{} {}", self.program(), words.join(" "))
    }

    pub(crate) fn command(&self, host: &str, remote: &str) -> Command {
        let mut command = Command::new(self.program());
        command.args(self.arguments(host, remote));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// The message if the program that reaches a host cannot be run.
    pub(crate) fn failure(&self, error: &std::io::Error) -> String {
        format!("the program {}: {error}", self.program())
    }

    /// Runs a command on a host for at most `limit`.
    pub(crate) fn ask(
        &self,
        host: &str,
        remote: &str,
        input: Input,
        limit: Duration,
    ) -> CommandOutput {
        let failed = |e: std::io::Error| CommandOutput {
            code: None,
            is_ssh_missing: true,
            out: String::new(),
            err: self.failure(&e),
        };
        let mut command = self.command(host, remote);
        // In its own process group, so that Ctrl-C in the terminal does not reach it.
        command.process_group(0);
        let text = match &input {
            Input::Text(text) => text,
            Input::Open | Input::File(_) => "",
        };
        let stays_open = matches!(input, Input::Open);
        if let Input::File(file) = input {
            command.stdin(file);
        }
        let mut child = match command.spawn() {
            Ok(child) => child,
            Err(error) => return failed(error),
        };
        let mut stdin = child.stdin.take();
        if let Some(stdin) = &mut stdin {
            // Ignore a failure here: if the host is gone, the exit code shows it.
            let _ = stdin.write_all(text.as_bytes());
        }
        let open = stdin.filter(|_| stays_open);
        let output =
            wait_with_output(&mut child, limit, &mut || self.cancelled.load(Ordering::Relaxed));
        drop(open);
        let err = match output.status {
            Some(_) => output.err,
            None => format!("no answer within {} s\n{}", limit.as_secs(), output.err),
        };
        CommandOutput {
            code: output.status.and_then(|status| status.code()),
            is_ssh_missing: false,
            out: output.out,
            err,
        }
    }
}

impl CommandOutput {
    /// Whether a command failed because its host did not answer, so that it may succeed later.
    pub(crate) fn is_unreachable(&self) -> bool {
        !self.is_ssh_missing && matches!(self.code, None | Some(SSH_FAILED))
    }

    /// The standard output of a successful command.
    ///
    /// # Errors
    /// A one-line description of the failure, with advice if there is some.
    pub(crate) fn result(self) -> Result<String, String> {
        match self.code {
            Some(0) => Ok(self.out),
            code => Err(explain(code, &self.err)),
        }
    }
}

/// Why a command failed, from its standard error.
pub(crate) fn explain(code: Option<i32>, err: &str) -> String {
    let lines: Vec<&str> = err
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .map(|l| script_message(l).map_or(l, |l| l.strip_prefix("error ").unwrap_or(l)))
        .collect();
    let text = match lines.as_slice() {
        // With `LogLevel ERROR`, ssh does not say that a connection was lost.
        [] if code == Some(SSH_FAILED) => {
            "ssh could not connect, or lost the connection (its exit code is 255, without a message)"
                .to_owned()
        }
        [] => code.map_or("it was terminated".to_owned(), |code| format!("exit code {code}")),
        lines => lines[lines.len().saturating_sub(3)..].join("; "),
    };
    let known_errors = [
        (
            "Host key verification failed",
            "connect once with `ssh` yourself, or pass --ssh-option StrictHostKeyChecking=accept-new",
        ),
        (
            "Permission denied (",
            "give your key to the host, or to ssh with --ssh-option IdentityFile=PATH",
        ),
        (
            "No space left on device",
            "free space in its home directory, for example in ~/.fulmen/pods",
        ),
    ];
    let advice = known_errors.iter().find(|row| text.contains(row.0));
    text + &advice.map(|row| format!("; {}", row.1)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_users_options_come_before_the_defaults() {
        let ssh = Ssh { options: vec!["-oConnectTimeout=3".into()], ..Ssh::default() };
        let words = ssh.arguments("host-a", "ls");
        let position = |word: &str| words.iter().position(|w| w == word).unwrap();
        assert!(position("-oConnectTimeout=3") < position("-oConnectTimeout=10"), "{words:?}");
        assert_eq!(words[words.len() - 3..], ["--", "host-a", "ls"]);
    }

    #[test]
    fn a_failure_is_one_line_with_advice() {
        let text = explain(Some(1), "fulmen-pod: error /ready does not exist after 3 s\n");
        assert_eq!(text, "/ready does not exist after 3 s");
        assert_eq!(explain(Some(3), " \n"), "exit code 3");
        let text = explain(Some(255), "");
        assert!(text.starts_with("ssh could not connect, or lost the connection"), "{text}");
        let text = explain(Some(255), "Host key verification failed.\r\n");
        assert!(text.contains("accept-new"), "{text}");
    }
}
