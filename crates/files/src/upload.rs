//! Writes an object to a store: in one request, or in parts if it is large.
//!
//! Out of scope: requests for existing objects (`remote`).

use std::future::Future;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use object_store::retry::{RetryContext, RetryFailure, RetryPolicy};
use object_store::{
    Error as StoreError, ObjectMeta, ObjectStoreExt, PutMultipartOptions, PutPayload,
    WriteMultipart,
};

use super::connect::{Connection, IDLE_TIMEOUT, connect_for, wait};
use super::object_path::ObjectPath;
use super::{StoreOptions, local};
use crate::{Error, Result};

/// Limits of stores: the minimum size of a part, except the last, and the maximum number of parts.
const MIN_PART_BYTES: u64 = 5 << 20;
const MAX_PARTS: u64 = 10_000;

/// A connection that sends fewer bytes per second is treated as broken.
const MIN_BYTES_PER_SECOND: u64 = 64 << 10;

/// Copies a local file into a store.
pub(super) fn upload(
    object: &ObjectPath,
    options: &StoreOptions,
    from: &Path,
    progress: &dyn Fn(u64),
) -> Result<()> {
    let size = local::size(from)?;
    let file = local::open(from)?;
    let mut writer = ObjectWriter::new(object, options, size)?;
    let mut bytes = Vec::new();
    let mut sent = 0;
    while sent < size {
        bytes.resize(usize::try_from((size - sent).min(writer.part_bytes)).unwrap_or_default(), 0);
        file.read_exact_at(&mut bytes, sent)
            .map_err(|source| Error::io(from, "cannot read the file", source))?;
        writer.write(&bytes)?;
        sent += bytes.len() as u64;
        if sent < size {
            progress(sent);
        }
    }
    writer.commit()?;
    progress(size);
    Ok(())
}

/// An object that is being written. It exists after [`commit`](ObjectWriter::commit). If the writer
/// is dropped earlier, even by a panic, the upload is aborted.
///
/// The writer keeps one part in memory, and the parts in flight ([`StoreOptions::read_ahead`]).
pub struct ObjectWriter {
    connection: Connection,
    /// The size of a part.
    part_bytes: u64,
    max_in_flight: usize,
    /// Bytes that are not sent yet: at most one part.
    buffer: Vec<u8>,
    written: u64,
    upload: Option<WriteMultipart>,
    /// The object that had the name when the multipart upload began.
    previous: Option<ObjectMeta>,
}

impl ObjectWriter {
    /// Starts an object of about `size` bytes, which determines the size of the parts.
    pub(super) fn new(
        object: &ObjectPath,
        options: &StoreOptions,
        size: u64,
    ) -> Result<ObjectWriter> {
        object.refuse_web("none can be written")?;
        if object.key.is_empty() {
            return Err(Error::usage(format!(
                "{object}: this is a bucket; expected the name of an object in it"
            )));
        }
        let part_bytes =
            (options.chunk_bytes() as u64).max(MIN_PART_BYTES).max(size.div_ceil(MAX_PARTS));
        // While a part is sent, no data arrives, so the timeout depends on its size.
        let connection = connect_for(
            object,
            options,
            IDLE_TIMEOUT + Duration::from_secs(part_bytes / MIN_BYTES_PER_SECOND),
        )?;
        let max_in_flight = options.chunks();
        Ok(ObjectWriter {
            connection,
            part_bytes,
            max_in_flight,
            buffer: Vec::new(),
            written: 0,
            upload: None,
            previous: None,
        })
    }

    /// Appends bytes.
    pub fn write(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            let room = usize::try_from(self.part_bytes).unwrap_or(usize::MAX) - self.buffer.len();
            if room == 0 {
                self.send()?;
                continue;
            }
            let (chunk, rest) = bytes.split_at(room.min(bytes.len()));
            self.buffer.extend_from_slice(chunk);
            self.written += chunk.len() as u64;
            bytes = rest;
        }
        Ok(())
    }

    /// Makes the object visible. Until then, readers see the previous object.
    pub fn commit(mut self) -> Result<()> {
        if self.upload.is_some() {
            self.send()?;
            return self.complete();
        }
        let connection = self.connection.clone();
        let payload = PutPayload::from(std::mem::take(&mut self.buffer));
        wait(async move {
            let state = connection
                .retry_state(format!("sending {} bytes", payload.content_length()))
                .with_extra_attempt();
            state.retry(|| connection.store.put(&connection.key, payload.clone())).await?;
            Ok(())
        })
    }

    fn begin(&mut self) -> Result<WriteMultipart> {
        let connection = self.connection.clone();
        let part_bytes = usize::try_from(self.part_bytes).unwrap_or(usize::MAX);
        let (previous, upload) = wait(async move {
            let state = connection.retry_state("asking what is there");
            let previous = state.retry(|| current_metadata(&connection)).await?;
            let state = connection.retry_state("beginning an upload in parts");
            let begin = || {
                let options = PutMultipartOptions::default().with_retry_policy(Arc::new(RetryOnce));
                connection.store.put_multipart_opts(&connection.key, options)
            };
            Ok((
                previous,
                WriteMultipart::new_with_chunk_size(state.retry(begin).await?, part_bytes),
            ))
        })?;
        self.previous = previous;
        Ok(upload)
    }

    /// Sends the buffer once fewer than `max_in_flight` parts are in flight.
    fn send(&mut self) -> Result<()> {
        let mut upload = match self.upload.take() {
            Some(upload) => upload,
            None => self.begin()?,
        };
        let max_in_flight = self.max_in_flight;
        let bytes = std::mem::take(&mut self.buffer);
        let (upload, sent) = wait(async move {
            let room = upload.wait_for_capacity(max_in_flight).await;
            if room.is_ok() {
                upload.put(bytes.into());
            }
            Ok((upload, room))
        })?;
        self.upload = Some(upload);
        sent.map_err(|error| self.explain(&error))
    }

    fn complete(&mut self) -> Result<()> {
        let Some(upload) = self.upload.take() else { return Ok(()) };
        let connection = self.connection.clone();
        let size = self.written;
        let previous = self.previous.take();
        let completed = wait(async move {
            let Err(error) = upload.finish().await else { return Ok(Ok(())) };
            // If the response was lost, the object exists and the store no longer knows the upload.
            let lost = matches!(error, StoreError::NotFound { .. });
            let stored =
                if lost { current_metadata(&connection).await.unwrap_or_default() } else { None };
            if stored.is_some_and(|meta| meta.size == size && Some(meta) != previous) {
                Ok(Ok(()))
            } else {
                Ok(Err(error))
            }
        })?;
        completed.map_err(|error| self.explain(&error))
    }

    fn explain(&self, error: &StoreError) -> Error {
        self.connection
            .retry_state(format!("sending parts of {} bytes", self.part_bytes))
            .explain(error)
    }
}

impl Drop for ObjectWriter {
    fn drop(&mut self) {
        let Some(upload) = self.upload.take() else { return };
        // An error does not matter: the caller returns the error that caused the drop, and stores
        // remove unfinished uploads after some time.
        let _ = wait(async move {
            let _ = tokio::time::timeout(Duration::from_secs(10), upload.abort()).await;
            Ok(())
        });
    }
}

/// The object that currently has the name.
async fn current_metadata(connection: &Connection) -> object_store::Result<Option<ObjectMeta>> {
    match connection.store.head(&connection.key).await {
        Ok(meta) => Ok(Some(meta)),
        Err(StoreError::NotFound { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Sends a part once more if the connection broke after the time limit for retries.
#[derive(Debug)]
struct RetryOnce;

impl RetryPolicy for RetryOnce {
    fn retry<'a, 'b>(
        &'a self,
        context: RetryContext,
    ) -> Pin<Box<dyn Future<Output = bool> + Send + 'b>>
    where
        'a: 'b,
        Self: 'b,
    {
        let may_retry =
            context.attempt == 1 && matches!(context.failure, RetryFailure::Transport(_));
        Box::pin(async move { may_retry })
    }
}
