//! Joining a run.

use std::sync::Arc;
use std::time::Duration;

use super::agreement;
use super::client::Client;
use super::coordination::{Coordination, Inner};
use super::coordinator::Coordinator;
use super::listener::listen;
use super::noise::RunKey;
use super::server::{OnRefused, Server};
use super::wire::{self, Purpose, Request};
use super::worker::Worker;
use crate::process::host_name;
use crate::timeouts::millis;
use crate::{Process, ProcessInfo, Result, Timeouts};

/// Configures how to join a run. [`Coordination::builder`] makes it.
///
/// ```
/// use std::time::Duration;
/// use fulmen_coordination::{Coordination, Process, Timeouts};
///
/// // Process 0 lets the system choose a port and passes it on, here over a channel.
/// let (tell, told) = std::sync::mpsc::channel();
/// let other = std::thread::spawn(move || {
///     let address: String = told.recv().unwrap();
///     Coordination::builder(Process::new(1, 2, address)?).join()
/// });
/// let coordination = Coordination::builder(Process::new(0, 2, "127.0.0.1:0")?)
///     .timeouts(Timeouts { join: Duration::from_secs(20), ..Timeouts::default() })
///     .on_listening(move |address| tell.send(address.to_owned()).unwrap())
///     .join()?;
/// let other = other.join().unwrap()?;
/// assert_eq!(other.processes().len(), 2);
///
/// let end = std::thread::spawn(move || other.shutdown(Duration::from_secs(5)));
/// coordination.shutdown(Duration::from_secs(5))?;
/// end.join().unwrap()?;
/// # Ok::<(), fulmen_coordination::Error>(())
/// ```
#[must_use = "call `join` to join the run"]
pub struct Builder {
    process: Process,
    timeouts: Timeouts,
    on_listening: Box<dyn FnOnce(&str) + Send>,
    on_refused: OnRefused,
    on_waiting: Box<dyn Fn(&str) + Send + Sync>,
}

impl Builder {
    pub(crate) fn new(process: Process) -> Builder {
        let timeouts = Timeouts::default();
        Builder {
            process,
            timeouts,
            on_listening: Box::new(|_| {}),
            on_refused: Arc::new(|_| {}),
            on_waiting: Box::new(|_| {}),
        }
    }

    /// Sets how long processes wait for each other.
    pub fn timeouts(mut self, timeouts: Timeouts) -> Builder {
        self.timeouts = timeouts;
        self
    }

    /// Calls `call` in process 0 with the address on which it listens, before it waits for the
    /// others.
    pub fn on_listening(mut self, call: impl FnOnce(&str) + Send + 'static) -> Builder {
        self.on_listening = Box::new(call);
        self
    }

    /// Calls `call` in process 0, on a separate thread, when a connection is refused because it did
    /// not prove that it has the run's token, or ended because what arrived was changed on its way.
    /// Each address is reported once, up to 16 addresses.
    pub fn on_refused(mut self, call: impl Fn(&str) + Send + Sync + 'static) -> Builder {
        self.on_refused = Arc::new(call);
        self
    }

    /// Calls `call` when others have not joined after 5 seconds, and every so often after that. In
    /// process 0, the text names the processes that are missing. The other processes only report that
    /// process 0 is missing.
    pub fn on_waiting(mut self, call: impl Fn(&str) + Send + Sync + 'static) -> Builder {
        self.on_waiting = Box::new(call);
        self
    }

    /// Joins the run and waits until all processes have joined.
    ///
    /// # Errors
    /// The address cannot be listened on or reached, or other machines can reach it and the run has
    /// no token; this process is refused (its index is taken, or it has a different token, number
    /// of processes, run id or version); a process did not join in time, which the message names.
    pub fn join(self) -> Result<Coordination> {
        let Builder { process, timeouts, on_listening, on_refused, on_waiting } = self;
        timeouts.check()?;
        let key = RunKey::new(process.token()?);
        let mut address = process.coordinator().to_owned();
        let mut listening = None;
        if process.is_coordinator() {
            let listeners = listen(&address)?;
            address.clone_from(&listeners.address);
            on_listening(&address);
            listening = Some(listeners.sockets);
        }
        let worker = Worker::start()?;
        let index = process.index();
        let count = process.count();
        let run = Coordinator::new(count, process.run_id(), process.hosts(), timeouts.heartbeat);
        let (client, server) = worker.run({
            let address = address.clone();
            async move {
                let server = listening
                    .map(|sockets| Server::start(sockets, run, key, on_refused))
                    .transpose()?;
                Ok::<_, crate::Error>((Arc::new(Client::new(address, index, key)?), server))
            }
        })??;
        // From here on, dropping `inner` notifies the others of any failure.
        let mut inner = Inner::new(process, address, worker, client.clone(), server);
        let request = wire::Join {
            version: wire::VERSION,
            caller: client.caller(),
            count: count as u32,
            run_id: inner.process().run_id().to_owned(),
            host: host_name(),
            pid: std::process::id(),
        };
        let is_coordinator = inner.process().is_coordinator();
        let wait = Wait {
            client: client.clone(),
            join: request.clone(),
            hosts: inner.process().hosts().to_vec(),
            limit: timeouts.join,
            report: on_waiting,
        };
        let joining_client = client.clone();
        let joined = inner.run(async move {
            let join = joining_client.ask(wait.limit, |_| Request::Join(request.clone()));
            let reply = wait.during(join, false).await?;
            Ok((reply, wait))
        })?;
        let (reply, wait) = joined;
        client.record_members(&reply.members);
        let heartbeat = std::time::Duration::from_millis(reply.heartbeat_timeout_ms.max(1));
        let heartbeat_client = client.clone();
        inner.spawn(async move { heartbeat_client.heartbeats(heartbeat).await });
        let waiting_client = client.clone();
        let reply = inner.run(async move {
            let request = |remaining| {
                Request::WaitAtBarrier(wire::WaitAtBarrier {
                    caller: waiting_client.caller(),
                    purpose: Purpose::Join as i32,
                    name: String::new(),
                    generation: 0,
                    timeout_ms: millis(remaining),
                    facts: Default::default(),
                })
            };
            let barrier = waiting_client.ask(timeouts.join, request);
            if is_coordinator { wait.during(barrier, true).await } else { barrier.await }
        })?;
        client.record_members(&reply.members);
        inner.set_processes(reply.members.into_iter().map(ProcessInfo::from).collect());
        Ok(Coordination::new(inner))
    }
}

/// The times at which a wait is reported. After the last, it is reported once a minute.
const REPORTS: [Duration; 4] = [
    Duration::from_secs(5),
    Duration::from_secs(15),
    Duration::from_secs(30),
    Duration::from_secs(60),
];

/// What a process says while it waits for others to join.
struct Wait {
    client: Arc<Client>,
    join: wire::Join,
    hosts: Vec<String>,
    limit: Duration,
    report: Box<dyn Fn(&str) + Send + Sync>,
}

impl Wait {
    /// Waits for `work`. Meanwhile, it reports which members are missing, or that process 0 is.
    async fn during<T>(&self, work: impl Future<Output = T>, of_members: bool) -> T {
        let mut work = std::pin::pin!(work);
        let start = tokio::time::Instant::now();
        let minutes = (2..).map(|minutes| Duration::from_secs(60 * minutes));
        for time in REPORTS.into_iter().chain(minutes) {
            tokio::select! {
                biased;
                result = &mut work => return result,
                () = tokio::time::sleep_until(start + time) => {}
            }
            let missing = if of_members {
                self.missing_members().await
            } else {
                Some(format!("process 0 at {}, which does not answer", self.client.coordinator()))
            };
            if let Some(missing) = missing {
                let s = time.as_secs();
                let limit = self.limit.as_secs_f64();
                let index = self.join.caller.index;
                (self.report)(&format!(
                    "process {index} has waited {s} s for {missing}; the limit is {limit} s (FULMEN_JOIN_TIMEOUT)"
                ));
            }
        }
        work.await
    }

    /// The processes that have not joined.
    async fn missing_members(&self) -> Option<String> {
        // Joining again only lists the members.
        let members = self.client.members(&self.join).await?;
        let is_missing = |index: &u32| members.iter().all(|member| member.index != *index);
        let missing: Vec<u32> = (0..self.join.count).filter(is_missing).collect();
        let name = |index: u32| match self.hosts.get(index as usize) {
            Some(host) => format!("process {index} ({host})"),
            None => format!("process {index}"),
        };
        let names = agreement::list(&missing, name);
        Some(format!("{names}; {} of {} processes have joined", members.len(), self.join.count))
    }
}
