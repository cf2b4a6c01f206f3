//! Full-screen terminal interfaces: [`Terminal`] takes the terminal and restores it, [`widgets`]
//! are the parts of screens, and [`svg`](fn@svg) makes images for documentation.
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use fulmen_tui::{Terminal, key};
//!
//! // Does nothing if standard error is not a terminal.
//! if let Some(terminal) = Terminal::take(|_line| {})? {
//!     while terminal.draw(|frame| frame.render_widget("any key ends this", frame.area()))? {
//!         if key(Duration::from_millis(100))?.is_some() {
//!             break;
//!         }
//!     }
//! }
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! Out of scope: what a screen shows.

mod output;
mod svg;
mod terminal;
pub mod widgets;

pub use svg::svg;
pub use terminal::{Terminal, key};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
