//! The integration tests of the crate in one binary, because linking is most of the cost of
//! building a test.
#![allow(clippy::unwrap_used, reason = "a test that cannot continue fails")]

mod buffers;
mod collectives;
mod common;
mod compile;
mod compile_cache;
mod events;
mod execute;
mod exit;
mod hlo;
mod key_value;
mod locate;
mod plugin;
mod serialize;
mod topology;
