//! Joining other processes: the coordinator's rules, the gRPC service in front of them, and its
//! clients.
//!
//! Out of scope: which process this is, which `environment.rs` reads from the environment.

mod acceptor;
mod agreement;
mod builder;
mod client;
mod connector;
mod coordination;
mod coordinator;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
mod halt;
mod handshake;
mod listener;
mod metadata;
mod server;
mod service;
mod wire;
mod worker;

pub use builder::Builder;
pub use coordination::Coordination;
pub use halt::Halt;
pub use metadata::{MetadataAnswer, MetadataServer, on_preemption};
