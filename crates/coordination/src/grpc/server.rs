//! The server of process 0. It serves connections until the run is over and all processes know its
//! outcome.

use std::convert::Infallible;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::task::{JoinHandle, JoinSet};
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Server as Transport;

use super::acceptor::{RejectedPeers, accept};
use super::coordinator::Coordinator;
use super::service::Service;
use crate::token::Token;
use crate::{Result, error};

/// How long the server waits at the end until the other processes know the outcome. Processes that
/// are alive learn it at once.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(3);

/// Called for each refused connection.
pub(crate) type OnRefused = Arc<dyn Fn(&str) + Send + Sync>;

pub(crate) struct Server {
    service: Service,
    stop: oneshot::Sender<()>,
    accept_tasks: JoinSet<()>,
    serve_task: JoinHandle<()>,
    heartbeat_task: JoinHandle<()>,
}

impl Server {
    /// Starts to serve. Call it on the runtime on which it will run.
    pub(crate) fn start(
        sockets: Vec<TcpListener>,
        coordinator: Coordinator,
        token: Option<Token>,
        on_refused: OnRefused,
    ) -> Result<Server> {
        let listening = |e| error::system("listening for the other processes", e);
        let listeners = sockets.into_iter().map(|socket| {
            socket.set_nonblocking(true)?;
            tokio::net::TcpListener::from_std(socket)
        });
        let listeners = listeners.collect::<std::io::Result<Vec<_>>>().map_err(listening)?;
        let processes = coordinator.count() as usize;
        let service = Service::new(coordinator);
        let refusal_service = service.clone();
        let rejected = RejectedPeers::new(move |refusal, rest| {
            refusal_service.change(|coordinator| coordinator.note_refusal(refusal.clone()));
            let on_refused = on_refused.clone();
            // The callback may block, for example on a terminal, but this thread must not block.
            tokio::task::spawn_blocking(move || on_refused(&format!("{refusal}. {rest}")));
        });
        let (admitted, connections) = mpsc::channel(16);
        let rejected = Arc::new(rejected);
        let mut accept_tasks = JoinSet::new();
        for listener in listeners {
            let token = token.clone();
            let admitted = admitted.clone();
            accept_tasks.spawn(accept(listener, token, processes, admitted, rejected.clone()));
        }
        drop(admitted);
        let incoming = ReceiverStream::new(connections).map(Ok::<_, Infallible>);
        let (stop, stopped) = oneshot::channel::<()>();
        let transport =
            Transport::builder().serve_with_incoming_shutdown(service.clone(), incoming, async {
                let _ = stopped.await;
            });
        let serve_task = tokio::spawn(async {
            // An error of one connection does not end the server.
            let _ = transport.await;
        });
        let heartbeat_task = tokio::spawn(service.clone().monitor_heartbeats());
        Ok(Server { service, stop, accept_tasks, serve_task, heartbeat_task })
    }

    /// Waits for a limited time until the others know how the run ended, and stops.
    pub(crate) async fn stop(mut self) {
        self.service
            .wait(SHUTDOWN_TIMEOUT, |coordinator| coordinator.all_notified().then_some(()))
            .await;
        self.heartbeat_task.abort();
        self.accept_tasks.abort_all();
        let _ = self.stop.send(());
        // Answers in progress are still sent.
        let _ = tokio::time::timeout(Duration::from_secs(1), self.serve_task).await;
    }
}
