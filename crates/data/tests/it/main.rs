//! The integration tests of the crate, in one binary: linking is most of what a test costs to build.
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
