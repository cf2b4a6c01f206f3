//! The plugin as programs use it: loaded from its file, in several processes.
#![allow(clippy::unwrap_used, reason = "tests")]
#![allow(unsafe_code, reason = "one test reads the plugin's count of live objects")]

mod launches;
mod member;
mod mistakes;
mod processes;
