//! The integration tests of the crate in one binary, because linking is most of the cost of
//! building a test.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[cfg(feature = "parquet")]
mod missing;
#[cfg(not(feature = "parquet"))]
mod not_built_in;
#[path = "../../../tensor/tests/it/notes.rs"]
mod notes;
mod tables;
mod text_files;
