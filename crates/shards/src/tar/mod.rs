//! WebDataset: tar files with several thousand samples each. The files of a sample have a common
//! name.
//!
//! Out of scope: access to the files (`fulmen-files`), and the content of a sample.

mod entries;
mod file;
#[cfg(feature = "fuzzing")]
mod fuzz;
mod group;
mod source;
mod stream;
mod writer;

pub use entries::{Entry as TarEntry, tar_entries};
pub use file::{END, TarFile, size_in_tar};
#[cfg(feature = "fuzzing")]
pub(crate) use fuzz::fuzz;
pub use group::TarSample;
pub use group::split;
pub use source::TarSource;
pub use stream::TarShards;
pub use writer::{TarShardWriter, TarShardWriterBuilder, WrittenShard};
