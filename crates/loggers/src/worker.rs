//! [`Worker`]: a thread that runs jobs from a bounded queue.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError, SyncSender, TrySendError};
use std::thread;
use std::time::{Duration, Instant};

/// The maximum number of queued jobs.
pub(crate) const MAX_WAITING: usize = 1024;

/// How long a thread waits for a job before it is idle.
#[cfg(not(test))]
const IDLE: Duration = Duration::from_secs(30);
#[cfg(test)]
const IDLE: Duration = Duration::from_millis(20);

/// A thread that runs jobs in order. All of them use one state.
pub(crate) struct Worker<S> {
    jobs: SyncSender<Job<S>>,
    waiting: Arc<AtomicU64>,
}

/// A job of a [`Worker`].
pub(crate) type Job<S> = Box<dyn FnOnce(&mut S) + Send>;

impl<S: Send + 'static> Worker<S> {
    /// Starts the thread. It calls `idle` each time that it had no job for [`IDLE`].
    pub(crate) fn new(
        name: &str,
        mut state: S,
        mut idle: impl FnMut(&mut S) + Send + 'static,
    ) -> io::Result<Worker<S>> {
        let (jobs, receiver) = mpsc::sync_channel::<Job<S>>(MAX_WAITING);
        let waiting = Arc::new(AtomicU64::new(0));
        let done = waiting.clone();
        thread::Builder::new().name(name.to_owned()).spawn(move || {
            loop {
                match receiver.recv_timeout(IDLE) {
                    Ok(job) => {
                        job(&mut state);
                        done.fetch_sub(1, Ordering::Relaxed);
                    }
                    Err(RecvTimeoutError::Timeout) => idle(&mut state),
                    Err(RecvTimeoutError::Disconnected) => break,
                }
            }
        })?;
        Ok(Worker { jobs, waiting })
    }

    /// The number of unfinished jobs.
    pub(crate) fn waiting(&self) -> u64 {
        self.waiting.load(Ordering::Relaxed)
    }

    /// Queues a job, unless the queue is full.
    pub(crate) fn post(&self, job: Job<S>) -> bool {
        self.try_post(job).is_ok()
    }

    /// Like [`post`](Worker::post), but returns an error with the job if the queue is full or
    /// the thread has ended.
    fn try_post(&self, job: Job<S>) -> Result<(), TrySendError<Job<S>>> {
        self.waiting.fetch_add(1, Ordering::Relaxed);
        self.jobs.try_send(job).inspect_err(|_| {
            self.waiting.fetch_sub(1, Ordering::Relaxed);
        })
    }

    /// Queues a job, and waits for room until the deadline. Returns whether it was queued.
    pub(crate) fn post_until(&self, deadline: Instant, mut job: Job<S>) -> bool {
        loop {
            job = match self.try_post(job) {
                Ok(()) => return true,
                Err(TrySendError::Full(job)) if Instant::now() < deadline => job,
                Err(_) => return false,
            };
            thread::sleep(Duration::from_millis(10));
        }
    }

    /// Runs a job after all queued jobs, and waits for its result; `None` if that takes too long.
    pub(crate) fn ask<T: Send + 'static>(
        &self,
        timeout: Duration,
        job: impl FnOnce(&mut S) -> T + Send + 'static,
    ) -> Option<T> {
        let deadline = Instant::now() + timeout;
        let (sender, receiver) = mpsc::sync_channel(1);
        let job: Job<S> = Box::new(move |state| drop(sender.send(job(state))));
        if !self.post_until(deadline, job) {
            return None;
        }
        receiver.recv_timeout(deadline.saturating_duration_since(Instant::now())).ok()
    }
}
