//! Early ends of a fit: a metric that stops improving or is missing, and a timer.

use std::path::Path;
use std::time::Duration;

use crate::common::{DROP_LAST, Net, train_loader, trainer, val_loader};
use fulmen_trainer::callbacks::{
    EarlyStopping, Mode, ModelCheckpoint, ReduceLROnPlateau, Timer, TimerInterval,
};
use fulmen_trainer::{EvaluationSet, FitSummary, Result, TrainerBuilder};

/// Trains with 5 batches per epoch.
fn fit(
    folder: &Path,
    validates: bool,
    set: impl Fn(TrainerBuilder) -> TrainerBuilder,
) -> Result<FitSummary> {
    let validation = val_loader(16);
    let mut trainer = set(trainer(folder).max_epochs(4)).build().unwrap();
    trainer.fit(&Net::new(), &train_loader(40, DROP_LAST), validates.then_some(&validation))
}

#[test]
fn a_metric_that_is_never_logged_is_an_error_or_a_warning() {
    let folder = tempfile::tempdir().unwrap();
    let stopping = || EarlyStopping::new("val_los", Mode::Min);
    for validates in [true, false] {
        let error = fit(folder.path(), validates, |b| b.callback(stopping())).unwrap_err();
        let message = error.to_string();
        assert!(
            error.is_usage() && message.starts_with("EarlyStopping monitors `val_los`, which this"),
            "{message}"
        );
        assert!(
            message.contains("train_loss_epoch")
                && message.ends_with("With strict(false) it only warns"),
            "{message}"
        );
        let summary =
            fit(folder.path(), validates, |b| b.callback(stopping().strict(false))).unwrap();
        assert_eq!((summary.epochs, summary.stopped), (4, None));
    }
    // An epoch without validation may lack the metric. A validation within an epoch logs it before
    // the epoch ends.
    let stopping = || EarlyStopping::new("val_loss", Mode::Min).patience(100);
    for (every, interval) in [(2, "1.0"), (1, "0.5"), (1, "7")] {
        let summary = fit(folder.path(), true, |b| {
            b.check_val_every_n_epoch(every).val_check_interval(interval).callback(stopping())
        });
        assert_eq!(summary.unwrap().epochs, 4);
    }
    let refused = trainer(folder.path()).callback(stopping().patience(0)).build().err().unwrap();
    assert_eq!(refused.to_string(), "EarlyStopping: patience must be at least 1, but it is 0");
}

#[test]
fn every_callback_that_monitors_rejects_a_metric_that_is_never_logged() {
    let folder = tempfile::tempdir().unwrap();
    let checkpoint = || ModelCheckpoint::new().monitor("val_los", Mode::Min);
    let plateau = || ReduceLROnPlateau::new("val_los", Mode::Min);
    type Set = Box<dyn Fn(TrainerBuilder) -> TrainerBuilder>;
    let callbacks: [(&str, Set, Set); 2] = [
        (
            "ModelCheckpoint",
            Box::new(move |b| b.callback(checkpoint())),
            Box::new(move |b| b.callback(checkpoint().strict(false))),
        ),
        (
            "ReduceLROnPlateau",
            Box::new(move |b| b.callback(plateau())),
            Box::new(move |b| b.callback(plateau().strict(false))),
        ),
    ];
    for (name, strict, lenient) in callbacks {
        let error = fit(folder.path(), true, strict).unwrap_err();
        let message = error.to_string();
        assert!(
            error.is_usage()
                && message.starts_with(&format!(
                    "{name} monitors `val_los`, which this epoch did not log; it logged: "
                ))
                && message.contains("val_loss, val_acc")
                && message.ends_with("With strict(false) it only warns"),
            "{message}"
        );
        assert_eq!(fit(folder.path(), true, lenient).unwrap().epochs, 4);
    }
    // As in Lightning, ModelCheckpoint only warns in a fit without validation.
    let summary = fit(folder.path(), false, |b| b.callback(checkpoint())).unwrap();
    assert_eq!((summary.epochs, summary.best_checkpoint), (4, None));
    let error = fit(folder.path(), false, |b| b.callback(plateau())).unwrap_err();
    assert!(error.to_string().contains("ReduceLROnPlateau monitors"), "{error}");
    // The metrics of a validation within the epoch exist too.
    let error = fit(folder.path(), true, |b| b.val_check_interval("3").callback(checkpoint()))
        .unwrap_err()
        .to_string();
    assert!(error.contains("train_loss_epoch") && error.contains("val_loss"), "{error}");
}

#[test]
fn a_metric_of_a_set_that_is_validated_less_often_is_not_missing_before() {
    let folder = tempfile::tempdir().unwrap();
    let often = val_loader(16);
    let rarely = val_loader(16);
    let fit = |metric: &str| {
        let sets = [
            EvaluationSet::new("often", &often),
            EvaluationSet::new("rarely", &rarely).check_val_every_n_epoch(3),
        ];
        let stopping = EarlyStopping::new(metric, Mode::Min).patience(100);
        let checkpoint = ModelCheckpoint::new().monitor(metric, Mode::Min);
        let builder = trainer(folder.path()).max_epochs(4).callback(stopping);
        let mut trainer = builder.callback(checkpoint).build().unwrap();
        trainer.fit(&Net::new(), &train_loader(40, DROP_LAST), sets)
    };
    let summary = fit("val_loss/rarely").unwrap();
    assert_eq!(summary.epochs, 4);
    assert!(summary.best_checkpoint.is_some());
    let error = fit("val_loss/rare").unwrap_err().to_string();
    assert!(error.contains("val_loss/rarely"), "both sets have run: {error}");
}

#[test]
fn each_validation_counts_once() {
    let folder = tempfile::tempdir().unwrap();
    // No value improves by this much: the first is the best, and the patience ends with the third
    // after it.
    let stopping = || EarlyStopping::new("val_loss", Mode::Min).min_delta(1e6).patience(3);
    for (interval, steps) in [("1.0", 20), ("2", 8)] {
        let summary =
            fit(folder.path(), true, |b| b.val_check_interval(interval).callback(stopping()))
                .unwrap();
        assert_eq!(summary.global_step, steps, "{interval}");
        assert!(summary.stopped.unwrap().starts_with("val_loss has not improved 3 times in a row"));
    }
    // The remembered values survive a resume.
    let first = fit(folder.path(), true, |b| b.max_epochs(2).callback(stopping())).unwrap();
    let path = first.last_checkpoint.unwrap();
    let resumed =
        fit(folder.path(), true, |b| b.max_epochs(9).ckpt_path(&path).callback(stopping()))
            .unwrap();
    assert_eq!((resumed.epochs, resumed.stopped.is_some()), (4, true));
}

#[test]
fn a_timer_ends_a_fit_after_a_step_or_an_epoch() {
    let folder = tempfile::tempdir().unwrap();
    let short = Timer::new().duration(Duration::from_nanos(1));
    let summary = fit(folder.path(), false, |b| b.callback(short.clone())).unwrap();
    assert_eq!(summary.global_step, 1);
    assert_eq!(summary.stopped.unwrap(), "the Timer's 1ns have elapsed");
    let summary =
        fit(folder.path(), false, |b| b.callback(short.clone().interval(TimerInterval::Epoch)))
            .unwrap();
    assert_eq!(summary.global_step, 5);
    assert_eq!(short.time_remaining(), Some(Duration::ZERO));
    // `min_steps` takes precedence.
    let summary = fit(folder.path(), false, |b| b.min_steps(3).callback(short.clone())).unwrap();
    assert_eq!(summary.global_step, 3);

    // The time continues after a resume, and stops at the end of the fit.
    let timer = Timer::new();
    let resumed = Timer::new();
    let first = fit(folder.path(), false, |b| b.max_epochs(2).callback(timer.clone())).unwrap();
    assert_eq!((timer.time_elapsed(), timer.time_remaining()), (timer.time_elapsed(), None));
    let path = first.last_checkpoint.unwrap();
    fit(folder.path(), false, |b| b.ckpt_path(&path).callback(resumed.clone())).unwrap();
    let saved = std::fs::read(path.join("manifest.json")).unwrap();
    let text = String::from_utf8_lossy(&saved);
    let seconds = text
        .split("seconds\":")
        .find_map(|part| part.split('}').next()?.parse::<u64>().ok())
        .unwrap();
    let saved = Duration::from_secs_f64(f64::from_bits(seconds));
    assert!(
        saved > Duration::ZERO && saved <= timer.time_elapsed() && resumed.time_elapsed() > saved
    );

    let refused = trainer(folder.path())
        .callback(Timer::new().duration(Duration::ZERO))
        .build()
        .err()
        .unwrap();
    assert_eq!(refused.to_string(), "Timer: duration must be more than 0 seconds");
}
