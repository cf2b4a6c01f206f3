//! What the command `fulmen` does, for programs: archives of well-known datasets made into shards ([`prepare`]), and
//! pictures resized ahead of training ([`Presize`]).
//!
//! Not here: training.

pub mod prepare;
mod presize;

pub use presize::Presize;
