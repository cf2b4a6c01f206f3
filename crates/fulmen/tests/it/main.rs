//! The integration tests of the crate, in one binary.
#![allow(clippy::unwrap_used, reason = "a test that cannot continue fails")]

mod book;
mod checks;
mod coming_from_lightning;
mod command_line;
mod drawings;
mod errors;
mod everyday;
#[cfg(feature = "jemalloc")]
mod jemalloc;
mod messages;
mod outside;
mod troubleshooting;
