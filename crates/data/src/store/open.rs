//! A file from its beginning to its end, unpacked where it is compressed with gzip.
//!
//! Not here: where the file lies (`location`).

use std::io::{self, BufReader, Cursor, Read};

use flate2::read::MultiGzDecoder;

use super::Location;
use crate::Result;

/// Opens a file, and unpacks it where it begins as gzip does, whatever its name is.
pub(crate) fn open_unpacked(location: &Location) -> Result<Box<dyn Read + Send>> {
    let reader = location.open()?;
    unpacked(reader).map_err(|error| location.read_error(error))
}

/// The same for what is open already.
pub(crate) fn unpacked(mut reader: Box<dyn Read + Send>) -> io::Result<Box<dyn Read + Send>> {
    let mut start = Vec::with_capacity(2);
    reader.by_ref().take(2).read_to_end(&mut start)?;
    let packed = start == [0x1f, 0x8b];
    let whole = Cursor::new(start).chain(reader);
    match packed {
        true => Ok(Box::new(BufReader::with_capacity(64 << 10, MultiGzDecoder::new(BufReader::new(whole))))),
        false => Ok(Box::new(whole)),
    }
}
