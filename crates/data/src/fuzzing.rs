//! The reader of IDX files, given bytes instead of a file, with what must hold whatever the bytes are. For the fuzz target
//! alone; not a part of the public interface.

use crate::IdxFile;

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
