//! What this crate shares with the crates that read formats. It is not covered by any stability
//! promise.

pub use crate::dataset::random::{Purpose, below, generator, permutation, shuffle, unit};
pub use crate::dataset::sample::SampleKey;
pub use crate::left_out::LeftOut;
pub use crate::loader::layout::Layout;
pub use crate::offsets::Offsets;
pub use crate::panics::catch_quietly;
pub use crate::stream::{ChainStream, MapStream, ShuffleStream, SkipStream, TakeStream, make};
pub use fulmen_durable::messages::quantity;
pub use fulmen_error::panicked;
pub use fulmen_files::{KeyPart, KeyParts, checksum, cores, differences, fill, hex, in_parallel};
