//! [`Halt`]: stops all processes after the same turn when any of them requests it.
//!
//! A request is a value for which a background task waits in each process. The task publishes the
//! number of turns that its process has begun, and the process begins no further turn until all
//! have answered. Process 0 picks the turn after the latest of these turns. Answers never wait for
//! a turn, so a process in the middle of one does not delay the others.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;

use super::client::Client;
use super::coordination::Coordination;
use super::wire::{self, Request};
use crate::timeouts::millis;
use crate::{Result, error};

/// The time-out of a wait that lasts as long as the other processes are there.
const NO_TIMEOUT: Duration = Duration::MAX;

/// Stops all processes after the same turn (a training step, for example) when any of them requests
/// it.
///
/// [`Coordination::halt`] makes it.
pub struct Halt {
    shared: Arc<Shared>,
    requests: StopRequest,
    coordination: Coordination,
}

impl Halt {
    pub(crate) fn new(coordination: &Coordination, name: &str) -> Halt {
        let process = coordination.process();
        let requests = StopRequest { client: coordination.client(), key: format!("halt/{name}") };
        let shared = Arc::new(Shared::default());
        let index = process.index();
        let count = process.count();
        let asking_client = requests.clone();
        let task_shared = shared.clone();
        coordination.spawn(async move {
            let end = asking_client.agree(index, count, &task_shared).await.transpose();
            task_shared.lock().end = end;
            task_shared.changed.notify_all();
        });
        Halt { shared, requests, coordination: coordination.clone() }
    }

    /// Asks all processes to stop soon, and returns at once. All of them get the reason `why`, or
    /// the first reason if there are several requests.
    pub fn request(&self, why: &str) {
        let requests = self.requests.clone();
        let why = why.to_owned();
        // Another reason may have come first. `poll` reports a failure of the run.
        self.coordination.spawn(async move { drop(requests.put("", &why).await) });
    }

    /// Ends a turn; call it once per turn. Returns the reason if all processes stop after this
    /// turn; all of them get it in the same turn.
    ///
    /// All processes take the same turns in the same order. If one has already ended its last turn
    /// when another requests a stop, the request is too late, and all of them continue to their
    /// last turn.
    ///
    /// # Errors
    /// The run failed.
    pub fn poll(&self) -> Result<Option<String>> {
        let mut state = self.shared.lock();
        state.turns += 1;
        while state.is_requested && state.end.is_none() {
            state = self.shared.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
        match &state.end {
            Some(Ok((last, why))) if state.turns >= *last => Ok(Some(why.clone())),
            Some(Err(error)) => Err(error.clone()),
            _ => Ok(None),
        }
    }
}

/// Ends the turns. Later requests are ignored, and earlier ones still get an answer.
impl Drop for Halt {
    fn drop(&mut self) {
        self.request("");
    }
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Default)]
struct State {
    turns: u64,
    /// The others know how many turns this process has begun, so it begins no further one until all
    /// have answered.
    is_requested: bool,
    /// The turn after which all stop, with the reason, or the error that prevented an agreement.
    end: Option<Result<(u64, String)>>,
}

/// The keys of one halt.
#[derive(Clone)]
struct StopRequest {
    client: Arc<Client>,
    key: String,
}

impl StopRequest {
    /// Waits for a request, and agrees with the other processes on a turn. `None` if the turns are
    /// over first.
    async fn agree(
        &self,
        index: usize,
        count: usize,
        shared: &Shared,
    ) -> Result<Option<(u64, String)>> {
        let why = self.get("").await?;
        if why.is_empty() {
            return Ok(None);
        }
        let turns = {
            let mut state = shared.lock();
            state.is_requested = true;
            state.turns
        };
        let suffix = |index: usize| format!("/{index}");
        self.put(&suffix(index), &turns.to_string()).await?;
        if index == 0 {
            let mut last = turns;
            for other in 1..count {
                last = last.max(number(&self.get(&suffix(other)).await?)?);
            }
            self.put("/last", &(last + 1).to_string()).await?;
        }
        Ok(Some((number(&self.get("/last").await?)?, why)))
    }

    async fn get(&self, suffix: &str) -> Result<String> {
        loop {
            let caller = self.client.caller();
            let key = format!("{}{suffix}", self.key);
            let request = |remaining| {
                let timeout_ms = millis(remaining);
                Request::Get(wire::Get { caller, key: key.clone(), timeout_ms })
            };
            if let Some(value) = self.client.ask(NO_TIMEOUT, request).await?.value {
                return Ok(String::from_utf8_lossy(&value).into_owned());
            }
        }
    }

    async fn put(&self, suffix: &str, value: &str) -> Result<()> {
        let key = format!("{}{suffix}", self.key);
        let value = Bytes::copy_from_slice(value.as_bytes());
        let request = Request::Put(wire::Put { caller: self.client.caller(), key, value });
        self.client.ask(Duration::from_secs(60), |_| request.clone()).await?;
        Ok(())
    }
}

fn number(text: &str) -> Result<u64> {
    text.parse().map_err(|_| {
        error::usage(format!(
            "a process sent `{text}` as its number of turns; run the same build in all processes"
        ))
    })
}
