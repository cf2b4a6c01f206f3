//! Full screens on a terminal: the terminal is taken and given back whole ([`Terminal`]), screens are made of [`widgets`],
//! and documentation shows them as pictures ([`svg`](fn@svg)).
//!
//! ```no_run
//! use std::time::Duration;
//!
//! use fulmen_tui::{Terminal, key};
//!
//! // Nothing is taken where standard error is no terminal.
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
//! Not here: what a screen shows.

mod output;
mod svg;
mod terminal;
pub mod widgets;

pub use svg::svg;
pub use terminal::{Terminal, key};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
