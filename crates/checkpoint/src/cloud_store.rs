//! [`CloudStore`]: checkpoints in a bucket, `gs://…` or `s3://…`.
//!
//! Out of scope: requests, credentials and retries (`fulmen-files`).

use std::io::{self, Write};

use fulmen_files::{Location, ObjectWriter};

use crate::Error;
use crate::store::{Entry, NewObject, Store};

/// The objects below a prefix in a bucket, such as `gs://bucket/run` or `s3://bucket/run`.
///
/// If the store is busy or the connection breaks, requests are retried according to the location's
/// options. Large files are uploaded in parts and become visible when all parts have arrived.
///
/// ```
/// use fulmen_checkpoint::{CloudStore, Store};
///
/// let store = CloudStore::new("s3://models/run_7");
/// assert_eq!(store.describe("step_10/manifest.json"), "s3://models/run_7/step_10/manifest.json");
/// ```
#[derive(Clone, Debug)]
pub struct CloudStore {
    root: Location,
}

impl CloudStore {
    /// The store of the objects below a location. Use it instead of
    /// [`open_store`](crate::open_store) if the location needs settings other than those of the
    /// environment.
    pub fn new(root: impl Into<Location>) -> CloudStore {
        CloudStore { root: root.into() }
    }

    fn location(&self, name: &str) -> Location {
        if name.is_empty() { self.root.clone() } else { self.root.join(name) }
    }
}

impl Store for CloudStore {
    fn create(&self, name: &str, bytes: u64) -> io::Result<Box<dyn NewObject>> {
        let location = self.location(name);
        let writer = location.object_writer(bytes).map_err(|e| explain(&location, &e))?;
        Ok(Box::new(CloudObject { writer, location }))
    }

    fn read(&self, name: &str, start: u64, into: &mut [u8]) -> io::Result<()> {
        let location = self.location(name);
        let bytes = location
            .read_range(start..start + into.len() as u64)
            .map_err(|e| explain(&location, &e))?;
        into.copy_from_slice(&bytes);
        Ok(())
    }

    fn list(&self, folder: &str) -> io::Result<Vec<Entry>> {
        let location = self.location(folder);
        let entries = location.entries().map_err(|e| explain(&location, &e))?;
        Ok(entries.into_iter().map(|(name, bytes)| Entry { name, bytes }).collect())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let location = self.location(name);
        location.remove_object().map_err(|e| explain(&location, &e))
    }

    fn describe(&self, name: &str) -> String {
        self.location(name).to_string()
    }
}

struct CloudObject {
    writer: ObjectWriter,
    location: Location,
}

impl Write for CloudObject {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.writer.write(bytes).map_err(|e| explain(&self.location, &e))?;
        Ok(bytes.len())
    }

    // An object store shows nothing before the commit.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl NewObject for CloudObject {
    fn commit(self: Box<Self>) -> io::Result<()> {
        let CloudObject { writer, location } = *self;
        writer.commit().map_err(|e| explain(&location, &e))
    }
}

/// The error without the location, which the caller adds.
fn explain(location: &Location, error: &Error) -> io::Error {
    let message = error.to_string();
    let text = message.strip_prefix(&format!("{location}: ")).unwrap_or(&message).to_owned();
    let kind = if error.is_not_found() { io::ErrorKind::NotFound } else { io::ErrorKind::Other };
    io::Error::new(kind, text)
}
