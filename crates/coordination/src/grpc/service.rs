//! The coordinator's methods. Each asks the [`Coordinator`] and waits if there is no answer yet.
//!
//! The gRPC glue is written by hand: a generator would need the protobuf compiler or a longer build
//! script.

use std::convert::Infallible;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use prost::Message;
use tokio::sync::watch;
use tonic::body::Body;
use tonic::server::{Grpc, UnaryService};
use tonic::{Request, Response, Status};
use tonic_prost::ProstCodec;

use super::coordinator::Coordinator;
use super::wire::{self, MAX_KEY_BYTES, MAX_MESSAGE_BYTES, MAX_VALUE_BYTES, Reply, method};
use crate::timeouts::bounded;

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

    pub(super) async fn join(self, request: wire::Join) -> Result<Reply, Status> {
        if let Some(reason) = self.coordinator().is_ending(request.caller) {
            // The client retries this status until the next coordinator is up.
            return Err(Status::unavailable(reason));
        }
        let result = self.change(|coordinator| coordinator.join(&request, Instant::now()));
        let coordinator = self.coordinator();
        let heartbeat_timeout_ms = crate::timeouts::millis(coordinator.heartbeat_timeout());
        Ok(Reply { members: coordinator.members(), heartbeat_timeout_ms, ..Reply::from(result) })
    }

    pub(super) async fn wait_at_barrier(self, request: wire::WaitAtBarrier) -> Reply {
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

    pub(super) async fn put(self, request: wire::Put) -> Reply {
        let result = self.change(|coordinator| {
            coordinator.heartbeat(request.caller, Instant::now())?;
            coordinator.put(request.caller.index, &request.key, request.value)
        });
        result.into()
    }

    pub(super) async fn get(self, request: wire::Get) -> Reply {
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

    pub(super) async fn heartbeat(self, request: wire::Heartbeat) -> Reply {
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

    pub(super) async fn leave(self, request: wire::Leave) -> Reply {
        let result = self.change(|coordinator| {
            coordinator.heartbeat(request.caller, Instant::now())?;
            coordinator.leave(request.caller.index, &request.reason, request.signal);
            Ok(())
        });
        result.into()
    }
}

type BoxFuture<T> = Pin<Box<dyn Future<Output = T> + Send>>;

/// Adapts a closure to tonic's `UnaryService`.
struct Method<F>(F);

impl<Q, F, A> UnaryService<Q> for Method<F>
where
    F: FnMut(Q) -> A,
    A: Future<Output = Result<Reply, Status>> + Send + 'static,
{
    type Response = Reply;
    type Future = BoxFuture<Result<Response<Reply>, Status>>;

    fn call(&mut self, request: Request<Q>) -> Self::Future {
        let answer = (self.0)(request.into_inner());
        Box::pin(async { answer.await.map(Response::new) })
    }
}

/// Adapts the answer of a method that cannot fail.
async fn infallible(answer: impl Future<Output = Reply>) -> Result<Reply, Status> {
    Ok(answer.await)
}

async fn unary<Q, A>(
    request: http::Request<Body>,
    answer: impl FnMut(Q) -> A,
) -> http::Response<Body>
where
    Q: Message + Default + 'static,
    A: Future<Output = Result<Reply, Status>> + Send + 'static,
{
    let codec = ProstCodec::<Reply, Q>::default();
    let mut grpc = Grpc::new(codec).max_decoding_message_size(MAX_MESSAGE_BYTES);
    grpc.unary(Method(answer), request).await
}

impl tower_service::Service<http::Request<Body>> for Service {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let service = self.clone();
        Box::pin(async move {
            Ok(match request.uri().path() {
                method::JOIN => unary(request, |q| service.clone().join(q)).await,
                method::WAIT_AT_BARRIER => {
                    unary(request, |q| infallible(service.clone().wait_at_barrier(q))).await
                }
                method::PUT => unary(request, |q| infallible(service.clone().put(q))).await,
                method::GET => unary(request, |q| infallible(service.clone().get(q))).await,
                method::HEARTBEAT => {
                    unary(request, |q| infallible(service.clone().heartbeat(q))).await
                }
                method::LEAVE => unary(request, |q| infallible(service.clone().leave(q))).await,
                _ => {
                    Status::unimplemented("the coordination service has no such method").into_http()
                }
            })
        })
    }
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
