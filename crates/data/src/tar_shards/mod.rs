//! WebDataset: samples as files of one name in tar files, several thousand to a file.
//!
//! Not here: where the files lie (`store`), and what is in the members of a sample.

mod writer;

pub use writer::{TarShardWriter, TarShardWriterBuilder, WrittenShard};
