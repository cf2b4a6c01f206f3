//! The integration tests of the crate in one binary, because linking is most of the cost of
//! building a test.
#![allow(clippy::unwrap_used, reason = "a test that cannot continue fails")]

mod common;
mod handle;
mod processes;
mod rejected_peers;
mod restarts;
mod round_trips;
mod waiting;
