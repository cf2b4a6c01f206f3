//! [`Loggers`]: runs each logger on a thread of its own, so that none blocks training or another.

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::mpsc::Receiver;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use serde_json::{Map, Value as Json};

use crate::logger_thread::LoggerThread;
use crate::worker::Worker;
use crate::{LogPoint, Logger, Media, Status};

/// How long a report waits for the loggers to write what it reads.
const REPORT_PATIENCE: Duration = Duration::from_secs(5);

/// The loggers of a run, each on a thread of its own.
///
/// Only [`start`](Loggers::start) and [`finish`](Loggers::finish) wait for a logger, and only for a
/// limited time. Values that a logger cannot accept are lost for this logger. The user gets a
/// warning when this first happens, and the number of lost values at the end.
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
    threads: Arc<Vec<LoggerThread>>,
    /// Runs jobs.
    reporter: Worker<()>,
    /// The latest job of each kind that has not run yet.
    pending_jobs: PendingJobs,
    timeout: Duration,
    tell: Tell,
}

/// Shows a warning to the user.
pub(crate) type Tell = Arc<dyn Fn(&str) + Send + Sync>;

type PendingJobs = Arc<Mutex<BTreeMap<&'static str, Box<dyn FnOnce() + Send>>>>;

impl Loggers {
    /// Starts the threads. `timeout` limits how long the start and the end of a run wait for a
    /// logger that does not respond. `tell` shows a warning to the user.
    ///
    /// # Errors
    /// The system cannot start a thread.
    pub fn new(
        loggers: Vec<Box<dyn Logger>>,
        timeout: Duration,
        tell: impl Fn(&str) + Send + Sync + 'static,
    ) -> io::Result<Loggers> {
        let tell: Tell = Arc::new(tell);
        let threads: io::Result<Vec<LoggerThread>> =
            loggers.into_iter().map(|logger| LoggerThread::new(logger, tell.clone())).collect();
        Ok(Loggers {
            threads: Arc::new(threads?),
            reporter: Worker::new("fulmen-reports", (), |()| {})?,
            pending_jobs: PendingJobs::default(),
            timeout,
            tell,
        })
    }

    /// Begins a run in this folder.
    ///
    /// # Errors
    /// A logger cannot write to the folder. A logger that does not respond in time only causes a
    /// warning.
    pub fn start(&self, folder: &Path, hyperparameters: Map<String, Json>) -> io::Result<()> {
        let deadline = Instant::now() + self.timeout;
        let begin = |thread: &LoggerThread| {
            let folder = folder.to_owned();
            let hyperparameters = hyperparameters.clone();
            thread.post(deadline, move |logger| {
                logger.start(&folder)?;
                if hyperparameters.is_empty() {
                    Ok(())
                } else {
                    logger.log_hyperparams(&hyperparameters)
                }
            })
        };
        let answers: Vec<Option<Receiver<io::Result<()>>>> =
            self.threads.iter().map(begin).collect();
        for (thread, answer) in self.threads.iter().zip(answers) {
            match answer.and_then(|answer| wait(&answer, deadline)) {
                Some(started) => started?,
                None => thread.warn_once("does not respond; training continues"),
            }
        }
        Ok(())
    }

    /// Queues a log point without waiting.
    pub fn log(&self, point: LogPoint) {
        let size = point.media.iter().map(|(_, media)| num_bytes(media)).sum();
        let point = Arc::new(point);
        for thread in self.threads.iter() {
            thread.log(point.clone(), size);
        }
    }

    /// Queues a job without waiting. It runs after the log points that are queued before it are
    /// written. It waits only a few seconds for a logger that does not respond. A later call with
    /// the same `kind` replaces a job that has not begun.
    pub fn run(&self, kind: &'static str, job: impl FnOnce() + Send + 'static) {
        self.pending_jobs
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(kind, Box::new(job));
        let threads = self.threads.clone();
        let pending_jobs = self.pending_jobs.clone();
        // If the queue is full, a job of the queue runs it.
        self.reporter.post(Box::new(move |()| run_pending(&threads, &pending_jobs)));
    }

    /// Waits until everything is written, and reports losses. The run may continue afterwards.
    pub fn finish(&self, status: Status) {
        let threads = self.threads.clone();
        let pending_jobs = self.pending_jobs.clone();
        let reported =
            self.reporter.ask(self.timeout, move |()| run_pending(&threads, &pending_jobs));
        if reported.is_none() {
            let waited = self.timeout.as_secs_f64();
            (self.tell)(&format!("the report of the run was not written within {waited} s"));
        }
        let deadline = Instant::now() + self.timeout;
        let finalize = |thread: &LoggerThread, until: Instant| {
            thread.post(until, move |logger| logger.finalize(status))
        };
        // First those that have room: they do not wait for one whose queue stays full.
        let mut answers: Vec<Option<Receiver<io::Result<()>>>> =
            self.threads.iter().map(|thread| finalize(thread, Instant::now())).collect();
        for (thread, answer) in self.threads.iter().zip(&mut answers) {
            if answer.is_none() {
                *answer = finalize(thread, deadline);
            }
        }
        for (thread, answer) in self.threads.iter().zip(answers) {
            let finalized = answer.and_then(|answer| wait(&answer, deadline));
            thread.report(finalized, self.timeout);
        }
    }
}

/// Runs the pending jobs, once the loggers have written what is queued.
fn run_pending(threads: &[LoggerThread], pending_jobs: &PendingJobs) {
    let next = || pending_jobs.lock().unwrap_or_else(PoisonError::into_inner).pop_first();
    let Some((_, first)) = next() else { return };
    let deadline = Instant::now() + REPORT_PATIENCE;
    let written: Vec<Option<Receiver<()>>> =
        threads.iter().map(|thread| thread.post_if_responding(|_| ())).collect();
    for (thread, written) in threads.iter().zip(written) {
        if let Some(written) = written {
            thread.set_responding(wait(&written, deadline).is_some());
        }
    }
    first();
    while let Some((_, job)) = next() {
        job();
    }
}

fn wait<T>(answer: &Receiver<T>, deadline: Instant) -> Option<T> {
    answer.recv_timeout(deadline.saturating_duration_since(Instant::now())).ok()
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
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc::{self, Receiver};
    use std::thread;

    use super::*;
    use crate::logger_thread::MAX_BYTES;
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

    /// A logger that says that its run has ended.
    struct Ends(Arc<AtomicBool>);

    impl Logger for Ends {
        fn start(&mut self, _: &Path) -> io::Result<()> {
            Ok(())
        }
        fn log(&mut self, _: &LogPoint) -> io::Result<()> {
            Ok(())
        }
        fn finalize(&mut self, _: Status) -> io::Result<()> {
            self.0.store(true, Ordering::Relaxed);
            Ok(())
        }
    }

    #[test]
    fn a_logger_that_hangs_does_not_block_logging_and_its_losses_are_counted() {
        let folder = tempfile::tempdir().unwrap();
        let (release, wait) = mpsc::channel();
        let (loggers, messages) =
            loggers_and_messages(Duration::from_millis(1), vec![Box::new(Hangs(wait))]);
        loggers.start(folder.path(), Map::new()).unwrap();
        messages.lock().unwrap().clear();
        // One log point in progress, a full queue, and three that are lost.
        let all = 1 + MAX_WAITING as u64 + 3;
        loggers.log(point(0));
        while loggers.threads[0].waiting() > 1 {
            thread::sleep(Duration::from_millis(1));
        }
        (1..all).for_each(|step| loggers.log(point(step)));
        loggers.finish(Status::Finished);
        let messages = std::mem::take(&mut *messages.lock().unwrap());
        let lost: u64 =
            messages.iter().filter_map(|line| line.split(": ").nth(1)?.parse::<u64>().ok()).sum();
        assert!((3..=4).contains(&lost), "{messages:?}");
        assert!(
            messages.iter().filter(|line| line.contains("does not keep up")).count() <= 1,
            "{messages:?}"
        );
        assert!(messages.last().unwrap().contains("Hangs did not respond"), "{messages:?}");
        drop(release);
    }

    #[test]
    fn a_logger_that_hangs_costs_the_others_no_row_and_no_report() {
        let folder = tempfile::tempdir().unwrap();
        let (release, wait) = mpsc::channel();
        let is_final = Arc::new(AtomicBool::new(false));
        let (loggers, _) = loggers_and_messages(
            LONG,
            vec![
                Box::new(Hangs(wait)),
                Box::new(CsvLogger::new()),
                Box::new(JsonlLogger::new()),
                Box::new(Ends(is_final.clone())),
            ],
        );
        loggers.start(folder.path(), Map::new()).unwrap();
        let rows = 10 * MAX_WAITING as u64;
        for step in 0..rows {
            loggers.log(point(step));
            while loggers.threads[1..].iter().any(|thread| thread.waiting() > 100) {
                thread::sleep(Duration::from_millis(1));
            }
        }
        let reported = Arc::new(Mutex::new(0));
        let path = folder.path().join("metrics.jsonl");
        let result = reported.clone();
        loggers.run("report", move || {
            *result.lock().unwrap() = std::fs::read_to_string(path).unwrap().lines().count();
        });
        loggers.threads[0].set_responding(false);
        let lines = |name: &str| {
            std::fs::read_to_string(folder.path().join(name)).unwrap().lines().count() as u64
        };
        thread::scope(|scope| {
            let finish = scope.spawn(|| loggers.finish(Status::Finished));
            let others = &loggers.threads[1..];
            while !is_final.load(Ordering::Relaxed)
                || others.iter().any(|thread| thread.waiting() > 0)
                || *reported.lock().unwrap() == 0
            {
                thread::sleep(Duration::from_millis(1));
            }
            assert_eq!((lines("metrics.csv"), lines("metrics.jsonl")), (1 + rows, rows));
            assert_eq!(*reported.lock().unwrap() as u64, rows);
            assert!(!finish.is_finished(), "the first logger still hangs");
            drop(release);
        });
    }

    #[test]
    fn the_newest_job_of_a_kind_runs() {
        let folder = tempfile::tempdir().unwrap();
        let (loggers, messages) = loggers_and_messages(LONG, Vec::new());
        loggers.start(folder.path(), Map::new()).unwrap();
        let done = Arc::new(Mutex::new(Vec::new()));
        let run = |kind, version: i32| {
            let done = done.clone();
            loggers.run(kind, move || done.lock().unwrap().push((kind, version)));
        };
        // The first job waits, so that the others are replaced before they begin.
        let (release, wait) = mpsc::channel::<()>();
        loggers.run("wait", move || {
            let _ = wait.recv();
        });
        while loggers.pending_jobs.lock().unwrap().contains_key("wait") {
            thread::sleep(Duration::from_millis(1));
        }
        for version in 0..=2 * MAX_WAITING as i32 {
            run("page", version);
            run("table", version);
        }
        drop(release);
        loggers.finish(Status::Finished);
        let last = 2 * MAX_WAITING as i32;
        assert_eq!(*done.lock().unwrap(), [("page", last), ("table", last)]);
        assert_eq!(*messages.lock().unwrap(), Vec::<String>::new());
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
        assert_eq!(messages[1], "JsonlLogger lost log points: 5");
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
        for step in 0..3 {
            loggers.log(with_image(step));
            while loggers.threads[1].waiting() > 0 {
                thread::sleep(Duration::from_millis(1));
            }
        }
        loggers.log(point(3));
        let read = folder.path().join("metrics.jsonl");
        let text = Arc::new(Mutex::new(String::new()));
        let result = text.clone();
        loggers
            .run("read", move || *result.lock().unwrap() = std::fs::read_to_string(read).unwrap());
        drop(release);
        loggers.finish(Status::Finished);
        assert_eq!(text.lock().unwrap().lines().count(), 4, "only the slow logger lost an image");
        let messages = messages.lock().unwrap();
        assert!(
            messages[0].contains("Hangs does not keep up")
                && messages[1].ends_with("Hangs did not keep up; log points lost: 1"),
            "{messages:?}"
        );
    }
}
