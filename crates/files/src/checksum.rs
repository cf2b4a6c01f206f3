//! Checksums in hexadecimal digits, as `sha256sum` and `md5sum` print them.
//!
//! Out of scope: the expected values.

use std::fmt::Write;
use std::io::{self, Read};

use sha2::Digest;

/// Bytes read at a time.
const PIECE: usize = 1 << 20;

/// Returns the checksum of all bytes that `from` yields. Calls `read` with the size of each chunk.
pub fn checksum<D: Digest>(mut from: impl Read, mut read: impl FnMut(u64)) -> io::Result<String> {
    let mut hash = D::new();
    let mut piece = vec![0; PIECE];
    loop {
        match from.read(&mut piece) {
            Ok(0) => return Ok(hex(&hash.finalize())),
            Ok(length) => {
                hash.update(&piece[..length]);
                read(length as u64);
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}

/// Bytes as hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::with_capacity(2 * bytes.len()), |mut text, byte| {
        // Writing into a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}
