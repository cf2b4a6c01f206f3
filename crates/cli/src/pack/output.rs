//! The output of a run: a folder or a store with the finished shards and their manifest, and the
//! local folder in which shards are written.
//!
//! Out of scope: the content of the shards (`plan`, `text`).

use std::fs::{self, DirBuilder};
use std::io::ErrorKind;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use sha2::Sha256;

use super::manifest::{
    MANIFEST, MAX_JSON_BYTES, Manifest, ShardRecord, SourceFile, SplitManifest, Warning,
};
use super::options::Pack;
use super::progress::Progress;
use super::shard_file::sha256_of;
use crate::free_space::check_free_space;
use fulmen_data::internal::{checksum, in_parallel};
use fulmen_data::{Error, Fingerprint, Result};
use fulmen_files as store;
use fulmen_files::{Location, Lock};

/// The folder in a local output folder in which shards are written.
const WORK: &str = ".fulmen-pack";

/// The file in this folder that prevents two runs at once.
const LOCK: &str = "lock";

/// The output of a run.
pub(crate) struct Output<'a> {
    pub(crate) pack: &'a Pack,
    pub(crate) progress: &'a dyn Progress,
    work: WorkFolder,
    manifest: Mutex<Manifest>,
}

/// The local folder in which shards are written, and its lock.
struct WorkFolder {
    path: PathBuf,
    /// The folder for the shards, if this run has made it.
    new_output: Option<PathBuf>,
    _lock: Lock,
}

impl WorkFolder {
    /// Makes the folder, and removes the files of an interrupted run.
    fn open(to: &Location) -> Result<WorkFolder> {
        let new_output = to.local().filter(|path| !path.exists()).map(Path::to_owned);
        let path = work_folder(to)?;
        let lock = Lock::take(&path, LOCK)?;
        let work = WorkFolder { path, new_output, _lock: lock };
        let io = |source| Error::io(&work.path, "removing the files of an interrupted run", source);
        for entry in fs::read_dir(&work.path).map_err(io)? {
            let entry = entry.map_err(io)?;
            if entry.file_name() != LOCK {
                fs::remove_file(entry.path()).map_err(io)?;
            }
        }
        Ok(work)
    }
}

impl Drop for WorkFolder {
    /// Removes what a refused run has made. Errors do not matter: folders with other files stay.
    fn drop(&mut self) {
        let is_lock =
            |entry: std::io::Result<fs::DirEntry>| entry.is_ok_and(|it| it.file_name() == LOCK);
        if fs::read_dir(&self.path).is_ok_and(|mut entries| entries.all(is_lock)) {
            let _ = fs::remove_file(self.path.join(LOCK));
            let _ = fs::remove_dir(&self.path);
        }
        if let Some(output) = &self.new_output {
            let _ = fs::remove_dir(output);
        }
    }
}

impl<'a> Output<'a> {
    /// Opens the output, and continues the manifest of an earlier run. Refuses the manifest of other
    /// options or sources, and a folder with other shards.
    pub(crate) fn open(
        pack: &'a Pack,
        splits: &[String],
        sources: Vec<SourceFile>,
        options: &[(&str, String)],
        extension: &str,
        progress: &'a dyn Progress,
    ) -> Result<Output<'a>> {
        let common = [("max_bytes", pack.max_bytes.to_string()), ("seed", pack.seed.to_string())];
        let options = options.iter().cloned().chain(common);
        let options = options.map(|(name, value)| (name.to_owned(), value)).collect();
        let plan = Manifest::new(splits, sources, options);
        let work = WorkFolder::open(&pack.to)?;
        let location = pack.to.join(MANIFEST);
        let manifest = if location.exists()? {
            let earlier = Manifest::parse(&location.read_at_most(MAX_JSON_BYTES)?, &location)?;
            if let Some(difference) = earlier.difference(&plan) {
                return Err(Error::usage(format!(
                    "{}: this folder was started with other options or sources: {difference}; continue with the same \
                     ones, or use another folder",
                    pack.to
                )));
            }
            // A complete manifest leaves out empty splits.
            let earlier_split = |split: SplitManifest| {
                earlier.splits.iter().find(|it| it.name == split.name).cloned().unwrap_or(split)
            };
            let splits = plan.splits.into_iter().map(earlier_split).collect();
            Manifest { splits, ..earlier }
        } else {
            refuse_other_shards(&pack.to, &plan.splits, extension)?;
            plan
        };
        Ok(Output { pack, progress, work, manifest: Mutex::new(manifest) })
    }

    /// The local folder in which shards are written.
    pub(crate) fn work(&self) -> &Path {
        &self.work.path
    }

    fn manifest(&self) -> MutexGuard<'_, Manifest> {
        self.manifest.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The shards that earlier runs have finished, by split, and whether they are still there.
    pub(crate) fn earlier_shards(&self) -> Result<Vec<Vec<(ShardRecord, bool)>>> {
        let splits = self.manifest().splits.clone();
        let bytes = splits.iter().map(|split| split.bytes).sum();
        if bytes > 0 {
            self.progress.begin("verifying the shards that are there", bytes);
        }
        let shards = splits.into_iter().map(|split| {
            let whole =
                in_parallel(&split.shards, self.pack.threads, |shard| self.is_whole(shard))?;
            Ok(split.shards.into_iter().zip(whole).collect())
        });
        shards.collect()
    }

    /// Whether a finished shard is still there. In a store, only its size is compared.
    fn is_whole(&self, record: &ShardRecord) -> Result<bool> {
        let location = self.pack.to.join(&record.name);
        match location.size() {
            Ok(size) if size != record.bytes => {
                let note = format!("{}: its size has changed; writing it again", record.name);
                self.progress.note(&note);
                return Ok(false);
            }
            Err(error) if error.is_not_found() => return Ok(false),
            other => other?,
        };
        let Some(path) = location.local().filter(|_| self.pack.verify) else { return Ok(true) };
        let actual = sha256_of(path, |bytes| self.progress.advance(bytes))
            .map_err(|source| Error::io(path, "reading the shard", source))?;
        if actual != record.sha256 {
            let note = format!("{}: its checksum has changed; writing it again", record.name);
            self.progress.note(&note);
        }
        Ok(actual == record.sha256)
    }

    /// Whether an earlier run has finished everything.
    pub(crate) fn is_complete(&self) -> bool {
        self.manifest().complete
    }

    /// Starts to write shards: from now on, the manifest is not complete. This also shows that the
    /// output can be written, before the first shard is made.
    pub(crate) fn begin(&self, classes: &[String]) -> Result<()> {
        let mut manifest = self.manifest();
        manifest.complete = false;
        manifest.classes = classes.to_vec();
        self.write(&manifest)
    }

    /// Moves a finished shard from the work folder to the output, and lists it. A file with its name
    /// that no run has listed is not replaced: if it has the same content, it is accepted.
    pub(crate) fn publish(&self, split: usize, record: ShardRecord) -> Result<()> {
        let from = self.work().join(&record.name);
        let to = self.pack.to.join(&record.name);
        let is_listed = {
            let manifest = self.manifest();
            manifest.splits[split].shards.iter().any(|shard| shard.name == record.name)
        };
        let exists = !is_listed && to.exists()?;
        if exists && (to.size()? != record.bytes || sha256_at(&to)? != record.sha256) {
            return Err(Error::usage(format!(
                "{to}: another file with this name exists and would be replaced; remove it, or use another folder"
            )));
        }
        match to.local() {
            Some(path) => {
                let moved = fs::rename(&from, path);
                moved
                    .and_then(|()| fulmen_durable::sync_folder(path.parent().unwrap_or(path)))
                    .map_err(|source| Error::io(path, "moving the finished shard", source))?;
            }
            None => {
                if !exists {
                    self.upload(&from, &to, record.bytes)?;
                }
                fs::remove_file(&from)
                    .map_err(|source| Error::io(&from, "removing the uploaded shard", source))?;
            }
        }
        let mut manifest = self.manifest();
        manifest.splits[split].add(record);
        self.write(&manifest)
    }

    fn upload(&self, from: &Path, to: &Location, bytes: u64) -> Result<()> {
        let reported = std::cell::Cell::new(0);
        to.upload(from, &|arrived| {
            self.progress.advance(arrived.saturating_sub(reported.replace(arrived)));
        })?;
        let size = to.size()?;
        if size == bytes {
            return Ok(());
        }
        Err(Error::runtime(
            format!("uploading {}", from.display()),
            format!("{to} has {size} bytes after the upload, expected {bytes}; run it again"),
        ))
    }

    /// Writes the manifest, which replaces the previous one.
    fn write(&self, manifest: &Manifest) -> Result<()> {
        let location = self.pack.to.join(MANIFEST);
        let path = match location.local() {
            Some(path) => path.to_owned(),
            None => self.work().join(MANIFEST),
        };
        store::write_whole(&path, &manifest.to_json()?)
            .map_err(|source| Error::io(&path, "writing the manifest", source))?;
        if location.local().is_none() { location.upload(&path, &|_| ()) } else { Ok(()) }
    }

    /// Marks the manifest as complete, and removes the work folder.
    pub(crate) fn finish(self, warnings: Vec<Warning>) -> Result<Manifest> {
        let mut manifest = self.manifest().clone();
        manifest.splits.retain(|split| !split.shards.is_empty());
        if !manifest.complete {
            manifest.complete = true;
            manifest.warnings = warnings;
            self.write(&manifest)?;
        }
        fs::remove_dir_all(self.work())
            .map_err(|source| Error::io(self.work(), "removing the folder", source))?;
        Ok(manifest)
    }

    /// Returns an error if the disk does not have enough space for shards of `bytes` in total. For a
    /// store, only `largest` bytes are on the disk at a time.
    pub(crate) fn check_free_space(&self, bytes: u64, largest: u64) -> Result<()> {
        let is_local = self.pack.to.local().is_some();
        let bytes = if is_local { bytes } else { bytes.min(largest) };
        check_free_space(self.work(), bytes, "the remaining shards")
    }
}

/// The local folder in which shards of this output are written.
fn work_folder(to: &Location) -> Result<PathBuf> {
    if let Some(path) = to.local() {
        return Ok(path.join(WORK));
    }
    let mut name = Fingerprint::new();
    name.add("output", to.to_string());
    let folder = std::env::temp_dir().join(format!("fulmen-pack-{:.16}", name.to_string()));
    let io = |source| Error::io(&folder, "making the folder for unfinished shards", source);
    match DirBuilder::new().mode(0o700).create(&folder) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(io(error)),
        _ => {}
    }
    // Other users may write to the folder above.
    let metadata = fs::symlink_metadata(&folder).map_err(io)?;
    let own = fs::metadata("/proc/self").map_or(metadata.uid(), |own| own.uid());
    if metadata.is_dir() && metadata.uid() == own && metadata.mode() & 0o077 == 0 {
        return Ok(folder);
    }
    Err(Error::file(
        &folder,
        "it was made by another program, and other users may change it; remove it, or set TMPDIR",
    ))
}

/// Refuses an output with shards that no manifest lists.
fn refuse_other_shards(to: &Location, splits: &[SplitManifest], extension: &str) -> Result<()> {
    let names: Vec<String> = match to.local() {
        Some(path) => {
            let listing = |source| Error::io(path, "listing the folder", source);
            let entries = fs::read_dir(path).map_err(listing)?;
            let name = |entry: std::io::Result<fs::DirEntry>| {
                entry.map(|entry| entry.file_name().to_string_lossy().into_owned())
            };
            entries.map(name).collect::<std::io::Result<_>>().map_err(listing)?
        }
        None => to.entries()?.into_iter().map(|(name, _)| name).collect(),
    };
    let is_shard = |name: &&String| {
        let mut prefixes = splits.iter().map(|split| format!("{}-", split.name));
        name.ends_with(&format!(".{extension}")) && prefixes.any(|prefix| name.starts_with(&prefix))
    };
    match names.iter().filter(is_shard).min() {
        None => Ok(()),
        Some(name) => Err(Error::usage(format!(
            "{to}: there is no {MANIFEST} that lists {name}, and this program would replace it; use an empty folder"
        ))),
    }
}

fn sha256_at(file: &Location) -> Result<String> {
    checksum::<Sha256>(file.open()?, |_| ())
        .map_err(|source| Error::io(Path::new(&file.to_string()), "reading the file", source))
}
