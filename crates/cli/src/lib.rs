//! What the command `fulmen` does, for programs: well-known datasets downloaded ([`fetch`](mod@fetch)), archives made
//! into shards ([`prepare`]), images resized ahead of training ([`Presize`]), and the screen of `fulmen top` ([`top`]).
//!
//! Not here: training.

pub mod fetch;
pub mod prepare;
mod presize;
pub mod top;

pub use presize::Presize;
