//! The client of the coordinator. It retries over new connections until the coordinator answers or
//! the time limit is over.
//!
//! Every request may arrive twice without harm, so a broken connection is not a failure. Only
//! missing heartbeats mean that the coordinator is lost.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use super::connection::{Connection, SendError};
use super::handshake::HandshakeError;
use super::noise::{RunKey, fill_random};
use super::wire::{self, Caller, Reply, Request};
use crate::error::Fact;
use crate::timeouts::{bounded, millis};
use crate::{Error, Result, error};

/// The coordinator enforces the time limit of a request. Its answer gets this much longer to
/// arrive.
const ANSWER_TIME: Duration = Duration::from_secs(5);

pub(crate) struct Client {
    /// All requests share one connection. It is opened when there is a request and no connection.
    connection: tokio::sync::Mutex<Option<Arc<Connection>>>,
    key: RunKey,
    caller: Caller,
    coordinator: String,
    /// The name of process 0 in messages, once it is known.
    coordinator_name: Mutex<String>,
    /// The failure that ended the run.
    failure: watch::Sender<Option<Error>>,
    /// Whether the coordinator has admitted this process.
    has_joined: AtomicBool,
    /// Whether this process has left, for any reason.
    has_left: AtomicBool,
}

impl Client {
    /// Connects on the first request.
    pub(crate) fn new(coordinator: String, index: usize, key: RunKey) -> Result<Client> {
        let mut session = [0; 8];
        fill_random(&mut session)?;
        Ok(Client {
            connection: tokio::sync::Mutex::default(),
            key,
            caller: Caller { index: index as u32, session: u64::from_le_bytes(session) },
            coordinator,
            coordinator_name: Mutex::new("process 0".into()),
            failure: watch::Sender::new(None),
            has_joined: AtomicBool::new(false),
            has_left: AtomicBool::new(false),
        })
    }

    pub(crate) fn caller(&self) -> Caller {
        self.caller
    }

    /// The coordinator's address.
    pub(crate) fn coordinator(&self) -> &str {
        &self.coordinator
    }

    /// The processes that have joined, if the coordinator answers at once.
    pub(crate) async fn members(&self, request: &wire::Join) -> Option<Vec<wire::Member>> {
        let answer = self.send(Request::Join(request.clone()));
        let reply = timeout(Duration::from_secs(1), answer).await.ok()?.ok()?;
        reply.failure.is_none().then_some(reply.members)
    }

    pub(crate) fn failure(&self) -> Option<Error> {
        self.failure.borrow().clone()
    }

    /// Waits until the run has failed.
    pub(crate) async fn failed(&self) -> Error {
        let mut failures = self.failure.subscribe();
        match failures.wait_for(Option::is_some).await.ok().and_then(|f| f.clone()) {
            Some(error) => error,
            // The sender lives in `self`, so this line is never reached.
            None => std::future::pending().await,
        }
    }

    fn fail(&self, error: Error) {
        self.failure.send_if_modified(|failure| {
            let first = failure.is_none();
            failure.get_or_insert(error);
            first
        });
    }

    pub(crate) fn has_left(&self) -> bool {
        self.has_left.load(Ordering::Relaxed)
    }

    fn coordinator_name(&self) -> String {
        self.coordinator_name.lock().clone()
    }

    /// Sends a request once.
    async fn send(&self, request: Request) -> Result<Reply, SendError> {
        let reply = self.connection().await?.ask(request).await?;
        match reply.try_later {
            Some(reason) => Err(SendError::Broken(reason)),
            None => Ok(reply),
        }
    }

    async fn connection(&self) -> Result<Arc<Connection>, SendError> {
        let mut current = self.connection.lock().await;
        if let Some(connection) = current.as_ref().filter(|connection| !connection.has_ended()) {
            return Ok(connection.clone());
        }
        let connection = Arc::new(Connection::open(&self.coordinator, &self.key).await?);
        *current = Some(connection.clone());
        Ok(connection)
    }

    /// Retries until there is an answer, the run fails, or `time_limit` is over. `request` gets the
    /// remaining time.
    pub(crate) async fn ask(
        &self,
        time_limit: Duration,
        request: impl Fn(Duration) -> Request,
    ) -> Result<Reply> {
        let deadline = Instant::now() + bounded(time_limit);
        let mut last_error = String::new();
        let ask = async {
            let mut pause = Duration::from_millis(20);
            loop {
                let remaining = deadline.saturating_duration_since(Instant::now());
                match self.send(request(remaining)).await {
                    Ok(reply) => return Some(Ok(reply)),
                    Err(error) => match self.permanent(&error) {
                        Some(error) => return Some(Err(error)),
                        None => last_error = error.to_string(),
                    },
                }
                let remaining = deadline.saturating_duration_since(Instant::now());
                if remaining.is_zero() && !self.has_joined.load(Ordering::Relaxed) {
                    // No answer is on its way from a coordinator that was never reached.
                    return None;
                }
                sleep(if remaining.is_zero() { pause } else { pause.min(remaining) }).await;
                pause = (pause * 2).min(Duration::from_secs(1));
            }
        };
        let answer = tokio::select! {
            biased;
            error = self.failed() => return Err(error),
            answer = timeout(bounded(time_limit) + ANSWER_TIME, ask) => answer.ok().flatten(),
        };
        match answer {
            Some(Ok(Reply { failure: Some(failure), .. })) => {
                let ends_run = failure.ends_run;
                let error = Error::from(failure);
                if ends_run {
                    self.fail(error.clone());
                }
                Err(error)
            }
            Some(answer) => answer,
            None => {
                let name = self.coordinator_name();
                let address = &self.coordinator;
                let s = bounded(time_limit).as_secs_f64();
                let reason = if last_error.is_empty() { "no answer" } else { last_error.as_str() };
                Err(error::about(
                    Fact::TimedOut,
                    [0],
                    format!(
                        "process {} could not reach the coordinator, {name} at {address}, within {s} s: {reason}; is \
                         {name} running, and its port open?",
                        self.caller.index
                    ),
                ))
            }
        }
    }

    /// The error, if a retry is useless.
    fn permanent(&self, error: &SendError) -> Option<Error> {
        let SendError::Handshake(error) = error else { return None };
        let index = self.caller.index as usize;
        let address = &self.coordinator;
        match &**error {
            HandshakeError::Refused => Some(error::about(
                Fact::Refused,
                [index],
                format!(
                    "process {index} was not admitted to the run: the coordinator at {address} has a different token, \
                     or none; set FULMEN_RUN_TOKEN to the same token in all processes of the run"
                ),
            )),
            HandshakeError::NoProof => Some(error::about(
                Fact::Refused,
                [0],
                format!(
                    "the server at the coordinator's address {address} does not have the token of this run \
                     (FULMEN_RUN_TOKEN); is it the address of process 0?"
                ),
            )),
            HandshakeError::OtherProtocol => Some(error::usage(format!(
                "the server at the coordinator's address {address} is not a coordinator of this version of Fulmen; use \
                 the address of process 0, and run the same build in all processes"
            ))),
            HandshakeError::OtherVersion(_) => Some(error::usage(format!(
                "the coordinator at {address} is of another version of Fulmen: {error}; run the same build in all \
                 processes"
            ))),
            HandshakeError::Broken(_) | HandshakeError::Silent => None,
        }
    }

    /// Records that the coordinator has admitted this process, and takes the name of process 0 from
    /// the list of members.
    pub(crate) fn record_members(&self, members: &[wire::Member]) {
        self.has_joined.store(true, Ordering::Relaxed);
        if let Some(m) = members.iter().find(|m| m.index == 0) {
            let name = crate::ProcessInfo::from(m.clone()).to_string();
            *self.coordinator_name.lock() = name;
        }
    }

    /// Sends heartbeats until this process leaves or the run fails. The coordinator reports a
    /// failure at once; if the coordinator falls silent, the time-out of its heartbeats counts as a
    /// failure.
    pub(crate) async fn heartbeats(&self, limit: Duration) {
        let mut last_answer = Instant::now();
        let mut last_error = "no answer".to_owned();
        while !self.has_left() && self.failure.borrow().is_none() {
            let time_limit = limit.saturating_sub(last_answer.elapsed());
            let request = wire::Heartbeat { caller: self.caller, wait_ms: millis(limit / 5) };
            match timeout(time_limit, self.send(Request::Heartbeat(request))).await {
                Ok(Ok(reply)) => {
                    last_answer = Instant::now();
                    if let Some(failure) = reply.failure {
                        self.fail(Error::from(failure));
                    }
                }
                Ok(Err(error)) => {
                    last_error = error.to_string();
                    sleep(limit / 20).await;
                }
                Err(_) => {}
            }
            if last_answer.elapsed() >= limit && !self.has_left() {
                let name = self.coordinator_name();
                let address = &self.coordinator;
                let s = limit.as_secs_f64();
                let message = format!(
                    "{name}, the coordinator at {address}, has not answered for {s} s ({last_error}): killed, stopped, or on \
                     a host that is not reachable; see its last output"
                );
                self.fail(error::about(Fact::CoordinatorLost, [0], message));
            }
        }
    }

    /// Tells the coordinator once that this process leaves. Does nothing before it has joined or
    /// after the run has failed.
    pub(crate) async fn leave(&self, reason: String, signal: Option<i32>) {
        let has_left = self.has_left.swap(true, Ordering::Relaxed);
        if has_left || !self.has_joined.load(Ordering::Relaxed) || self.failure.borrow().is_some() {
            return;
        }
        let request = wire::Leave { caller: self.caller, reason, signal };
        let _ = timeout(Duration::from_secs(1), self.send(Request::Leave(request))).await;
    }
}
