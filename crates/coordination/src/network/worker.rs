//! The thread that serves a process's sockets, and the bridge to it from threads that may block.

use std::future::Future;
use std::sync::mpsc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use tokio::runtime::{self, Handle};
use tokio::sync::oneshot;

use crate::{Result, error};

pub(crate) struct Worker {
    handle: Handle,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    pub(crate) fn start() -> Result<Worker> {
        let starting = |e| error::system("starting the coordination's thread", e);
        let runtime = runtime::Builder::new_current_thread()
            .enable_io()
            .enable_time()
            .build()
            .map_err(starting)?;
        let handle = runtime.handle().clone();
        let (stop, stopped) = oneshot::channel::<()>();
        let thread = thread::Builder::new().name("fulmen-coordination".into()).spawn(move || {
            let _ = runtime.block_on(stopped);
            // Name lookups that are still running are not awaited.
            runtime.shutdown_timeout(Duration::from_millis(100));
        });
        Ok(Worker { handle, stop: Some(stop), thread: Some(thread.map_err(starting)?) })
    }

    /// Runs a future on the thread and waits for it. Unlike the runtime's own `block_on`, this
    /// never panics, even if the caller is on a thread of another runtime.
    pub(crate) fn run<T: Send + 'static>(
        &self,
        task: impl Future<Output = T> + Send + 'static,
    ) -> Result<T> {
        if self.is_current() {
            return Err(error::usage("the coordination's own thread cannot wait for it"));
        }
        let (send, receive) = mpsc::sync_channel(1);
        self.handle.spawn(async move {
            let _ = send.send(task.await);
        });
        receive.recv().map_err(|_| error::ended())
    }

    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.handle.spawn(task);
    }

    fn is_current(&self) -> bool {
        self.thread.as_ref().is_some_and(|t| t.thread().id() == thread::current().id())
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            let _ = stop.send(());
        }
        if !self.is_current()
            && let Some(thread) = self.thread.take()
        {
            let _ = thread.join();
        }
    }
}
