//! A file from its beginning to its end, unpacked where it is compressed with gzip.
//!
//! Not here: where the file lies (`location`).

use std::io::{self, BufReader, Cursor, Read};

use flate2::read::MultiGzDecoder;

use super::Location;
use fulmen_data::internal::fill;
use fulmen_data::{Error, Result};

/// Opens a file, and unpacks it where it begins as gzip does, whatever its name is.
pub fn open_unpacked(location: &Location) -> Result<Box<dyn Read + Send>> {
    let mut reader = location.open()?;
    let mut start = [0; 2];
    let found = fill(&mut reader, &mut start).map_err(|error| location.read_error(error))?;
    let whole = Cursor::new(start[..found].to_vec()).chain(reader);
    Ok(if start == [0x1f, 0x8b] { gunzip(whole) } else { Box::new(whole) })
}

/// What is compressed with gzip, in one part or several.
pub fn gunzip(packed: impl Read + Send + 'static) -> Box<dyn Read + Send> {
    Box::new(BufReader::with_capacity(64 << 10, MultiGzDecoder::new(BufReader::with_capacity(64 << 10, packed))))
}

/// The error for a read that failed at a place in the file: a compressed file that is damaged is told apart from a disk or
/// a store that fails.
pub fn explain(location: &Location, place: &str, source: io::Error) -> Error {
    let source = match source.downcast::<Error>() {
        Ok(of_store) => return of_store,
        Err(source) => source,
    };
    match source.kind() {
        io::ErrorKind::UnexpectedEof => {
            location.error(format!("{place}: the compressed file is cut short; copy or download it again"))
        }
        // What zstd refuses is of no kind.
        io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData | io::ErrorKind::Other => {
            location.error(format!("{place}: the compressed file is damaged ({source}); copy or download it again"))
        }
        _ => match location.local() {
            Some(path) => Error::io(path, &format!("{place}: cannot read the file"), source),
            None => location.read_error(source),
        },
    }
}
