//! Reads an object in sequence, fetching several parts in advance.
//!
//! Out of scope: fetching a part (`remote`).

use std::io::{self, Cursor, Read};
use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::stream::{self, BoxStream};
use tokio_util::task::AbortOnDropHandle;

use super::StoreOptions;
use super::connect::{panicked, runtime, wait};
use super::remote::Object;
use crate::{Error, Result};

/// A reader that returns parts in order while the next ones are fetched.
pub(super) struct ReadAhead {
    /// `None` after an error, so that the error is not mistaken for the end of the object.
    parts: Option<BoxStream<'static, Result<Vec<u8>>>>,
    current: Cursor<Vec<u8>>,
}

impl ReadAhead {
    pub(super) fn new(object: Object, size: u64, options: &StoreOptions) -> Result<ReadAhead> {
        let object = Arc::new(object);
        let runtime = runtime()?;
        let chunk = options.chunk_bytes() as u64;
        let ranges = (0..size.div_ceil(chunk))
            .map(move |i| i * chunk..size.min((i + 1).saturating_mul(chunk)));
        // The tasks continue between reads. Dropping the reader ends them.
        let fetch = move |range| {
            let object = object.clone();
            AbortOnDropHandle::new(runtime.spawn(async move { object.read(range).await }))
        };
        // The buffer has the part that the reader waits for, and the parts after it.
        let parts = stream::iter(ranges)
            .map(fetch)
            .buffered(options.chunks() + 1)
            .map(|part| part.unwrap_or_else(|_| Err(panicked())));
        Ok(ReadAhead { parts: Some(parts.boxed()), current: Cursor::default() })
    }

    /// The next part; empty at the end.
    fn next(&mut self) -> Result<Vec<u8>> {
        let mut parts =
            self.parts.take().ok_or_else(|| Error::file("".as_ref(), "reading failed before"))?;
        let (bytes, parts) = wait(async move { Ok((parts.next().await.transpose()?, parts)) })?;
        self.parts = Some(parts);
        Ok(bytes.unwrap_or_default())
    }
}

impl Read for ReadAhead {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.current.position() == self.current.get_ref().len() as u64 && !into.is_empty() {
            // The previous part is freed before waiting for the next one.
            self.current = Cursor::default();
            self.current = Cursor::new(self.next().map_err(io::Error::other)?);
        }
        self.current.read(into)
    }
}
