//! The parts of the test, each a file.

mod device;
mod kernels;
mod operations;
mod speed;
mod training;
mod transfers;

use std::sync::Mutex;
use std::thread;
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

/// The name of the part by which kernels are approved.
pub(crate) const KERNELS: &str = "kernels";

/// The facts by which that part names the devices, if kernels are approved for them.
pub(crate) const DEVICE_KIND: &str = "device kind";
pub(crate) const PLUGIN: &str = "plugin sha-256";

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
        name: KERNELS,
        about: "attention, a loss and a norm by kernels against plain operations",
        limits: [300, 900],
        run: kernels::run,
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

/// The bytes of a program's text that are kept.
const PROGRAM_BYTES: usize = 20_000;

/// The beginning of a program's text.
fn excerpt(mut program: String) -> String {
    let end =
        (0..=PROGRAM_BYTES.min(program.len())).rev().find(|&end| program.is_char_boundary(end));
    program.truncate(end.unwrap_or(0));
    program
}

/// Does each piece of work on one of several threads. The compiler of a TPU uses one core for a
/// program.
fn in_parallel<T>(work: impl Iterator<Item = T> + Send, each: impl Fn(T) + Sync) {
    let workers = thread::available_parallelism().map_or(1, |cores| cores.get().min(8));
    let next = Mutex::new(work);
    let worker = || {
        loop {
            let work = next.lock().unwrap_or_else(|e| e.into_inner()).next();
            let Some(work) = work else { break };
            each(work);
        }
    };
    thread::scope(|scope| {
        for _ in 0..workers {
            scope.spawn(worker);
        }
    });
}

/// What the part with this name tests.
pub(crate) fn about(name: &str) -> &'static str {
    PARTS.iter().find(|part| part.name == name).map_or("", |part| part.about)
}

/// The id of the part's section in the page.
pub(crate) fn id(name: &str) -> &'static str {
    PARTS.iter().find(|part| part.name == name).map_or("part", |part| part.name)
}
