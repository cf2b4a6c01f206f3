//! The format of records in a file: a length, the record, and a checksum of each
//! (`tensorflow/core/lib/io/record_writer.h`).
//!
//! Out of scope: the content of a record (`example`).

use std::io::{self, Read};

use fulmen_data::internal::fill;
use fulmen_data::{Error, Result};
use fulmen_files::Location;
use fulmen_files::explain;

/// A record follows 8 bytes of length and 4 bytes of the length's checksum. The 4 bytes of the
/// record's checksum follow the record.
pub(super) const HEADER: usize = 12;
pub(super) const FOOTER: usize = 4;

/// The default limit on the size of a record.
pub(super) const DEFAULT_LIMIT: u64 = 1 << 30;

/// The memory that is allocated for a record before any of it is read.
const FIRST_PART: u64 = 1 << 20;

/// CRC-32C (Castagnoli), rotated and offset. The mask makes it suitable for data that itself
/// contains checksums.
pub(super) fn masked_crc(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

/// The length in a header, if its checksum is valid.
pub(super) fn length(header: &[u8; HEADER]) -> Option<u64> {
    let [a, b, c, d, e, f, g, h, i, j, k, l] = *header;
    let is_valid = masked_crc(&header[..8]) == u32::from_le_bytes([i, j, k, l]);
    is_valid.then_some(u64::from_le_bytes([a, b, c, d, e, f, g, h]))
}

/// An iterator over the records of a file.
pub(super) struct Records<R> {
    location: Location,
    reader: R,
    limit: u64,
    /// The offset of the next record in the decompressed file.
    offset: u64,
    /// The number of the next record.
    number: u64,
    ended: bool,
}

impl<R: Read> Records<R> {
    pub(super) fn new(location: &Location, reader: R, limit: u64) -> Records<R> {
        Records { location: location.clone(), reader, limit, offset: 0, number: 0, ended: false }
    }

    /// The number of the record that [`next`](Records::next) returned last, or could not read.
    pub(super) fn last(&self) -> u64 {
        self.number.saturating_sub(1)
    }

    /// The next record. After a record with a wrong checksum, the next one can be read; after other
    /// errors, the iteration ends.
    pub(super) fn next(&mut self) -> Result<Option<Vec<u8>>> {
        if self.ended {
            return Ok(None);
        }
        self.ended = true;
        self.number += 1;
        let mut header = [0; HEADER];
        let count =
            fill(&mut self.reader, &mut header).map_err(|source| self.read_error(source))?;
        match count {
            0 if self.offset == 0 => {
                return Err(self.location.error("the file is empty; expected a TFRecord file"));
            }
            0 => return Ok(None),
            HEADER => {}
            _ => return Err(self.cut_short(format!("{count} of the {HEADER} bytes of its header"))),
        }
        let length = length(&header)
            .ok_or_else(|| header_error(&self.location, self.last(), self.offset, &header))?;
        if length > self.limit {
            return Err(self.error(format!(
                "it has {length} bytes, over the limit of {}; if that is right, raise the limit with max_record_bytes",
                self.limit
            )));
        }
        let mut record = Vec::with_capacity(length.min(FIRST_PART) as usize);
        let read = self.reader.by_ref().take(length).read_to_end(&mut record);
        read.map_err(|source| self.read_error(source))?;
        if record.len() as u64 != length {
            return Err(self.cut_short(format!("{} of its {length} bytes", record.len())));
        }
        let mut footer = [0; FOOTER];
        let count =
            fill(&mut self.reader, &mut footer).map_err(|source| self.read_error(source))?;
        if count != FOOTER {
            return Err(self.cut_short(format!("{count} of the {FOOTER} bytes of its checksum")));
        }
        // At this point, the start of the next record is known.
        self.ended = false;
        let checked = check(&self.location, self.last(), self.offset, &record, footer);
        self.offset += (HEADER + FOOTER) as u64 + length;
        checked.map(|()| Some(record))
    }

    fn error(&self, message: String) -> Error {
        record_error(&self.location, self.last(), self.offset, message)
    }

    fn cut_short(&self, part: String) -> Error {
        self.error(format!(
            "the file ends after {part}; it is truncated: copy or download it again"
        ))
    }

    fn read_error(&self, source: io::Error) -> Error {
        explain(&self.location, &format!("record {}, at byte {}", self.last(), self.offset), source)
    }
}

pub(super) fn record_error(
    location: &Location,
    number: u64,
    offset: u64,
    message: impl std::fmt::Display,
) -> Error {
    location.error(format!("record {number}, at byte {offset}: {message}"))
}

/// The error for an invalid header.
pub(super) fn header_error(
    location: &Location,
    number: u64,
    offset: u64,
    header: &[u8; HEADER],
) -> Error {
    if offset > 0 {
        return record_error(
            location,
            number,
            offset,
            "the checksum of its length is wrong; copy or download the file again",
        );
    }
    let hint = match header {
        [b'<', ..] => " (it looks like a web page: did the download fail?)",
        [0x78, ..] => " (it looks like zlib's format; only gzip is supported)",
        _ => "",
    };
    location.error(format!(
        "not a TFRecord file, plain or gzip: the checksum of the first length is wrong{hint}"
    ))
}

/// Compares a record with the checksum after it.
pub(super) fn check(
    location: &Location,
    number: u64,
    offset: u64,
    record: &[u8],
    footer: [u8; FOOTER],
) -> Result<()> {
    if masked_crc(record) == u32::from_le_bytes(footer) {
        Ok(())
    } else {
        Err(record_error(
            location,
            number,
            offset,
            format!(
                "the checksum of its {} bytes is wrong; copy or download the file again",
                record.len()
            ),
        ))
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_checksum_is_castagnolis() {
        // RFC 3720, B.4: 32 bytes of zeros, and 0 to 31.
        assert_eq!(crc32c::crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c::crc32c(&(0..32).collect::<Vec<u8>>()), 0x46dd_794e);
    }
}
