//! Invariants of a tar reader that must hold for any bytes.
//!
//! Out of scope: the fuzz target.

use std::io::{self, Cursor};
use std::sync::Arc;

use super::entries::{TarEntries, read_over};
use super::group::{Groups, Selection};
use fulmen_files::Location;
use fulmen_files::gunzip;

/// Skips bytes without reading them, as in a file.
fn jump(bytes: &mut &[u8], count: u64) -> io::Result<u64> {
    let count = usize::try_from(count).unwrap_or(usize::MAX).min(bytes.len());
    *bytes = &bytes[count..];
    Ok(count as u64)
}

/// Reads a tar in sequence and by index, and compares the results.
pub(crate) fn fuzz(location: &Location, bytes: &[u8]) {
    let selection = Arc::new(Selection { extensions: Vec::new(), max_sample_bytes: 64 << 20 });
    if bytes.starts_with(&[0x1f, 0x8b]) {
        let walk =
            TarEntries::new(location.clone(), gunzip(Cursor::new(bytes.to_vec())), read_over);
        let mut groups = Groups::new(location, walk, &selection);
        while let Ok(Some(_)) = groups.next(|walk, entry| walk.content(&entry)) {}
        return;
    }
    let mut read =
        Groups::new(location, TarEntries::new(location.clone(), bytes, read_over), &selection);
    let mut indexed =
        Groups::new(location, TarEntries::new(location.clone(), bytes, jump), &selection);
    loop {
        let sample = read.next(|walk, entry| walk.content(&entry));
        let positions = indexed.next(|_, entry| Ok((entry.offset, entry.size)));
        match (sample, positions) {
            (Ok(Some(sample)), Ok(Some(positions))) => {
                assert_eq!(sample.key, positions.key);
                assert!(sample.files.keys().eq(positions.files.keys()));
                for (content, (offset, size)) in sample.files.values().zip(positions.files.values())
                {
                    assert_eq!(*content, bytes[*offset as usize..][..*size as usize]);
                }
            }
            (Ok(None), Ok(None)) => return,
            // Reading in sequence detects a truncated file, and reading by index detects a
            // truncated sample.
            (Err(_), _) => return,
            (Ok(sample), positions) => {
                panic!("{:?} and {:?}", sample.map(|s| s.key), positions.map(|p| p.map(|p| p.key)))
            }
        }
    }
}
