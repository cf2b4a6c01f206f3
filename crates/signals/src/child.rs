//! Waiting for a program that this process started. Out of scope: how it is started.

use std::io::Read;
use std::process::{Child, ExitStatus};
use std::thread;
use std::time::{Duration, Instant};

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
/// let output = fulmen_signals::wait_with_output(&mut child, Duration::from_secs(60), &mut || false);
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
