//! The integration tests of the crate in one binary, because linking is most of the cost of
//! building a test.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod buckets;
mod classification;
mod common;
mod datasets;
mod device;
mod faults;
mod idx;
mod loader;
mod loader_report;
mod on_error;
mod order;
mod replicas;
mod sharded;
mod splits;
mod streams;
