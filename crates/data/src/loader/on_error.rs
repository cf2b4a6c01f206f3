//! What becomes of a sample that cannot be read, and the list of those that could not.
//!
//! Not here: how a batch goes on without it (`collate`).

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::Error;

/// How many of the bad samples are remembered one by one.
const REMEMBERED: usize = 16;

/// What a loader does with a sample that cannot be read: an error or a panic of its dataset.
///
/// Of several processes each deals with the bad samples of its own rows: what moves up does so within its part of the
/// batch, and a copy of a stream's record is of one there. So with bad samples a batch may be another one on another
/// number of processes.
///
/// A stream must fail in the same places in every process, for its rows are counted as it is read. Damaged files do; a store
/// or a disk that fails one process alone, after all patience, moves the rows of that
/// one against the others': under `Skip` and `Replace` some records then come twice and some not at all. `Fail` ends the
/// run instead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnError {
    /// The batch is an error, which names the sample. The batches around it still come; only where a stream itself cannot go
    /// on is the error the last thing that comes.
    #[default]
    Fail,
    /// The batch goes without it: the samples behind it move up, and the row that is left over at the end is padding, with
    /// a mask of 0. Every loss and metric must heed the mask then, so that [`DataLoader::pads`] is true of such a loader.
    /// A batch of which nothing can be read is padded with other samples of the epoch; it is an error where none of those
    /// can be read either, or all its records of a stream were read and none can be decoded. A stream that has lost some of
    /// the records that it promised has the more padding at the end of the epoch: each of the others comes once.
    ///
    /// [`DataLoader::pads`]: crate::DataLoader::pads
    Skip,
    /// Another sample of the epoch is read in its place, drawn by seed, epoch and index; after 8 draws of which none can be
    /// read the batch is an error. A stream cannot be read at random: there a copy of another row of the same batch, drawn
    /// in the same way, takes its place, and a batch of which nothing can be read is an error. A stream that has fewer
    /// records than it promised is repeated.
    Replace,
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
    /// How often it could not be read.
    pub count: u64,
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
    /// How often, and a line for each of the first.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let BadSamples { count, first } = self;
        match &first[..] {
            known if known.len() as u64 == *count => {
                write!(f, "{count} {} could not be read", if known.len() == 1 { "sample" } else { "samples" })?;
            }
            [] => write!(f, "samples could not be read {count} times")?,
            [one] if one.count == *count => write!(f, "a sample could not be read {count} times")?,
            known => write!(f, "samples could not be read {count} times; the first {} of them", known.len())?,
        }
        first.iter().try_for_each(|bad| write!(f, "\n  {bad}"))
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
        if let Some(known) = list.first.iter_mut().find(|bad| index.is_some() && bad.index == index) {
            known.count += 1;
        } else if list.first.len() < REMEMBERED {
            let origin = error.origin().map(str::to_owned);
            list.first.push(BadSample { index, epoch, origin, message: error.to_string(), count: 1 });
        }
    }

    pub(crate) fn get(&self) -> BadSamples {
        self.lock().clone()
    }
}
