//! The crate's one error: what was wrong, which processes it is about, and what to do next.
//!
//! Not here: how the messages are worded. Each is written where the mistake is found, mostly by the coordinator, so that
//! all processes say the same.

use std::fmt;

/// The result type of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why processes could not be brought together, or why they are no longer.
///
/// The kind is private; ask with the `is_...` methods, and [`Error::processes`] for whom it is about.
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
    message: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// An argument, an option or an environment variable.
    Usage,
    /// The coordinator would not let this process in.
    Refused,
    /// A process did not come, or a value was not put, in time.
    TimedOut,
    /// A process is gone: dead, silent, failed, or left early.
    PeerLost,
    /// The processes are not about to run the same.
    Disagreement,
    /// A key has another value.
    Conflict,
    /// The coordinator no longer answers.
    CoordinatorLost,
    /// The operating system refused a thread or a socket.
    System,
}

impl Error {
    pub(crate) fn new(kind: Kind, processes: impl Into<Vec<usize>>, message: impl Into<String>) -> Error {
        Error { kind, processes: processes.into(), message: message.into() }
    }

    pub(crate) fn usage(message: impl Into<String>) -> Error {
        Error::new(Kind::Usage, [], message)
    }

    pub(crate) fn system(doing: &str, source: std::io::Error) -> Error {
        Error::new(Kind::System, [], format!("{doing}: {source}"))
    }

    /// The worker thread of this process is gone, which is how a clone that outlives its run looks.
    pub(crate) fn ended() -> Error {
        Error::usage("the coordination of this process has ended; join again for another run")
    }

    /// The indices of the processes that it is about: those that are missing, gone, or run something else.
    pub fn processes(&self) -> &[usize] {
        &self.processes
    }

    /// Whether an argument, an option or an environment variable is wrong.
    pub fn is_usage(&self) -> bool {
        self.kind == Kind::Usage
    }

    /// Whether the coordinator would not let this process in.
    pub fn is_refused(&self) -> bool {
        self.kind == Kind::Refused
    }

    /// Whether a process did not come, or a value was not put, in time.
    pub fn is_timeout(&self) -> bool {
        self.kind == Kind::TimedOut
    }

    /// Whether a process is gone: dead, silent, failed, or left early.
    pub fn is_peer_lost(&self) -> bool {
        self.kind == Kind::PeerLost
    }

    /// Whether the processes are not about to run the same.
    pub fn is_disagreement(&self) -> bool {
        self.kind == Kind::Disagreement
    }

    /// Whether a key has another value already.
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

/// As the message, which is what `fn main() -> Result<(), Box<dyn std::error::Error>>` prints.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl std::error::Error for Error {}
