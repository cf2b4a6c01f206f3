//! What must hold of a tar whatever its bytes are.
//!
//! Not here: where the bytes come from; that is the fuzz target's.

use std::io::{self, Cursor, Read};
use std::sync::Arc;

use super::group::{Groups, Selection};
use super::walk::{Bytes, Sequential};
use fulmen_files::Location;
use fulmen_files::gunzip;

/// Bytes of which only what is asked for is read, as of a file.
struct Slice<'a>(&'a [u8]);

impl Read for Slice<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.0.read(into)
    }
}

impl Bytes for Slice<'_> {
    fn skip(&mut self, count: u64) -> io::Result<u64> {
        let count = usize::try_from(count).unwrap_or(usize::MAX).min(self.0.len());
        self.0 = &self.0[count..];
        Ok(count as u64)
    }
}

/// Reads it both ways, and compares.
pub(crate) fn fuzz(location: &Location, bytes: &[u8]) {
    let selection = Arc::new(Selection { extensions: Vec::new(), max_sample_bytes: 64 << 20 });
    if bytes.starts_with(&[0x1f, 0x8b]) {
        let reader = Sequential(gunzip(Cursor::new(bytes.to_vec())));
        let mut groups = Groups::new(location, reader, &selection);
        while let Ok(Some(_)) = groups.next(|member| member.walk.content(&member.entry)) {}
        return;
    }
    let mut read = Groups::new(location, Sequential(bytes), &selection);
    let mut found = Groups::new(location, Slice(bytes), &selection);
    loop {
        let sample = read.next(|member| member.walk.content(&member.entry));
        let places = found.next(|member| Ok((member.entry.offset, member.entry.size)));
        match (sample, places) {
            (Ok(Some(sample)), Ok(Some(places))) => {
                assert_eq!(sample.key, places.key);
                assert!(sample.files.keys().eq(places.files.keys()));
                for (content, (offset, size)) in sample.files.values().zip(places.files.values()) {
                    assert_eq!(*content, bytes[*offset as usize..][..*size as usize]);
                }
            }
            (Ok(None), Ok(None)) => return,
            // What is cut off is seen when it is read, and a sample later when it is passed over.
            (Err(_), _) => return,
            (Ok(sample), places) => panic!("{:?} and {:?}", sample.map(|s| s.key), places.map(|p| p.map(|p| p.key))),
        }
    }
}
