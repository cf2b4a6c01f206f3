//! Invariants of records and examples that must hold for any bytes.
//!
//! Out of scope: the fuzz target.

use std::io::Cursor;

use super::Example;
use super::record::{Records, masked_crc};
use fulmen_files::Location;
use fulmen_files::gunzip;

const LIMIT: u64 = 64 << 20;

/// Reads the bytes as a file, as an example, and as records with valid checksums.
pub(crate) fn fuzz(location: &Location, bytes: &[u8]) {
    let mut raw = Records::new(location, bytes, LIMIT);
    while !matches!(raw.next(), Ok(None)) {}
    if bytes.starts_with(&[0x1f, 0x8b]) {
        let mut unpacked = Records::new(location, gunzip(Cursor::new(bytes.to_vec())), LIMIT);
        while !matches!(unpacked.next(), Ok(None)) {}
    }
    if let Ok(example) = Example::parse(bytes) {
        // The examples are compared as bytes, because NaN is not equal to itself.
        let encoded = example.encode();
        let decoded = Example::parse(&encoded).map(|example| example.encode());
        assert_eq!(decoded.ok(), Some(encoded));
    }
    let records: Vec<&[u8]> = bytes.split(|&byte| byte == b'\n').collect();
    let mut file = Vec::new();
    for record in &records {
        let length = (record.len() as u64).to_le_bytes();
        let parts = [
            &length[..],
            &masked_crc(&length).to_le_bytes(),
            record,
            &masked_crc(record).to_le_bytes(),
        ];
        parts.into_iter().for_each(|part| file.extend_from_slice(part));
    }
    let mut framed = Records::new(location, &file[..], LIMIT);
    for record in &records {
        assert_eq!(framed.next().ok().flatten().as_deref(), Some(*record));
    }
    assert!(matches!(framed.next(), Ok(None)));
    // A length larger than the data, with a valid checksum.
    if let Some(claimed) = bytes.first_chunk::<8>() {
        let header = [&claimed[..], &masked_crc(claimed).to_le_bytes(), &bytes[8..]].concat();
        let mut lying = Records::new(location, &header[..], LIMIT);
        while !matches!(lying.next(), Ok(None)) {}
    }
}
