//! Maintenance of caches without reading samples: listing, verifying, repairing, clearing.
//!
//! Out of scope: displaying the results.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::ops::Range;
use std::path::{Path, PathBuf};

use super::arrow;
use super::atomic_file::sha256;
use super::builder::estimate;
use super::dataset::read_at;
use super::event::CacheEstimate;
use super::manifest::{self, CacheEntry, MANIFEST, ManifestError, PartEntry, Plan, part_name};
use fulmen_data::{Error, Field, Result};
use fulmen_durable::messages::quantity;
use fulmen_files::{LOCK, Lock};

/// The content of a cache, and how much of it is finished.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CacheInfo {
    /// The folder of this cache.
    pub path: PathBuf,
    /// The hash of everything its samples depend on.
    pub key: String,
    /// The version that the user gave it.
    pub version: String,
    /// The seed of its augmentation.
    pub seed: u64,
    /// The fields.
    pub fields: Vec<Field>,
    /// The size of the cache, and how much of it is missing.
    pub estimate: CacheEstimate,
    /// The number of samples that could not be read, counting each variant.
    pub bad_samples: usize,
    /// What the samples of the cache depend on, one line per name.
    pub depends_on: Vec<String>,
    /// The process that is writing it now, if any.
    pub writer: Option<String>,
}

impl CacheInfo {
    /// Whether all parts exist.
    pub fn is_complete(&self) -> bool {
        self.estimate.missing_parts == 0
    }
}

/// The caches at `path`: the cache in this folder, or those in its subfolders. A cache with a
/// damaged manifest is left out if there are others; [`verify_cache`] reports it.
///
/// # Errors
/// No cache at this path; a damaged cache that is the only one.
pub fn cache_info(path: impl AsRef<Path>) -> Result<Vec<CacheInfo>> {
    let mut infos = Vec::new();
    let mut failed = None;
    for CacheEntry { dir, plan } in find(path.as_ref())? {
        match plan {
            Ok(Some(plan)) => infos.push(info(dir, &plan)?),
            Ok(None) => {}
            Err(error) => failed = Some(error),
        }
    }
    match (infos.is_empty(), failed) {
        (false, _) => Ok(infos),
        (true, Some(error)) => Err(error.into()),
        (true, None) => Err(no_cache_error(path.as_ref())),
    }
}

fn info(path: PathBuf, plan: &Plan) -> Result<CacheInfo> {
    let manifest = &plan.manifest;
    let depends_on = manifest.key_parts.iter().map(|part| match part.count {
        1 => format!("{}: {}", part.name, part.first),
        count => format!("{}: {count} values, the first {}", part.name, part.first),
    });
    Ok(CacheInfo {
        key: manifest.key.clone(),
        version: manifest.version.clone(),
        seed: manifest.seed,
        fields: plan.fields.clone(),
        estimate: estimate(plan)?,
        bad_samples: manifest.bad.len(),
        depends_on: depends_on.collect(),
        writer: if path.join(LOCK).exists() { Lock::holder(&path) } else { None },
        path,
    })
}

/// The caches at a path; at least one.
fn find(path: &Path) -> Result<Vec<CacheEntry>> {
    let caches = manifest::find(path)?;
    if caches.is_empty() { Err(no_cache_error(path)) } else { Ok(caches) }
}

/// The caches of this release; an error if there are only caches of other releases.
fn find_own(path: &Path) -> Result<Vec<CacheEntry>> {
    let is_other = |entry: &CacheEntry| matches!(entry.plan, Err(ManifestError::OtherFormat(_)));
    let (others, own): (Vec<_>, Vec<_>) = find(path)?.into_iter().partition(is_other);
    match others.into_iter().next() {
        Some(CacheEntry { plan: Err(other), .. }) if own.is_empty() => Err(other.into()),
        _ => Ok(own),
    }
}

pub(crate) fn no_cache_error(path: &Path) -> Error {
    Error::missing(format!("{}: there is no cache here", path.display()))
}

/// Reads the finished parts of the caches at `path` and verifies their checksums. Returns the
/// number of verified bytes. `progress` is called with the number of bytes read so far and the
/// total. Caches of other releases are left out.
///
/// # Errors
/// Parts that are missing or have a different size or content (the error names them and says what
/// to do); a file that cannot be read; no cache of this release at this path.
pub fn verify_cache(path: impl AsRef<Path>, mut progress: impl FnMut(u64, u64)) -> Result<u64> {
    let mut plans = Vec::new();
    let mut wrong = Vec::new();
    for CacheEntry { dir, plan } in find_own(path.as_ref())? {
        match plan {
            Ok(Some(plan)) => plans.push((dir, plan)),
            Ok(None) => {}
            Err(ManifestError::Damaged(error)) => wrong.push(error.to_string()),
            Err(error) => return Err(error.into()),
        }
    }
    let parts = plans.iter().flat_map(|(_, plan)| &plan.manifest.parts);
    let total = parts.fold(0, |sum: u64, part| sum.saturating_add(part.bytes));
    let mut read = 0;
    for (dir, plan) in &plans {
        for entry in &plan.manifest.parts {
            wrong.extend(damage(dir, plan, entry, |bytes| {
                read += bytes;
                progress(read, total);
            })?);
        }
    }
    if wrong.is_empty() {
        Ok(read)
    } else {
        Err(Error::file(
            path.as_ref(),
            format!(
                "{}: {}; remove what is damaged with repair_cache (`fulmen cache verify --repair`), and make \
                 the cache again: it writes only what is missing",
                quantity(wrong.len(), "damaged file"),
                wrong.join("; ")
            ),
        ))
    }
}

/// Removes damaged manifests and missing or changed parts from the caches at `path`, so that making
/// the caches again writes only those parts. Returns the removed files. Caches of other releases
/// are left out.
///
/// # Errors
/// No cache of this release at this path; a cache that is being written; a file that cannot be
/// removed; a file that cannot be read, so that its state is unknown, in which case nothing is
/// removed.
pub fn repair_cache(path: impl AsRef<Path>) -> Result<Vec<PathBuf>> {
    // Everything is checked before anything is removed.
    let mut damaged = Vec::new();
    for CacheEntry { dir, .. } in find_own(path.as_ref())? {
        let lock = Lock::take(&dir, LOCK)?;
        // The cache may have changed before the lock was taken.
        match manifest::load(&dir) {
            Ok(Some(plan)) => {
                let mut wrong = Vec::new();
                for entry in &plan.manifest.parts {
                    if damage(&dir, &plan, entry, |_| {})?.is_some() {
                        wrong.push(entry.number);
                    }
                }
                if !wrong.is_empty() {
                    damaged.push((lock, dir, Some((plan.manifest, wrong))));
                }
            }
            Ok(None) => {}
            Err(ManifestError::Damaged(_)) => damaged.push((lock, dir, None)),
            Err(error) => return Err(error.into()),
        }
    }
    let mut removed = Vec::new();
    for (_lock, dir, parts) in damaged {
        let Some((mut manifest, wrong)) = parts else {
            remove(&dir.join(MANIFEST))?;
            removed.push(dir.join(MANIFEST));
            continue;
        };
        manifest.bad.retain(|bad| !wrong.contains(&(bad.row / manifest.rows_per_part)));
        manifest.parts.retain(|entry| !wrong.contains(&entry.number));
        // The manifest is saved first, because parts that it does not list are written again in any
        // case.
        manifest::save(&dir, &manifest)?;
        for path in wrong.into_iter().map(|part| dir.join(part_name(part))) {
            remove(&path)?;
            removed.push(path);
        }
    }
    Ok(removed)
}

/// Removes the caches at `path`, finished or not, and no other files. Returns the number of freed
/// bytes. Processes that are reading the caches are not disturbed.
///
/// # Errors
/// No cache at this path; a cache that is being written; a file that cannot be removed.
pub fn clear_cache(path: impl AsRef<Path>) -> Result<u64> {
    let path = path.as_ref();
    let mut freed = 0;
    for CacheEntry { dir, .. } in find(path)? {
        let lock = Lock::take(&dir, LOCK)?;
        freed += remove_files(&dir)?;
        drop(lock);
        // This fails for a folder with other files, which stays.
        let _ = fs::remove_dir(dir);
    }
    let _ = fs::remove_dir(path);
    Ok(freed)
}

/// Removes all files of a locked cache. Returns the number of freed bytes.
pub(crate) fn remove_files(dir: &Path) -> Result<u64> {
    let entries =
        fs::read_dir(dir).map_err(|source| Error::io(dir, "cannot list the cache", source))?;
    let names = entries.map(|entry| entry.map(|entry| entry.path())).collect::<Result<Vec<_>, _>>();
    let mut paths: Vec<PathBuf> =
        names.map_err(|source| Error::io(dir, "cannot list the cache", source))?;
    paths.retain(|path| is_cache_file(path));
    // The manifest is removed first: if the process is killed, the folder has no manifest, and the
    // next cache with this name fills it again. The lock is removed last, because it marks the
    // folder as a cache.
    paths.sort_by_key(|path| (!path.ends_with(MANIFEST), path.ends_with(LOCK)));
    let mut freed = 0;
    for path in paths {
        freed += path.metadata().map_or(0, |metadata| metadata.len());
        remove(&path)?;
    }
    Ok(freed)
}

fn is_cache_file(path: &Path) -> bool {
    let Some(name) = path.file_name().and_then(|name| name.to_str()) else { return false };
    name == MANIFEST
        || name == LOCK
        || fulmen_durable::is_temporary(path)
        || (name.starts_with("part-") && name.ends_with(".arrow"))
}

fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(source) if source.kind() != ErrorKind::NotFound => {
            Err(Error::io(path, "cannot remove the file", source))
        }
        _ => Ok(()),
    }
}

/// The damage of a finished part, if there is any. Calls `read` with the number of bytes read.
///
/// # Errors
/// An existing part that cannot be read.
fn damage(
    dir: &Path,
    plan: &Plan,
    entry: &PartEntry,
    read: impl FnMut(u64),
) -> Result<Option<String>> {
    let path = dir.join(part_name(entry.number));
    let refused = |source| Error::io(&path, "cannot open a part of the cache", source);
    let file = match fulmen_durable::open_regular(&path) {
        Ok(file) => file,
        Err(source) if source.kind() == ErrorKind::NotFound => {
            return Ok(Some(refused(source).to_string()));
        }
        Err(source) => return Err(refused(source)),
    };
    let bytes = file.metadata().map_err(refused)?.len();
    let wrong = match columns(&path, &file, bytes, plan, entry.number)? {
        Err(message) => Some(message),
        Ok(_) if sha256(&path, read)? != entry.sha256 => {
            Some("its content is not what was written".to_owned())
        }
        Ok(_) => None,
    };
    Ok(wrong.map(|message| format!("{}: {message}", path.display())))
}

/// The positions of a part's columns in its file.
pub(crate) fn locate(
    path: &Path,
    file: &File,
    bytes: u64,
    plan: &Plan,
    part: usize,
) -> Result<Vec<Range<u64>>> {
    columns(path, file, bytes, plan, part)?.map_err(|message| {
        Error::file(
            path,
            format!(
                "{message}; the file is damaged: remove it with repair_cache (`fulmen cache verify --repair`) and make \
                 the cache again"
            ),
        )
    })
}

/// Like [`locate`], but damage is returned as a message, separately from read errors.
fn columns(
    path: &Path,
    file: &File,
    bytes: u64,
    plan: &Plan,
    part: usize,
) -> Result<Result<Vec<Range<u64>>, String>> {
    let parts = &plan.manifest.parts;
    let expected = parts.iter().find(|entry| entry.number == part).map(|entry| entry.bytes);
    if expected != Some(bytes) {
        let expected = expected.map_or("none".to_owned(), |bytes| bytes.to_string());
        return Ok(Err(format!("it has {bytes} bytes, expected {expected}")));
    }
    let read = |offset: u64, length: usize| read_at(path, file, offset, length);
    let rows = plan.rows_of(part);
    arrow::locate(&read, bytes, &plan.fields, rows, &plan.manifest.key, part)
}
