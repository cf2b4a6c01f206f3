//! The tests of the program, in one binary: linking is most of what a test costs to build.
#![allow(clippy::unwrap_used, reason = "a test that cannot continue fails")]

mod command_line;
mod program;
