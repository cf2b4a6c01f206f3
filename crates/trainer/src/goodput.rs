//! [`Goodput`]: where the wall time of a training went.

use std::fmt;
use std::time::Instant;

use fulmen_durable::messages::duration;
use serde::{Deserialize, Serialize};

/// The runtime's metric of the times of training steps.
pub(crate) const STEP_TIME: &str = "StepTime";

/// Where the wall time of a training went, in seconds. `FitSummary::goodput` includes the earlier
/// runs that a fit resumes. `goodput.json` in a run's folder holds that run's own times.
///
/// ```
/// use fulmen_trainer::Goodput;
///
/// let goodput = Goodput { start: 1.0, compile: 4.0, steps: 90.0, lost: 5.0, ..Goodput::default() };
/// assert_eq!((goodput.total(), goodput.share()), (100.0, 0.9));
/// assert_eq!(goodput.to_string(), "Goodput 90 %: steps 1 min 30 s of 1 min 40 s, lost 5.00 s, compile 4.00 s, start 1.00 s");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Goodput {
    /// The time from the call of `fit` to the first step, plus the time to open the devices.
    pub start: f64,
    /// The time to compile programs.
    pub compile: f64,
    /// The time during which the device waited for a batch.
    pub data: f64,
    /// The time of training steps, and of reading their logged values.
    pub steps: f64,
    /// The time of validation.
    pub validation: f64,
    /// The time during which training waited for a checkpoint.
    pub checkpoint: f64,
    /// The time of steps that the next run had to repeat, because it resumed from an earlier
    /// checkpoint.
    pub lost: f64,
}

/// The activities that time is counted for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TimeBucket {
    Start,
    Compile,
    Data,
    Steps,
    Validation,
    Checkpoint,
}

impl Goodput {
    fn named(&self) -> [(&'static str, f64); 7] {
        let Goodput { start, compile, data, steps, validation, checkpoint, lost } = *self;
        [
            ("steps", steps),
            ("start", start),
            ("compile", compile),
            ("data", data),
            ("validation", validation),
            ("checkpoint", checkpoint),
            ("lost", lost),
        ]
    }

    fn bucket(&mut self, bucket: TimeBucket) -> &mut f64 {
        match bucket {
            TimeBucket::Start => &mut self.start,
            TimeBucket::Compile => &mut self.compile,
            TimeBucket::Data => &mut self.data,
            TimeBucket::Steps => &mut self.steps,
            TimeBucket::Validation => &mut self.validation,
            TimeBucket::Checkpoint => &mut self.checkpoint,
        }
    }

    /// The sum of all times.
    pub fn total(&self) -> f64 {
        self.named().iter().map(|(_, seconds)| seconds).sum()
    }

    /// The share of the time spent on steps that count, from 0 to 1.
    pub fn share(&self) -> f64 {
        let total = self.total();
        if total > 0.0 { self.steps / total } else { 0.0 }
    }

    pub(crate) fn add(&mut self, other: &Goodput) {
        self.start += other.start;
        self.compile += other.compile;
        self.data += other.data;
        self.steps += other.steps;
        self.validation += other.validation;
        self.checkpoint += other.checkpoint;
        self.lost += other.lost;
    }

    /// Moves a share of the steps' time to lost time.
    pub(crate) fn lose(&mut self, share: f64) {
        for seconds in [&mut self.steps, &mut self.data] {
            let lost = *seconds * share;
            *seconds -= lost;
            self.lost += lost;
        }
    }
}

/// One line, largest parts first. Parts below a thousandth of the total are left out.
impl fmt::Display for Goodput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let total = self.total();
        let [_, rest @ ..] = self.named();
        write!(
            f,
            "Goodput {:.0} %: steps {} of {}",
            100.0 * self.share(),
            duration(self.steps),
            duration(total)
        )?;
        let mut rest: Vec<_> =
            rest.into_iter().filter(|(_, seconds)| *seconds > total / 1000.0).collect();
        rest.sort_by(|a, b| b.1.total_cmp(&a.1));
        rest.into_iter().try_for_each(|(name, seconds)| write!(f, ", {name} {}", duration(seconds)))
    }
}

/// Measures the time of a run. All time counts in exactly one bucket.
#[derive(Debug)]
pub(crate) struct Clock {
    spent: Goodput,
    bucket: TimeBucket,
    /// None while no fit runs.
    since: Option<Instant>,
    /// Whether a fit has used the clock.
    used: bool,
}

impl Clock {
    /// Starts now, when the devices begin to open.
    pub(crate) fn new() -> Clock {
        Clock {
            spent: Goodput::default(),
            bucket: TimeBucket::Start,
            since: Some(Instant::now()),
            used: false,
        }
    }

    /// Stops until the next fit.
    pub(crate) fn pause(&mut self) {
        self.enter(TimeBucket::Start);
        self.since = None;
    }

    /// Begins a fit. The first fit includes the time before the pause.
    pub(crate) fn begin(&mut self) {
        if std::mem::replace(&mut self.used, true) {
            self.spent = Goodput::default();
        }
        (self.bucket, self.since) = (TimeBucket::Start, Some(Instant::now()));
    }

    /// Switches to this bucket, and returns the one before.
    pub(crate) fn enter(&mut self, bucket: TimeBucket) -> TimeBucket {
        if let Some(since) = &mut self.since {
            let now = Instant::now();
            *self.spent.bucket(self.bucket) += now.duration_since(*since).as_secs_f64();
            *since = now;
        }
        std::mem::replace(&mut self.bucket, bucket)
    }

    /// Moves the time since `since` from the current bucket to another.
    pub(crate) fn reassign(&mut self, bucket: TimeBucket, since: Instant) {
        let current = self.enter(self.bucket);
        let seconds = since.elapsed().as_secs_f64().min(*self.spent.bucket(current));
        *self.spent.bucket(current) -= seconds;
        *self.spent.bucket(bucket) += seconds;
    }

    pub(crate) fn spent(&mut self) -> Goodput {
        self.enter(self.bucket);
        self.spent
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn each_moment_is_counted_once_and_in_its_bucket() {
        let begun = Instant::now();
        let mut clock = Clock::new();
        clock.pause();
        std::thread::sleep(Duration::from_millis(5));
        clock.begin();
        let before = clock.enter(TimeBucket::Steps);
        assert_eq!(before, TimeBucket::Start);
        let wait = Instant::now();
        std::thread::sleep(Duration::from_millis(5));
        clock.reassign(TimeBucket::Data, wait);
        assert_eq!(clock.enter(TimeBucket::Validation), TimeBucket::Steps);
        std::thread::sleep(Duration::from_millis(5));
        let spent = clock.spent();
        assert!(
            spent.data >= 0.005 && spent.validation >= 0.005 && spent.steps >= 0.0,
            "{spent:?}"
        );
        assert!(
            spent.total() <= begun.elapsed().as_secs_f64() - 0.005,
            "the pause is left out: {spent:?}"
        );
        assert_eq!((spent.compile, spent.checkpoint, spent.lost), (0.0, 0.0, 0.0));
        clock.begin();
        assert_eq!(clock.spent().data, 0.0, "another fit starts at zero");
    }
}
