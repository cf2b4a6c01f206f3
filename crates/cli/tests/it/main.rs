//! The integration tests of the crate in one binary, because linking is most of the cost of
//! building a test.
#![allow(clippy::unwrap_used, reason = "a test that cannot continue fails")]

mod cache;
mod checkpoint;
mod hub;
mod machine;
mod new;
mod other_machines;
mod pack;
mod pod;
mod presize;
#[path = "../../../pods/src/tests/programs.rs"]
mod programs;
mod report;
mod runs;
mod selftest;
mod statistics;
mod top;
mod tpu;
mod training;
