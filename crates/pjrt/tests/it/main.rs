//! The integration tests of the crate, in one binary: linking is most of what a test costs to build.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod buffers;
mod collectives;
mod common;
mod compile;
mod compile_cache;
mod events;
mod execute;
mod hlo;
mod key_value;
mod locate;
mod plugin;
mod serialize;
mod topology;
