//! What the command `fulmen` does, for programs: well-known datasets downloaded ([`fetch`](mod@fetch)), archives made
//! into shards ([`prepare`]), and pictures resized ahead of training ([`Presize`]).
//!
//! Not here: training.

pub mod fetch;
pub mod prepare;
mod presize;

pub use presize::Presize;
