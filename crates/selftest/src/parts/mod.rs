//! The parts of the test, each a file.

mod device;
mod operations;
mod speed;
mod training;
mod transfers;

use std::time::Duration;

use fulmen_error::Result;

use crate::Options;
use crate::event::Context;

/// A part of the test.
pub(crate) struct Part {
    pub(crate) name: &'static str,
    /// What it tests.
    pub(crate) about: &'static str,
    /// The seconds after which it is ended, in a quick and in a full test.
    limits: [u64; 2],
    pub(crate) run: fn(&Context) -> Result<()>,
}

/// All parts, in their order.
pub(crate) const PARTS: &[Part] = &[
    Part {
        name: "device",
        about: "the plugin, the topology, the devices and their order",
        limits: [120, 180],
        run: device::run,
    },
    Part {
        name: "operations",
        about: "values and derivatives of every operation against JAX",
        limits: [600, 3600],
        run: operations::run,
    },
    Part {
        name: "random",
        about: "random numbers against stored ones",
        limits: [300, 600],
        run: operations::run_random,
    },
    Part {
        name: "transfers",
        about: "copies of each dtype, size and order of axes; donated memory",
        limits: [180, 600],
        run: transfers::run,
    },
    Part {
        name: "training",
        about: "losses of three models, resuming, a signal, FSDP against DDP",
        limits: [600, 1200],
        run: training::run,
    },
    Part {
        name: "speed",
        about: "products, memory, copies, reductions, launches, compilation",
        limits: [300, 600],
        run: speed::run,
    },
];

impl Part {
    #[cfg(test)]
    pub(crate) fn for_test(limit: u64) -> Part {
        Part { name: "test", about: "", limits: [limit; 2], run: |_| Ok(()) }
    }

    pub(crate) fn limit(&self, options: &Options) -> Duration {
        Duration::from_secs(self.limits[usize::from(options.full)])
    }
}

/// What the part with this name tests.
pub(crate) fn about(name: &str) -> &'static str {
    PARTS.iter().find(|part| part.name == name).map_or("", |part| part.about)
}

/// The id of the part's section in the page.
pub(crate) fn id(name: &str) -> &'static str {
    PARTS.iter().find(|part| part.name == name).map_or("part", |part| part.name)
}
