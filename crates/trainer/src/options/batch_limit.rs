//! [`BatchLimit`]: how many batches of an epoch are used. [`FastDevRun`]: whether a run is only a
//! quick trial.

use std::fmt;
use std::str::FromStr;

use fulmen_data::DataLoader;

use crate::{Error, Result, error};

/// A limit on the batches of an epoch: a number, or a fraction of the epoch. In text, a fraction
/// has a decimal point.
///
/// ```
/// use fulmen_trainer::BatchLimit;
///
/// assert_eq!("0.1".parse::<BatchLimit>()?, BatchLimit::Share(0.1));
/// assert_eq!("1".parse::<BatchLimit>()?, BatchLimit::Count(1));
/// assert_eq!("1.0".parse::<BatchLimit>()?, BatchLimit::Share(1.0));
/// assert_eq!("500ba".parse::<BatchLimit>()?, BatchLimit::Count(500));
/// # Ok::<(), fulmen_trainer::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum BatchLimit {
    /// A fraction of an epoch, from 0.0 to 1.0.
    Share(f64),
    /// A number of batches.
    Count(u64),
}

impl BatchLimit {
    pub(crate) const ALL: BatchLimit = BatchLimit::Share(1.0);

    /// Whether it allows no batches.
    pub(crate) fn is_zero(self) -> bool {
        self == BatchLimit::Share(0.0) || self == BatchLimit::Count(0)
    }

    /// What is expected, if the fraction is out of range.
    pub(crate) fn config_error(&self) -> Option<&'static str> {
        let is_invalid = matches!(self, BatchLimit::Share(share) if !(0.0..=1.0).contains(share));
        is_invalid.then_some(
            "a fraction must be between 0.0 and 1.0; a number of batches has no decimal point",
        )
    }

    /// Like [`config_error`](BatchLimit::config_error), for an option that must be more than 0.
    pub(crate) fn config_error_of_some(&self) -> Option<&'static str> {
        self.config_error().or(self.is_zero().then_some("it must be more than 0"))
    }

    /// The number of batches in an epoch of `batches`.
    pub(crate) fn count_of(self, batches: u64) -> u64 {
        match self {
            BatchLimit::Share(share) if share >= 1.0 => batches,
            // The product may be a little below a whole number because of rounding.
            BatchLimit::Share(share) => (batches as f64 * share + 1e-9) as u64,
            BatchLimit::Count(count) => count.min(batches),
        }
    }

    /// Limits the epochs of a loader. `option` is the name of the limit, for errors.
    pub(crate) fn apply(self, loader: DataLoader, option: &str) -> Result<DataLoader> {
        let batches = loader.len() as u64;
        let is_share = matches!(self, BatchLimit::Share(_));
        if is_share && self != BatchLimit::ALL && loader.is_endless() {
            return Err(error::option(format!(
                "{option}: {self} is a fraction of an epoch, but the loader is endless; use a number of batches"
            )));
        }
        match self.count_of(batches) {
            0 => Err(error::option(format!(
                "{option}: {self} of {batches} batches is less than one batch; use a larger fraction or a \
                 number of batches"
            ))),
            limit if limit == batches => Ok(loader),
            limit => Ok(loader.limited(usize::try_from(limit).unwrap_or(usize::MAX))?),
        }
    }
}

impl FromStr for BatchLimit {
    type Err = Error;
    fn from_str(text: &str) -> Result<BatchLimit> {
        let number = ["batches", "steps", "ba"]
            .iter()
            .find_map(|unit| text.trim().strip_suffix(unit))
            .unwrap_or(text)
            .trim();
        let count = number.parse().map(BatchLimit::Count).ok();
        count.or_else(|| number.parse().map(BatchLimit::Share).ok()).ok_or_else(|| {
            Error::usage(format!(
                "`{text}` is neither a number of batches (10) nor a fraction of an epoch (0.1)"
            ))
        })
    }
}

impl TryFrom<&str> for BatchLimit {
    type Error = Error;
    fn try_from(text: &str) -> Result<BatchLimit> {
        text.parse()
    }
}

impl From<f64> for BatchLimit {
    fn from(share: f64) -> BatchLimit {
        BatchLimit::Share(share)
    }
}

impl From<u64> for BatchLimit {
    fn from(count: u64) -> BatchLimit {
        BatchLimit::Count(count)
    }
}

impl TryFrom<i32> for BatchLimit {
    type Error = Error;
    fn try_from(count: i32) -> Result<BatchLimit> {
        let count = u64::try_from(count)
            .map_err(|_| Error::usage(format!("{count} is less than 0 batches")))?;
        Ok(BatchLimit::Count(count))
    }
}

/// Writes the limit as it is parsed: a fraction has a decimal point.
impl fmt::Display for BatchLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BatchLimit::Share(share) => write!(f, "{share:?}"),
            BatchLimit::Count(count) => count.fmt(f),
        }
    }
}

/// Whether a run is only a quick trial of all its parts, and how many batches of each loader it
/// uses. `true` means one batch; `false` or 0 means a normal run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FastDevRun(u64);

impl FastDevRun {
    /// Returns the number of batches of each loader; 0 for a normal run.
    pub fn batches(self) -> u64 {
        self.0
    }
}

impl From<bool> for FastDevRun {
    fn from(on: bool) -> FastDevRun {
        FastDevRun(u64::from(on))
    }
}

impl TryFrom<i32> for FastDevRun {
    type Error = Error;
    fn try_from(batches: i32) -> Result<FastDevRun> {
        let batches = u64::try_from(batches)
            .map_err(|_| Error::usage(format!("{batches} is less than 0 batches")))?;
        Ok(FastDevRun(batches))
    }
}

impl FromStr for FastDevRun {
    type Err = Error;
    fn from_str(text: &str) -> Result<FastDevRun> {
        let on = text.to_lowercase().parse::<bool>().map(FastDevRun::from).ok();
        on.or_else(|| text.parse().map(FastDevRun).ok()).ok_or_else(|| {
            Error::usage(format!("`{text}` is neither true, false nor a number of batches"))
        })
    }
}

impl fmt::Display for FastDevRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
