//! The coordinator's answers: each request asks the [`Coordinator`], and waits if there is no answer
//! yet.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use prost::Message as _;
use tokio::net::TcpStream;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;

use super::coordinator::Coordinator;
use super::frames::{ConnectionEnd, Message, Reader, Session, Writer};
use super::wire::{self, Failure, FailureKind, MAX_KEY_BYTES, MAX_VALUE_BYTES, Reply, Request};
use crate::timeouts::bounded;

/// How many requests of one process may wait for their answers.
const MAX_REQUESTS: usize = 1024;

/// The coordinator, and a channel that signals each change of it.
#[derive(Clone)]
pub(crate) struct Service(Arc<Shared>);

struct Shared {
    coordinator: Mutex<Coordinator>,
    changes: watch::Sender<()>,
}

impl Service {
    pub(crate) fn new(coordinator: Coordinator) -> Service {
        Service(Arc::new(Shared {
            coordinator: Mutex::new(coordinator),
            changes: watch::Sender::new(()),
        }))
    }

    fn coordinator(&self) -> MutexGuard<'_, Coordinator> {
        // No change leaves the coordinator in a half-changed state, so a panic elsewhere does not
        // corrupt it.
        self.0.coordinator.lock()
    }

    /// Changes the coordinator and wakes all waiters.
    pub(crate) fn change<T>(&self, change: impl FnOnce(&mut Coordinator) -> T) -> T {
        let result = change(&mut self.coordinator());
        self.0.changes.send_replace(());
        result
    }

    /// Records that a process knows about the failure, if there is one.
    fn notify(&self, index: u32) {
        self.change(|coordinator| coordinator.notify_failure(index));
    }

    /// Waits until `poll` returns a value; `None` after the time-out.
    pub(crate) async fn wait<T>(
        &self,
        timeout: Duration,
        mut poll: impl FnMut(&mut Coordinator) -> Option<T>,
    ) -> Option<T> {
        let mut changes = self.0.changes.subscribe();
        let search = async {
            loop {
                changes.borrow_and_update();
                if let Some(value) = poll(&mut self.coordinator()) {
                    return Some(value);
                }
                if changes.changed().await.is_err() {
                    return None;
                }
            }
        };
        tokio::time::timeout(bounded(timeout), search).await.ok().flatten()
    }

    /// Expires silent members for as long as the server runs.
    pub(crate) async fn monitor_heartbeats(self) {
        let limit = self.coordinator().heartbeat_timeout();
        let pause = limit / 20;
        loop {
            let before = Instant::now();
            tokio::time::sleep(pause).await;
            let now = Instant::now();
            if now - before > pause + limit / 2 {
                // This process was itself suspended and received no heartbeats.
                self.coordinator().reset_deadlines(now);
            }
            let was_well = self.coordinator().failure().is_none();
            self.coordinator().expire_members(now);
            if was_well && self.coordinator().failure().is_some() {
                self.change(|_| {});
            }
        }
    }

    /// Serves a connection until it ends, or until the server stops and all its requests have their
    /// answers. Returns the process and the error if the connection must not continue.
    pub(crate) async fn serve(
        self,
        stream: TcpStream,
        session: Arc<Session>,
        mut stopping: watch::Receiver<bool>,
    ) -> Option<(String, ConnectionEnd)> {
        let (receiving, sending) = stream.into_split();
        let mut reader = Reader::new(session.clone(), receiving);
        let (answers, queue) = mpsc::channel(16);
        // Dropping the tasks ends them.
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            // The reader notices a broken connection too.
            let _ = Writer::new(session, sending).send_all(queue).await;
        });
        let mut caller = None;
        loop {
            let received = tokio::select! {
                received = reader.receive() => received,
                _ = stopping.wait_for(|stopping| *stopping) => break,
            };
            while tasks.try_join_next().is_some() {}
            match received {
                Ok(message) => {
                    let request = Request::from_bytes(&message.bytes);
                    caller = request.as_ref().map(|request| request.caller().index).or(caller);
                    let is_crowded = tasks.len() > MAX_REQUESTS;
                    let service = self.clone();
                    let answers = answers.clone();
                    tasks.spawn(async move {
                        let reply = match request {
                            Some(_) if is_crowded => {
                                unanswered(&format!("{MAX_REQUESTS} others wait"))
                            }
                            Some(request) => service.answer(request).await,
                            None => unanswered("it is not a request of this version of Fulmen"),
                        };
                        let bytes = reply.encode_to_vec();
                        let _ = answers.send(Message { request: message.request, bytes }).await;
                    });
                }
                Err(ConnectionEnd::Closed(_)) => return None,
                Err(end) => {
                    let process = caller.map(|index| self.coordinator().name(index));
                    return Some((process.unwrap_or_else(|| "a process".to_owned()), end));
                }
            }
        }
        drop(answers);
        let answered = async { while tasks.join_next().await.is_some() {} };
        let mut closed = std::pin::pin!(reader.drain());
        tokio::select! {
            () = &mut closed => return None,
            () = answered => {}
        }
        closed.await;
        None
    }

    pub(super) async fn answer(self, request: Request) -> Reply {
        match request {
            Request::Join(request) => self.join(request),
            Request::WaitAtBarrier(request) => self.wait_at_barrier(request).await,
            Request::Put(request) => self.put(request),
            Request::Get(request) => self.get(request).await,
            Request::Heartbeat(request) => self.heartbeat(request).await,
            Request::Leave(request) => self.leave(request),
        }
    }

    fn join(self, request: wire::Join) -> Reply {
        if let Some(reason) = self.coordinator().is_ending(request.caller) {
            // The client asks again until the next coordinator is up.
            return Reply { try_later: Some(reason), ..Reply::default() };
        }
        let result = self.change(|coordinator| coordinator.join(&request, Instant::now()));
        let coordinator = self.coordinator();
        let heartbeat_timeout_ms = crate::timeouts::millis(coordinator.heartbeat_timeout());
        Reply { members: coordinator.members(), heartbeat_timeout_ms, ..Reply::from(result) }
    }

    async fn wait_at_barrier(self, request: wire::WaitAtBarrier) -> Reply {
        let index = request.caller.index;
        let timeout = Duration::from_millis(request.timeout_ms);
        let key = (request.purpose(), request.name, request.generation);
        let arrived = self.change(|coordinator| {
            coordinator.heartbeat(request.caller, Instant::now())?;
            coordinator.arrive(&key, index, &request.facts);
            Ok(())
        });
        if arrived.is_err() {
            return arrived.into();
        }
        let ended = |coordinator: &mut Coordinator| {
            coordinator.outcome(&key).or_else(|| coordinator.failure().cloned().map(Err))
        };
        let outcome = match self.wait(timeout, ended).await {
            Some(outcome) => outcome,
            None => self.change(|coordinator| coordinator.time_out(&key, timeout)),
        };
        if outcome.is_err() {
            self.notify(index);
        }
        Reply { members: self.coordinator().members(), ..Reply::from(outcome) }
    }

    fn put(self, request: wire::Put) -> Reply {
        let result = self.change(|coordinator| {
            coordinator.heartbeat(request.caller, Instant::now())?;
            coordinator.put(request.caller.index, &request.key, request.value)
        });
        result.into()
    }

    async fn get(self, request: wire::Get) -> Reply {
        let result = self.coordinator().heartbeat(request.caller, Instant::now());
        if result.is_err() {
            return result.into();
        }
        let timeout = Duration::from_millis(request.timeout_ms);
        let outcome = self.wait(timeout, |coordinator| match coordinator.get(&request.key) {
            Some(value) => Some(Ok(value)),
            None => coordinator.failure().cloned().map(Err),
        });
        match outcome.await {
            Some(Ok(value)) => Reply { value: Some(value), ..Reply::default() },
            Some(Err(failure)) => {
                self.notify(request.caller.index);
                Err(failure).into()
            }
            None => Reply::default(),
        }
    }

    async fn heartbeat(self, request: wire::Heartbeat) -> Reply {
        let result = self.coordinator().heartbeat(request.caller, Instant::now());
        if result.is_err() {
            return result.into();
        }
        let wait = Duration::from_millis(request.wait_ms);
        let index = request.caller.index;
        let ended = |coordinator: &mut Coordinator| match coordinator.failure() {
            Some(failure) => Some(Some(failure.clone())),
            None => coordinator.has_left(index).then_some(None),
        };
        let failure = self.wait(wait, ended).await.flatten();
        if failure.is_some() {
            self.notify(index);
        }
        Reply { failure, ..Reply::default() }
    }

    fn leave(self, request: wire::Leave) -> Reply {
        let result = self.change(|coordinator| {
            coordinator.heartbeat(request.caller, Instant::now())?;
            coordinator.leave(request.caller.index, &request.reason, request.signal);
            Ok(())
        });
        result.into()
    }
}

/// The reply to a request that the coordinator does not consider.
fn unanswered(reason: &str) -> Reply {
    let message = format!("the coordinator does not answer the request: {reason}");
    Err(Failure::new(FailureKind::Usage, Vec::new(), message)).into()
}

/// Checks a key and a value before they are sent.
pub(crate) fn check_value(key: &str, value: &[u8]) -> crate::Result<()> {
    if key.is_empty() || key.len() > MAX_KEY_BYTES {
        return Err(crate::error::usage(format!(
            "a key of {} bytes; expected 1 to {MAX_KEY_BYTES}",
            key.len()
        )));
    }
    if value.len() > MAX_VALUE_BYTES {
        return Err(crate::error::usage(format!(
            "the value for the key `{key}` has {} bytes; expected at most {MAX_VALUE_BYTES}; write larger data to a file \
             and pass its path",
            value.len()
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::super::fuzzing::sessions;
    use super::*;

    #[tokio::test]
    async fn too_many_requests_and_those_of_another_version_are_not_considered() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let process_end = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (coordinator_end, _) = listener.accept().await.unwrap();
        let [process, coordinator] = sessions();
        let mut run = Coordinator::new(1, "r", &[], Duration::from_secs(1000));
        let caller = wire::Caller { index: 0, session: 7 };
        let join = wire::Join {
            version: wire::VERSION,
            caller,
            count: 1,
            run_id: "r".into(),
            host: "h".into(),
            pid: 1,
        };
        run.join(&join, Instant::now()).unwrap();
        let (stop, stopping) = watch::channel(false);
        let serving = tokio::spawn(Service::new(run).serve(coordinator_end, coordinator, stopping));
        let (receiving, sending) = process_end.into_split();
        let mut writer = Writer::new(process.clone(), sending);
        let mut reader = Reader::new(process, receiving);
        let mut answer = async |number: u64, text: &str| {
            let message = reader.receive().await.unwrap();
            let failure = Reply::decode(&message.bytes[..]).unwrap().failure.unwrap();
            assert_eq!((message.request, failure.message.as_str()), (number, text));
        };
        writer.send_frame(0, true, &[0xff]).await.unwrap();
        let expected = "the coordinator does not answer the request: it is not a request of this version of Fulmen";
        answer(0, expected).await;
        let get = wire::Get { caller, key: "never put".into(), timeout_ms: 1_000_000 };
        let get = Request::Get(get).into_bytes();
        let last = MAX_REQUESTS as u64 + 1;
        for number in 1..=last {
            writer.send_frame(number, true, &get).await.unwrap();
        }
        answer(last, "the coordinator does not answer the request: 1024 others wait").await;
        drop((writer, reader, stop));
        assert!(serving.await.unwrap().is_none());
    }
}
