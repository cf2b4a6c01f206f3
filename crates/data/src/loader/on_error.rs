//! What becomes of a sample that cannot be read, and the list of those that could not.
//!
//! Not here: how a batch goes on without it (`fill`).

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::Error;

/// How many of the bad samples are remembered one by one.
const REMEMBERED: usize = 16;

/// What a loader does with a sample that cannot be read: an error or a panic of its dataset.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnError {
    /// The batch is an error, which names the sample. The batches around it still come.
    #[default]
    Fail,
    /// The batch goes without it: the samples behind it move up, and the row that is left over at the end is padding, with
    /// a mask of 0. Every loss and metric must heed the mask then, so that [`DataLoader::pads`] is true of such a loader.
    /// A batch of which nothing can be read is padded with other samples of the epoch; where none of those can be read
    /// either, or of a stream, it is an error.
    ///
    /// [`DataLoader::pads`]: crate::DataLoader::pads
    Skip,
    /// Another sample of the epoch is read in its place, drawn by seed, epoch and index; after 8 draws of which none can be
    /// read the batch is an error. A stream cannot be read at random: there a copy of another row of the same batch, drawn
    /// in the same way, takes its place, and a batch of which nothing can be read is an error.
    Substitute,
}

/// A sample that could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadSample {
    /// Its index, as the loader's dataset counts; none where a stream could not tell what it failed to read.
    pub index: Option<u64>,
    /// The epoch in which that was noticed first.
    pub epoch: u64,
    /// Where it comes from: a file, and the place in it.
    pub origin: Option<String>,
    /// What was wrong.
    pub message: String,
}

impl fmt::Display for BadSample {
    /// As the error of the batch would say it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// The samples that a loader could not read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BadSamples {
    /// How often a sample could not be read, over all epochs; the same sample counts in each.
    pub count: u64,
    /// The first of them, at most 16, each once. With several workers it depends on chance which these are.
    pub first: Vec<BadSample>,
}

impl fmt::Display for BadSamples {
    /// The number, and a line for each of the first.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let samples = if self.count == 1 { "sample" } else { "samples" };
        write!(f, "{} {samples} could not be read", self.count)?;
        self.first.iter().try_for_each(|bad| write!(f, "\n  {bad}"))
    }
}

/// The list that is being written.
#[derive(Debug, Default)]
pub(crate) struct BadList(Mutex<BadSamples>);

impl BadList {
    fn lock(&self) -> MutexGuard<'_, BadSamples> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn add(&self, epoch: u64, index: Option<u64>, error: &Error) {
        let mut list = self.lock();
        list.count += 1;
        let known = index.is_some() && list.first.iter().any(|bad| bad.index == index);
        if list.first.len() < REMEMBERED && !known {
            let origin = error.origin().map(str::to_owned);
            list.first.push(BadSample { index, epoch, origin, message: error.to_string() });
        }
    }

    pub(crate) fn get(&self) -> BadSamples {
        self.lock().clone()
    }
}
