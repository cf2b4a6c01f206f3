//! Tests a full disk or a lost permission at any byte.

use std::io::{self, ErrorKind, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::{CheckpointWriter, Dtype, Entry, LocalStore, NewObject, Part, Store, list, newest};

use super::common::{SMALL, local, read_all, write};

/// A local store that fails after this many bytes; a commit counts as one.
#[derive(Clone, Debug)]
struct FailingStore {
    inner: LocalStore,
    remaining: Arc<AtomicU64>,
    kind: ErrorKind,
    /// A folder that cannot be read.
    unreadable: &'static str,
    /// Whether folders are listed as they were, without their files.
    lists_nothing: bool,
}

fn failing(folder: &Path, bytes: u64, kind: ErrorKind, unreadable: &'static str) -> FailingStore {
    FailingStore {
        inner: LocalStore::new(folder),
        remaining: Arc::new(AtomicU64::new(bytes)),
        kind,
        unreadable,
        lists_nothing: false,
    }
}

impl FailingStore {
    fn take(&self, bytes: u64) -> io::Result<()> {
        self.remaining
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |remaining| {
                remaining.checked_sub(bytes)
            })
            .map(drop)
            .map_err(|_| self.kind.into())
    }
}

impl Store for FailingStore {
    fn create(&self, name: &str, bytes: u64) -> io::Result<Box<dyn NewObject>> {
        Ok(Box::new(FailingFile { inner: self.inner.create(name, bytes)?, store: self.clone() }))
    }
    fn read(&self, name: &str, start: u64, into: &mut [u8]) -> io::Result<()> {
        match name.split_once('/') {
            Some((folder, _)) if folder == self.unreadable => Err(self.kind.into()),
            _ => self.inner.read(name, start, into),
        }
    }
    fn list(&self, folder: &str) -> io::Result<Vec<Entry>> {
        let entries = self.inner.list(folder)?;
        Ok(if self.lists_nothing { Vec::new() } else { entries })
    }
    fn remove(&self, name: &str) -> io::Result<()> {
        self.inner.remove(name)
    }
    fn describe(&self, name: &str) -> String {
        self.inner.describe(name)
    }
}

struct FailingFile {
    inner: Box<dyn NewObject>,
    store: FailingStore,
}

impl Write for FailingFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.store.take(bytes.len() as u64)?;
        self.inner.write(bytes)
    }
    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

impl NewObject for FailingFile {
    fn commit(self: Box<Self>) -> io::Result<()> {
        self.store.take(1)?;
        self.inner.commit()
    }
}

#[test]
fn a_write_that_fails_at_any_byte_leaves_the_older_checkpoint_and_no_file_behind() {
    let folder = tempfile::tempdir().unwrap();
    let store = local(folder.path());
    write(&store, 1, &SMALL, 2).unwrap();
    for (kind, advice) in
        [(ErrorKind::StorageFull, "free some space"), (ErrorKind::PermissionDenied, "permissions")]
    {
        let mut failed = 0;
        let mut limit = 0;
        loop {
            let failing: Arc<dyn Store> = Arc::new(failing(folder.path(), limit, kind, ""));
            let Err(error) = write(&failing, 2, &SMALL, 2) else { break };
            let text = error.to_string();
            assert!(
                text.contains("step_2") && text.contains("cannot write") && text.contains(advice),
                "{text}"
            );
            assert_eq!(error.is_disk_full(), kind == ErrorKind::StorageFull);
            let (step, _) = newest(&store, |checkpoint| {
                read_all(checkpoint, &SMALL).map(|()| checkpoint.manifest().run.step)
            })
            .unwrap();
            assert_eq!(step, Some(1));
            let files = std::fs::read_dir(folder.path().join("step_2")).unwrap();
            assert!(files.flatten().all(|entry| !fulmen_durable::is_temporary(&entry.path())));
            (failed, limit) = (failed + 1, limit + 37);
        }
        assert!(failed > 50, "{failed}");
        assert!(list(&store).unwrap()[0].name == "step_2");
        std::fs::remove_dir_all(folder.path().join("step_2")).unwrap();
    }
}

#[test]
fn a_disk_without_room_refuses_before_anything_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let writer = CheckpointWriter::new(local(folder.path()), "step_1").unwrap();
    let error =
        writer.shard("s.safetensors", vec![Part::whole("w", Dtype::U8, [1 << 55])]).unwrap_err();
    assert!(error.is_disk_full() && error.to_string().contains("needs"), "{error}");
}

#[test]
fn a_checkpoint_that_may_no_longer_be_read_is_named_and_an_older_one_loads() {
    let folder = tempfile::tempdir().unwrap();
    let store = local(folder.path());
    write(&store, 1, &SMALL, 2).unwrap();
    write(&store, 2, &SMALL, 2).unwrap();
    let store: Arc<dyn Store> =
        Arc::new(failing(folder.path(), 0, ErrorKind::PermissionDenied, "step_2"));
    let (step, skipped) = newest(&store, |checkpoint| {
        read_all(checkpoint, &SMALL).map(|()| checkpoint.manifest().run.step)
    })
    .unwrap();
    assert_eq!((step, skipped.len()), (Some(1), 1));
    let text = skipped[0].to_string();
    assert!(
        text.contains("step_2") && text.contains("cannot read") && text.contains("permissions"),
        "{text}"
    );
}

#[test]
fn a_shard_that_another_process_wrote_elsewhere_is_missing_and_one_that_is_not_listed_yet_is_not() {
    let write_shard = |folder: &Path, name: &str, bytes: u64| {
        let writer = CheckpointWriter::new(local(folder), "step_1").unwrap();
        let mut shard = writer.shard(name, vec![Part::whole(name, Dtype::U8, [bytes])]).unwrap();
        shard.next_part().unwrap();
        shard.write(&vec![1; bytes as usize]).unwrap();
        Some(shard.commit().unwrap())
    };
    let [folder, other] = [(); 2].map(|()| tempfile::tempdir().unwrap());
    let names = ["shard_0.safetensors", "shard_1.safetensors"];
    let shared = [None, write_shard(folder.path(), names[0], 3)];
    let elsewhere = [shared[1].clone(), None, write_shard(other.path(), names[1], 30)];
    for lists_nothing in [false, true] {
        let store = failing(folder.path(), u64::MAX, ErrorKind::Other, "");
        let store = FailingStore { lists_nothing, ..store };
        let writer = CheckpointWriter::new(Arc::new(store), "step_1").unwrap();
        assert_eq!(writer.first_missing(&shared).unwrap(), None);
        assert_eq!(writer.first_missing(&elsewhere).unwrap(), Some(2));
        // A file of that name is there, but it is a shorter or a longer one.
        for bytes in [20, 40] {
            write_shard(folder.path(), names[1], bytes);
            assert_eq!(writer.first_missing(&elsewhere).unwrap(), Some(2), "{bytes}");
            std::fs::remove_file(folder.path().join("step_1").join(names[1])).unwrap();
        }
    }
    // This process has not written anything there.
    let empty = tempfile::tempdir().unwrap();
    let writer = CheckpointWriter::new(local(empty.path()), "step_1").unwrap();
    assert_eq!(writer.first_missing(&elsewhere).unwrap(), Some(0));
}
