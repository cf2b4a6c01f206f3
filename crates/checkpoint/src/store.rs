//! Where checkpoints are stored: a [`Store`] of files in folders. [`LocalStore`] is a folder on a
//! disk.
//!
//! A store offers what local disks and object stores have in common. Names are relative, with `/`
//! between the parts.

use std::fmt;
use std::fs;
use std::io::{self, BufWriter, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use fulmen_durable::NewFile;

use crate::{Error, Result};

/// An entry of a folder in a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The name in the folder.
    pub name: String,
    /// The length of a file; `None` for a folder.
    pub bytes: Option<u64>,
}

/// A location for checkpoints. All processes that write one checkpoint must see the same files.
pub trait Store: fmt::Debug + Send + Sync {
    /// Begins a file of `bytes` bytes. The commit replaces a file of the same name. Folders are
    /// created as needed.
    ///
    /// # Errors
    /// The store cannot be written or has no room for the file.
    fn create(&self, name: &str, bytes: u64) -> io::Result<Box<dyn NewObject>>;

    /// Fills `into` with the bytes of a file from `start` on.
    ///
    /// # Errors
    /// The file does not exist, cannot be read, or is too short.
    fn read(&self, name: &str, start: u64, into: &mut [u8]) -> io::Result<()>;

    /// The entries of a folder; `""` is the root of the store.
    ///
    /// # Errors
    /// The folder does not exist or cannot be read.
    fn list(&self, folder: &str) -> io::Result<Vec<Entry>>;

    /// Removes a file, and its folder if that becomes empty.
    ///
    /// # Errors
    /// The file does not exist or cannot be removed.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// The full name for messages, with the location of the store.
    fn describe(&self, name: &str) -> String;

    /// Waits until committed files have reached their final store, if they are copied in the
    /// background.
    ///
    /// # Errors
    /// Copying takes longer than `grace`.
    fn finish(&self, grace: Duration) -> Result<()> {
        let _ = grace;
        Ok(())
    }

    /// The stores that this one combines, nearest first; empty if it is a single store.
    fn levels(&self) -> Vec<Arc<dyn Store>> {
        Vec::new()
    }
}

/// The store at a location: `gs://bucket/path` or `s3://bucket/path` (feature `cloud`), else a
/// local folder.
///
/// # Errors
/// The location has an unknown scheme, or one for which this program was built without support.
///
/// ```
/// let store = fulmen_checkpoint::open_store("/dev/shm/run_7")?;
/// assert_eq!(store.describe("step_10"), "/dev/shm/run_7/step_10");
/// # Ok::<(), fulmen_checkpoint::Error>(())
/// ```
pub fn open_store(location: impl AsRef<Path>) -> Result<Arc<dyn Store>> {
    let location = location.as_ref();
    let text = location.to_string_lossy();
    match text.split_once("://") {
        #[cfg(feature = "cloud")]
        Some(("gs" | "s3", _)) => Ok(Arc::new(crate::CloudStore::new(&*text))),
        #[cfg(not(feature = "cloud"))]
        Some(("gs" | "s3", _)) => Err(Error::usage(format!(
            "{text}: this program was built without object stores; build fulmen with its feature `cloud`"
        ))),
        Some((scheme, _)) if scheme.bytes().all(|byte| byte.is_ascii_alphanumeric()) => {
            Err(Error::usage(format!(
                "{text}: checkpoints are kept in a folder, or below gs://bucket/path or s3://bucket/path"
            )))
        }
        _ if text.is_empty() => {
            Err(Error::usage("the folder for checkpoints is an empty string; set it to a folder"))
        }
        _ => Ok(Arc::new(LocalStore::new(location))),
    }
}

/// A file that is being written. It becomes visible with [`NewObject::commit`]; if it is dropped
/// earlier, the file never exists.
pub trait NewObject: Write + Send {
    /// Makes the file visible under its name, and durable.
    ///
    /// # Errors
    /// The store fails. An existing file of that name is unchanged.
    fn commit(self: Box<Self>) -> io::Result<()>;
}

/// A folder on a local disk, or on a disk that several machines mount.
#[derive(Clone, Debug)]
pub struct LocalStore {
    root: PathBuf,
}

impl LocalStore {
    /// The store of the files under a folder. The folder need not exist yet.
    pub fn new(root: impl Into<PathBuf>) -> LocalStore {
        LocalStore { root: root.into() }
    }

    fn path(&self, name: &str) -> PathBuf {
        if name.is_empty() { self.root.clone() } else { self.root.join(name) }
    }
}

impl Store for LocalStore {
    fn create(&self, name: &str, bytes: u64) -> io::Result<Box<dyn NewObject>> {
        let path = self.path(name);
        let create = || {
            fs::create_dir_all(path.parent().unwrap_or(Path::new(".")))?;
            let file = NewFile::create(&path)?;
            file.reserve(bytes)?;
            Ok(file)
        };
        match create() {
            Ok(new_file) => {
                let file = BufWriter::with_capacity(1 << 20, new_file);
                Ok(Box::new(LocalObject { file, path, bytes, unsynced: 0, sync: None }))
            }
            Err(error) => Err(fulmen_durable::explain(error, &path, Some(bytes))),
        }
    }

    fn read(&self, name: &str, start: u64, into: &mut [u8]) -> io::Result<()> {
        fulmen_durable::open_regular(&self.path(name))?.read_exact_at(into, start)
    }

    fn list(&self, folder: &str) -> io::Result<Vec<Entry>> {
        let mut entries = Vec::new();
        for entry in fs::read_dir(self.path(folder))? {
            let entry = entry?;
            // Another process may be removing the same file.
            let Ok(metadata) = fs::metadata(entry.path()) else { continue };
            let Ok(name) = entry.file_name().into_string() else { continue };
            entries.push(Entry { name, bytes: metadata.is_file().then_some(metadata.len()) });
        }
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(entries)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let path = self.path(name);
        fs::remove_file(&path)?;
        if let Some(folder) = path.parent().filter(|folder| *folder != self.root) {
            // This fails if the folder is not empty.
            let _ = fs::remove_dir(folder);
        }
        Ok(())
    }

    fn describe(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }
}

/// Starts a sync after this many bytes, so that little is left to sync at the end.
const SYNC_INTERVAL_BYTES: usize = 64 << 20;

struct LocalObject {
    file: BufWriter<NewFile>,
    path: PathBuf,
    bytes: u64,
    /// Bytes written since the last sync began.
    unsynced: usize,
    sync: Option<JoinHandle<io::Result<()>>>,
}

impl LocalObject {
    /// Waits for the sync in progress. The file system reports an error to only one sync, so none
    /// may be ignored.
    fn wait_for_sync(&mut self) -> io::Result<()> {
        let panicked = |_| Err(io::Error::other("the thread that syncs a file has panicked"));
        self.sync.take().map_or(Ok(()), |sync| sync.join().unwrap_or_else(panicked))
    }

    /// Begins a sync on another thread, unless one is in progress.
    fn begin_sync(&mut self) -> io::Result<()> {
        if self.sync.as_ref().is_some_and(|sync| !sync.is_finished()) {
            return Ok(());
        }
        self.wait_for_sync()?;
        let file = self.file.get_ref().file().try_clone()?;
        self.unsynced = 0;
        self.sync = Some(thread::Builder::new().spawn(move || file.sync_data())?);
        Ok(())
    }

    fn explain(&self, error: io::Error) -> io::Error {
        fulmen_durable::explain(error, &self.path, Some(self.bytes))
    }
}

impl Write for LocalObject {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes).map_err(|error| self.explain(error))?;
        self.unsynced += written;
        if self.unsynced >= SYNC_INTERVAL_BYTES {
            self.begin_sync().map_err(|error| self.explain(error))?;
        }
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush().map_err(|error| self.explain(error))
    }
}

impl NewObject for LocalObject {
    fn commit(mut self: Box<Self>) -> io::Result<()> {
        self.flush()?;
        self.wait_for_sync().map_err(|error| self.explain(error))?;
        self.file.get_ref().keep().map_err(|error| self.explain(error))
    }
}
