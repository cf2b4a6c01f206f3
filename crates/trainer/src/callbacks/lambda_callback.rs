//! [`on`]: a closure as a callback, for one event. A filter selects when it is called.

use serde_json::Value as Json;

use crate::callbacks::callback::Callback;
use crate::hooks::{FitStart, Progress};
use crate::{Actions, FitSummary, LogPoint};

/// The event that a closure is called for: the hook of [`Callback`] of that name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// `on_fit_start`. Actions have no effect.
    FitStart,
    /// `on_train_epoch_start`.
    TrainEpochStart,
    /// `on_train_batch_end`.
    TrainBatchEnd,
    /// `on_log`.
    Log,
    /// `on_validation_end`, in a fit.
    ValidationEnd,
    /// `on_train_epoch_end`.
    TrainEpochEnd,
    /// `on_fit_end`. Actions have no effect.
    FitEnd,
}

/// One occurrence of an event.
#[derive(Clone, Copy, Debug)]
pub struct Occurrence<'a> {
    /// How often the event has happened in this run, this time included.
    pub count: u64,
    /// The epoch, counted from 0.
    pub epoch: u64,
    /// The number of optimizer steps so far.
    pub global_step: u64,
    /// The values of a log point, a validation or an epoch, for events that have them.
    pub point: Option<&'a LogPoint>,
}

/// Selects the occurrences of an event for which a closure is called: [`every`], [`once`] or
/// [`when`].
pub struct Filter(FilterKind);

enum FilterKind {
    Every(u64),
    Once,
    When(Box<dyn FnMut(&Occurrence<'_>) -> bool + Send>),
}

/// Calls the closure each `n`-th time. Occurrences before a resume count.
pub fn every(n: u64) -> Filter {
    Filter(FilterKind::Every(n))
}

/// Calls the closure the first time in a run, and not again after a resume.
pub fn once() -> Filter {
    Filter(FilterKind::Once)
}

/// Calls the closure when `predicate` returns true.
pub fn when(predicate: impl FnMut(&Occurrence<'_>) -> bool + Send + 'static) -> Filter {
    Filter(FilterKind::When(Box::new(predicate)))
}

/// Calls a closure when an event happens, like Lightning's `LambdaCallback`.
///
/// ```
/// use fulmen_trainer::Trainer;
/// use fulmen_trainer::callbacks::{Event, every, on, when};
///
/// let trainer = Trainer::builder()
///     .callback(on(Event::TrainBatchEnd, every(1000), |_, actions| actions.validate()))
///     .callback(on(
///         Event::ValidationEnd,
///         when(|now| now.point.and_then(|point| point.get("val_acc")) > Some(0.99)),
///         |now, actions| actions.stop(format!("good enough at step {}", now.global_step)),
///     ))
///     .build()?;
/// # Ok::<(), fulmen_trainer::Error>(())
/// ```
pub fn on(
    event: Event,
    filter: Filter,
    call: impl FnMut(&Occurrence<'_>, &mut Actions) + Send + 'static,
) -> LambdaCallback {
    LambdaCallback {
        event,
        filter,
        call: Box::new(call),
        changes_learning_rate: false,
        count: 0,
        epoch: 0,
    }
}

type Call = Box<dyn FnMut(&Occurrence<'_>, &mut Actions) + Send>;

/// A closure as a callback, made by [`on`].
#[must_use]
pub struct LambdaCallback {
    event: Event,
    filter: Filter,
    call: Call,
    changes_learning_rate: bool,
    count: u64,
    /// The epoch of the latest event that has one.
    epoch: u64,
}

impl LambdaCallback {
    /// Lets the closure call [`Actions::set_learning_rate_factor`].
    pub fn changing_learning_rate(mut self) -> LambdaCallback {
        self.changes_learning_rate = true;
        self
    }

    /// Counts the event if the closure is for this kind of event, and calls the closure if the
    /// filter selects it.
    fn handle(
        &mut self,
        event: Event,
        epoch: u64,
        global_step: u64,
        point: Option<&LogPoint>,
        actions: &mut Actions,
    ) {
        self.epoch = epoch;
        if event != self.event {
            return;
        }
        self.count += 1;
        let occurrence = Occurrence { count: self.count, epoch, global_step, point };
        let selected = match &mut self.filter.0 {
            FilterKind::Every(n) => self.count.is_multiple_of(*n),
            FilterKind::Once => self.count == 1,
            FilterKind::When(predicate) => predicate(&occurrence),
        };
        if selected {
            (self.call)(&occurrence, actions);
        }
    }
}

impl Callback for LambdaCallback {
    fn name(&self) -> &'static str {
        "LambdaCallback"
    }

    fn config_error(&self) -> Option<String> {
        matches!(self.filter.0, FilterKind::Every(0))
            .then(|| "every(0) never calls the closure; use at least every(1)".into())
    }

    fn changes_learning_rate(&self) -> bool {
        self.changes_learning_rate
    }

    fn on_fit_start(&mut self, start: &FitStart) {
        self.count = 0;
        let mut actions = Actions::ignored();
        self.handle(Event::FitStart, start.epoch, start.global_step, None, &mut actions);
    }

    fn on_train_epoch_start(&mut self, progress: &Progress, actions: &mut Actions) {
        self.handle(Event::TrainEpochStart, progress.epoch, progress.global_step, None, actions);
    }

    fn on_train_batch_end(&mut self, progress: &Progress, actions: &mut Actions) {
        self.handle(Event::TrainBatchEnd, progress.epoch, progress.global_step, None, actions);
    }

    fn on_log(&mut self, point: &LogPoint, actions: &mut Actions) {
        self.handle(Event::Log, point.epoch, point.global_step, Some(point), actions);
    }

    fn on_validation_end(&mut self, point: &LogPoint, actions: &mut Actions) {
        if actions.is_fitting() {
            self.handle(Event::ValidationEnd, point.epoch, point.global_step, Some(point), actions);
        }
    }

    fn on_train_epoch_end(&mut self, point: &LogPoint, actions: &mut Actions) {
        self.handle(Event::TrainEpochEnd, point.epoch, point.global_step, Some(point), actions);
    }

    fn on_fit_end(&mut self, summary: &FitSummary) {
        let point = summary.last_epoch.as_ref();
        self.handle(Event::FitEnd, self.epoch, summary.global_step, point, &mut Actions::ignored());
    }

    fn state(&self) -> Option<Json> {
        Some(self.count.into())
    }

    fn load_state(&mut self, state: &Json) {
        self.count = state.as_u64().unwrap_or(0);
    }
}
