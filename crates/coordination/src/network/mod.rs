//! Joining other processes: the coordinator's rules, the encrypted service in front of them, and its
//! clients.
//!
//! Out of scope: which process this is, which `environment.rs` reads from the environment.

mod acceptor;
mod agreement;
mod builder;
mod client;
mod connection;
mod coordination;
mod coordinator;
mod frames;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
mod halt;
mod handshake;
mod listener;
mod metadata;
mod noise;
mod server;
mod service;
mod wire;
mod worker;

pub use builder::Builder;
pub use coordination::Coordination;
pub use halt::Halt;
pub use metadata::{MetadataAnswer, MetadataServer, on_preemption};
