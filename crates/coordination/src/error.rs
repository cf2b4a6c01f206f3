//! The error type of this crate: what went wrong, which processes it concerns, and what to do next.
//!
//! Out of scope: the wording of messages. Each is written where the mistake is detected, mostly in
//! the coordinator, so that all processes report the same text.

use std::fmt;

/// The result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why processes could not join a run, or why the run failed.
///
/// The kind is private. Use the `is_...` methods, and [`Error::processes`] for the processes
/// concerned.
///
/// ```
/// use fulmen_coordination::Process;
///
/// let error = Process::new(8, 8, "host-a:8482").unwrap_err();
/// assert!(error.is_usage());
/// assert!(error.to_string().contains("0 to 7"));
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Error {
    kind: Kind,
    processes: Vec<usize>,
    /// The signal that ended the process concerned.
    signal: Option<i32>,
    message: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// An invalid argument, option or environment variable.
    Usage,
    /// The coordinator refused this process.
    Refused,
    /// A process did not arrive, or a value was not put, in time.
    TimedOut,
    /// A process is lost: it failed or left early.
    PeerLost,
    /// A process no longer answers: it died, is stopped or cannot be reached.
    PeerSilent,
    /// The processes are about to run different things.
    Disagreement,
    /// The key already has a different value.
    Conflict,
    /// The coordinator no longer answers.
    CoordinatorLost,
    /// The operating system refused a thread or a socket.
    System,
}

impl Error {
    pub(crate) fn new(
        kind: Kind,
        processes: impl Into<Vec<usize>>,
        message: impl Into<String>,
    ) -> Error {
        Error { kind, processes: processes.into(), signal: None, message: message.into() }
    }

    pub(crate) fn with_signal(self, signal: Option<i32>) -> Error {
        Error { signal, ..self }
    }

    pub(crate) fn usage(message: impl Into<String>) -> Error {
        Error::new(Kind::Usage, [], message)
    }

    pub(crate) fn system(doing: &str, source: std::io::Error) -> Error {
        Error::new(Kind::System, [], format!("{doing}: {source}"))
    }

    /// Reports that the worker thread has ended. A clone that outlives its run gets this error.
    pub(crate) fn ended() -> Error {
        Error::usage("the coordination of this process has ended; join again for another run")
    }

    /// The indices of the processes concerned: those that are missing, lost, or that differ.
    pub fn processes(&self) -> &[usize] {
        &self.processes
    }

    /// The number of the signal that ended the process concerned, such as 15 for SIGTERM, if that
    /// process could report it before it ended.
    pub fn signal(&self) -> Option<i32> {
        self.signal
    }

    /// Whether an argument, an option or an environment variable is invalid.
    pub fn is_usage(&self) -> bool {
        self.kind == Kind::Usage
    }

    /// Whether the coordinator refused this process.
    pub fn is_refused(&self) -> bool {
        self.kind == Kind::Refused
    }

    /// Whether a process did not arrive, or a value was not put, in time.
    pub fn is_timeout(&self) -> bool {
        self.kind == Kind::TimedOut
    }

    /// Whether a process is lost: it died, fell silent, failed or left early.
    pub fn is_peer_lost(&self) -> bool {
        matches!(self.kind, Kind::PeerLost | Kind::PeerSilent)
    }

    /// Whether a process no longer answers, for a reason outside its program: it was killed or
    /// stopped, or its host is not reachable. Then the run may be started again.
    pub fn is_peer_silent(&self) -> bool {
        matches!(self.kind, Kind::PeerSilent | Kind::CoordinatorLost)
    }

    /// Whether the processes are about to run different things.
    pub fn is_disagreement(&self) -> bool {
        self.kind == Kind::Disagreement
    }

    /// Whether the key already has a different value.
    pub fn is_conflict(&self) -> bool {
        self.kind == Kind::Conflict
    }

    /// Whether the coordinator no longer answers.
    pub fn is_coordinator_lost(&self) -> bool {
        self.kind == Kind::CoordinatorLost
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// Prints the message, as `fn main() -> Result<(), Box<dyn std::error::Error>>` does.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Error {}
