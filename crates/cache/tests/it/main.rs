//! The integration tests of the crate in one binary, because linking is most of the cost of
//! building a test.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod buckets;
mod cache;
#[path = "../../../checkpoint/src/tests/keyless.rs"]
mod keyless;
#[path = "../../../checkpoint/src/tests/moto.rs"]
mod moto;
