//! The IDX reader on bytes instead of a file, with the invariants that must hold for any bytes.
//! Only for the fuzz target; not part of the public interface.

use crate::IdxFile;

/// Reads an IDX file and checks that its values match the size in its header.
///
/// # Panics
/// The values do not match the size.
pub fn idx(bytes: &[u8]) {
    if let Ok(file) = IdxFile::parse(bytes, 64 << 20) {
        let elements: usize = file.dims().iter().product();
        assert_eq!(elements * file.dtype().size_in_bytes(), file.bytes().len());
    }
}
