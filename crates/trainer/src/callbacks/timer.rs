//! [`Timer`]: measures how long a fit trains, and ends it after a time limit.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use serde_json::{Value, json};

use crate::callbacks::callback::Callback;
use crate::hooks::{FitStart, Progress};
use crate::{Actions, Error, FitSummary, LogPoint};

/// When [`Timer`] checks the time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TimerInterval {
    /// After each step.
    #[default]
    Step,
    /// At the end of each epoch.
    Epoch,
}

/// Measures how long a fit trains and validates, including the time before a resume, and ends it
/// after a time limit. This is Lightning's `Timer`. Clones share the time. If you only need the
/// limit, use the option `max_time`.
///
/// ```
/// use std::time::Duration;
/// use fulmen_trainer::{Trainer, callbacks::Timer};
///
/// let timer = Timer::new().duration(Duration::from_secs(12 * 3600));
/// let builder = Trainer::builder().callback(timer.clone());
/// assert_eq!(timer.time_elapsed(), Duration::ZERO); // nothing was trained yet
/// ```
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct Timer {
    duration: Option<Duration>,
    interval: TimerInterval,
    clock: Arc<Mutex<Clock>>,
}

#[derive(Debug, Default)]
struct Clock {
    /// The time before the clock was last started.
    elapsed_before: Duration,
    started: Option<Instant>,
}

impl Clock {
    fn elapsed(&self) -> Duration {
        let running = self.started.map_or(Duration::ZERO, |started| started.elapsed());
        self.elapsed_before.saturating_add(running)
    }

    fn stop(&mut self) {
        *self = Clock { elapsed_before: self.elapsed(), started: None };
    }
}

impl Timer {
    /// Creates a timer without a limit.
    pub fn new() -> Timer {
        Timer::default()
    }

    /// Sets the time after which training ends.
    pub fn duration(mut self, duration: Duration) -> Timer {
        self.duration = Some(duration);
        self
    }

    /// Sets when the timer checks the time; after each step by default.
    pub fn interval(mut self, interval: TimerInterval) -> Timer {
        self.interval = interval;
        self
    }

    /// Returns how long the latest fit has trained.
    pub fn time_elapsed(&self) -> Duration {
        self.clock.lock().elapsed()
    }

    /// Returns how much of the limit is left, if there is a limit.
    pub fn time_remaining(&self) -> Option<Duration> {
        Some(self.duration?.saturating_sub(self.time_elapsed()))
    }

    fn check(&self, actions: &mut Actions) {
        if let (Some(duration), Some(Duration::ZERO)) = (self.duration, self.time_remaining()) {
            actions.stop(format!("the Timer's {duration:?} have elapsed"));
        }
    }
}

impl Callback for Timer {
    fn name(&self) -> &'static str {
        "Timer"
    }

    fn config_error(&self) -> Option<String> {
        (self.duration == Some(Duration::ZERO))
            .then(|| "duration must be more than 0 seconds".into())
    }

    fn on_fit_start(&mut self, _: &FitStart) {
        *self.clock.lock() =
            Clock { elapsed_before: Duration::ZERO, started: Some(Instant::now()) };
    }

    fn on_train_batch_end(&mut self, _: &Progress, actions: &mut Actions) {
        if self.interval == TimerInterval::Step {
            self.check(actions);
        }
    }

    fn on_train_epoch_end(&mut self, _: &LogPoint, actions: &mut Actions) {
        self.check(actions);
    }

    fn on_fit_end(&mut self, _: &FitSummary) {
        self.clock.lock().stop();
    }

    fn on_exception(&mut self, _: &Error, _: &mut Actions) {
        self.clock.lock().stop();
    }

    fn state(&self) -> Option<Value> {
        Some(json!({ "seconds": self.time_elapsed().as_secs_f64().to_bits() }))
    }

    fn load_state(&mut self, state: &Value) {
        let seconds = state["seconds"].as_u64().map(f64::from_bits);
        self.clock.lock().elapsed_before =
            seconds.and_then(|s| Duration::try_from_secs_f64(s).ok()).unwrap_or_default();
    }
}
