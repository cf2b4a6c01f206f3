//! The server of process 0. It serves connections until the run is over and all processes know its
//! outcome.

use std::convert::Infallible;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio_stream::StreamExt as _;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Server as Transport;

use super::accept::{RejectedPeers, accept};
use super::coordinator::Coordinator;
use super::service::Service;
use crate::token::Token;
use crate::{Error, Result};

/// How long the others get to learn the outcome before the server stops. Processes that are still
/// alive learn it at once.
const LINGER: Duration = Duration::from_secs(3);

/// Called for each refused connection.
pub(crate) type OnRefused = Arc<dyn Fn(&str) + Send + Sync>;

pub(crate) struct Server {
    service: Service,
    stop: oneshot::Sender<()>,
    accepting: JoinHandle<()>,
    serving: JoinHandle<()>,
    watching: JoinHandle<()>,
}

impl Server {
    /// Starts to serve. Call it on the runtime on which it will run.
    pub(crate) fn start(
        listener: TcpListener,
        coordinator: Coordinator,
        token: Option<Token>,
        on_refused: OnRefused,
    ) -> Result<Server> {
        let listening = |e| Error::system("listening for the other processes", e);
        listener.set_nonblocking(true).map_err(listening)?;
        let listener = tokio::net::TcpListener::from_std(listener).map_err(listening)?;
        let processes = coordinator.count() as usize;
        let service = Service::new(coordinator);
        let noted = service.clone();
        let rejected = RejectedPeers::new(move |refusal, rest| {
            noted.change(|coordinator| coordinator.note_refusal(refusal.clone()));
            let on_refused = on_refused.clone();
            // The callback may block, for example on a terminal; this thread must not.
            tokio::task::spawn_blocking(move || on_refused(&format!("{refusal}. {rest}")));
        });
        let (admitted, connections) = mpsc::channel(16);
        let accepting =
            tokio::spawn(accept(listener, token, processes, admitted, Arc::new(rejected)));
        let incoming = ReceiverStream::new(connections).map(Ok::<_, Infallible>);
        let (stop, stopped) = oneshot::channel::<()>();
        let serving =
            Transport::builder().serve_with_incoming_shutdown(service.clone(), incoming, async {
                let _ = stopped.await;
            });
        let serving = tokio::spawn(async {
            // An error of one connection does not end the server.
            let _ = serving.await;
        });
        let watching = tokio::spawn(service.clone().monitor_heartbeats());
        Ok(Server { service, stop, accepting, serving, watching })
    }

    /// Waits for a limited time until the others know how the run ended, and stops.
    pub(crate) async fn stop(self) {
        self.service.wait(LINGER, |coordinator| coordinator.all_notified().then_some(())).await;
        self.watching.abort();
        self.accepting.abort();
        let _ = self.stop.send(());
        // Answers in progress are still sent.
        let _ = tokio::time::timeout(Duration::from_secs(1), self.serving).await;
    }
}
