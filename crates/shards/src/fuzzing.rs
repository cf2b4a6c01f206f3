//! The readers of shards on bytes instead of files, with the invariants that must hold for any
//! bytes. Only for the fuzz targets; not part of the public interface.

use fulmen_files::Location;

/// Reads a tar in sequence and by index; both must find the same samples.
///
/// # Panics
/// The readers find different samples.
pub fn tar(bytes: &[u8]) {
    crate::tar::fuzz(&Location::from("bytes.tar"), bytes);
}

/// Reads records and examples, and writes them again; the result must be the same.
///
/// # Panics
/// The result differs.
pub fn tfrecord(bytes: &[u8]) {
    crate::tfrecord::fuzz(&Location::from("bytes.tfrecord"), bytes);
}
