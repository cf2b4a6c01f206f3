//! What machines and disks cost: list prices, on demand.

use std::path::Path;

use fulmen_preflight::{Prices, Slice};

use crate::{Error, Result};

/// US dollars for a GiB and a month in us-central1, from cloud.google.com/compute/disks-image-pricing as others quote it.
const DISKS: [(&str, f64); 3] = [("pd-standard", 0.04), ("pd-balanced", 0.10), ("pd-ssd", 0.17)];
/// In a month, as Google counts.
const DAYS: f64 = 730.0 / 24.0;

/// A table of prices.
pub(crate) struct Rates(Prices);

impl Rates {
    /// A user's table, or Fulmen's.
    ///
    /// # Errors
    /// The table cannot be read.
    pub(crate) fn read(path: Option<&Path>) -> Result<Rates> {
        let prices = path.map_or_else(Prices::built_in, Prices::read);
        prices.map(Rates).map_err(|error| Error::usage(error.to_string()))
    }

    /// US dollars for an hour of a slice.
    pub(crate) fn of_slice(&self, slice: &Slice) -> Option<f64> {
        Some(self.0.of(slice)?.usd_per_chip_hour * slice.num_chips() as f64)
    }

    /// US dollars for a day of a disk.
    pub(crate) fn disk_day(kind: &str, gibibytes: f64) -> Option<f64> {
        DISKS.iter().find(|row| row.0 == kind).map(|row| row.1 * gibibytes / DAYS)
    }

    /// Where prices are from.
    pub(crate) fn source(&self) -> String {
        format!("list prices, on demand, of {} ({})", self.0.date, self.0.source)
    }
}

/// A sum, or that it is not known.
pub(crate) fn dollars(sum: Option<f64>) -> String {
    sum.map_or("an unknown sum".to_owned(), |sum| format!("{sum:.2} USD"))
}
