//! The errors of this crate. All are about the processes of a run.
//!
//! Out of scope: the wording of messages. Each is written where the mistake is detected, mostly in
//! the coordinator, so that all processes report the same text.

pub(crate) use fulmen_error::{Error, Fact};

/// Reports what happened to the processes of a run.
pub(crate) fn about(
    fact: Fact,
    processes: impl Into<Vec<usize>>,
    message: impl Into<String>,
) -> Error {
    Error::of(fact, message).with(Fact::Coordination).with_processes(processes)
}

/// Reports an invalid argument, option or environment variable.
pub(crate) fn usage(message: impl Into<String>) -> Error {
    Error::of(Fact::Option, message).with(Fact::Coordination)
}

/// Reports that the operating system refused a thread or a socket.
pub(crate) fn system(doing: &str, source: std::io::Error) -> Error {
    Error::of(Fact::Coordination, format!("{doing}: {source}"))
}

/// Reports that the worker thread has ended. A clone that outlives its run gets this error.
pub(crate) fn ended() -> Error {
    usage("the coordination of this process has ended; join again for another run")
}
