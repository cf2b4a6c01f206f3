//! The features of the command `fulmen` as a library: downloading well-known datasets
//! ([`fetch`](mod@fetch)), and models and datasets of a Hugging Face hub ([`hub`]), packing data into
//! shards ([`pack`]), making images smaller before training ([`Presize`]), statistics of data sets
//! ([`statistics`](mod@statistics)), and the screen of `fulmen top` ([`top`]).
//!
//! Out of scope: training.

pub mod fetch;
mod free_space;
pub mod hub;
pub mod pack;
mod presize;
pub mod statistics;
pub mod top;

pub use presize::Presize;
