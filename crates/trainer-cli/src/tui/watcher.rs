//! [`Watcher`]: the callback that tells the screen what happens, and the Trainer what keys ask for.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use fulmen_trainer::{
    Actions, Callback, CheckpointFile, CheckpointRole, Error, EvaluationProgress, FitStart, FitSummary, LogPoint,
    Predicted, Progress, Sink,
};

use super::{Asked, Teller};

/// Steps that come faster are not told one by one.
const OFTEN: Duration = Duration::from_millis(50);

pub(super) struct Watcher {
    teller: Teller,
    asked: Arc<Asked>,
    /// Where checkpoints go.
    folder: Option<PathBuf>,
    /// Batches that were handed to the device in this fit.
    batches: u64,
    told: Option<Instant>,
}

impl Watcher {
    pub(super) fn new(teller: Teller, asked: Arc<Asked>) -> Watcher {
        Watcher { teller, asked, folder: None, batches: 0, told: None }
    }

    fn tell_evaluation(&mut self, doing: &'static str, progress: &EvaluationProgress) {
        if progress.batch == 0 || self.told.is_none_or(|at| at.elapsed() >= OFTEN) {
            self.told = Some(Instant::now());
            let doing = format!("{doing} {}", progress.dataset).trim_end().to_owned();
            let (batch, batches) = (progress.batch, progress.batches);
            self.teller.tell(move |screen| screen.evaluation(doing, batch, batches));
        }
    }

    fn tell_values(&self, point: &LogPoint) {
        let (step, values) = (point.global_step, point.shown_by(Sink::Logger).columns());
        self.teller.tell(move |screen| screen.values(step, &values));
    }
}

impl Callback for Watcher {
    fn name(&self) -> &'static str {
        "Tui"
    }

    fn on_fit_start(&mut self, start: &FitStart) {
        self.folder.clone_from(&start.checkpoint_dir);
        (self.batches, self.told) = (0, None);
        self.asked.save.store(false, Ordering::Relaxed);
        self.asked.stop.store(false, Ordering::Relaxed);
        let start = start.clone();
        self.teller.tell(move |screen| screen.fit(&start));
    }

    fn on_compile_start(&mut self, program: &str) {
        let doing = format!("Compiling the {program}");
        self.teller.tell(move |screen| screen.doing(doing));
    }

    fn on_train_batch_end(&mut self, progress: &Progress, actions: &mut Actions) {
        self.batches += 1;
        if self.told.is_none_or(|at| at.elapsed() >= OFTEN) {
            let (now, progress, batches) = (Instant::now(), *progress, self.batches);
            self.told = Some(now);
            self.teller.tell(move |screen| screen.step(progress, batches, now));
        }
        if self.asked.save.swap(false, Ordering::Relaxed) {
            match &self.folder {
                Some(folder) => actions.save_checkpoint(folder.join("saved-step={step}"), CheckpointRole::Extra),
                None => self.teller.tell(|screen| screen.notice("this run has no folder for checkpoints")),
            }
        }
        if self.asked.stop.swap(false, Ordering::Relaxed) {
            actions.stop("the key x was pressed");
        }
    }

    fn on_log(&mut self, point: &LogPoint, _: &mut Actions) {
        self.tell_values(point);
    }

    fn on_validation_start(&mut self, progress: &EvaluationProgress) {
        self.tell_evaluation("Validating", progress);
    }

    fn on_validation_batch_end(&mut self, progress: &EvaluationProgress) {
        self.tell_evaluation("Validating", progress);
    }

    fn on_validation_end(&mut self, point: &LogPoint, _: &mut Actions) {
        self.tell_values(point);
    }

    fn on_train_epoch_end(&mut self, point: &LogPoint, _: &mut Actions) {
        self.tell_values(point);
    }

    fn on_save_checkpoint(&mut self, checkpoint: &CheckpointFile) {
        let path = checkpoint.path.display().to_string();
        self.teller.tell(move |screen| screen.notice(&format!("checkpoint: {path}")));
    }

    fn on_test_start(&mut self, progress: &EvaluationProgress) {
        self.tell_evaluation("Testing", progress);
    }

    fn on_test_batch_end(&mut self, progress: &EvaluationProgress) {
        self.tell_evaluation("Testing", progress);
    }

    fn on_test_end(&mut self, point: &LogPoint) {
        self.tell_values(point);
    }

    fn on_predict_start(&mut self, progress: &EvaluationProgress) {
        self.tell_evaluation("Predicting", progress);
    }

    fn on_predict_batch_end(&mut self, progress: &EvaluationProgress, _: &Predicted) {
        self.tell_evaluation("Predicting", progress);
    }

    fn on_exception(&mut self, _: &Error, _: &mut Actions) {
        self.teller.tell(|screen| screen.end("Failed"));
    }

    fn on_fit_end(&mut self, _: &FitSummary) {
        self.teller.tell(|screen| screen.end("Trained"));
    }
}
