//! The file of an entry: a magic number, the SHA-256 of the rest, a header, and the stored
//! executable.

use std::io::Read;
use std::path::Path;
use std::time::Duration;

use prost::Message;

use super::key::{Fact, ProgramKey};
use crate::error::{self, Error, Result};
use crate::hash;

/// Changes with the file format.
const MAGIC: &[u8; 8] = b"FULMENP1";
const DIGEST: usize = 32;
/// The size of the header's length, in bytes (little-endian).
const LENGTH: usize = 4;

/// The size limit of a header.
const MAX_HEADER_BYTES: u64 = 64 << 20;

/// The properties of an entry that are known without loading it.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Header {
    #[prost(string, tag = "1")]
    pub(super) key: String,
    #[prost(string, tag = "2")]
    pub(super) program: String,
    #[prost(uint64, tag = "3")]
    pub(super) compile_ms: u64,
    #[prost(message, repeated, tag = "4")]
    pub(super) facts: Vec<Fact>,
    #[prost(string, tag = "5")]
    pub(super) variant: String,
}

impl Header {
    pub(super) fn new(key: &ProgramKey, compile_time: Duration) -> Header {
        Self {
            key: key.digest().to_owned(),
            program: key.program().to_owned(),
            compile_ms: u64::try_from(compile_time.as_millis()).unwrap_or(u64::MAX),
            facts: key.facts().to_vec(),
            variant: key.variant().to_owned(),
        }
    }
}

pub(super) fn encode(header: &Header, executable: &[u8]) -> Vec<u8> {
    let header = header.encode_to_vec();
    let start = MAGIC.len() + DIGEST;
    let mut bytes = Vec::with_capacity(start + LENGTH + header.len() + executable.len());
    bytes.extend_from_slice(MAGIC);
    bytes.resize(start, 0);
    bytes.extend_from_slice(&(header.len() as u32).to_le_bytes());
    bytes.extend_from_slice(&header);
    bytes.extend_from_slice(executable);
    let digest = hash::of_bytes(&bytes[start..]);
    bytes[MAGIC.len()..start].copy_from_slice(&digest);
    bytes
}

/// The header and the stored executable, if the bytes are intact.
pub(super) fn decode(bytes: &[u8]) -> Result<(Header, &[u8])> {
    let split = bytes.strip_prefix(MAGIC).and_then(|rest| rest.split_at_checked(DIGEST));
    let (digest, body) = split.ok_or_else(|| damaged("it is not an entry of the compile cache"))?;
    if hash::of_bytes(body) != digest {
        return Err(damaged("its checksum does not match"));
    }
    let (length, body) = body.split_at_checked(LENGTH).ok_or_else(|| damaged("it is cut off"))?;
    let length = length.iter().rev().fold(0, |length, &byte| length << 8 | usize::from(byte));
    let (header, executable) =
        body.split_at_checked(length).ok_or_else(|| damaged("it is cut off"))?;
    Ok((Header::decode(header).map_err(|_| damaged("its header cannot be read"))?, executable))
}

/// The header, without verification.
pub(super) fn read_header(path: &Path) -> Result<Header> {
    let unreadable = |error| error::io(format!("cannot read {}", path.display()), error);
    let mut file = fulmen_durable::open_regular(path).map_err(unreadable)?;
    let size = file.metadata().map_err(unreadable)?.len();
    let mut start = [0; MAGIC.len() + DIGEST + LENGTH];
    file.read_exact(&mut start).map_err(unreadable)?;
    let length = start[MAGIC.len() + DIGEST..]
        .iter()
        .rev()
        .fold(0, |length, &byte| length << 8 | u64::from(byte));
    if !start.starts_with(MAGIC) || length > size.min(MAX_HEADER_BYTES) {
        return Err(damaged("its header cannot be read"));
    }
    let mut header = Vec::new();
    file.take(length).read_to_end(&mut header).map_err(unreadable)?;
    Header::decode(&header[..]).map_err(|_| damaged("its header cannot be read"))
}

fn damaged(why: &str) -> Error {
    error::corrupt(format!("the stored program is damaged: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_flipped_bit_and_any_cut_is_refused() {
        let fact = Fact::default();
        let header =
            Header { key: "k".into(), compile_ms: 7, facts: vec![fact], ..Header::default() };
        let bytes = encode(&header, &[1, 2, 3]);
        assert_eq!(decode(&bytes).unwrap(), (header.clone(), &[1, 2, 3][..]));
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), &bytes).unwrap();
        assert_eq!(read_header(file.path()).unwrap(), header);
        for i in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[i / 8] ^= 1 << (i % 8);
            assert!(decode(&flipped).unwrap_err().is_corrupt(), "bit {i}");
            // Reading the header does not verify it, but must not panic.
            std::fs::write(file.path(), &flipped).unwrap();
            let _ = read_header(file.path());
        }
        for length in 0..bytes.len() {
            assert!(decode(&bytes[..length]).unwrap_err().is_corrupt(), "cut to {length}");
        }
    }

    /// A forged size does not decide how much memory a header takes.
    #[test]
    fn a_header_that_claims_to_be_too_large_is_refused_before_it_is_read() {
        let file = tempfile::NamedTempFile::new().unwrap();
        // The name of the program has this many zero bytes, which take no room on the disk.
        let read = |name: u64| {
            let mut header = vec![0x12];
            prost::encoding::encode_varint(name, &mut header);
            let length = header.len() as u64 + name;
            let mut bytes = MAGIC.to_vec();
            bytes.resize(MAGIC.len() + DIGEST, 0);
            bytes.extend_from_slice(&(length as u32).to_le_bytes());
            let start = bytes.len() as u64;
            bytes.extend_from_slice(&header);
            std::fs::write(file.path(), &bytes).unwrap();
            file.as_file().set_len(start + length).unwrap();
            read_header(file.path())
        };
        assert_eq!(read(1000).unwrap().program.len(), 1000);
        let error = read(MAX_HEADER_BYTES).unwrap_err();
        assert!(error.is_corrupt(), "{error}");
        // More bytes than the file has.
        let mut bytes = encode(&Header::default(), &[]);
        bytes[MAGIC.len() + DIGEST..][..LENGTH].copy_from_slice(&u32::MAX.to_le_bytes());
        std::fs::write(file.path(), &bytes).unwrap();
        assert!(read_header(file.path()).unwrap_err().is_corrupt());
    }
}
