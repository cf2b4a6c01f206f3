//! The parts of reading a sample whose time is told apart.
//!
//! Not here: adding the times up and judging them (`report`).

use std::time::{Duration, Instant};

/// A part of reading a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stage {
    /// Bytes from a disk or a store.
    Read,
    /// Pictures from JPEG, rows from Parquet, tokens from text.
    Decode,
    /// Resizing, augmentation, and what a user's function does.
    Transform,
}

impl Stage {
    /// All of them, in the order in which a sample goes through them.
    pub const ALL: [Stage; 3] = [Stage::Read, Stage::Decode, Stage::Transform];
}

/// The time that went into each [`Stage`].
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct StageTimes([Duration; Stage::ALL.len()]);

impl StageTimes {
    pub(crate) fn timed<T>(&mut self, stage: Stage, work: impl FnOnce() -> T) -> T {
        let start = Instant::now();
        let result = work();
        self.0[stage as usize] += start.elapsed();
        result
    }

    pub(crate) fn of(&self, stage: Stage) -> Duration {
        self.0[stage as usize]
    }
}
