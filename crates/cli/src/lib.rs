//! The features of the command `fulmen` as a library: downloading well-known datasets
//! ([`fetch`](mod@fetch)), converting archives to shards ([`prepare`]), making images smaller
//! before training ([`Presize`]), and the screen of `fulmen top` ([`top`]).
//!
//! Out of scope: training.

pub mod fetch;
pub mod prepare;
mod presize;
pub mod top;

pub use presize::Presize;
