//! Compiled programs on disk, so that the next process does not compile them again.
//!
//! ```
//! # use fulmen_pjrt::{Plugin, locate::{Platform, locate}};
//! use std::time::Duration;
//! use fulmen_pjrt::CompileOptions;
//! use fulmen_pjrt::compile_cache::{CompileCache, ProgramKey};
//!
//! # let plugin = Plugin::load(locate(Platform::Cpu, None)?)?;
//! # let client = plugin.create_client(&[("cpu_device_count", 1.into())])?;
//! # let folder = tempfile::tempdir().unwrap();
//! let cache = CompileCache::new(folder.path(), 1 << 30);
//! let program = "func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> { return %x : tensor<4xf32> }";
//! let options = CompileOptions::new();
//! let key = ProgramKey::new(&client.topology()?, "same", program, &options, [])?;
//! assert!(cache.load(&client, &key)?.is_none());
//! cache.store(&key, &client.compile(program, &options)?, Duration::from_millis(20))?;
//! assert_eq!(cache.load(&client, &key)?.unwrap().signature().to_string(), "(f32[4]) -> (f32[4])");
//! # Ok::<(), fulmen_pjrt::Error>(())
//! ```
//!
//! An entry is a file, named by its [`ProgramKey`]. It is written atomically, so several processes
//! may share a folder. It is verified before the plugin sees it, and removed if it is damaged. If
//! the entries exceed the size limit, the least recently used ones are removed.
//!
//! Entries contain machine code, so only trusted users may have write access to the folder.
//!
//! [`SavedPrograms`] is a file of programs for another machine. An [`Approval`] is a file in the same
//! folder. Limits and [`CompileCache::clear`] do not remove it.
//!
//! Out of scope: choosing programs to keep, and reporting to the user. The caller does both.

mod approval;
mod entry;
mod key;
mod saved_programs;

use std::env;
use std::ffi::OsString;
use std::fs::{self, DirBuilder};
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use crate::client::Client;
use crate::envelope;
use crate::error::{self, Error, Result};
use crate::fetch::cache_folder_by;
use crate::loaded_executable::LoadedExecutable;
use crate::plugin::Plugin;
pub use approval::{Approval, Standing};
use entry::Header;
pub use key::ProgramKey;
pub use saved_programs::SavedPrograms;

/// The variable with the folder, or `off`.
const FOLDER: &str = "FULMEN_COMPILE_CACHE";

/// The variable with the size limit.
const LIMIT: &str = "FULMEN_COMPILE_CACHE_MB";

/// The size limit of a file of programs; far above what plugins write.
pub(crate) const MAX_PROGRAM_BYTES: u64 = 4 << 30;

/// The default size limit, in MB.
const DEFAULT_LIMIT: u64 = 4096;

/// The suffix of an entry's file name.
const ENDING: &str = "xla";

/// A process that has added up the folder may fill this part of what was free before it does so
/// again: adding up ten thousand files takes as long as compiling a small program. Other processes
/// do the same, so it is a small part.
const UNCHECKED_PART: u64 = 16;

/// A folder of compiled programs.
#[derive(Clone, Debug)]
pub struct CompileCache {
    folder: PathBuf,
    max_bytes: u64,
    /// How many bytes may be stored before the folder is added up again.
    unchecked_bytes: Arc<AtomicU64>,
}

/// An entry as [`CompileCache::entries`] lists it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CacheEntry {
    /// The path of the file.
    pub path: PathBuf,
    /// The name of the program; `None` if the file is damaged.
    pub program: Option<String>,
    /// The compile time.
    pub compile_time: Duration,
    /// The size of the file in bytes.
    pub bytes: u64,
    /// When it was last loaded; if never, when it was written.
    pub used: SystemTime,
}

impl CompileCache {
    /// A cache in this folder, which is created with the first stored program. `max_bytes` limits
    /// the size of its files.
    pub fn new(folder: impl Into<PathBuf>, max_bytes: u64) -> CompileCache {
        Self { folder: folder.into(), max_bytes, unchecked_bytes: Arc::default() }
    }

    /// The cache that the environment selects. Its folder is the value of the variable
    /// `FULMEN_COMPILE_CACHE` (`off` for no cache); by default `$XDG_CACHE_HOME/fulmen/compile` or
    /// `~/.cache/fulmen/compile`. It has at most `FULMEN_COMPILE_CACHE_MB` megabytes (4096).
    ///
    /// Tests, doc tests and benchmarks that cargo runs have no cache unless the variable names a
    /// folder: a test must not depend on programs that were compiled before.
    ///
    /// # Errors
    /// The limit is not a number; there is no folder for caches.
    pub fn from_env() -> Result<Option<Self>> {
        let variable = |name: &str| env::var_os(name);
        let is_test = || env::current_exe().is_ok_and(|program| is_test(&program));
        if variable(FOLDER).is_none_or(|folder| folder.is_empty()) && is_test() {
            return Ok(None);
        }
        Self::from_variables(&variable)
    }

    /// Like [`CompileCache::from_env`], but with the given variables, and also in tests.
    ///
    /// ```
    /// use fulmen_pjrt::compile_cache::CompileCache;
    /// let cache = CompileCache::from_variables(&|name| (name == "XDG_CACHE_HOME").then(|| "/var/cache".into()))?;
    /// assert!(cache.unwrap().folder().ends_with("cache/fulmen/compile"));
    /// # Ok::<(), fulmen_pjrt::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`CompileCache::from_env`].
    pub fn from_variables(variable: &dyn Fn(&str) -> Option<OsString>) -> Result<Option<Self>> {
        let set = |name| variable(name).filter(|value| !value.is_empty());
        let folder = match set(FOLDER) {
            Some(folder) if folder == "off" => return Ok(None),
            Some(folder) => PathBuf::from(folder),
            None => cache_folder_by(variable)?.join("compile"),
        };
        let megabytes = match set(LIMIT) {
            None => DEFAULT_LIMIT,
            Some(text) => {
                text.to_str().and_then(|text| text.trim().parse().ok()).ok_or_else(|| {
                    error::invalid(format!(
                        "{LIMIT} is {text:?}; expected a whole number of megabytes, as in 4096"
                    ))
                })?
            }
        };
        Ok(Some(Self::new(folder, megabytes.saturating_mul(1_000_000))))
    }

    /// The limit on the total size of its files, in bytes.
    pub fn max_bytes(&self) -> u64 {
        self.max_bytes
    }

    /// The folder with the entries.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Starts a thread that hashes the plugin's file, unless an earlier process has done so: a
    /// [`ProgramKey`] needs the hash.
    pub fn prepare(&self, client: &Client) {
        let plugin = client.plugin().clone();
        if plugin.recall_identity(&self.identity_file(&plugin)) {
            return;
        }
        let hash = move || drop(plugin.identity());
        // Without the thread, the key computes the hash itself.
        let _ = std::thread::Builder::new().name("fulmen-plugin-hash".to_owned()).spawn(hash);
    }

    /// The file with the hash of the plugin's file.
    fn identity_file(&self, plugin: &Plugin) -> PathBuf {
        let path = plugin.path().as_os_str().as_encoded_bytes();
        self.folder
            .join(format!("plugin-{}", &crate::hash::hex(&crate::hash::of_bytes(path))[..16]))
    }

    /// Whether an entry with this program name may exist. This is quick: it reads no file.
    pub fn has_program(&self, program: &str) -> bool {
        let start = key::file_start(program);
        self.files().is_ok_and(|files| files.iter().any(|file| file.starts_with(&start)))
    }

    /// Loads the stored program, ready to run; `None` if there is none.
    ///
    /// # Errors
    /// The entry cannot be read; it is damaged, or the plugin does not load it
    /// ([corrupt](Error::is_corrupt)). A corrupt entry has been removed.
    pub fn load(&self, client: &Client, key: &ProgramKey) -> Result<Option<LoadedExecutable>> {
        self.load_with(key, |executable| client.load(executable))
    }

    /// Like [`CompileCache::load`], but `load` gets the stored executable, as
    /// [`Executable::serialize`](crate::Executable::serialize) returned it.
    ///
    /// # Errors
    /// Those of [`CompileCache::load`]. If `load` fails, the entry is removed.
    pub fn load_with<T>(
        &self,
        key: &ProgramKey,
        load: impl FnOnce(&[u8]) -> Result<T>,
    ) -> Result<Option<T>> {
        let path = self.path_of(key);
        let bytes = match fulmen_durable::read_regular(&path, MAX_PROGRAM_BYTES) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            read => {
                read.map_err(|error| error::io(format!("cannot read {}", path.display()), error))?
            }
        };
        let loaded = entry::decode(&bytes).and_then(|(header, executable)| {
            if header.key != key.digest() {
                return Err(error::corrupt("the stored program does not match its file name"));
            }
            load(executable)
        });
        match loaded {
            Ok(program) => {
                // Marks it as most recently used. A read-only folder can still be read.
                let _ = fulmen_durable::open_regular(&path)
                    .and_then(|file| file.set_modified(SystemTime::now()));
                Ok(Some(program))
            }
            Err(error) => {
                let _ = fs::remove_file(&path);
                Err(error::corrupt(format!("{}: {error}; it has been removed", path.display())))
            }
        }
    }

    /// Stores a program, and removes others if the total exceeds the limit. A program that exceeds
    /// the limit alone is not stored.
    ///
    /// # Errors
    /// The plugin cannot serialize programs ([unsupported](Error::is_unsupported)); the folder
    /// cannot be written to; the disk is full.
    pub fn store(
        &self,
        key: &ProgramKey,
        program: &LoadedExecutable,
        compile_time: Duration,
    ) -> Result<()> {
        self.store_serialized(key, program.client().plugin(), &program.serialize()?, compile_time)
    }

    /// Like [`CompileCache::store`], for the output of
    /// [`Executable::serialize`](crate::Executable::serialize) with this plugin.
    ///
    /// # Errors
    /// Those of [`CompileCache::store`].
    pub fn store_serialized(
        &self,
        key: &ProgramKey,
        plugin: &Plugin,
        executable: &[u8],
        compile_time: Duration,
    ) -> Result<()> {
        let entry = entry::encode(&Header::new(key, compile_time), executable);
        if entry.len() as u64 > self.max_bytes {
            return Ok(());
        }
        create_folder(&self.folder)?;
        self.write(&self.path_of(key), &entry)?;
        let identity = self.identity_file(plugin);
        if !plugin.recall_identity(&identity) {
            self.write(&identity, plugin.identity_record()?.as_bytes())?;
        }
        let left = |unchecked: u64| unchecked.checked_sub(entry.len() as u64);
        match self.unchecked_bytes.fetch_update(Ordering::Relaxed, Ordering::Relaxed, left) {
            Ok(_) => Ok(()),
            Err(_) => self.limit(),
        }
    }

    /// Does not sync the disk: damage from a power cut is detected when the file is read.
    fn write(&self, path: &Path, bytes: &[u8]) -> Result<()> {
        fulmen_durable::write_unsynced(path, Some(bytes.len() as u64), |file| file.write_all(bytes))
            .map_err(|error| error::io(format!("cannot write {}", path.display()), error))
    }

    /// The differences from the most similar stored program with the same name and variant, one per
    /// line; `None` if no stored program is similar.
    pub fn nearest(&self, key: &ProgramKey) -> Option<Vec<String>> {
        let start = key::file_start(key.program());
        let files = self.files().ok()?.into_iter().filter(|file| file.starts_with(&start));
        key.nearest(files.filter_map(|file| entry::read_header(&self.folder.join(file)).ok()))
    }

    /// All entries, the most recently used first.
    ///
    /// # Errors
    /// The folder cannot be read. If it does not exist, there are no entries.
    pub fn entries(&self) -> Result<Vec<CacheEntry>> {
        let mut entries = Vec::new();
        for file in self.files()? {
            let path = self.folder.join(file);
            // Another process may have removed it.
            let Ok(metadata) = path.metadata() else { continue };
            let header = entry::read_header(&path).ok();
            entries.push(CacheEntry {
                compile_time: header
                    .as_ref()
                    .map_or(Duration::ZERO, |header| Duration::from_millis(header.compile_ms)),
                program: header.map(|header| header.program),
                bytes: metadata.len(),
                used: metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH),
                path,
            });
        }
        entries.sort_by_key(|entry| std::cmp::Reverse(entry.used));
        Ok(entries)
    }

    /// Verifies the checksum of each entry, and returns the errors of the damaged ones. They stay
    /// in the folder. A process that needs a damaged entry removes it and compiles again.
    ///
    /// # Errors
    /// The folder cannot be read.
    pub fn verify(&self) -> Result<Vec<Error>> {
        let verify = |file: String| {
            let path = self.folder.join(file);
            let read = fulmen_durable::read_regular(&path, MAX_PROGRAM_BYTES)
                .map_err(|error| error::io("cannot read the entry", error));
            let verified = read.and_then(|bytes| envelope::verify(entry::decode(&bytes)?.1));
            verified
                .err()
                .filter(|error| !error.is_not_found())
                .map(|error| error.context(path.display()))
        };
        Ok(self.files()?.into_iter().filter_map(verify).collect())
    }

    /// Removes all entries, and returns their total size in bytes. Running programs are not
    /// affected.
    ///
    /// # Errors
    /// The folder cannot be read, or a file in it cannot be removed.
    pub fn clear(&self) -> Result<u64> {
        let mut bytes = 0;
        for file in self.files()? {
            bytes += remove(&self.folder.join(file))?;
        }
        // Also removes the leftovers of killed processes. If this fails, the next process that
        // writes here tries again.
        let _ = fulmen_durable::remove_leftovers(&self.folder);
        Ok(bytes)
    }

    /// Removes the least recently used entries until the others fit the limit.
    fn limit(&self) -> Result<()> {
        let mut files = Vec::new();
        for file in self.files()? {
            let path = self.folder.join(file);
            if let Ok(metadata) = path.metadata() {
                files.push((
                    metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH),
                    metadata.len(),
                    path,
                ));
            }
        }
        files.sort();
        let mut bytes: u64 = files.iter().map(|(_, bytes, _)| bytes).sum();
        for (_, _, path) in files {
            if bytes <= self.max_bytes {
                break;
            }
            bytes -= remove(&path)?.min(bytes);
        }
        let free = self.max_bytes.saturating_sub(bytes);
        self.unchecked_bytes.store(free / UNCHECKED_PART, Ordering::Relaxed);
        Ok(())
    }

    fn path_of(&self, key: &ProgramKey) -> PathBuf {
        self.folder.join(format!("{}{}.{ENDING}", key::file_start(key.program()), key.digest()))
    }

    /// The names of the entries' files; none if there is no folder.
    fn files(&self) -> Result<Vec<String>> {
        let list = || -> io::Result<Vec<String>> {
            let names = fs::read_dir(&self.folder)?
                .map(|entry| Ok(entry?.file_name().into_string().unwrap_or_default()));
            names.collect()
        };
        match list() {
            Ok(names) => {
                let ending = format!(".{ENDING}");
                Ok(names.into_iter().filter(|name| name.ends_with(&ending)).collect())
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Vec::new()),
            Err(error) => {
                Err(error::io(format!("cannot read the folder {}", self.folder.display()), error))
            }
        }
    }
}

/// Creates the folder of a cache, which only its user may use.
fn create_folder(folder: &Path) -> Result<()> {
    let created = DirBuilder::new().recursive(true).mode(0o700).create(folder);
    created
        .map_err(|error| error::io(format!("cannot create the folder {}", folder.display()), error))
}

/// Removes a file and returns its size; 0 if another process has already removed it.
fn remove(path: &Path) -> Result<u64> {
    let removed =
        path.metadata().and_then(|metadata| fs::remove_file(path).map(|()| metadata.len()));
    match removed {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(0),
        removed => {
            removed.map_err(|error| error::io(format!("cannot remove {}", path.display()), error))
        }
    }
}

/// Whether cargo built this binary as a test or a benchmark, or rustdoc built it from an example in
/// the documentation.
fn is_test(binary: &Path) -> bool {
    let folder = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    binary
        .ancestors()
        .skip(1)
        .map(folder)
        .enumerate()
        .any(|(depth, name)| depth == 0 && name == "deps" || name.starts_with("rustdoctest"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_chooses_the_folder_and_the_limit() {
        let cache_for = |folder: &str, limit: &str| {
            CompileCache::from_variables(&|name| match name {
                FOLDER => Some(folder.into()),
                LIMIT => Some(limit.into()),
                _ => Some("/home/me".into()),
            })
        };
        assert!(cache_for("off", "").unwrap().is_none());
        assert_eq!(
            cache_for("", "").unwrap().unwrap().folder(),
            Path::new("/home/me/fulmen/compile")
        );
        let cache = cache_for("/data/programs", "").unwrap().unwrap();
        assert_eq!(
            (cache.folder(), cache.max_bytes()),
            (Path::new("/data/programs"), 4_096_000_000)
        );
        assert_eq!(cache_for("here", " 20").unwrap().unwrap().max_bytes(), 20_000_000);
        for wrong in ["20 MB", "-1", "1.5"] {
            let error = cache_for("here", wrong).unwrap_err();
            assert!(
                error.is_usage() && error.to_string().contains("FULMEN_COMPILE_CACHE_MB"),
                "{error}"
            );
        }
    }

    #[test]
    fn tests_are_recognized_by_their_paths() {
        assert!(is_test(&env::current_exe().unwrap()));
        assert!(is_test(Path::new("/tmp/rustdoctestx1Y2/merged_doctest_2024/rust_out")));
        assert!(!is_test(Path::new("/home/me/net/target/release/net")));
    }
}
