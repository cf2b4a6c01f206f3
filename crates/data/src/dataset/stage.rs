//! The stages of reading a sample that are timed separately.
//!
//! Out of scope: adding up the times of all threads (`stats`) and interpreting them (`report`).

use std::cell::Cell;
use std::time::{Duration, Instant};

use tracing::span::EnteredSpan;
use tracing::trace_span;

/// A stage of reading a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stage {
    /// Reading bytes from a disk or a store.
    Read,
    /// Decoding: JPEG to images, Parquet to rows, text to tokens.
    Decode,
    /// Resizing, augmentation, and the user's functions.
    Transform,
}

impl Stage {
    /// All stages, in the order in which a sample passes through them.
    pub const ALL: [Stage; 3] = [Stage::Read, Stage::Decode, Stage::Transform];

    /// Runs `work` and adds its time to this stage in the loader's report. Time in a nested stage
    /// counts only for the nested stage.
    ///
    /// ```
    /// use fulmen_data::Stage;
    ///
    /// let lines = Stage::Read.timed(|| {
    ///     let text = "one\ntwo".to_owned();
    ///     Stage::Decode.timed(|| text.lines().count())
    /// });
    /// assert_eq!(lines, 2);
    /// ```
    pub fn timed<T>(self, work: impl FnOnce() -> T) -> T {
        let _guard = StageGuard::start(self);
        work()
    }
}

/// The time spent in each [`Stage`].
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StageTimes([Duration; Stage::ALL.len()]);

impl StageTimes {
    /// The times that this thread has spent in the stages since it started.
    pub(crate) fn current_thread() -> StageTimes {
        CLOCK.get().times
    }

    /// The times added since an earlier call of [`current_thread`](StageTimes::current_thread).
    pub(crate) fn since(&self, earlier: &StageTimes) -> StageTimes {
        let mut passed = *self;
        passed
            .0
            .iter_mut()
            .zip(earlier.0)
            .for_each(|(time, before)| *time = time.saturating_sub(before));
        passed
    }

    pub(crate) fn time(&self, stage: Stage) -> Duration {
        self.0[stage as usize]
    }

    pub(crate) fn sum(&self) -> Duration {
        self.0.iter().sum()
    }
}

/// A thread's clock. It belongs to the thread and not to a sample, because sources use it too and
/// have no sample.
#[derive(Clone, Copy, Default)]
struct Clock {
    times: StageTimes,
    running: Option<(Stage, Instant)>,
}

thread_local! {
    static CLOCK: Cell<Clock> = Cell::default();
}

impl Clock {
    /// Counts the time of the current stage and switches to another one.
    fn switch(stage: Option<Stage>) -> Option<Stage> {
        let now = Instant::now();
        let mut clock = CLOCK.get();
        let previous = clock.running.map(|(stage, _)| stage);
        if let Some((stage, start)) = clock.running {
            clock.times.0[stage as usize] += now - start;
        }
        clock.running = stage.map(|stage| (stage, now));
        CLOCK.set(clock);
        previous
    }
}

/// Switches back to the enclosing stage when it is dropped, even while a panic unwinds.
struct StageGuard {
    outer: Option<Stage>,
    _span: EnteredSpan,
}

impl StageGuard {
    fn start(stage: Stage) -> StageGuard {
        let span = match stage {
            Stage::Read => trace_span!("read"),
            Stage::Decode => trace_span!("decode"),
            Stage::Transform => trace_span!("transform"),
        };
        StageGuard { outer: Clock::switch(Some(stage)), _span: span.entered() }
    }
}

impl Drop for StageGuard {
    fn drop(&mut self) {
        Clock::switch(self.outer);
    }
}

#[cfg(test)]
mod tests {
    use std::thread::sleep;

    use super::*;

    #[test]
    fn time_inside_another_stage_is_counted_once() {
        let before = StageTimes::current_thread();
        let pause = Duration::from_millis(5);
        Stage::Read.timed(|| {
            sleep(pause);
            let caught = std::panic::catch_unwind(|| {
                Stage::Decode.timed(|| {
                    sleep(pause);
                    panic!("after the work");
                })
            });
            assert!(caught.is_err());
            sleep(pause);
        });
        let start = Instant::now();
        let times = StageTimes::current_thread().since(&before);
        assert!(times.time(Stage::Read) >= 2 * pause && times.time(Stage::Decode) >= pause);
        assert_eq!(times.time(Stage::Transform), Duration::ZERO);
        // No stage is running.
        sleep(pause);
        assert!(start.elapsed() >= pause);
        let after = StageTimes::current_thread().since(&before);
        assert_eq!(after.time(Stage::Read), times.time(Stage::Read));
    }
}
