//! Reads a file in sequence, and decompresses it if it is gzip.
//!
//! Out of scope: the location of the file (`location`).

use std::io::{self, BufReader, Cursor, Read};

use flate2::read::MultiGzDecoder;

use super::Location;
use crate::fill;
use crate::{Error, Result};

/// Opens a file, and decompresses it if its content starts like gzip, regardless of its name.
pub fn open_unpacked(location: &Location) -> Result<Box<dyn Read + Send>> {
    let mut reader = location.open()?;
    let mut start = [0; 2];
    let count = fill(&mut reader, &mut start).map_err(|error| location.read_error(error))?;
    let whole = Cursor::new(start[..count].to_vec()).chain(reader);
    Ok(if start == [0x1f, 0x8b] { gunzip(whole) } else { Box::new(whole) })
}

/// Decompresses gzip with one or several members.
pub fn gunzip(packed: impl Read + Send + 'static) -> Box<dyn Read + Send> {
    Box::new(BufReader::with_capacity(
        64 << 10,
        MultiGzDecoder::new(BufReader::with_capacity(64 << 10, packed)),
    ))
}

/// The error for a failed read at a position in the file. It distinguishes a damaged compressed
/// file from a failing disk or store.
pub fn explain(location: &Location, position: &str, source: io::Error) -> Error {
    let source = match source.downcast::<Error>() {
        Ok(of_store) => return of_store,
        Err(source) => source,
    };
    match source.kind() {
        io::ErrorKind::UnexpectedEof => location.error(format!(
            "{position}: the compressed file is truncated; copy or download it again"
        )),
        // zstd's errors have no specific kind.
        io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData | io::ErrorKind::Other => location
            .error(format!(
                "{position}: the compressed file is damaged ({source}); copy or download it again"
            )),
        _ => match location.local() {
            Some(path) => Error::io(path, &format!("{position}: cannot read the file"), source),
            None => location.read_error(source),
        },
    }
}
