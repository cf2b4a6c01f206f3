//! [`Watcher`]: the callback that sends the Trainer's events to the screen and the keys' requests
//! to the Trainer.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use fulmen_trainer::{
    Actions, Callback, CheckpointFile, CheckpointRole, Error, EvaluationProgress, FitStart,
    FitSummary, LogPoint, Predicted, Progress, Sink,
};

use super::{Requests, ScreenSender};

/// The minimum time between two progress events.
const MIN_INTERVAL: Duration = Duration::from_millis(50);

pub(super) struct Watcher {
    screen: ScreenSender,
    requests: Arc<Requests>,
    /// The folder of checkpoints.
    folder: Option<PathBuf>,
    /// Batches queued on the device in this fit.
    batches: u64,
    last_sent: Option<Instant>,
}

impl Watcher {
    pub(super) fn new(screen: ScreenSender, requests: Arc<Requests>) -> Watcher {
        Watcher { screen, requests, folder: None, batches: 0, last_sent: None }
    }

    fn send_evaluation(&mut self, activity: &'static str, progress: &EvaluationProgress) {
        if progress.batch == 0 || self.last_sent.is_none_or(|time| time.elapsed() >= MIN_INTERVAL) {
            self.last_sent = Some(Instant::now());
            let activity = format!("{activity} {}", progress.dataset).trim_end().to_owned();
            let batch = progress.batch;
            let batches = progress.batches;
            self.screen.send(move |screen| screen.evaluation(activity, batch, batches));
        }
    }

    fn send_values(&self, point: &LogPoint) {
        let step = point.global_step;
        let values = point.shown_by(Sink::Logger).columns();
        self.screen.send(move |screen| screen.values(step, &values));
    }
}

impl Callback for Watcher {
    fn name(&self) -> &'static str {
        "Tui"
    }

    fn on_fit_start(&mut self, start: &FitStart) {
        self.folder.clone_from(&start.checkpoint_dir);
        (self.batches, self.last_sent) = (0, None);
        self.requests.save.store(false, Ordering::Relaxed);
        self.requests.stop.store(false, Ordering::Relaxed);
        let start = start.clone();
        self.screen.send(move |screen| screen.fit(&start));
    }

    fn on_compile_start(&mut self, program: &str) {
        let activity = format!("Compiling the {program}");
        self.screen.send(move |screen| screen.set_activity(activity));
    }

    fn on_train_batch_end(&mut self, progress: &Progress, actions: &mut Actions) {
        self.batches += 1;
        if self.last_sent.is_none_or(|time| time.elapsed() >= MIN_INTERVAL) {
            let now = Instant::now();
            let progress = *progress;
            let batches = self.batches;
            self.last_sent = Some(now);
            self.screen.send(move |screen| screen.step(progress, batches, now));
        }
        if self.requests.save.swap(false, Ordering::Relaxed) {
            match &self.folder {
                Some(folder) => {
                    actions.save_checkpoint(folder.join("saved-step={step}"), CheckpointRole::Extra)
                }
                None => self
                    .screen
                    .send(|screen| screen.notice("this run has no folder for checkpoints")),
            }
        }
        if self.requests.stop.swap(false, Ordering::Relaxed) {
            actions.stop("the key x was pressed");
        }
    }

    fn on_log(&mut self, point: &LogPoint, _: &mut Actions) {
        self.send_values(point);
    }

    fn on_validation_start(&mut self, progress: &EvaluationProgress) {
        self.send_evaluation("Validating", progress);
    }

    fn on_validation_batch_end(&mut self, progress: &EvaluationProgress) {
        self.send_evaluation("Validating", progress);
    }

    fn on_validation_end(&mut self, point: &LogPoint, _: &mut Actions) {
        self.send_values(point);
    }

    fn on_train_epoch_end(&mut self, point: &LogPoint, _: &mut Actions) {
        self.send_values(point);
    }

    fn on_save_checkpoint(&mut self, checkpoint: &CheckpointFile) {
        let path = checkpoint.path.display().to_string();
        self.screen.send(move |screen| screen.notice(&format!("checkpoint: {path}")));
    }

    fn on_test_start(&mut self, progress: &EvaluationProgress) {
        self.send_evaluation("Testing", progress);
    }

    fn on_test_batch_end(&mut self, progress: &EvaluationProgress) {
        self.send_evaluation("Testing", progress);
    }

    fn on_test_end(&mut self, point: &LogPoint) {
        self.send_values(point);
    }

    fn on_predict_start(&mut self, progress: &EvaluationProgress) {
        self.send_evaluation("Predicting", progress);
    }

    fn on_predict_batch_end(&mut self, progress: &EvaluationProgress, _: &Predicted) {
        self.send_evaluation("Predicting", progress);
    }

    fn on_exception(&mut self, _: &Error, _: &mut Actions) {
        self.screen.send(|screen| screen.end("Failed"));
    }

    fn on_fit_end(&mut self, _: &FitSummary) {
        self.screen.send(|screen| screen.end("Trained"));
    }
}
