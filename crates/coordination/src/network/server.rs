//! The server of process 0. It serves connections until the run is over and all processes know its
//! outcome.

use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, watch};
use tokio::task::{JoinHandle, JoinSet};

use super::acceptor::{Admitted, RejectedPeers, accept};
use super::coordinator::Coordinator;
use super::noise::RunKey;
use super::service::Service;
use crate::{Result, error};

/// How long the server waits at the end until the other processes know the outcome. Processes that
/// are alive learn it at once.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(3);

/// Called for each refused connection.
pub(crate) type OnRefused = Arc<dyn Fn(&str) + Send + Sync>;

pub(crate) struct Server {
    service: Service,
    stop: watch::Sender<bool>,
    accept_tasks: JoinSet<()>,
    serve_task: JoinHandle<()>,
    heartbeat_task: JoinHandle<()>,
}

impl Server {
    /// Starts to serve. Call it on the runtime on which it will run.
    pub(crate) fn start(
        sockets: Vec<TcpListener>,
        coordinator: Coordinator,
        key: RunKey,
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
            accept_tasks.spawn(accept(
                listener,
                key,
                processes,
                admitted.clone(),
                rejected.clone(),
            ));
        }
        let (stop, stopping) = watch::channel(false);
        let serve_task = tokio::spawn(serve(connections, service.clone(), stopping, rejected));
        let heartbeat_task = tokio::spawn(service.clone().monitor_heartbeats());
        Ok(Server { service, stop, accept_tasks, serve_task, heartbeat_task })
    }

    /// Waits for a limited time until the others know how the run ended, and stops.
    pub(crate) async fn stop(mut self) {
        self.service
            .wait(SHUTDOWN_TIMEOUT, |coordinator| coordinator.all_notified().then_some(()))
            .await;
        self.heartbeat_task.abort();
        self.accept_tasks.shutdown().await;
        self.stop.send_replace(true);
        // Answers in progress are still sent.
        let _ = tokio::time::timeout(Duration::from_secs(1), &mut self.serve_task).await;
        self.serve_task.abort();
    }
}

/// Serves connections until no more are accepted and all have ended.
async fn serve(
    mut admitted: mpsc::Receiver<Admitted>,
    service: Service,
    stopping: watch::Receiver<bool>,
    rejected: Arc<RejectedPeers>,
) {
    let mut connections = JoinSet::new();
    while let Some(Admitted { stream, session, address }) = admitted.recv().await {
        while connections.try_join_next().is_some() {}
        let service = service.clone();
        let stopping = stopping.clone();
        let rejected = rejected.clone();
        connections.spawn(async move {
            let end = service.serve(stream, session, stopping).await;
            if let Some((process, end)) = end {
                rejected.end(address, &process, &end);
            }
        });
    }
    while connections.join_next().await.is_some() {}
}
