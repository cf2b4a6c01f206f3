//! Fulmen as one shared library.
//!
//! The kernel evcxr links each cell of a notebook separately. With this library, all cells use the same Fulmen. Without
//! it, each has a copy with its own counters and its own device, so a tensor of one cell must not be used in another.

pub use fulmen;
pub use fulmen_report as report;
