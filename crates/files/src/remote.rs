//! What is asked of object stores: sizes, parts of objects, lists.
//!
//! Not here: connections (`connect`), reading ahead (`read_ahead`), and bringing objects there (`upload`).

use std::io::Read;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use object_store::path::Path as Key;
use object_store::{GetOptions, GetRange, GetResultPayload, ObjectMeta, ObjectStoreExt};

use super::StoreOptions;
use super::connect::{Store, connect, wait};
use super::location::ObjectPath;
use super::read_ahead::ReadAhead;
use super::retry::{Failure, Patience, SILENCE, persist};
pub(super) use super::upload::upload;
use fulmen_data::{Error, Result};

/// The size of an object and what tells its versions apart.
pub(super) fn head(object: &ObjectPath, options: &StoreOptions) -> Result<ObjectMeta> {
    if object.key.is_empty() {
        return Err(Error::usage(format!("{object}: this is a bucket; expected an object in it")));
    }
    let (store, key) = connect(object, options)?;
    let (object, limit) = (object.clone(), options.patience()?);
    wait(async move {
        let patience = Patience::new(&object, "asking for its size".to_owned(), limit);
        persist(patience, SILENCE, || store.objects.head(&key)).await
    })
}

pub(super) fn size(object: &ObjectPath, options: &StoreOptions) -> Result<u64> {
    Ok(head(object, options)?.size)
}

pub(super) fn version(object: &ObjectPath, options: &StoreOptions) -> Result<(u64, String)> {
    let meta = head(object, options)?;
    let version = meta.e_tag.or(meta.version).unwrap_or_else(|| meta.last_modified.to_rfc3339());
    Ok((meta.size, version))
}

/// The bytes, or how large the object is where the range reaches beyond it.
pub(super) fn read_range(
    object: &ObjectPath,
    options: &StoreOptions,
    range: Range<u64>,
) -> Result<Result<Vec<u8>, u64>> {
    // A range that is longer than the object is answered with what there is, but nothing is promised then.
    let meta = head(object, options)?;
    if range.end > meta.size {
        return Ok(Err(meta.size));
    }
    let (store, key) = connect(object, options)?;
    let part = Part { store, key, object: object.clone(), e_tag: meta.e_tag, limit: options.patience()? };
    wait(async move { part.read(range).await }).map(Ok)
}

pub(super) fn open(object: &ObjectPath, options: &StoreOptions) -> Result<Box<dyn Read + Send>> {
    let meta = head(object, options)?;
    let (store, key) = connect(object, options)?;
    let part = Part { store, key, object: object.clone(), e_tag: meta.e_tag, limit: options.patience()? };
    Ok(Box::new(ReadAhead::new(Arc::new(part), meta.size, options)))
}

/// An object of a known version, of which parts are read.
pub(super) struct Part {
    store: Arc<Store>,
    key: Key,
    object: ObjectPath,
    e_tag: Option<String>,
    limit: Duration,
}

impl Part {
    /// The bytes of a range that is in the object. What has arrived before a connection breaks is not asked for again.
    pub(super) async fn read(&self, range: Range<u64>) -> Result<Vec<u8>> {
        let doing = format!("reading bytes {} to {}", range.start, range.end);
        let mut patience = Patience::new(&self.object, doing, self.limit);
        let length = usize::try_from(range.end - range.start).unwrap_or(usize::MAX);
        let mut bytes = Vec::new();
        if bytes.try_reserve_exact(length).is_err() {
            return Err(self.object.error(format!("there is no memory for {length} bytes")));
        }
        while bytes.len() < length {
            let start = range.start + bytes.len() as u64;
            match self.attempt(start..range.end, &mut bytes, &mut patience).await {
                Ok(()) if bytes.len() >= length => {}
                Ok(()) => patience.failed(Failure::Short).await?,
                Err(failure) => patience.failed(failure).await?,
            }
        }
        bytes.truncate(length);
        Ok(bytes)
    }

    /// One request, as far as it goes.
    async fn attempt(&self, range: Range<u64>, into: &mut Vec<u8>, patience: &mut Patience<'_>) -> Result<(), Failure> {
        let options =
            GetOptions { range: Some(GetRange::Bounded(range)), if_match: self.e_tag.clone(), ..GetOptions::default() };
        let time = patience.silence(SILENCE);
        let answer = tokio::time::timeout(time, self.store.objects.get_opts(&self.key, options)).await;
        let answer = answer.map_err(|_| Failure::Silence(time))??;
        // A store has no files; the variant is there for local disks alone.
        let GetResultPayload::Stream(mut stream) = answer.payload else { return Err(Failure::Short) };
        loop {
            let time = patience.silence(SILENCE);
            match tokio::time::timeout(time, stream.next()).await.map_err(|_| Failure::Silence(time))? {
                Some(bytes) => {
                    into.extend_from_slice(&bytes?);
                    patience.progress();
                }
                None => return Ok(()),
            }
        }
    }
}

/// The keys of all objects below a name, sorted by their bytes.
pub(super) fn list(object: &ObjectPath, options: &StoreOptions) -> Result<Vec<String>> {
    let (store, key) = connect(object, options)?;
    let (object, limit) = (object.clone(), options.patience()?);
    wait(async move {
        let mut patience = Patience::new(&object, "listing".to_owned(), limit);
        let prefix = (!object.key.is_empty()).then_some(&key);
        let mut found: Vec<(Key, u64)> = Vec::new();
        'attempt: loop {
            let mut stream = match found.last() {
                // The key as it came: one made of its text would have `%` and others written in another way.
                Some((last, _)) => store.objects.list_with_offset(prefix, last),
                None => store.objects.list(prefix),
            };
            loop {
                let time = patience.silence(SILENCE);
                let failure = match tokio::time::timeout(time, stream.next()).await {
                    Ok(Some(Ok(meta))) => {
                        found.push((meta.location, meta.size));
                        patience.progress();
                        continue;
                    }
                    Ok(Some(Err(error))) => error.into(),
                    Ok(None) => break 'attempt,
                    Err(_) => Failure::Silence(time),
                };
                patience.failed(failure).await?;
                continue 'attempt;
            }
        }
        found.sort();
        found.dedup();
        Ok(files(found))
    })
}

/// Without the empty objects that some programs write to have folders.
fn files(found: Vec<(Key, u64)>) -> Vec<String> {
    let found: Vec<(&str, u64)> = found.iter().map(|(key, size)| (key.as_ref(), *size)).collect();
    let keys: std::collections::BTreeSet<&str> = found.iter().map(|(key, _)| *key).collect();
    let folder = |key: &str| {
        let below = format!("{key}/");
        keys.range(below.as_str()..).next().is_some_and(|next| next.starts_with(&below))
    };
    found.iter().filter(|(key, size)| *size > 0 || !folder(key)).map(|(key, _)| (*key).to_owned()).collect()
}
