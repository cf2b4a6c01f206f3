//! [`BadSampleCount`]: reports the samples that a loader could not read while the Trainer used it.
//! The loader's `on_error` decides what happens to them.

use fulmen_data::{BadSamples, DataLoader};

use crate::console::from_each_process;

/// Counts the samples that a loader could not read since this was created. The loader's own count
/// may begin earlier, and covers all loaders that were made from it. When this is dropped, it
/// reports the rest, so that all bad samples are reported even if an error ends the run.
pub(crate) struct BadSampleCount {
    loader: DataLoader,
    /// The use of the samples, such as `training`.
    purpose: &'static str,
    before: BadSamples,
    reported: u64,
}

impl BadSampleCount {
    pub(crate) fn new(loader: &DataLoader, purpose: &'static str) -> BadSampleCount {
        BadSampleCount {
            loader: loader.clone(),
            purpose,
            before: loader.bad_samples(),
            reported: 0,
        }
    }

    /// How many times a sample could not be read.
    pub(crate) fn count(&self) -> u64 {
        self.loader.bad_samples().count - self.before.count
    }

    /// Lists the bad samples on standard error, if there are more than in the last report. Each
    /// process reports its own samples, since processes read different ones.
    pub(crate) fn report(&mut self) {
        if self.count() == self.reported {
            return;
        }
        let mut bad = self.loader.bad_samples();
        bad.count -= self.before.count;
        self.reported = bad.count;
        // The list only grows. It begins with the samples known before, which may be bad again.
        bad.first
            .iter_mut()
            .zip(&self.before.first)
            .for_each(|(now, before)| now.count -= before.count);
        bad.first.retain(|bad| bad.count > 0);
        from_each_process!(WARN, "{} data: {bad}", self.purpose);
    }
}

impl Drop for BadSampleCount {
    fn drop(&mut self) {
        self.report();
    }
}
