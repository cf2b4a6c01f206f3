//! Requests to object stores: sizes, parts of objects, lists.
//!
//! Out of scope: connections (`connect`), reading ahead (`read_ahead`), and uploads (`upload`).

use std::io::Read;
use std::ops::Range;

use futures_util::{StreamExt, TryStreamExt, stream};
use object_store::path::Path as Key;
use object_store::{Error as StoreError, GetOptions, GetRange, ObjectMeta, ObjectStoreExt};

use super::StoreOptions;
use super::connect::{Connection, connect, wait};
use super::object_path::ObjectPath;
use super::read_ahead::ReadAhead;
use super::retry::RetryState;
pub(super) use super::upload::{ObjectWriter, upload};
use crate::{Error, Result};

/// The size of an object, and what identifies its version.
fn head(object: &ObjectPath, options: &StoreOptions) -> Result<(Connection, ObjectMeta)> {
    if object.key.is_empty() {
        return Err(Error::usage(format!("{object}: this is a bucket; expected an object in it")));
    }
    let connection = connect(object, options)?;
    wait(async move {
        let state = connection.retry_state("asking for its size");
        let meta = state.retry(|| connection.store.head(&connection.key)).await?;
        Ok((connection, meta))
    })
}

pub(super) fn size(object: &ObjectPath, options: &StoreOptions) -> Result<u64> {
    Ok(head(object, options)?.1.size)
}

pub(super) fn version(object: &ObjectPath, options: &StoreOptions) -> Result<(u64, String)> {
    let (_, meta) = head(object, options)?;
    let version = meta.e_tag.or(meta.version).unwrap_or_else(|| meta.last_modified.to_rfc3339());
    Ok((meta.size, version))
}

/// Reads the bytes, or returns the size of the object if the range extends beyond it.
pub(super) fn read_range(
    object: &ObjectPath,
    options: &StoreOptions,
    range: Range<u64>,
) -> Result<Result<Vec<u8>, u64>> {
    // Stores usually shorten a range that is longer than the object, but do not guarantee it.
    let (connection, meta) = head(object, options)?;
    if range.end > meta.size {
        return Ok(Err(meta.size));
    }
    let object = Object { connection, e_tag: meta.e_tag };
    let chunk = options.chunk_bytes();
    let max_in_flight = options.chunks();
    wait(async move {
        if range.end - range.start <= chunk as u64 {
            return object.read(range).await;
        }
        // A long range is fetched in several parts at a time.
        let mut bytes = object.memory(&range)?;
        let reads = range
            .clone()
            .step_by(chunk)
            .map(|start| object.read(start..range.end.min(start.saturating_add(chunk as u64))));
        let mut parts = stream::iter(reads).buffered(max_in_flight);
        while let Some(part) = parts.try_next().await? {
            bytes.extend_from_slice(&part);
        }
        Ok(bytes)
    })
    .map(Ok)
}

pub(super) fn open(object: &ObjectPath, options: &StoreOptions) -> Result<Box<dyn Read + Send>> {
    let (connection, meta) = head(object, options)?;
    Ok(Box::new(ReadAhead::new(Object { connection, e_tag: meta.e_tag }, meta.size, options)?))
}

/// An object of a known version, with random access.
pub(super) struct Object {
    connection: Connection,
    e_tag: Option<String>,
}

impl Object {
    /// Reads a range within the object. Bytes that arrived before a connection broke are not
    /// requested again.
    pub(super) async fn read(&self, range: Range<u64>) -> Result<Vec<u8>> {
        let object = &self.connection.object;
        let mut state =
            self.connection.retry_state(format!("reading bytes {} to {}", range.start, range.end));
        let mut bytes = self.memory(&range)?;
        let length = usize::try_from(range.end - range.start).unwrap_or(usize::MAX);
        while bytes.len() < length {
            let arrived = bytes.len();
            let rest = range.start + arrived as u64..range.end;
            match self.attempt(rest, &mut bytes, &mut state).await {
                Err(error) => state.failed(error).await?,
                Ok(()) if bytes.len() > arrived => {}
                Ok(()) => return Err(object.error("the response of the store ended too early")),
            }
        }
        bytes.truncate(length);
        Ok(bytes)
    }

    /// An empty vector with capacity for the bytes of a range.
    fn memory(&self, range: &Range<u64>) -> Result<Vec<u8>> {
        let length = range.end - range.start;
        let mut bytes = Vec::new();
        if usize::try_from(length).is_ok_and(|length| bytes.try_reserve_exact(length).is_ok()) {
            Ok(bytes)
        } else {
            Err(self.connection.object.error(format!("not enough memory for {length} bytes")))
        }
    }

    /// Makes one request. Returns when it has succeeded or failed.
    async fn attempt(
        &self,
        range: Range<u64>,
        into: &mut Vec<u8>,
        state: &mut RetryState,
    ) -> object_store::Result<()> {
        let options = GetOptions {
            range: Some(GetRange::Bounded(range)),
            if_match: self.e_tag.clone(),
            ..GetOptions::default()
        };
        let mut stream =
            self.connection.store.get_opts(&self.connection.key, options).await?.into_stream();
        while let Some(bytes) = stream.next().await {
            into.extend_from_slice(&bytes?);
            state.progress();
        }
        Ok(())
    }
}

/// The keys of all objects with a prefix, sorted by their bytes.
pub(super) fn list(object: &ObjectPath, options: &StoreOptions) -> Result<Vec<String>> {
    object.refuse_web("it cannot list folders")?;
    let connection = connect(object, options)?;
    wait(async move {
        let mut state = connection.retry_state("listing");
        let prefix = (!connection.object.key.is_empty()).then_some(&connection.key);
        let mut objects: Vec<(Key, u64)> = Vec::new();
        loop {
            let mut stream = match objects.last() {
                // This uses the key exactly as received. Parsing its text would encode `%` and
                // other characters differently.
                Some((last, _)) => connection.store.list_with_offset(prefix, last),
                None => connection.store.list(prefix),
            };
            let failed = loop {
                match stream.next().await {
                    Some(Ok(meta)) => {
                        objects.push((meta.location, meta.size));
                        state.progress();
                    }
                    Some(Err(error)) => break Some(error),
                    None => break None,
                }
            };
            match failed {
                Some(error) => state.failed(error).await?,
                None => break,
            }
        }
        objects.sort();
        objects.dedup();
        Ok(files(objects))
    })
}

/// The content directly below a prefix: objects with their sizes, and common prefixes up to a
/// slash.
pub(super) fn entries(
    object: &ObjectPath,
    options: &StoreOptions,
) -> Result<Vec<(String, Option<u64>)>> {
    object.refuse_web("it cannot list folders")?;
    let connection = connect(object, options)?;
    let listing = wait(async move {
        let prefix = (!connection.object.key.is_empty()).then_some(&connection.key);
        connection
            .retry_state("listing")
            .retry(|| connection.store.list_with_delimiter(prefix))
            .await
    })?;
    let folders = listing.common_prefixes.iter().map(|key| (key, None));
    let objects = listing.objects.iter().map(|meta| (&meta.location, Some(meta.size)));
    Ok(folders
        .chain(objects)
        .filter_map(|(key, size)| Some((key.filename()?.to_owned(), size)))
        .collect())
}

/// Removes an object. A missing object is not an error, because an earlier request may have removed
/// it and its response may have been lost.
pub(super) fn remove(object: &ObjectPath, options: &StoreOptions) -> Result<()> {
    object.refuse_web("none can be removed")?;
    let connection = connect(object, options)?;
    wait(async move {
        let remove = || async {
            match connection.store.delete(&connection.key).await {
                Err(StoreError::NotFound { .. }) => Ok(()),
                result => result,
            }
        };
        connection.retry_state("removing it").retry(remove).await
    })
}

/// Leaves out the empty objects that some programs create as folders.
fn files(objects: Vec<(Key, u64)>) -> Vec<String> {
    let objects: Vec<(&str, u64)> =
        objects.iter().map(|(key, size)| (key.as_ref(), *size)).collect();
    let keys: std::collections::BTreeSet<&str> = objects.iter().map(|(key, _)| *key).collect();
    let folder = |key: &str| {
        let prefix = format!("{key}/");
        keys.range(prefix.as_str()..).next().is_some_and(|next| next.starts_with(&prefix))
    };
    objects
        .iter()
        .filter(|(key, size)| *size > 0 || !folder(key))
        .map(|(key, _)| (*key).to_owned())
        .collect()
}
