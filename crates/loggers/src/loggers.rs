//! [`Loggers`]: runs all loggers on a separate thread, so that they never block training.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::TrySendError;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde_json::{Map, Value as Json};

use crate::worker::{Job, Worker};
use crate::{LogPoint, Logger, Media, Status};

/// The maximum number of queued bytes of images.
const MAX_BYTES: u64 = 256 << 20;

/// The loggers of a run, on a separate thread.
///
/// Only [`start`](Loggers::start) and [`finish`](Loggers::finish) wait for a logger, and only for a
/// limited time. Values that a logger cannot accept are lost. The user gets a warning when this
/// first happens, and the number of lost values at the end.
///
/// ```
/// use std::time::Duration;
/// use fulmen_loggers::{JsonlLogger, LogPoint, Loggers, Status};
///
/// let folder = tempfile::tempdir()?;
/// let tell = |line: &str| eprintln!("{line}");
/// let loggers = Loggers::new(vec![Box::new(JsonlLogger::new())], Duration::from_secs(30), tell)?;
/// loggers.start(folder.path(), Default::default())?;
/// loggers.log(LogPoint { metrics: vec![("train_loss".to_owned(), 0.25)], ..LogPoint::default() });
/// loggers.finish(Status::Finished);
/// assert!(std::fs::read_to_string(folder.path().join("metrics.jsonl"))?.contains("0.25"));
/// # Ok::<(), std::io::Error>(())
/// ```
pub struct Loggers {
    thread: Worker<Vec<Slot>>,
    /// The latest job of each kind for which the queue had no room.
    deferred_jobs: Mutex<BTreeMap<&'static str, Job<Vec<Slot>>>>,
    timeout: Duration,
    shared: Arc<Shared>,
}

struct Shared {
    tell: Box<dyn Fn(&str) + Send + Sync>,
    /// The number of log points that were dropped because the queue was full.
    lost: AtomicU64,
    warned: AtomicBool,
    /// The number of queued bytes of images.
    bytes: AtomicU64,
}

/// A logger, and the number of log points that it lost.
struct Slot {
    logger: Box<dyn Logger>,
    lost: u64,
    warned: bool,
}

impl Loggers {
    /// Starts the thread. `timeout` limits how long the start and the end of a run wait for a
    /// logger that does not respond. `tell` shows a line to the user.
    ///
    /// # Errors
    /// The system cannot start a thread.
    pub fn new(
        loggers: Vec<Box<dyn Logger>>,
        timeout: Duration,
        tell: impl Fn(&str) + Send + Sync + 'static,
    ) -> io::Result<Loggers> {
        let slots =
            loggers.into_iter().map(|logger| Slot { logger, lost: 0, warned: false }).collect();
        let (lost, warned, bytes) = (AtomicU64::new(0), AtomicBool::new(false), AtomicU64::new(0));
        let shared = Arc::new(Shared { tell: Box::new(tell), lost, warned, bytes });
        Ok(Loggers {
            thread: Worker::new("fulmen-loggers", slots)?,
            deferred_jobs: Mutex::default(),
            timeout,
            shared,
        })
    }

    /// Begins a run in this folder.
    ///
    /// # Errors
    /// A logger cannot write to the folder. A logger that does not respond in time only causes a
    /// warning.
    pub fn start(&self, folder: &Path, hyperparameters: Map<String, Json>) -> io::Result<()> {
        let folder = folder.to_owned();
        let started = self.thread.ask(self.timeout, move |slots| {
            slots.iter_mut().try_for_each(|Slot { logger, .. }| {
                logger.start(&folder)?;
                if hyperparameters.is_empty() {
                    Ok(())
                } else {
                    logger.log_hyperparams(&hyperparameters)
                }
            })
        });
        started.unwrap_or_else(|| {
            self.warn_once("a logger does not respond; training continues");
            Ok(())
        })
    }

    /// Queues a log point without waiting.
    pub fn log(&self, point: LogPoint) {
        let size = point.media.iter().map(|(_, media)| num_bytes(media)).sum();
        let shared = self.shared.clone();
        let waiting = shared.bytes.fetch_add(size, Ordering::Relaxed);
        let job = move |slots: &mut Vec<Slot>| {
            slots.iter_mut().for_each(|slot| slot.log(&point, &shared));
            shared.bytes.fetch_sub(size, Ordering::Relaxed);
        };
        // A log point that is larger than the limit is accepted if the queue is empty.
        if (waiting > 0 && waiting + size > MAX_BYTES) || !self.thread.post(Box::new(job)) {
            self.shared.bytes.fetch_sub(size, Ordering::Relaxed);
            self.shared.lost.fetch_add(1, Ordering::Relaxed);
            self.warn_once(
                "the loggers do not keep up, and logged values are lost; training continues",
            );
        }
    }

    /// Queues a job after all queued jobs, without waiting. If the queue is full, the job runs in
    /// [`finish`](Loggers::finish), unless a later call with the same `kind` replaces it.
    pub fn run(&self, kind: &'static str, job: impl FnOnce() + Send + 'static) {
        // The lock is held until the end, so that an older job never runs after a newer one.
        let mut deferred = self.deferred_jobs.lock().unwrap_or_else(PoisonError::into_inner);
        deferred.remove(kind);
        if let Err(TrySendError::Full(job)) = self.thread.try_post(Box::new(move |_| job())) {
            deferred.insert(kind, job);
        }
    }

    /// Waits until everything is written, and reports losses. The run may continue afterwards.
    pub fn finish(&self, status: Status) {
        let shared = self.shared.clone();
        let deferred =
            std::mem::take(&mut *self.deferred_jobs.lock().unwrap_or_else(PoisonError::into_inner));
        let num_deferred = deferred.len() as u64;
        let losses = self.thread.ask(self.timeout, move |slots| {
            deferred.into_values().for_each(|job| job(slots));
            for Slot { logger, .. } in &mut *slots {
                if let Err(error) = logger.finalize(status) {
                    (shared.tell)(&format!("warning: {}: {error}", logger.name()));
                }
            }
            slots
                .iter_mut()
                .filter(|slot| slot.lost > 0)
                .map(|slot| (slot.logger.name(), std::mem::take(&mut slot.lost)))
                .collect::<Vec<_>>()
        });
        let timed_out = losses.is_none();
        for (name, lost) in losses.unwrap_or_default() {
            (self.shared.tell)(&format!("warning: {name} lost log points: {lost}"));
        }
        match self.shared.lost.swap(0, Ordering::Relaxed) {
            0 => {}
            lost => (self.shared.tell)(&format!(
                "warning: the loggers did not keep up; log points lost: {lost}"
            )),
        }
        if timed_out {
            let waited = self.timeout.as_secs_f64();
            (self.shared.tell)(&format!(
                "warning: a logger did not respond for {waited} s; up to {} queued log points and reports are lost",
                self.thread.waiting() + num_deferred
            ));
        }
    }

    fn warn_once(&self, message: &str) {
        if !self.shared.warned.swap(true, Ordering::Relaxed) {
            (self.shared.tell)(&format!("warning: {message}"));
        }
    }
}

impl Slot {
    fn log(&mut self, point: &LogPoint, shared: &Shared) {
        let Err(error) = self.logger.log(point) else { return };
        if error.kind() != io::ErrorKind::WouldBlock {
            self.lost += 1;
        }
        if !std::mem::replace(&mut self.warned, true) {
            let name = self.logger.name();
            (shared.tell)(&format!(
                "warning: {name} could not write logged values: {error}; training continues"
            ));
        }
    }
}

/// The number of bytes of a value; 0 for kinds that are always small.
fn num_bytes(media: &Media) -> u64 {
    match media {
        Media::Image(images) => images.pixels.len() as u64,
        Media::Text(texts) => texts.iter().map(|text| text.len() as u64).sum(),
        Media::Histogram(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;
    use std::sync::mpsc::{self, Receiver};
    use std::thread;

    use super::*;
    use crate::worker::MAX_WAITING;
    use crate::{CsvLogger, Images, JsonlLogger};

    type Messages = Arc<Mutex<Vec<String>>>;

    fn loggers_and_messages(
        timeout: Duration,
        loggers: Vec<Box<dyn Logger>>,
    ) -> (Loggers, Messages) {
        let messages = Messages::default();
        let lines = messages.clone();
        let tell = move |line: &str| lines.lock().unwrap().push(line.to_owned());
        (Loggers::new(loggers, timeout, tell).unwrap(), messages)
    }

    fn point(step: u64) -> LogPoint {
        LogPoint {
            global_step: step,
            metrics: vec![("loss".to_owned(), 0.5)],
            ..LogPoint::default()
        }
    }

    const LONG: Duration = Duration::from_secs(600);

    /// A logger that blocks in its first log point until it is released.
    struct Hangs(Receiver<()>);

    impl Logger for Hangs {
        fn start(&mut self, _: &Path) -> io::Result<()> {
            Ok(())
        }
        fn log(&mut self, _: &LogPoint) -> io::Result<()> {
            let _ = self.0.recv();
            Ok(())
        }
    }

    #[test]
    fn a_logger_that_hangs_does_not_block_logging_and_losses_are_counted() {
        let folder = tempfile::tempdir().unwrap();
        let (release, wait) = mpsc::channel();
        let (loggers, messages) =
            loggers_and_messages(Duration::from_millis(1), vec![Box::new(Hangs(wait))]);
        loggers.start(folder.path(), Map::new()).unwrap();
        messages.lock().unwrap().clear();
        // One log point in progress, a full queue, and three that are lost.
        let all = 1 + MAX_WAITING as u64 + 3;
        loggers.log(point(0));
        while loggers.thread.waiting() > 1 {
            thread::sleep(Duration::from_millis(1));
        }
        (1..all).for_each(|step| loggers.log(point(step)));
        loggers.finish(Status::Finished);
        let messages = std::mem::take(&mut *messages.lock().unwrap());
        let lost: u64 =
            messages.iter().filter_map(|line| line.split(": ").nth(2)?.parse::<u64>().ok()).sum();
        assert!((3..=4).contains(&lost), "{messages:?}");
        assert!(
            messages.iter().filter(|line| line.contains("do not keep up")).count() <= 1,
            "{messages:?}"
        );
        assert!(messages.last().unwrap().contains("did not respond"), "{messages:?}");
        drop(release);
    }

    #[test]
    fn the_newest_job_of_a_kind_runs_even_if_the_queue_is_full() {
        let folder = tempfile::tempdir().unwrap();
        let (release, wait) = mpsc::channel();
        let (loggers, messages) = loggers_and_messages(LONG, vec![Box::new(Hangs(wait))]);
        loggers.start(folder.path(), Map::new()).unwrap();
        let done = Arc::new(Mutex::new(Vec::new()));
        let run = |kind, version: i32| {
            let done = done.clone();
            loggers.run(kind, move || done.lock().unwrap().push((kind, version)));
        };
        while loggers.shared.lost.load(Ordering::Relaxed) == 0 {
            loggers.log(point(0));
        }
        (0..3).for_each(|version| run("page", version));
        (0..3).for_each(|version| run("table", version));
        drop(release);
        while loggers.thread.waiting() > 0 {
            thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(*done.lock().unwrap(), []);
        // The queue has room again: this job replaces the deferred one.
        run("table", 3);
        loggers.finish(Status::Finished);
        assert_eq!(*done.lock().unwrap(), [("table", 3), ("page", 2)]);
        let messages = messages.lock().unwrap();
        assert!(messages.iter().all(|line| !line.contains("reports")), "{messages:?}");
    }

    #[test]
    fn a_failing_logger_is_reported_once_and_does_not_stop_the_others() {
        let folder = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/dev/full", folder.path().join("metrics.jsonl")).unwrap();
        let (loggers, messages) = loggers_and_messages(
            LONG,
            vec![Box::new(JsonlLogger::new()), Box::new(CsvLogger::new())],
        );
        loggers.start(folder.path(), Map::new()).unwrap();
        (0..5).for_each(|step| loggers.log(point(step)));
        loggers.finish(Status::Failed);
        let messages = messages.lock().unwrap();
        assert_eq!(messages.len(), 2, "{messages:?}");
        assert!(
            messages[0]
                .contains("JsonlLogger could not write logged values: No space left on device"),
            "{messages:?}"
        );
        assert_eq!(messages[1], "warning: JsonlLogger lost log points: 5");
        assert_eq!(
            std::fs::read_to_string(folder.path().join("metrics.csv")).unwrap().lines().count(),
            6
        );
    }

    #[test]
    fn a_run_does_not_begin_if_a_logger_cannot_write() {
        let (loggers, _) = loggers_and_messages(LONG, vec![Box::new(JsonlLogger::new())]);
        let error = loggers.start(Path::new("/dev/null/run"), Map::new()).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotADirectory);
    }

    #[test]
    fn queued_images_take_bounded_memory_and_jobs_run_after_earlier_log_points() {
        let folder = tempfile::tempdir().unwrap();
        let (release, wait) = mpsc::channel();
        let (loggers, messages) =
            loggers_and_messages(LONG, vec![Box::new(Hangs(wait)), Box::new(JsonlLogger::new())]);
        loggers.start(folder.path(), Map::new()).unwrap();
        let size = MAX_BYTES as usize / 2;
        let image = || Media::Image(Images { shape: [1, 1, 1, size], pixels: vec![0; size] });
        let with_image = |step| LogPoint { media: vec![("x".to_owned(), image())], ..point(step) };
        (0..3).for_each(|step| loggers.log(with_image(step)));
        loggers.log(point(3));
        let (read, text) =
            (folder.path().join("metrics.jsonl"), Arc::new(Mutex::new(String::new())));
        let result = text.clone();
        loggers
            .run("read", move || *result.lock().unwrap() = std::fs::read_to_string(read).unwrap());
        drop(release);
        loggers.finish(Status::Finished);
        assert_eq!(text.lock().unwrap().lines().count(), 3, "the third image was lost");
        let messages = messages.lock().unwrap();
        assert!(
            messages[0].contains("do not keep up") && messages[1].ends_with("log points lost: 1"),
            "{messages:?}"
        );
    }
}
