//! [`Coordination`]: a joined process's handle to the run.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;

use super::client::Client;
use super::halt::Halt;
use super::server::Server;
use super::service::check_value;
use super::wire::{self, Purpose, Request};
use super::worker::Worker;
use crate::error::Fact;
use crate::timeouts::{bounded, millis};
use crate::{Builder, Error, Process, ProcessInfo, Result, error};

/// A process's membership in a run. Through it, the process waits at barriers, shares values, and
/// learns when another process is lost.
///
/// Clones share the membership. If the last clone is dropped before [`Coordination::shutdown`], the
/// process leaves, and the run ends for all others with an error that names this process.
///
/// Every wait blocks, has a time-out, and ends at once when the run fails.
#[derive(Clone)]
pub struct Coordination(Arc<Inner>);

impl Coordination {
    /// Starts to configure how to join a run.
    pub fn builder(process: Process) -> Builder {
        Builder::new(process)
    }

    pub(crate) fn new(inner: Inner) -> Coordination {
        Coordination(Arc::new(inner))
    }

    /// This process.
    pub fn process(&self) -> &Process {
        &self.0.process
    }

    /// The address on which the coordinator listens, with the actual port if the port was 0.
    pub fn coordinator(&self) -> &str {
        &self.0.address
    }

    /// All processes by index, with their hosts.
    pub fn processes(&self) -> &[ProcessInfo] {
        &self.0.processes
    }

    /// Waits until all processes have arrived at the barrier of that name. A name may be reused:
    /// the n-th arrival of a process matches the n-th of the others.
    ///
    /// All processes must reach barriers and agreements in the same order. If all processes wait,
    /// but at different barriers, the run ends for all.
    ///
    /// # Errors
    /// A process did not arrive in time or is lost; the message names it. Every waiting process
    /// gets the error, so that none continues alone.
    pub fn barrier(&self, name: &str, timeout: Duration) -> Result<()> {
        self.wait_at_barrier(Purpose::Barrier, name, BTreeMap::new(), timeout)
    }

    /// Waits until all processes have arrived with their facts, and compares them, to check that
    /// all are about to run the same thing. Call it before the first collective, where a difference
    /// would cause a hang.
    ///
    /// # Errors
    /// A fact differs. The run then ends for all processes, with an error that names those that
    /// differ. The errors of [`Coordination::barrier`] apply too.
    pub fn check_consistent(
        &self,
        name: &str,
        facts: &BTreeMap<String, String>,
        timeout: Duration,
    ) -> Result<()> {
        self.wait_at_barrier(Purpose::Agreement, name, facts.clone(), timeout)
    }

    fn wait_at_barrier(
        &self,
        purpose: Purpose,
        name: &str,
        facts: BTreeMap<String, String>,
        timeout: Duration,
    ) -> Result<()> {
        self.check_not_left()?;
        let generation = {
            let mut visits = self.0.visits.lock();
            let count = visits.entry((purpose, name.to_owned())).or_default();
            std::mem::replace(count, *count + 1)
        };
        let client = self.0.client.clone();
        let name = name.to_owned();
        let request = wire::WaitAtBarrier {
            caller: client.caller(),
            purpose: purpose as i32,
            name,
            generation,
            timeout_ms: 0,
            facts,
        };
        self.0.run(async move {
            let request = |remaining| {
                let timeout_ms = millis(remaining);
                Request::WaitAtBarrier(wire::WaitAtBarrier { timeout_ms, ..request.clone() })
            };
            client.ask(timeout, request).await
        })?;
        Ok(())
    }

    /// Shares a value under a key with all processes until the run ends. The same value can be put
    /// again, but a value cannot be changed.
    ///
    /// # Errors
    /// The key has a different value; the key is longer than 1024 bytes or the value than 16 MiB;
    /// the run failed.
    pub fn put(&self, key: &str, value: impl AsRef<[u8]>) -> Result<()> {
        let value = value.as_ref();
        self.check_not_left()?;
        check_value(key, value)?;
        let client = self.0.client.clone();
        let request = Request::Put(wire::Put {
            caller: client.caller(),
            key: key.into(),
            value: Bytes::copy_from_slice(value),
        });
        self.0
            .run(async move { client.ask(Duration::from_secs(60), |_| request.clone()).await })?;
        Ok(())
    }

    /// Waits for the value of a key.
    ///
    /// # Errors
    /// No process put the value in time; the run failed.
    pub fn get(&self, key: &str, timeout: Duration) -> Result<Vec<u8>> {
        let value = self.look_up(key, timeout)?;
        value.ok_or_else(|| {
            let s = bounded(timeout).as_secs_f64();
            error::about(
                Fact::TimedOut,
                [],
                format!("no process has put a value under the key `{key}` within {s} s"),
            )
        })
    }

    /// The value of a key, if it exists.
    ///
    /// # Errors
    /// The run failed.
    pub fn try_get(&self, key: &str) -> Result<Option<Vec<u8>>> {
        self.look_up(key, Duration::ZERO)
    }

    fn look_up(&self, key: &str, timeout: Duration) -> Result<Option<Vec<u8>>> {
        self.check_not_left()?;
        check_value(key, &[])?;
        let client = self.0.client.clone();
        let key = key.to_owned();
        // Even a request that does not wait for the value must wait for the answer.
        let time_limit = timeout.max(Duration::from_secs(60));
        let reply = self.0.run(async move {
            let spare = time_limit - timeout.min(time_limit);
            let request = |remaining: Duration| {
                let timeout_ms = millis(remaining.saturating_sub(spare));
                Request::Get(wire::Get { caller: client.caller(), key: key.clone(), timeout_ms })
            };
            client.ask(time_limit, request).await
        })?;
        Ok(reply.value.map(|value| value.to_vec()))
    }

    /// Makes a [`Halt`], which stops all processes after the same turn, soon after a
    /// [request](Halt::request) in any of them. Every process makes the halt, under the same name,
    /// which is used only once.
    ///
    /// ```
    /// use fulmen_coordination::{Coordination, Process};
    ///
    /// let coordination = Coordination::builder(Process::single()).join()?;
    /// let halt = coordination.halt("fit 1");
    /// let mut steps = 0;
    /// let why = loop {
    ///     steps += 1;
    ///     if steps == 10 {
    ///         halt.request("SIGTERM"); // for example, from a thread that waits for signals
    ///     }
    ///     if let Some(why) = halt.poll()? {
    ///         break why;
    ///     }
    /// };
    /// assert!(why == "SIGTERM" && steps >= 10);
    /// # Ok::<(), fulmen_coordination::Error>(())
    /// ```
    pub fn halt(&self, name: &str) -> Halt {
        Halt::new(self, name)
    }

    pub(super) fn client(&self) -> Arc<Client> {
        self.0.client.clone()
    }

    pub(super) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.0.spawn(task);
    }

    /// Checks whether all processes are still there, as far as this process knows. Sends nothing
    /// and returns at once.
    ///
    /// # Errors
    /// The failure that ended the run, such as a lost process, a coordinator that no longer
    /// answers, or a disagreement.
    pub fn health(&self) -> Result<()> {
        self.0.client.failure().map_or(Ok(()), Err)
    }

    /// Calls `call` on a separate thread when the run fails, or at once if it already has.
    ///
    /// `call` must not hold a clone of this handle, which would then never be dropped.
    pub fn on_failure(&self, call: impl FnOnce(&Error) + Send + 'static) {
        let client = self.0.client.clone();
        self.0.spawn(async move {
            let error = client.failed().await;
            let thread = std::thread::Builder::new().name("fulmen-on-failure".into());
            // Ignore a thread that cannot be started: `health` reports the same error.
            let _ = thread.spawn(move || call(&error));
        });
    }

    /// Ends the run for all because this process cannot continue. The others get an error with its
    /// name and the reason.
    pub fn fail(&self, reason: &str) {
        self.leave(reason, None);
    }

    fn leave(&self, reason: &str, signal: Option<i32>) {
        const MAX_REASON_CHARS: usize = 2000;
        let client = self.0.client.clone();
        let reason: String = reason.chars().take(MAX_REASON_CHARS).collect();
        // This takes at most a second. Processes that it cannot reach notice missing heartbeats.
        let _ = self.0.run(async move {
            client.leave(reason, signal).await;
            Ok(())
        });
    }

    /// Like [`Coordination::fail`], for a process that exits without dropping this handle. `signal` is
    /// the number of the signal that ends it, if one does; the others get it with the
    /// [error](Error::signal). Process 0 waits until the others know, for at most three seconds.
    pub fn fail_before_exit(&self, reason: &str, signal: Option<i32>) {
        self.leave(reason, signal);
        let server = self.0.server.lock().take();
        let _ = self.0.run(async move {
            if let Some(server) = server {
                server.stop().await;
            }
            Ok(())
        });
    }

    /// Waits until all processes have arrived at the end, and leaves. Call it once everything is
    /// done.
    ///
    /// # Errors
    /// The errors of [`Coordination::barrier`].
    pub fn shutdown(&self, timeout: Duration) -> Result<()> {
        self.wait_at_barrier(Purpose::Shutdown, "", BTreeMap::new(), timeout)?;
        self.fail("");
        Ok(())
    }

    fn check_not_left(&self) -> Result<()> {
        if self.0.client.has_left() { Err(error::ended()) } else { Ok(()) }
    }
}

impl fmt::Debug for Coordination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Coordination")
            .field("process", &self.0.process)
            .field("coordinator", &self.0.address)
            .finish_non_exhaustive()
    }
}

/// The state that clones share.
pub(crate) struct Inner {
    process: Process,
    address: String,
    processes: Vec<ProcessInfo>,
    client: Arc<Client>,
    server: Mutex<Option<Server>>,
    /// How often this process arrived at each barrier.
    visits: Mutex<BTreeMap<(Purpose, String), u64>>,
    worker: Worker,
}

impl Inner {
    pub(crate) fn new(
        process: Process,
        address: String,
        worker: Worker,
        client: Arc<Client>,
        server: Option<Server>,
    ) -> Inner {
        Inner {
            process,
            address,
            processes: Vec::new(),
            client,
            server: Mutex::new(server),
            visits: Mutex::default(),
            worker,
        }
    }

    pub(crate) fn process(&self) -> &Process {
        &self.process
    }

    pub(crate) fn set_processes(&mut self, processes: Vec<ProcessInfo>) {
        self.processes = processes;
    }

    pub(crate) fn run<T: Send + 'static>(
        &self,
        task: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<T> {
        self.worker.run(task)?
    }

    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.worker.spawn(task);
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let client = self.client.clone();
        let server = self.server.lock().take();
        let _ = self.run(async move {
            client.leave(String::new(), None).await;
            if let Some(server) = server {
                server.stop().await;
            }
            Ok(())
        });
    }
}
