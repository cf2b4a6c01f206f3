//! Process 0's server: takes connections until the run is over and everybody knows how it ended.

use std::net::TcpListener;
use std::time::Duration;

use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tonic::transport::Server as Transport;
use tonic::transport::server::TcpIncoming;

use super::run::Run;
use super::service::Service;
use crate::{Error, Result};

/// How long the others get to hear the outcome before the server stops. They hear at once unless they are gone too.
const LINGER: Duration = Duration::from_secs(3);

pub(crate) struct Server {
    service: Service,
    stop: oneshot::Sender<()>,
    serving: JoinHandle<()>,
    watching: JoinHandle<()>,
}

impl Server {
    /// Starts to serve. To be called on the runtime that it is to run on.
    pub(crate) fn start(listener: TcpListener, run: Run) -> Result<Server> {
        let listening = |e| Error::system("listening for the other processes", e);
        listener.set_nonblocking(true).map_err(listening)?;
        let listener = tokio::net::TcpListener::from_std(listener).map_err(listening)?;
        let incoming = TcpIncoming::from(listener).with_nodelay(Some(true));
        let service = Service::new(run);
        let (stop, stopped) = oneshot::channel::<()>();
        let serving = Transport::builder().serve_with_incoming_shutdown(service.clone(), incoming, async {
            let _ = stopped.await;
        });
        let serving = tokio::spawn(async {
            // It ends with an error only if accepting does, and then the heartbeats of all find out.
            let _ = serving.await;
        });
        let watching = tokio::spawn(service.clone().watch_for_silence());
        Ok(Server { service, stop, serving, watching })
    }

    /// Waits until the others know how the run ended, though not for ever, and stops.
    pub(crate) async fn stop(self) {
        self.service.wait(LINGER, |run| run.all_know().then_some(())).await;
        self.watching.abort();
        let _ = self.stop.send(());
        // What is being answered is still sent.
        let _ = tokio::time::timeout(Duration::from_secs(1), self.serving).await;
    }
}
