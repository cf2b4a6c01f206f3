//! The prices of machines and disks: on-demand list prices.

use std::path::Path;

use fulmen_durable::messages::money;
use fulmen_tpu::{Prices, Slice};

use crate::{Error, Result};

/// The list prices of a kind of disk in us-central1, in US dollars a month.
struct DiskPrice {
    kind: &'static str,
    gibibyte: f64,
    /// For each operation a second and each MiB/s above those that are included.
    operation: f64,
    included_operations: f64,
    throughput: f64,
    included_throughput: f64,
}

impl DiskPrice {
    /// A disk whose price depends on its size only.
    const fn by_size(kind: &'static str, gibibyte: f64) -> DiskPrice {
        DiskPrice {
            kind,
            gibibyte,
            operation: 0.0,
            included_operations: 0.0,
            throughput: 0.0,
            included_throughput: 0.0,
        }
    }
}

/// From secondary sources for cloud.google.com/compute/disks-image-pricing.
const DISK_PRICES: [DiskPrice; 7] = [
    DiskPrice {
        operation: 0.005,
        included_operations: 3000.0,
        throughput: 0.04,
        included_throughput: 140.0,
        ..DiskPrice::by_size("hyperdisk-balanced", 0.08)
    },
    DiskPrice { throughput: 0.12, ..DiskPrice::by_size("hyperdisk-ml", 0.08) },
    DiskPrice { throughput: 0.25, ..DiskPrice::by_size("hyperdisk-throughput", 0.005) },
    DiskPrice { operation: 0.032, ..DiskPrice::by_size("hyperdisk-extreme", 0.125) },
    DiskPrice::by_size("pd-standard", 0.04),
    DiskPrice::by_size("pd-balanced", 0.10),
    DiskPrice::by_size("pd-ssd", 0.17),
];

/// The kinds of disks that can be created. The others need a performance to be chosen.
pub(crate) const DISK_KINDS: [&str; 5] =
    ["hyperdisk-balanced", "hyperdisk-ml", "pd-balanced", "pd-ssd", "pd-standard"];

/// US dollars per GiB and month of a snapshot, and per hour of an address that is reserved and not
/// in use, from secondary sources for cloud.google.com/compute/disks-image-pricing and
/// cloud.google.com/vpc/network-pricing.
const SNAPSHOT_GIBIBYTE: f64 = 0.05;
const IDLE_ADDRESS_HOUR: f64 = 0.01;
/// Days in a month, as Google counts.
const DAYS_PER_MONTH: f64 = 730.0 / 24.0;

/// A kind of machine without TPUs.
pub(crate) struct MachineKind {
    pub(crate) name: &'static str,
    pub(crate) vcpus: u32,
    pub(crate) gibibytes: u32,
    /// US dollars an hour in us-central1.
    pub(crate) usd_per_hour: f64,
}

const fn kind(name: &'static str, vcpus: u32, gibibytes: u32, usd_per_hour: f64) -> MachineKind {
    MachineKind { name, vcpus, gibibytes, usd_per_hour }
}

/// Kinds that suit the preparation of data, from secondary sources for
/// cloud.google.com/compute/vm-instance-pricing.
pub(crate) const MACHINE_KINDS: [MachineKind; 8] = [
    kind("e2-standard-4", 4, 16, 0.1340),
    kind("e2-standard-8", 8, 32, 0.2681),
    kind("e2-standard-16", 16, 64, 0.5361),
    kind("e2-standard-32", 32, 128, 1.0722),
    kind("n2-standard-8", 8, 32, 0.3885),
    kind("n2-standard-16", 16, 64, 0.7769),
    kind("n2-standard-32", 32, 128, 1.5539),
    kind("n2-standard-64", 64, 256, 3.1078),
];

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

    /// US dollars per day for a disk with this performance, where it was chosen.
    pub(crate) fn disk_day(
        kind: &str,
        gibibytes: f64,
        operations: f64,
        throughput: f64,
    ) -> Option<f64> {
        let price = DISK_PRICES.iter().find(|price| price.kind == kind)?;
        let operations = (operations - price.included_operations).max(0.0);
        let throughput = (throughput - price.included_throughput).max(0.0);
        let month = price.gibibyte * gibibytes
            + price.operation * operations
            + price.throughput * throughput;
        Some(month / DAYS_PER_MONTH)
    }

    /// US dollars per day for a machine without TPUs.
    pub(crate) fn machine_day(kind: &str) -> Option<f64> {
        let row = MACHINE_KINDS.iter().find(|row| row.name == kind)?;
        Some(row.usd_per_hour * 24.0)
    }

    /// US dollars per day for the data of a snapshot.
    pub(crate) fn snapshot_day(bytes: f64) -> f64 {
        SNAPSHOT_GIBIBYTE * bytes / f64::from(1 << 30) / DAYS_PER_MONTH
    }

    /// US dollars per day for an address that nothing uses.
    pub(crate) fn idle_address_day() -> f64 {
        IDLE_ADDRESS_HOUR * 24.0
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
