//! Reading until a buffer is full or the input ends.

use std::io::{self, Read};

/// Reads until `into` is full or the input ends, and returns the number of bytes.
pub fn fill(reader: &mut impl Read, into: &mut [u8]) -> io::Result<usize> {
    let mut filled = 0;
    while filled < into.len() {
        match reader.read(&mut into[filled..]) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(filled)
}
