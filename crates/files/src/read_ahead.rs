//! An object from its beginning to its end, of which several parts are fetched before they are asked for.
//!
//! Not here: how a part is fetched (`remote`).

use std::collections::VecDeque;
use std::io::{self, Cursor, Read};
use std::sync::{Arc, mpsc};

use tokio::task::JoinHandle;

use super::StoreOptions;
use super::connect::runtime;
use super::remote::Part;
use fulmen_data::{Error, Result};

/// A reader that keeps so many parts on their way. They are handed out in order; no part more is fetched before the
/// first of them is asked for.
pub(super) struct ReadAhead {
    part: Arc<Part>,
    size: u64,
    chunks: usize,
    chunk_bytes: u64,
    /// Where the next part to be asked for begins.
    next: u64,
    coming: VecDeque<Coming>,
    current: Cursor<Vec<u8>>,
    failed: bool,
}

/// A part on its way. It is given up when nobody waits for it any more.
struct Coming {
    bytes: mpsc::Receiver<Result<Vec<u8>>>,
    task: JoinHandle<()>,
}

impl Drop for Coming {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl ReadAhead {
    pub(super) fn new(part: Arc<Part>, size: u64, options: &StoreOptions) -> ReadAhead {
        ReadAhead {
            part,
            size,
            chunks: options.chunks(),
            chunk_bytes: options.chunk_bytes() as u64,
            next: 0,
            coming: VecDeque::new(),
            current: Cursor::default(),
            failed: false,
        }
    }

    /// Sends for parts until so many are on their way.
    fn send_for(&mut self) -> Result<()> {
        while self.coming.len() < self.chunks && self.next < self.size {
            let range = self.next..self.size.min(self.next.saturating_add(self.chunk_bytes));
            self.next = range.end;
            let (send, bytes) = mpsc::sync_channel(1);
            let part = self.part.clone();
            let task = runtime()?.spawn(async move {
                // Nobody waits any more where this fails.
                let _ = send.send(part.read(range).await);
            });
            self.coming.push_back(Coming { bytes, task });
        }
        Ok(())
    }

    /// The next part, if there is one.
    fn take(&mut self) -> Result<Option<Vec<u8>>> {
        self.send_for()?;
        let Some(coming) = self.coming.pop_front() else { return Ok(None) };
        let bytes =
            coming.bytes.recv().unwrap_or_else(|_| Err(Error::panic("a request to an object store panicked")))?;
        // While these bytes are used, the next ones come.
        self.send_for()?;
        Ok(Some(bytes))
    }
}

impl Read for ReadAhead {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if into.is_empty() {
            return Ok(0);
        }
        if self.failed {
            return Err(io::Error::other("reading failed before"));
        }
        loop {
            let count = self.current.read(into)?;
            if count > 0 {
                return Ok(count);
            }
            self.current = Cursor::default();
            match self.take() {
                Ok(Some(bytes)) => self.current = Cursor::new(bytes),
                Ok(None) => return Ok(0),
                Err(error) => {
                    self.failed = true;
                    self.coming.clear();
                    return Err(io::Error::other(error));
                }
            }
        }
    }
}
