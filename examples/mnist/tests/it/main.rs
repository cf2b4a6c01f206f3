//! The tests of the program, in one binary, because most of a test's build time is linking.
#![allow(clippy::unwrap_used, reason = "a test that cannot continue fails")]

mod command_line;
mod program;
