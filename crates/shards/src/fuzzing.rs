//! The readers of shards, given bytes instead of files, with what must hold whatever the bytes are. For the fuzz targets
//! alone; not a part of the public interface.

use fulmen_files::Location;

/// Reads a tar from the beginning to the end, and again by positions: both find the same samples.
///
/// # Panics
/// If they do not.
pub fn tar(bytes: &[u8]) {
    crate::tar::fuzz(&Location::from("bytes.tar"), bytes);
}

/// Reads records and examples: what is written again is the same.
///
/// # Panics
/// If it is not.
pub fn tfrecord(bytes: &[u8]) {
    crate::tfrecord::fuzz(&Location::from("bytes.tfrecord"), bytes);
}
