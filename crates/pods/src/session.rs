//! A worker's connection: starts the program if requested, and reports its events.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, ChildStdin};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::lines::{Line, Lines};
use crate::plan::{Plan, StartError, Worker};
use crate::ssh::{FOLLOW, RECONNECT_INTERVAL, Ssh, explain, script_message};

/// Progress bars are printed at most this often.
const OVERWRITTEN_INTERVAL: Duration = Duration::from_secs(1);

/// How many of the last lines of ssh's errors are kept.
pub(crate) const MAX_ERRORS: usize = 20;

/// An event of a worker.
pub(crate) enum Event {
    /// The program runs, and this is the connection to it. Output is read from this offset of the
    /// log.
    Opened(Connection, u64),
    /// A line of output, and how far the log has been read with it.
    Printed(String, u64),
    /// The state of its process, as `ps` shows it, and the line of its progress file, if there is one.
    Alive(char, String),
    /// The program has ended.
    Exited(u8),
    /// The program could not be started, for this reason, and a second attempt would not help.
    NotStarted(String),
    /// The program has ended or never ran, and its exit code is unknown, for this reason.
    Gone(String),
    /// The connection has ended, for this reason. The program may still run.
    Broken(String),
}

/// An event of a worker's attempt. Events of earlier attempts are ignored.
pub(crate) struct Message {
    pub(crate) worker: usize,
    pub(crate) attempt: u32,
    pub(crate) event: Event,
}

/// The connection to a program. Dropping it ends the connection.
pub(crate) struct Connection {
    child: Arc<Mutex<Child>>,
    input: ChildStdin,
}

impl Connection {
    /// Sends a line: the name of a signal, or a dot. A broken connection is reported by its end.
    pub(crate) fn send(&mut self, line: &str) {
        let _ = self.input.write_all(format!("{line}\n").as_bytes());
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let _ = self.child.lock().unwrap_or_else(PoisonError::into_inner).kill();
    }
}

/// One attempt of one worker.
#[derive(Clone)]
pub(crate) struct Session {
    ssh: Ssh,
    run: String,
    host: String,
    worker: usize,
    attempt: u32,
    /// Whether the program ends if the connection is lost for too long.
    ends_program: bool,
    events: SyncSender<Message>,
    /// Set to cancel a program that has not started.
    pub(crate) cancelled: Arc<AtomicBool>,
}

/// How to start a program.
pub(crate) struct StartOptions {
    pub(crate) plan: Arc<Plan>,
    pub(crate) worker: Worker,
    /// If set, resume from the last checkpoint, and retry an unreachable host until this time.
    pub(crate) resume: Option<Instant>,
}

impl Session {
    pub(crate) fn new(
        ssh: &Ssh,
        run: &str,
        worker: &Worker,
        attempt: u32,
        ends_program: bool,
        events: &SyncSender<Message>,
    ) -> Session {
        Session {
            ssh: ssh.clone(),
            run: run.to_owned(),
            host: worker.host.clone(),
            worker: worker.index,
            attempt,
            ends_program,
            events: events.clone(),
            cancelled: Arc::default(),
        }
    }

    /// Starts the program and follows it, on a new thread.
    pub(crate) fn start(self, start: StartOptions) {
        thread::spawn(move || {
            let resume = start.resume.is_some();
            loop {
                // The host may have come back with an empty disk.
                let ready =
                    if resume { start.plan.prepare(&start.worker.host).map(drop) } else { Ok(()) };
                let error = |reason| StartError { reason, is_unreachable: true };
                let started =
                    ready.map_err(error).and_then(|()| start.plan.start(&start.worker, resume));
                match started {
                    Ok(offset) => return self.follow(offset),
                    Err(error) if !error.is_unreachable => {
                        return self.send(Event::NotStarted(error.reason));
                    }
                    Err(error) if self.gives_up(start.resume) => {
                        return self.send(Event::Gone(error.reason));
                    }
                    Err(_) => thread::sleep(RECONNECT_INTERVAL),
                }
            }
        });
    }

    fn gives_up(&self, end: Option<Instant>) -> bool {
        self.cancelled.load(Ordering::Relaxed) || end.is_none_or(|end| Instant::now() >= end)
    }

    /// Follows the program from an offset of its log, on a new thread.
    pub(crate) fn open(self, offset: u64) {
        thread::spawn(move || self.follow(offset));
    }

    fn send(&self, event: Event) {
        // The receiver is gone once the run is over.
        let _ = self.events.send(Message { worker: self.worker, attempt: self.attempt, event });
    }

    /// The command that [`open`](Session::open) runs.
    pub(crate) fn command(&self, offset: u64) -> String {
        let ends_program = if self.ends_program { "1" } else { "0" };
        FOLLOW.command(&[
            self.run.as_str(),
            &self.worker.to_string(),
            &offset.to_string(),
            ends_program,
        ])
    }

    fn follow(&self, offset: u64) {
        let failed = |error: std::io::Error| self.send(Event::Gone(self.ssh.failure(&error)));
        // In its own process group, so that Ctrl-C in the terminal does not reach it.
        let mut child =
            match self.ssh.command(&self.host, &self.command(offset)).process_group(0).spawn() {
                Ok(child) => child,
                Err(error) => return failed(error),
            };
        let (Some(input), Some(out), Some(err)) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take())
        else {
            return;
        };
        let child = Arc::new(Mutex::new(child));
        self.send(Event::Opened(Connection { child: child.clone(), input }, offset));
        let mut end = None;
        let mut errors = VecDeque::new();
        let (rest, position) = thread::scope(|scope| {
            let reader = scope.spawn(|| self.read_output(BufReader::new(out), offset));
            for line in Lines::new(BufReader::new(err)).map(|line| line.text) {
                let words: Vec<&str> =
                    script_message(&line).unwrap_or_default().splitn(3, ' ').collect();
                match words.as_slice() {
                    ["alive", state, step] => {
                        self.send(Event::Alive(
                            state.chars().next().unwrap_or('?'),
                            (*step).to_owned(),
                        ));
                    }
                    ["exit", code] => {
                        let killed = || Event::Gone("its supervisor was killed".into());
                        end = Some(code.parse().map_or_else(|_| killed(), Event::Exited));
                    }
                    ["error", ..] => end = Some(Event::Gone(explain(None, &line))),
                    _ => {
                        errors.truncate(MAX_ERRORS - 1);
                        errors.push_front(line);
                    }
                }
            }
            reader.join().unwrap_or((None, offset))
        });
        // A line cut off by a lost connection is read again in full.
        if end.is_some()
            && let Some(line) = rest
        {
            self.send(Event::Printed(line.text, position + line.bytes));
        }
        let status = child.lock().unwrap_or_else(PoisonError::into_inner).wait();
        let code = status.ok().and_then(|status| status.code());
        let errors: Vec<String> = errors.into_iter().rev().collect();
        self.send(end.unwrap_or_else(|| Event::Broken(explain(code, &errors.join("\n")))));
    }

    /// Reports the lines of the log from an offset on, and returns the text after the last line and
    /// its offset. Of lines that overwrite each other, one a second is reported.
    fn read_output(&self, out: impl BufRead, offset: u64) -> (Option<Line>, u64) {
        let mut position = offset;
        let mut last_overwritten: Option<Instant> = None;
        let mut lines = Lines::new(out);
        for line in lines.by_ref() {
            position += line.bytes;
            if line.is_overwritten {
                let is_recent =
                    last_overwritten.is_some_and(|time| time.elapsed() < OVERWRITTEN_INTERVAL);
                if is_recent || line.text.is_empty() {
                    continue;
                }
                last_overwritten = Some(Instant::now());
            }
            self.send(Event::Printed(line.text, position));
        }
        (lines.rest(), position)
    }
}
