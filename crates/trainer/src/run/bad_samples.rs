//! [`BadCount`]: which samples a loader could not read while the Trainer used it. What becomes of them is not decided here
//! but by the loader's `on_error`.

use fulmen_data::{BadSamples, DataLoader};

use crate::console::print_line;

/// What a loader could not read from now on: it may have been used before, and counts for all that are made from it.
/// Dropped, it says what was not said yet, so that nothing is kept back where an error ends the run.
pub(crate) struct BadCount {
    loader: DataLoader,
    /// What the samples are for.
    what: &'static str,
    before: BadSamples,
    told: u64,
}

impl BadCount {
    pub(crate) fn new(loader: &DataLoader, what: &'static str) -> BadCount {
        BadCount { loader: loader.clone(), what, before: loader.bad_samples(), told: 0 }
    }

    /// How often a sample could not be read.
    pub(crate) fn count(&self) -> u64 {
        self.loader.bad_samples().count - self.before.count
    }

    /// Says on standard error which they are, if there are more than when it was last said. Of each process its own: they
    /// read different samples.
    pub(crate) fn tell(&mut self) {
        if self.count() == self.told {
            return;
        }
        let mut bad = self.loader.bad_samples();
        bad.count -= self.before.count;
        self.told = bad.count;
        // The list only grows: those that were known before are the first of it, and may be bad again.
        bad.first.iter_mut().zip(&self.before.first).for_each(|(now, before)| now.count -= before.count);
        bad.first.retain(|bad| bad.count > 0);
        print_line(&format!("warning: {} data: {bad}", self.what));
    }
}

impl Drop for BadCount {
    fn drop(&mut self) {
        self.tell();
    }
}
