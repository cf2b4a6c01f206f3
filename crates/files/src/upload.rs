//! Bringing a local file into a store: at once, or in parts where it is large.
//!
//! Not here: the requests for what is there (`remote`).

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use object_store::multipart::PartId;
use object_store::path::Path as Key;
use object_store::{ObjectStoreExt, PutPayload};

use super::connect::{Store, connect, runtime, wait};
use super::location::ObjectPath;
use super::retry::{Patience, SILENCE, persist};
use super::{StoreOptions, local};
use fulmen_data::{Error, Result};

/// Stores take parts of at least so many bytes, but for the last one, and at most so many parts.
const SMALLEST_PART: u64 = 5 << 20;
const MOST_PARTS: u64 = 10_000;

/// A line that is slower than this many bytes a second counts as silent.
const SLOWEST: u64 = 64 << 10;

/// For so long a store may say nothing while it joins the parts of a large object.
const JOINING: Duration = Duration::from_secs(15 * 60);

/// How long one attempt at sending so many bytes may take, however soon failures are given up.
fn allowance(bytes: u64) -> Duration {
    SILENCE + Duration::from_secs(bytes / SLOWEST)
}

pub(super) fn upload(object: &ObjectPath, options: &StoreOptions, from: &Path, progress: &dyn Fn(u64)) -> Result<()> {
    if object.key.is_empty() {
        return Err(Error::usage(format!("{object}: this is a bucket; expected the name of an object in it")));
    }
    let size = local::size(from)?;
    let file = local::open(from)?;
    let (store, key) = connect(object, options)?;
    let part = (options.chunk_bytes() as u64).max(SMALLEST_PART).max(size.div_ceil(MOST_PARTS));
    if size > part {
        let upload = Multipart { object: object.clone(), store, key, limit: options.patience()?, size, part };
        return upload.send(&file, from, options.chunks(), progress);
    }
    let payload = PutPayload::from(read(&file, from, 0, size)?);
    let (object, limit) = (object.clone(), options.patience()?);
    wait(async move {
        let patience = Patience::new(&object, format!("sending {size} bytes"), limit).sending();
        persist(patience, allowance(size), || store.objects.put(&key, payload.clone())).await
    })?;
    progress(size);
    Ok(())
}

fn read(file: &File, path: &Path, start: u64, length: u64) -> Result<Vec<u8>> {
    let mut bytes =
        vec![0; usize::try_from(length).map_err(|_| Error::file(path, "a part is larger than the memory"))?];
    file.read_exact_at(&mut bytes, start).map_err(|source| Error::io(path, "cannot read the file", source))?;
    Ok(bytes)
}

/// An object that is sent in parts, and is there when all of them are.
struct Multipart {
    object: ObjectPath,
    store: Arc<Store>,
    key: Key,
    limit: Duration,
    size: u64,
    part: u64,
}

impl Multipart {
    fn send(self, file: &File, path: &Path, at_once: usize, progress: &dyn Fn(u64)) -> Result<()> {
        let (store, key, object, limit) = (self.store.clone(), self.key.clone(), self.object.clone(), self.limit);
        let id = wait(async move {
            let patience = Patience::new(&object, "beginning an upload in parts".to_owned(), limit);
            persist(patience, SILENCE, || store.parts.create_multipart(&key)).await
        })?;
        // What was sent of an object that will not be is taken back, also if `progress` panics.
        let mut rest = Rest { upload: &self, id: Some(id.clone()) };
        let parts = self.send_parts(&id, file, path, at_once, progress)?;
        self.complete(&id, parts)?;
        rest.id = None;
        Ok(())
    }

    fn send_parts(
        &self,
        id: &str,
        file: &File,
        path: &Path,
        at_once: usize,
        progress: &dyn Fn(u64),
    ) -> Result<Vec<PartId>> {
        let count = usize::try_from(self.size.div_ceil(self.part)).unwrap_or(usize::MAX);
        let mut ids: Vec<Option<PartId>> = vec![None; count];
        let (send, receive) = mpsc::channel();
        let (mut begun, mut done, mut sent) = (0, 0, 0);
        while done < count {
            while begun < count && begun - done < at_once {
                let start = begun as u64 * self.part;
                let length = self.part.min(self.size - start);
                self.send_part(id, begun, read(file, path, start, length)?, send.clone())?;
                begun += 1;
            }
            let (number, length, result) = receive.recv().map_err(|_| Error::panic("an upload panicked"))?;
            ids[number] = Some(result?);
            done += 1;
            sent += length;
            progress(sent);
        }
        ids.into_iter().map(|id| id.ok_or_else(|| self.object.error("a part of the upload was lost"))).collect()
    }

    fn send_part(&self, id: &str, number: usize, bytes: Vec<u8>, send: mpsc::Sender<SentPart>) -> Result<()> {
        let (store, key, object, limit) = (self.store.clone(), self.key.clone(), self.object.clone(), self.limit);
        let (id, length) = (id.to_owned(), bytes.len() as u64);
        let payload = PutPayload::from(bytes);
        // A part that panics must not leave the others waiting: its message is sent when the task is dropped.
        let mut report = Report { number, length, send: Some(send), object: object.clone() };
        runtime()?.spawn(async move {
            let patience = Patience::new(&object, format!("sending part {number}, of {length} bytes"), limit).sending();
            let sent =
                persist(patience, allowance(length), || store.parts.put_part(&key, &id, number, payload.clone()));
            report.send(sent.await);
        });
        Ok(())
    }

    fn complete(&self, id: &str, parts: Vec<PartId>) -> Result<()> {
        let (store, key, object, limit) = (self.store.clone(), self.key.clone(), self.object.clone(), self.limit);
        let (id, size) = (id.to_owned(), self.size);
        wait(async move {
            let patience = Patience::new(&object, "completing an upload in parts".to_owned(), limit).sending();
            let complete = || store.parts.complete_multipart(&key, &id, parts.clone());
            let Err(error) = persist(patience, JOINING, complete).await else { return Ok(()) };
            // An answer that was lost leaves an object that is complete, and an upload that is no longer known.
            match error.is_not_found() && store.objects.head(&key).await.is_ok_and(|meta| meta.size == size) {
                true => Ok(()),
                false => Err(error),
            }
        })
    }
}

/// The number and length of a part, and what became of it.
type SentPart = (usize, u64, Result<PartId>);

/// Tells about a part, once.
struct Report {
    number: usize,
    length: u64,
    send: Option<mpsc::Sender<SentPart>>,
    object: ObjectPath,
}

impl Report {
    fn send(&mut self, result: Result<PartId>) {
        if let Some(send) = self.send.take() {
            // Nobody waits any more where this fails.
            let _ = send.send((self.number, self.length, result));
        }
    }
}

impl Drop for Report {
    fn drop(&mut self) {
        let lost = self.object.error(format!("sending part {} was broken off", self.number));
        self.send(Err(lost));
    }
}

/// An upload that is not complete yet.
struct Rest<'a> {
    upload: &'a Multipart,
    id: Option<String>,
}

impl Drop for Rest<'_> {
    fn drop(&mut self) {
        let Some(id) = self.id.take() else { return };
        let (store, key) = (self.upload.store.clone(), self.upload.key.clone());
        // The error that is told is the one that brought it here; stores clean up what is left after a time.
        let _ = wait(async move {
            let _ = tokio::time::timeout(Duration::from_secs(10), store.parts.abort_multipart(&key, &id)).await;
            Ok(())
        });
    }
}
