//! SHA-256 in hexadecimal, of bytes and of files.

use std::io::Read;
use std::path::Path;

use sha2::{Digest, Sha256};

use crate::error::{self, Result};

/// A digest as hexadecimal digits.
pub(crate) fn hex(digest: &[u8]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The digest of a file's content, in hexadecimal.
pub(crate) fn of_file(path: &Path) -> Result<String> {
    let read_error = |error| error::io(format!("cannot read {}", path.display()), error);
    let mut file = fulmen_durable::open_regular(path).map_err(read_error)?;
    let mut hasher = Sha256::new();
    let mut block = vec![0; 1 << 20];
    loop {
        match file.read(&mut block).map_err(read_error)? {
            0 => return Ok(hex(&hasher.finalize())),
            n => hasher.update(&block[..n]),
        }
    }
}

/// The digest of bytes.
pub(crate) fn of_bytes(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_digest_of_abc() {
        let expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(super::hex(&super::of_bytes(b"abc")), expected);
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), b"abc").unwrap();
        assert_eq!(super::of_file(file.path()).unwrap(), expected);
    }
}
