//! Several processes that train one model, usually one a host: who is there, whether all run the same, and who is gone.
//!
//! Process 0 serves a small coordination service over gRPC; all processes, it too, are its clients. They join, meet at
//! barriers, share small values under keys, stop together, and before their first collective compare what they are about to run. A
//! process that falls silent ends the waiting of all others, with an error that names it.
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
//! coordination.agree("fit", &facts, soon)?;
//! coordination.barrier("first step", soon)?;
//! coordination.shutdown(soon)?;
//! # Ok::<(), fulmen_coordination::Error>(())
//! ```
//!
//! Nothing waits without an end: every wait has a time-out, and a failure of the run ends all of them at once.
//!
//! All of that needs the feature `grpc`, which is on by default. Without it the crate depends on nothing, and
//! [`Builder::join`] only says what is missing.
//!
//! A run has a secret, its token. Both ends of every connection prove that they have it before anything else is read; without
//! a token, processes meet on loopback addresses only.
//!
//! Not here: tensors, devices, collectives (XLA does those), starting processes, encryption. What travels can be read, and
//! who can change packets on their way can take a connection over; keep the port inside a network that you trust.

#![cfg_attr(not(feature = "grpc"), allow(dead_code, reason = "only a process that has joined needs all of it"))]

mod environment;
mod error;
#[cfg(not(feature = "grpc"))]
mod single_process;
/// What bytes from the network reach, for the fuzz targets alone.
#[cfg(all(feature = "grpc", any(test, feature = "fuzzing")))]
#[doc(hidden)]
pub mod fuzzing {
    pub use crate::grpc::fuzzing::{handshake, requests};
}
#[cfg(feature = "grpc")]
mod grpc;
mod process;
mod timeouts;
mod token;

pub use environment::DEFAULT_PORT;
pub use error::{Error, Result};
#[cfg(feature = "grpc")]
pub use grpc::{Builder, Coordination, Halt, MetadataAnswer, MetadataServer, on_preemption};
pub use process::{Process, ProcessInfo};
#[cfg(not(feature = "grpc"))]
pub use single_process::{Builder, Coordination, Halt, on_preemption};
pub use timeouts::Timeouts;
