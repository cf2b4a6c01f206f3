//! `pod exec`: runs a command on all hosts at the same time.

use std::io::{BufReader, Read, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::ChildStdin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use fulmen_signals::Signal;

use crate::arguments::Exec;
use crate::lines::Lines;
use crate::output::print_line;
use crate::plan::Worker;
use crate::providers::Providers;
use crate::ssh::{EXEC, Ssh};
use crate::{Error, Result};

/// How many lines may wait to be printed. The commands wait for space.
const MAX_EVENTS: usize = 256;

/// An event of a command on a host.
enum Event {
    Line { worker: usize, text: String },
    Exit { worker: usize, code: u8 },
}

/// Runs the command and returns the exit code of the first host where it failed.
pub(crate) fn exec(
    arguments: &Exec,
    providers: &Providers,
    out: &mut dyn std::io::Write,
    signals: impl FnOnce() -> Result<Receiver<Signal>>,
) -> Result<u8> {
    let (hosts, ssh) = arguments.targets.resolve_named(providers, "")?;
    let command = EXEC.command(&arguments.command);
    if arguments.dry_run {
        hosts.iter().for_each(|host| print_line(out, &ssh.shell_line(host, &command)));
        return Ok(0);
    }
    let signals = signals()?;
    let (send, events) = sync_channel(MAX_EVENTS);
    let mut inputs = Vec::new();
    for (worker, host) in hosts.iter().enumerate() {
        inputs.push(start(&ssh, worker, host, &command, &send)?);
    }
    drop(send);
    let has_ended = AtomicBool::new(false);
    let codes = thread::scope(|scope| {
        scope.spawn(|| forward(signals, inputs, &has_ended));
        let codes = print(&events, hosts.len(), out);
        has_ended.store(true, Ordering::Relaxed);
        codes
    });
    for (worker, code) in codes.iter().enumerate().filter(|(_, code)| **code != 0) {
        print_line(
            out,
            &format!("[pod] {} exited with code {code}", Worker::existing(worker, &hosts[worker])),
        );
    }
    Ok(codes.into_iter().find(|code| *code != 0).unwrap_or(0))
}

/// Starts the command on a host, and returns its standard input, which takes names of signals.
fn start(
    ssh: &Ssh,
    worker: usize,
    host: &str,
    command: &str,
    send: &SyncSender<Event>,
) -> Result<Option<ChildStdin>> {
    let failed = |e| Error::new(ssh.failure(&e));
    // In its own process group, so that Ctrl-C in the terminal does not reach it.
    let mut child = ssh.command(host, command).process_group(0).spawn().map_err(failed)?;
    let input = child.stdin.take();
    let send = send.clone();
    thread::spawn(move || {
        let out = child.stdout.take();
        let err = child.stderr.take();
        thread::scope(|scope| {
            scope.spawn(|| send_lines(out, worker, &send));
            send_lines(err, worker, &send);
        });
        let status = child.wait().ok();
        let code = status.and_then(|status| status.code()).and_then(|code| u8::try_from(code).ok());
        let _ = send.send(Event::Exit { worker, code: code.unwrap_or(1) });
    });
    Ok(input)
}

fn send_lines(pipe: Option<impl Read>, worker: usize, send: &SyncSender<Event>) {
    let Some(pipe) = pipe else { return };
    let mut lines = Lines::new(BufReader::new(pipe));
    for line in lines.by_ref() {
        let _ = send.send(Event::Line { worker, text: line.text });
    }
    if let Some(line) = lines.rest() {
        let _ = send.send(Event::Line { worker, text: line.text });
    }
}

/// Forwards the signals of the user to all commands; a repeated Ctrl-C kills them.
fn forward(signals: Receiver<Signal>, mut inputs: Vec<Option<ChildStdin>>, has_ended: &AtomicBool) {
    let mut is_repeated = false;
    while !has_ended.load(Ordering::Relaxed) {
        let Ok(signal) = signals.try_recv() else {
            thread::sleep(Duration::from_millis(50));
            continue;
        };
        let name = match signal {
            Signal::Interrupt if is_repeated => "KILL",
            Signal::Interrupt => "INT",
            Signal::Terminate | Signal::HangUp => "TERM",
        };
        is_repeated = true;
        for input in inputs.iter_mut().flatten() {
            // A broken connection is reported by its end.
            let _ = input.write_all(format!("{name}\n").as_bytes());
        }
    }
}

/// Prints the lines of all commands, and returns their exit codes.
fn print(events: &Receiver<Event>, hosts: usize, out: &mut dyn std::io::Write) -> Vec<u8> {
    let mut codes = vec![0; hosts];
    for event in events {
        match event {
            Event::Line { worker, text } => print_line(out, &format!("[worker {worker}] {text}")),
            Event::Exit { worker, code } => codes[worker] = code,
        }
    }
    codes
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_signal_whose_name_arrives_in_pieces_is_not_lost() {
        let program = ["sh", "-c", "echo begun; sleep 30"];
        let mut child = Command::new("sh")
            .args(["-c", &EXEC.command(&program)])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut begun = [0; 6];
        child.stdout.as_mut().unwrap().read_exact(&mut begun).unwrap();
        // The script reads for a fifth of a second at a time.
        let mut input = child.stdin.take().unwrap();
        input.write_all(b"TE").unwrap();
        thread::sleep(Duration::from_millis(700));
        input.write_all(b"RM\n").unwrap();
        assert_eq!(child.wait().unwrap().code(), Some(143));
    }
}
