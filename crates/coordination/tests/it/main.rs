//! The integration tests of the crate, in one binary: linking is most of what a test costs to build.
#![allow(clippy::unwrap_used, reason = "a test that cannot continue fails")]

mod common;
mod handle;
mod processes;
mod rejected_peers;
mod restarts;
