//! The same interface without the feature `network`: joining fails with an error that names the
//! feature.
//!
//! Programs for several processes compile with and without the feature. Without it, a
//! [`Coordination`] cannot exist, so nothing else is implemented.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::ffi::OsString;
use std::time::Duration;

use crate::{Error, Process, ProcessInfo, Result, Timeouts, error};

impl Process {
    /// Like [`Process::from_env`]. With the feature `network`, it also queries the metadata server of
    /// a TPU VM.
    ///
    /// # Errors
    /// The errors of [`Process::from_env`].
    pub fn detect(env: impl Fn(&str) -> Option<OsString>) -> Result<Process> {
        Process::from_env(env)
    }
}

/// Does nothing. With the feature `network`, it watches the metadata server.
pub fn on_preemption(_: impl Fn(&str) -> Option<OsString>, _: impl FnOnce(&str) + Send + 'static) {}

/// Configures how to join a run. Without the feature `network`, joining fails.
#[must_use = "call `join` to join the run"]
pub struct Builder(Process);

#[expect(missing_docs, reason = "as with the feature `network`, where they are documented")]
impl Builder {
    pub fn timeouts(self, _: Timeouts) -> Builder {
        self
    }

    pub fn on_listening(self, _: impl FnOnce(&str) + Send + 'static) -> Builder {
        self
    }

    pub fn on_refused(self, _: impl Fn(&str) + Send + Sync + 'static) -> Builder {
        self
    }

    pub fn on_waiting(self, _: impl Fn(&str) + Send + Sync + 'static) -> Builder {
        self
    }

    /// # Errors
    /// This always fails, with an error that names the missing feature.
    pub fn join(self) -> Result<Coordination> {
        Err(error::usage(format!(
            "this is {}, but the program was built without support for several processes; build it with the feature \
             `multi-host` of `fulmen` (`network` of `fulmen-coordination`), or set FULMEN_NUM_PROCESSES to 1, without \
             FULMEN_PROCESS_ID and FULMEN_COORDINATOR, to train in a single process",
            self.0
        )))
    }
}

/// This process's membership in a run. Without the feature `network` it cannot exist.
#[derive(Clone, Debug)]
pub struct Coordination(Infallible);

#[expect(
    missing_docs,
    clippy::missing_errors_doc,
    reason = "as with the feature `network`, where they are documented"
)]
impl Coordination {
    pub fn builder(process: Process) -> Builder {
        Builder(process)
    }

    pub fn process(&self) -> &Process {
        match self.0 {}
    }

    pub fn coordinator(&self) -> &str {
        match self.0 {}
    }

    pub fn processes(&self) -> &[ProcessInfo] {
        match self.0 {}
    }

    pub fn barrier(&self, _: &str, _: Duration) -> Result<()> {
        match self.0 {}
    }

    pub fn check_consistent(
        &self,
        _: &str,
        _: &BTreeMap<String, String>,
        _: Duration,
    ) -> Result<()> {
        match self.0 {}
    }

    pub fn put(&self, _: &str, _: impl AsRef<[u8]>) -> Result<()> {
        match self.0 {}
    }

    pub fn get(&self, _: &str, _: Duration) -> Result<Vec<u8>> {
        match self.0 {}
    }

    pub fn try_get(&self, _: &str) -> Result<Option<Vec<u8>>> {
        match self.0 {}
    }

    pub fn halt(&self, _: &str) -> Halt {
        match self.0 {}
    }

    pub fn health(&self) -> Result<()> {
        match self.0 {}
    }

    pub fn on_failure(&self, _: impl FnOnce(&Error) + Send + 'static) {
        match self.0 {}
    }

    pub fn fail(&self, _: &str) {
        match self.0 {}
    }

    pub fn fail_before_exit(&self, _: &str, _: Option<i32>) {
        match self.0 {}
    }

    pub fn shutdown(&self, _: Duration) -> Result<()> {
        match self.0 {}
    }
}

/// Stops all processes after the same turn. Without the feature `network` it cannot exist.
#[derive(Debug)]
pub struct Halt(Infallible);

#[expect(
    missing_docs,
    clippy::missing_errors_doc,
    reason = "as with the feature `network`, where they are documented"
)]
impl Halt {
    pub fn request(&self, _: &str) {
        match self.0 {}
    }

    pub fn poll(&self) -> Result<Option<String>> {
        match self.0 {}
    }
}
