//! Coordinates the processes that train one model, usually one on each host: who has joined,
//! whether all run the same program, and who is lost.
//!
//! Process 0 serves a small coordination service over encrypted connections. All processes, including process 0, are
//! clients of it. They join, wait at barriers, share small values under keys, and stop together.
//! Before the first collective, they compare what they are about to run. If a process falls silent,
//! all others stop waiting and get an error that names it.
//!
//! ```
//! use std::collections::BTreeMap;
//! use std::time::Duration;
//! use fulmen_coordination::{Coordination, Process};
//!
//! // With more than one process: `Process::from_env(|name| std::env::var_os(name))?`.
//! let coordination = Coordination::builder(Process::single()).join()?;
//! let soon = Duration::from_secs(5);
//!
//! coordination.put("run_dir", "runs/version_7")?;
//! assert_eq!(coordination.get("run_dir", soon)?, b"runs/version_7");
//!
//! let facts = BTreeMap::from([("program".to_owned(), "9f3a".to_owned())]);
//! coordination.check_consistent("fit", &facts, soon)?;
//! coordination.barrier("first step", soon)?;
//! coordination.shutdown(soon)?;
//! # Ok::<(), fulmen_coordination::Error>(())
//! ```
//!
//! Every wait has a time-out, and a failure of the run ends all waits at once.
//!
//! This needs the feature `network`, which is on by default. Without it, the crate has no
//! dependencies outside Fulmen, and [`Builder::join`] returns an error that names the feature.
//!
//! A run has a secret, its token. Both ends of every connection prove that they have it before they
//! read anything else. What follows is encrypted with keys of that connection, so others can neither
//! read nor change it. Without a token, processes can only use loopback addresses.
//!
//! Out of scope: tensors, devices, collectives (XLA's job), starting processes.

#![cfg_attr(
    not(feature = "network"),
    allow(dead_code, reason = "only a process that has joined needs all of it")
)]

mod environment;
mod error;
#[cfg(not(feature = "network"))]
mod single_process;
/// The entry points for bytes from the network, for the fuzz targets only.
#[cfg(all(feature = "network", any(test, feature = "fuzzing")))]
#[doc(hidden)]
pub mod fuzzing {
    pub use crate::network::fuzzing::{frames, handshake, requests};
}
#[cfg(feature = "network")]
mod network;
mod process;
mod timeouts;
mod token;

pub use environment::DEFAULT_PORT;
#[doc(inline)]
pub use fulmen_error::{Error, Result};
#[cfg(feature = "network")]
pub use network::{Builder, Coordination, Halt, MetadataAnswer, MetadataServer, on_preemption};
pub use process::{Process, ProcessInfo};
#[cfg(not(feature = "network"))]
pub use single_process::{Builder, Coordination, Halt, on_preemption};
pub use timeouts::Timeouts;
