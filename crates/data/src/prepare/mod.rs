//! The official archives of well-known datasets, made into shards that are read from beginning to end.
//!
//! Not here: reading shards for training, and downloading archives.

mod info;
mod section;
mod tar_index;

pub use info::{ShardInfo, ShardsInfo, shards_info};
