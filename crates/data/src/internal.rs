//! What this crate shares with the crates that read formats. It is not covered by any stability
//! promise.

pub use crate::checksum::{checksum, hex};
pub use crate::dataset::key_parts::{KeyPart, KeyParts, differences};
pub use crate::dataset::random::{Purpose, below, generator, permutation, shuffle, unit};
pub use crate::dataset::sample::SampleKey;
pub use crate::error::panicked;
pub use crate::left_out::LeftOut;
pub use crate::loader::layout::Layout;
pub use crate::offsets::Offsets;
pub use crate::panics::catch_quietly;
pub use crate::parallel::{cores, in_parallel};
pub use crate::read::fill;
pub use crate::stream::{ChainStream, MapStream, ShuffleStream, SkipStream, TakeStream, make};
pub use fulmen_durable::messages::quantity;
pub use fulmen_tensor::set_note_handler;
