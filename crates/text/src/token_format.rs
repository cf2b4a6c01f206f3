//! How a token file is laid out.
//!
//! The format, all numbers little-endian: a head of 64 bytes, the tokens in 2 or 4 bytes each, then for each document
//! the number of tokens up to its end, in 8 bytes.
//!
//! | bytes of the head | |
//! | --- | --- |
//! | 0..8 | `FULMTOKS` |
//! | 8..12 | the version, 1 |
//! | 12..16 | bytes a token, 2 or 4 |
//! | 16..24, 24..32 | how many tokens, how many documents |
//! | 32..40 | the size of the vocabulary |
//! | 40..44 | the CRC-32 of all that follows the head |
//! | 44..60 | zero |
//! | 60..64 | the CRC-32 of the 60 bytes before |
//!
//! Not here: writing and reading the tokens (`token_file`).

use std::io::Read;
use std::path::Path;

use flate2::Crc;

use super::token_array::width;
use fulmen_data::{Error, Result};

const MAGIC: &[u8; 8] = b"FULMTOKS";
const VERSION: u32 = 1;

/// Bytes of the head.
pub(super) const HEAD: u64 = 64;

/// A number of up to 8 bytes.
pub(super) fn number(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte))
}

/// What the head says.
#[derive(Clone, Copy, Debug)]
pub(super) struct Head {
    /// Bytes a token, 2 or 4.
    pub(super) width: u32,
    pub(super) tokens: u64,
    pub(super) documents: u64,
    pub(super) vocab_size: u64,
    /// Of all that follows the head.
    pub(super) crc: u32,
}

impl Head {
    /// Of the whole file, if that is a number.
    pub(super) fn size(&self) -> Option<u64> {
        let tokens = self.tokens.checked_mul(u64::from(self.width))?;
        self.documents.checked_mul(8)?.checked_add(tokens)?.checked_add(HEAD)
    }

    pub(super) fn to_bytes(self) -> [u8; HEAD as usize] {
        let mut bytes = [0; HEAD as usize];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.width.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.tokens.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.documents.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.vocab_size.to_le_bytes());
        bytes[40..44].copy_from_slice(&self.crc.to_le_bytes());
        let crc = crc_of(&bytes[..60]);
        bytes[60..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Reads the head of a file of `size` bytes, and holds it against the size.
    pub(super) fn read(file: &mut impl Read, size: u64, path: &Path) -> Result<Head> {
        if size < HEAD {
            let message = format!("this is no token file: it has {size} bytes, fewer than the {HEAD} of its head");
            return Err(Error::file(path, message));
        }
        let mut bytes = [0; HEAD as usize];
        file.read_exact(&mut bytes).map_err(|source| Error::io(path, "cannot read the token file", source))?;
        let head = Head::from_bytes(&bytes).map_err(|message| Error::file(path, message))?;
        let expected = head.size();
        if expected != Some(size) {
            let expected = expected.map_or("more than 2^64".to_owned(), |size| size.to_string());
            return Err(Error::file(
                path,
                format!(
                    "the file has {size} bytes, but its head promises {} tokens and {} documents, which take {expected}; \
                     it was cut off or written over: make it anew",
                    head.tokens, head.documents
                ),
            ));
        }
        Ok(head)
    }

    /// The ends of documents from the bytes at the end of the file.
    pub(super) fn ends(&self, bytes: &[u8], path: &Path) -> Result<Vec<u64>> {
        let ends: Vec<u64> = bytes.chunks_exact(8).map(number).collect();
        let ascending = ends.first().is_none_or(|&end| end > 0) && ends.windows(2).all(|pair| pair[0] < pair[1]);
        match ascending && ends.last().copied().unwrap_or(0) == self.tokens {
            true => Ok(ends),
            false => Err(Error::file(
                path,
                format!("the ends of its documents do not ascend to its {} tokens; the file is damaged", self.tokens),
            )),
        }
    }

    /// What is wrong where the content has another checksum.
    pub(super) fn check(&self, crc: &Crc, path: &Path) -> Result<()> {
        match crc.sum() == self.crc {
            true => Ok(()),
            false => Err(Error::file(
                path,
                format!("its checksum is {:08x}, not {:08x}: the file is damaged; make it anew", crc.sum(), self.crc),
            )),
        }
    }

    fn from_bytes(bytes: &[u8; HEAD as usize]) -> Result<Head, String> {
        if bytes[..8] != *MAGIC {
            return Err("this is no token file of fulmen, which begins with FULMTOKS".to_owned());
        }
        let at = |place: usize, size: usize| number(&bytes[place..place + size]);
        if at(8, 4) != u64::from(VERSION) {
            return Err(format!("this token file is of version {}; this release reads version {VERSION}", at(8, 4)));
        }
        if at(60, 4) != u64::from(crc_of(&bytes[..60])) {
            return Err("the head of this token file is damaged; make it anew".to_owned());
        }
        let head = Head {
            width: at(12, 4) as u32,
            tokens: at(16, 8),
            documents: at(24, 8),
            vocab_size: at(32, 8),
            crc: at(40, 4) as u32,
        };
        let vocabulary = usize::try_from(head.vocab_size).ok().and_then(|size| width(size).ok());
        match vocabulary == Some(head.width as usize) {
            true => Ok(head),
            false => Err(format!(
                "this token file has {} bytes a token, which do not fit its vocabulary of {}",
                head.width, head.vocab_size
            )),
        }
    }
}

fn crc_of(bytes: &[u8]) -> u32 {
    let mut crc = Crc::new();
    crc.update(bytes);
    crc.sum()
}
