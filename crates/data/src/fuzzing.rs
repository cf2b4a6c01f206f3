//! The readers of formats, given bytes instead of files, with what must hold whatever the bytes are. For the fuzz targets
//! alone; not a part of the public interface.

use crate::{IdxFile, Location, cache, tar_shards, tfrecord};

/// Opens part `part` of a cache with this manifest: the columns lie in the part.
///
/// # Panics
/// If one does not.
pub fn cache(manifest: &[u8], part: usize, bytes: &[u8]) {
    cache::fuzz(manifest, part, bytes);
}

/// Reads an IDX file: what is read has the size that its header says.
///
/// # Panics
/// If it has not.
pub fn idx(bytes: &[u8]) {
    if let Ok(file) = IdxFile::parse(bytes, 64 << 20) {
        let elements: usize = file.dims().iter().product();
        assert_eq!(elements * file.dtype().size_in_bytes(), file.bytes().len());
    }
}

/// Reads a tar from the beginning to the end, and again by positions: both find the same samples.
///
/// # Panics
/// If they do not.
pub fn tar(bytes: &[u8]) {
    tar_shards::fuzz(&Location::from("bytes.tar"), bytes);
}

/// Reads records and examples: what is written again is the same.
///
/// # Panics
/// If it is not.
pub fn tfrecord(bytes: &[u8]) {
    tfrecord::fuzz(&Location::from("bytes.tfrecord"), bytes);
}
