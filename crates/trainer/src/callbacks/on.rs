//! [`on`]: a closure as a callback, for one event and as often as a filter lets it.

use serde_json::Value as Json;

use crate::callbacks::callback::Callback;
use crate::hooks::{FitStart, Progress};
use crate::{Actions, FitSummary, LogPoint};

/// What a closure can be called for: the hook of [`Callback`] of that name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// `on_fit_start`. Nothing is done that is asked for.
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
    /// `on_fit_end`. Nothing is done that is asked for.
    FitEnd,
}

/// An event as it happens.
#[derive(Clone, Copy, Debug)]
pub struct Happening<'a> {
    /// How often the event has happened in this run, this time included.
    pub count: u64,
    /// The epoch, counted from 0.
    pub epoch: u64,
    /// Optimizer steps.
    pub global_step: u64,
    /// The values of a log point, a validation or an epoch, in the events that have them.
    pub point: Option<&'a LogPoint>,
}

/// Which happenings of an event a closure is called for: [`every`], [`once`] or [`when`].
pub struct Filter(Kind);

enum Kind {
    Every(u64),
    Once,
    When(Box<dyn FnMut(&Happening<'_>) -> bool + Send>),
}

/// Each n-th time. Those before a resume count.
pub fn every(n: u64) -> Filter {
    Filter(Kind::Every(n))
}

/// The first time in a run, and not again after a resume.
pub fn once() -> Filter {
    Filter(Kind::Once)
}

/// Whenever `wanted` says so.
pub fn when(wanted: impl FnMut(&Happening<'_>) -> bool + Send + 'static) -> Filter {
    Filter(Kind::When(Box::new(wanted)))
}

/// Calls a closure when an event happens: Lightning's `LambdaCallback`.
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
pub fn on(event: Event, filter: Filter, call: impl FnMut(&Happening<'_>, &mut Actions) + Send + 'static) -> On {
    On { event, filter, call: Box::new(call), changes_learning_rate: false, count: 0, epoch: 0 }
}

type Call = Box<dyn FnMut(&Happening<'_>, &mut Actions) + Send>;

/// A closure as a callback. Made by [`on`].
pub struct On {
    event: Event,
    filter: Filter,
    call: Call,
    changes_learning_rate: bool,
    count: u64,
    /// Of the latest event that has one.
    epoch: u64,
}

impl On {
    /// Lets the closure call [`Actions::set_learning_rate_factor`].
    pub fn changing_learning_rate(mut self) -> On {
        self.changes_learning_rate = true;
        self
    }

    fn happens(&mut self, event: Event, at: (u64, u64), point: Option<&LogPoint>, actions: &mut Actions) {
        self.epoch = at.0;
        if event != self.event {
            return;
        }
        self.count += 1;
        let happening = Happening { count: self.count, epoch: at.0, global_step: at.1, point };
        let wanted = match &mut self.filter.0 {
            Kind::Every(n) => self.count.is_multiple_of(*n),
            Kind::Once => self.count == 1,
            Kind::When(wanted) => wanted(&happening),
        };
        if wanted {
            (self.call)(&happening, actions);
        }
    }
}

impl Callback for On {
    fn name(&self) -> &'static str {
        "On"
    }

    fn refusal(&self) -> Option<String> {
        matches!(self.filter.0, Kind::Every(0)).then(|| "every(0) is never; it must be at least 1".into())
    }

    fn changes_learning_rate(&self) -> bool {
        self.changes_learning_rate
    }

    fn on_fit_start(&mut self, start: &FitStart) {
        self.count = 0;
        let mut actions = Actions::outside();
        self.happens(Event::FitStart, (start.epoch, start.global_step), None, &mut actions);
    }

    fn on_train_epoch_start(&mut self, progress: &Progress, actions: &mut Actions) {
        self.happens(Event::TrainEpochStart, (progress.epoch, progress.global_step), None, actions);
    }

    fn on_train_batch_end(&mut self, progress: &Progress, actions: &mut Actions) {
        self.happens(Event::TrainBatchEnd, (progress.epoch, progress.global_step), None, actions);
    }

    fn on_log(&mut self, point: &LogPoint, actions: &mut Actions) {
        self.happens(Event::Log, (point.epoch, point.global_step), Some(point), actions);
    }

    fn on_validation_end(&mut self, point: &LogPoint, actions: &mut Actions) {
        if actions.is_fitting() {
            self.happens(Event::ValidationEnd, (point.epoch, point.global_step), Some(point), actions);
        }
    }

    fn on_train_epoch_end(&mut self, point: &LogPoint, actions: &mut Actions) {
        self.happens(Event::TrainEpochEnd, (point.epoch, point.global_step), Some(point), actions);
    }

    fn on_fit_end(&mut self, summary: &FitSummary) {
        let at = (self.epoch, summary.global_step);
        self.happens(Event::FitEnd, at, summary.last_epoch.as_ref(), &mut Actions::outside());
    }

    fn state(&self) -> Option<Json> {
        Some(self.count.into())
    }

    fn load_state(&mut self, state: &Json) {
        self.count = state.as_u64().unwrap_or(0);
    }
}
