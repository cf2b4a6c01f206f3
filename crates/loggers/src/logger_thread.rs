//! [`LoggerThread`]: a logger on a thread of its own, with a queue of its own.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::time::{Duration, Instant};

use crate::loggers::Tell;
use crate::worker::Worker;
use crate::{LogPoint, Logger};

/// The maximum number of bytes of images in a queue.
pub(crate) const MAX_BYTES: u64 = 256 << 20;

/// A logger, the thread that calls it, and what it lost.
pub(crate) struct LoggerThread {
    name: &'static str,
    worker: Worker<Box<dyn Logger>>,
    shared: Arc<Shared>,
}

struct Shared {
    tell: Tell,
    /// The number of log points that found no room in the queue, since the last report.
    dropped: AtomicU64,
    /// The number of log points that the logger could not write, since the last report.
    failed: AtomicU64,
    /// Whether the user was warned that log points are dropped, or that the logger is silent.
    warned: AtomicBool,
    /// Whether the user was warned that the logger failed.
    warned_of_failure: AtomicBool,
    /// The number of queued bytes of images.
    bytes: AtomicU64,
    /// Whether the logger has not responded to a report.
    is_silent: AtomicBool,
}

impl LoggerThread {
    pub(crate) fn new(logger: Box<dyn Logger>, tell: Tell) -> io::Result<LoggerThread> {
        let name = logger.name();
        let shared = Shared {
            tell,
            dropped: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            warned: AtomicBool::new(false),
            warned_of_failure: AtomicBool::new(false),
            bytes: AtomicU64::new(0),
            is_silent: AtomicBool::new(false),
        };
        let shared = Arc::new(shared);
        let of_worker = shared.clone();
        let idle = move |logger: &mut Box<dyn Logger>| of_worker.check(name, logger.idle());
        let worker = Worker::new("fulmen-logger", logger, idle)?;
        Ok(LoggerThread { name, worker, shared })
    }

    /// Queues a log point with this number of bytes of images, without waiting.
    pub(crate) fn log(&self, point: Arc<LogPoint>, size: u64) {
        let name = self.name;
        let shared = self.shared.clone();
        let waiting = shared.bytes.fetch_add(size, Ordering::Relaxed);
        let job = move |logger: &mut Box<dyn Logger>| {
            shared.log(name, logger.as_mut(), &point);
            shared.bytes.fetch_sub(size, Ordering::Relaxed);
            shared.is_silent.store(false, Ordering::Relaxed);
        };
        // A log point that is larger than the limit is accepted if the queue is empty.
        if (waiting > 0 && waiting + size > MAX_BYTES) || !self.worker.post(Box::new(job)) {
            self.shared.bytes.fetch_sub(size, Ordering::Relaxed);
            self.shared.dropped.fetch_add(1, Ordering::Relaxed);
            self.warn_once("does not keep up, and logged values are lost; training continues");
        }
    }

    /// Queues a call of the logger, and waits for room until the deadline.
    pub(crate) fn post<T: Send + 'static>(
        &self,
        deadline: Instant,
        call: impl FnOnce(&mut dyn Logger) -> T + Send + 'static,
    ) -> Option<Receiver<T>> {
        let (send, receive) = sync_channel(1);
        let job = move |logger: &mut Box<dyn Logger>| drop(send.send(call(logger.as_mut())));
        self.worker.post_until(deadline, Box::new(job)).then_some(receive)
    }

    /// Queues a call of the logger, if it has responded to the last report or since.
    pub(crate) fn post_if_responding<T: Send + 'static>(
        &self,
        call: impl FnOnce(&mut dyn Logger) -> T + Send + 'static,
    ) -> Option<Receiver<T>> {
        if self.shared.is_silent.load(Ordering::Relaxed) {
            return None;
        }
        self.post(Instant::now(), call)
    }

    pub(crate) fn set_responding(&self, responds: bool) {
        self.shared.is_silent.store(!responds, Ordering::Relaxed);
    }

    /// Tells the user how the run ended for this logger; `None` if it did not respond in time.
    pub(crate) fn report(&self, finalized: Option<io::Result<()>>, timeout: Duration) {
        let tell = &self.shared.tell;
        let name = self.name;
        let timed_out = finalized.is_none();
        if let Some(Err(error)) = finalized {
            tell(&format!("{name}: {error}"));
        }
        match self.shared.failed.swap(0, Ordering::Relaxed) {
            0 => {}
            lost => tell(&format!("{name} lost log points: {lost}")),
        }
        match self.shared.dropped.swap(0, Ordering::Relaxed) {
            0 => {}
            lost => tell(&format!("{name} did not keep up; log points lost: {lost}")),
        }
        if timed_out {
            let waited = timeout.as_secs_f64();
            let waiting = self.worker.waiting();
            tell(&format!(
                "{name} did not respond for {waited} s; up to {waiting} queued log points are lost"
            ));
        }
    }

    pub(crate) fn warn_once(&self, message: &str) {
        if !self.shared.warned.swap(true, Ordering::Relaxed) {
            (self.shared.tell)(&format!("{} {message}", self.name));
        }
    }

    #[cfg(test)]
    pub(crate) fn waiting(&self) -> u64 {
        self.worker.waiting()
    }
}

impl Shared {
    fn log(&self, name: &str, logger: &mut dyn Logger, point: &LogPoint) {
        let logged = logger.log(point);
        if logged.as_ref().is_err_and(|error| error.kind() != io::ErrorKind::WouldBlock) {
            self.failed.fetch_add(1, Ordering::Relaxed);
        }
        self.check(name, logged);
    }

    /// Warns of the first failure.
    fn check(&self, name: &str, outcome: io::Result<()>) {
        let Err(error) = outcome else { return };
        if !self.warned_of_failure.swap(true, Ordering::Relaxed) {
            (self.tell)(&format!(
                "{name} could not write logged values: {error}; training continues"
            ));
        }
    }
}
