//! Bringing a local file into a store: at once, or in parts where it is large.
//!
//! Not here: the requests for what is there (`remote`).

use std::fs::File;
use std::future::Future;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use object_store::retry::{RetryContext, RetryFailure, RetryPolicy};
use object_store::{ObjectStoreExt, PutMultipartOptions, PutPayload, WriteMultipart};

use super::connect::{Connection, SILENCE, connect_for, wait};
use super::object_path::ObjectPath;
use super::{StoreOptions, local};
use fulmen_data::{Error, Result};

/// Stores take parts of at least so many bytes, but for the last one, and at most so many parts.
const SMALLEST_PART: u64 = 5 << 20;
const MOST_PARTS: u64 = 10_000;

/// A line that is slower than this many bytes a second counts as silent.
const SLOWEST: u64 = 64 << 10;

pub(super) fn upload(object: &ObjectPath, options: &StoreOptions, from: &Path, progress: &dyn Fn(u64)) -> Result<()> {
    if object.key.is_empty() {
        return Err(Error::usage(format!("{object}: this is a bucket; expected the name of an object in it")));
    }
    let size = local::size(from)?;
    let file = local::open(from)?;
    let part = (options.chunk_bytes() as u64).max(SMALLEST_PART).max(size.div_ceil(MOST_PARTS));
    // Nothing arrives while a part is sent.
    let connection = connect_for(object, options, SILENCE + Duration::from_secs(part / SLOWEST))?;
    if size > part {
        let mut upload = Upload::begin(connection, size, part, options.chunks())?;
        let mut sent = 0;
        while sent < size {
            let bytes = read(&file, from, sent, part.min(size - sent))?;
            sent += bytes.len() as u64;
            upload.send(bytes)?;
            if sent < size {
                progress(sent);
            }
        }
        upload.complete()?;
    } else {
        let payload = PutPayload::from(read(&file, from, 0, size)?);
        wait(async move {
            let state = connection.retry_state(format!("sending {size} bytes")).sending();
            state.retry(|| connection.store.put(&connection.key, payload.clone())).await
        })?;
    }
    progress(size);
    Ok(())
}

fn read(file: &File, path: &Path, start: u64, length: u64) -> Result<Vec<u8>> {
    let mut bytes =
        vec![0; usize::try_from(length).map_err(|_| Error::file(path, "a part is larger than the memory"))?];
    file.read_exact_at(&mut bytes, start).map_err(|source| Error::io(path, "cannot read the file", source))?;
    Ok(bytes)
}

/// An object that is sent in parts, and is there when all of them are. What was sent of one that is not completed is taken
/// back when this is dropped, also in a panic.
struct Upload {
    connection: Connection,
    size: u64,
    part: u64,
    at_once: usize,
    writer: Option<WriteMultipart>,
}

impl Upload {
    fn begin(connection: Connection, size: u64, part: u64, at_once: usize) -> Result<Upload> {
        let part_bytes = usize::try_from(part).unwrap_or(usize::MAX);
        let mut upload = Upload { connection: connection.clone(), size, part, at_once, writer: None };
        upload.writer = Some(wait(async move {
            let state = connection.retry_state("beginning an upload in parts");
            let begin = || {
                let options = PutMultipartOptions::default().with_retry_policy(Arc::new(OnceMore));
                connection.store.put_multipart_opts(&connection.key, options)
            };
            Ok(WriteMultipart::new_with_chunk_size(state.retry(begin).await?, part_bytes))
        })?);
        Ok(upload)
    }

    /// Sends a part when fewer than `at_once` are on their way.
    fn send(&mut self, bytes: Vec<u8>) -> Result<()> {
        let Some(mut writer) = self.writer.take() else { return Ok(()) };
        let at_once = self.at_once;
        let (writer, sent) = wait(async move {
            let room = writer.wait_for_capacity(at_once).await;
            if room.is_ok() {
                writer.put(bytes.into());
            }
            Ok((writer, room))
        })?;
        self.writer = Some(writer);
        sent.map_err(|error| self.explain(&error))
    }

    fn complete(&mut self) -> Result<()> {
        let Some(writer) = self.writer.take() else { return Ok(()) };
        let (connection, size) = (self.connection.clone(), self.size);
        let done = wait(async move {
            let Err(error) = writer.finish().await else { return Ok(Ok(())) };
            // If the answer was lost, the object is there and the upload is no longer known.
            let lost = matches!(error, object_store::Error::NotFound { .. });
            match lost && connection.store.head(&connection.key).await.is_ok_and(|meta| meta.size == size) {
                true => Ok(Ok(())),
                false => Ok(Err(error)),
            }
        })?;
        done.map_err(|error| self.explain(&error))
    }

    fn explain(&self, error: &object_store::Error) -> Error {
        self.connection.retry_state(format!("sending parts of {} bytes", self.part)).explain(error)
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        let Some(writer) = self.writer.take() else { return };
        // The error that is told is the one that brought it here; stores clean up what is left after a time.
        let _ = wait(async move {
            let _ = tokio::time::timeout(Duration::from_secs(10), writer.abort()).await;
            Ok(())
        });
    }
}

/// Sends a part once more if the connection broke when the time for retries was over.
#[derive(Debug)]
struct OnceMore;

impl RetryPolicy for OnceMore {
    fn retry<'a, 'b>(&'a self, context: RetryContext) -> Pin<Box<dyn Future<Output = bool> + Send + 'b>>
    where
        'a: 'b,
        Self: 'b,
    {
        let again = context.attempt == 1 && matches!(context.failure, RetryFailure::Transport(_));
        Box::pin(async move { again })
    }
}
