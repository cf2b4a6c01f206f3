//! The prices of machines and disks: on-demand list prices.

use std::path::Path;

use fulmen_durable::messages::money;
use fulmen_preflight::{Prices, Slice};

use crate::{Error, Result};

/// US dollars per GiB and month in us-central1, from secondary sources for
/// cloud.google.com/compute/disks-image-pricing.
const DISK_PRICES: [(&str, f64); 3] =
    [("pd-standard", 0.04), ("pd-balanced", 0.10), ("pd-ssd", 0.17)];
/// Days in a month, as Google counts.
const DAYS_PER_MONTH: f64 = 730.0 / 24.0;

/// A table of prices.
pub(crate) struct Rates(Prices);

impl Rates {
    /// The user's table, or Fulmen's.
    ///
    /// # Errors
    /// The table cannot be read.
    pub(crate) fn read(path: Option<&Path>) -> Result<Rates> {
        let prices = path.map_or_else(Prices::built_in, Prices::read);
        prices.map(Rates).map_err(|error| Error::usage(error.to_string()))
    }

    /// US dollars per hour for a slice.
    pub(crate) fn of_slice(&self, slice: &Slice) -> Option<f64> {
        Some(self.0.for_slice(slice)?.usd_per_chip_hour * slice.num_chips() as f64)
    }

    /// US dollars per day for a disk.
    pub(crate) fn disk_day(kind: &str, gibibytes: f64) -> Option<f64> {
        DISK_PRICES.iter().find(|row| row.0 == kind).map(|row| row.1 * gibibytes / DAYS_PER_MONTH)
    }

    /// The source of the prices.
    pub(crate) fn source(&self) -> String {
        format!("list prices, on demand, of {} ({})", self.0.date, self.0.source)
    }
}

/// Formats an amount, which may be unknown.
pub(crate) fn dollars(sum: Option<f64>) -> String {
    sum.map_or_else(|| "an unknown amount".to_owned(), money)
}
