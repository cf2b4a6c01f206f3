//! The integration tests of the crate in one binary, because linking is most of the cost of
//! building a test.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "../../../tensor/tests/it/notes.rs"]
mod notes;
mod tar_shards;
mod tfrecord;
