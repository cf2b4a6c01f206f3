//! What happens to a sample that cannot be read, and the list of those samples.
//!
//! Out of scope: how a batch continues without a bad sample (`collate`).

use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use fulmen_durable::messages::quantity;

use crate::Error;

/// How many bad samples are listed individually.
const MAX_LISTED: usize = 16;

/// What a loader does with a sample that cannot be read: an error or a panic of its dataset.
///
/// If several processes share a batch, each process handles the bad samples of its own rows. With
/// `Skip`, samples move up only within these rows; with `Replace`, the copy of a stream's record
/// comes from these rows. A batch with bad samples may therefore depend on the number of processes.
///
/// A stream must fail at the same positions in every process, because each process counts the rows
/// as it reads them. Damaged files meet this condition. If a store or a disk fails in one process
/// only, even after retries, the rows of that process no longer match those of the others: with
/// `Skip` and `Replace`, some records are then read twice and others never. `Fail` ends the run
/// instead.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum OnError {
    /// The loader returns an error, which names the sample, in place of the batch. The other
    /// batches still follow, unless a stream cannot continue: then the error is the last item.
    #[default]
    Fail,
    /// The batch continues without the sample: the samples after it move up, and the rows left at
    /// the end are padding, with a mask of 0. Every loss and metric must then respect the mask, so
    /// [`DataLoader::pads`] is true for such a loader. If no sample of a batch can be read, the
    /// batch is padded with other samples of the epoch. It is an error if those cannot be read
    /// either, or if all records of a stream were read and none can be decoded. If a stream loses
    /// some of the records that it declared, each of the remaining records is still read once, and
    /// more padding ends the epoch.
    ///
    /// [`DataLoader::pads`]: crate::DataLoader::pads
    Skip,
    /// Another sample of the epoch is read instead. It is drawn at random, from the seed, the epoch
    /// and the index of the bad sample. After 8 failed draws, the loader returns an error. A stream
    /// has no random access, so a bad record is replaced by a copy of another row of the same
    /// batch, drawn in the same way. If a batch has no readable record, the loader returns an
    /// error. If a stream has fewer records than it declared, it is repeated.
    Replace,
}

/// A sample that could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BadSample {
    /// Its index in the loader's dataset; `None` if a stream does not know what it failed to read.
    pub index: Option<u64>,
    /// The epoch in which it first failed.
    pub epoch: u64,
    /// Where it comes from: a file and a position in it.
    pub origin: Option<String>,
    /// The message of the error.
    pub message: String,
    /// How often it could not be read.
    pub count: u64,
}

impl fmt::Display for BadSample {
    /// Prints the message that the error of the batch would have.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

/// The samples that a loader could not read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BadSamples {
    /// How many times reading a sample failed, over all epochs; the same sample counts in each.
    pub count: u64,
    /// The first bad samples, at most 16, each listed once. With several workers, the selection may
    /// vary.
    pub first: Vec<BadSample>,
}

impl fmt::Display for BadSamples {
    /// Prints the count, and one line for each listed sample.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let BadSamples { count, first } = self;
        match &first[..] {
            first if first.len() as u64 == *count => {
                write!(f, "{} could not be read", quantity(count, "sample"))?;
            }
            [] => write!(f, "samples could not be read {count} times")?,
            [one] if one.count == *count => write!(f, "a sample could not be read {count} times")?,
            first => write!(
                f,
                "samples could not be read {count} times; the first {} of them",
                first.len()
            )?,
        }
        first.iter().try_for_each(|bad| write!(f, "\n  {bad}"))
    }
}

#[derive(Debug, Default)]
pub(crate) struct BadList(Mutex<BadSamples>);

impl BadList {
    fn lock(&self) -> MutexGuard<'_, BadSamples> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn add(&self, epoch: u64, index: Option<u64>, error: &Error) {
        let mut list = self.lock();
        list.count += 1;
        if let Some(entry) = list.first.iter_mut().find(|bad| index.is_some() && bad.index == index)
        {
            entry.count += 1;
        } else if list.first.len() < MAX_LISTED {
            let origin = error.origin().map(str::to_owned);
            list.first.push(BadSample {
                index,
                epoch,
                origin,
                message: error.to_string(),
                count: 1,
            });
        }
    }

    pub(crate) fn get(&self) -> BadSamples {
        self.lock().clone()
    }
}
