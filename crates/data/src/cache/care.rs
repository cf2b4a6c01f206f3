//! What can be said and done about caches without reading samples: listing, verifying, clearing.
//!
//! Not here: showing it, which the binary does.

use std::fs::{self, File};
use std::ops::Range;
use std::path::{Path, PathBuf};

use super::arrow;
use super::builder::estimate;
use super::dataset::read_at;
use super::event::CacheEstimate;
use super::files::{TEMPORARY, sha256};
use super::lock::{LOCK, Lock};
use super::manifest::{self, MANIFEST, Plan, part_name};
use crate::{Error, Field, Result};

/// What a cache is of, and how much of it is there.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct CacheInfo {
    /// The folder of this cache.
    pub path: PathBuf,
    /// The hash over all that its samples depend on.
    pub key: String,
    /// The version that its maker gave it.
    pub version: String,
    /// The seed of its augmentation.
    pub seed: u64,
    /// The parts of a sample.
    pub fields: Vec<Field>,
    /// Its size, and what is missing of it.
    pub estimate: CacheEstimate,
    /// How many samples could not be read, counting each variant.
    pub bad_samples: usize,
    /// What its samples depend on, a line a name.
    pub depends_on: Vec<String>,
    /// Who is writing it at this moment.
    pub writer: Option<String>,
}

impl CacheInfo {
    /// Whether all parts are there.
    pub fn is_complete(&self) -> bool {
        self.estimate.missing_parts == 0
    }
}

/// The caches at `path`: the one whose folder it is, or those in it.
///
/// # Errors
/// No cache there; a manifest that is damaged.
pub fn cache_info(path: impl AsRef<Path>) -> Result<Vec<CacheInfo>> {
    plans(path.as_ref())?.into_iter().map(|(dir, plan)| info(dir, &plan)).collect()
}

fn info(path: PathBuf, plan: &Plan) -> Result<CacheInfo> {
    let manifest = &plan.manifest;
    let depends_on = manifest.notes.iter().map(|note| match note.count {
        1 => format!("{}: {}", note.name, note.first),
        count => format!("{}: {count} values, the first {}", note.name, note.first),
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

fn plans(path: &Path) -> Result<Vec<(PathBuf, Plan)>> {
    let mut plans = Vec::new();
    for dir in manifest::folders(path)? {
        if let Some(plan) = manifest::load(&dir)? {
            plans.push((dir, plan));
        }
    }
    match plans.is_empty() {
        true => Err(Error::missing(format!("{}: there is no cache here", path.display()))),
        false => Ok(plans),
    }
}

/// Reads the finished parts of the caches at `path` and compares them with the checksums that were kept when they were
/// written. `progress` is told how many bytes are read, and of how many. Gives the bytes that are as they were.
///
/// # Errors
/// The parts that are missing, of another size or of other content, each by its name, and what to do.
pub fn verify_cache(path: impl AsRef<Path>, mut progress: impl FnMut(u64, u64)) -> Result<u64> {
    let plans = plans(path.as_ref())?;
    let total = plans.iter().flat_map(|(_, plan)| &plan.manifest.parts).map(|part| part.bytes).sum();
    let (mut read, mut wrong) = (0, Vec::new());
    for (dir, plan) in &plans {
        for entry in &plan.manifest.parts {
            let path = dir.join(part_name(entry.number));
            let checked = check(&path, plan, entry.number).and_then(|()| {
                sha256(&path, &mut |bytes| {
                    read += bytes;
                    progress(read, total);
                })
            });
            match checked {
                Ok(found) if found == entry.sha256 => {}
                Ok(_) => wrong.push(format!("{}: its content is not what was written", path.display())),
                Err(error) => wrong.push(error.to_string()),
            }
        }
    }
    match wrong.is_empty() {
        true => Ok(read),
        false => Err(Error::file(
            path.as_ref(),
            format!(
                "{} parts are damaged: {}; remove them with repair_cache (`fulmen cache verify --repair`), and make the \
                 cache again: it writes only what is missing",
                wrong.len(),
                wrong.join("; ")
            ),
        )),
    }
}

/// Removes the parts of the caches at `path` that are missing or not what was written, so that making the caches again
/// writes just those. Gives their files.
///
/// # Errors
/// No cache there; one that is being written; a file that cannot be removed.
pub fn repair_cache(path: impl AsRef<Path>) -> Result<Vec<PathBuf>> {
    let mut removed = Vec::new();
    for (dir, mut plan) in plans(path.as_ref())? {
        let lock = take(&dir)?;
        let mut wrong = Vec::new();
        for entry in &plan.manifest.parts {
            let path = dir.join(part_name(entry.number));
            let hash = check(&path, &plan, entry.number).and_then(|()| sha256(&path, &mut |_| {}));
            if hash.is_ok_and(|hash| hash == entry.sha256) {
                continue;
            }
            wrong.push(entry.number);
            removed.push(path);
        }
        let rows_per_part = plan.manifest.rows_per_part;
        plan.manifest.bad.retain(|bad| !wrong.contains(&(bad.row / rows_per_part)));
        plan.manifest.parts.retain(|entry| !wrong.contains(&entry.number));
        // The manifest first: what it does not name is written anew, whether it is there or not.
        manifest::save(&dir, &plan.manifest)?;
        for part in wrong {
            remove(&dir.join(part_name(part)))?;
        }
        drop(lock);
    }
    Ok(removed)
}

/// Removes the caches at `path`, finished or not, and nothing else that may lie there. Gives the bytes that became free.
/// A process that reads one of them goes on undisturbed.
///
/// # Errors
/// No cache there; one that is being written; a file that cannot be removed.
pub fn clear_cache(path: impl AsRef<Path>) -> Result<u64> {
    let path = path.as_ref();
    let folders = manifest::folders(path)?;
    if folders.is_empty() {
        return Err(Error::missing(format!("{}: there is no cache here", path.display())));
    }
    let mut freed = 0;
    for dir in &folders {
        let lock = take(dir)?;
        let entries = fs::read_dir(dir).map_err(|source| Error::io(dir, "cannot list the cache", source))?;
        let names = entries.map(|entry| entry.map(|entry| entry.path())).collect::<Result<Vec<_>, _>>();
        let mut ours: Vec<PathBuf> = names.map_err(|source| Error::io(dir, "cannot list the cache", source))?;
        ours.retain(|path| is_ours(path));
        // The manifest goes first: a kill leaves a folder without one, which the next cache of its name fills anew.
        ours.sort_by_key(|path| (!path.ends_with(MANIFEST), path.ends_with(LOCK)));
        for path in ours {
            freed += path.metadata().map_or(0, |metadata| metadata.len());
            remove(&path)?;
        }
        drop(lock);
        // A folder with something else in it stays.
        let _ = fs::remove_dir(dir);
    }
    let _ = fs::remove_dir(path);
    Ok(freed)
}

fn is_ours(path: &Path) -> bool {
    let Some(name) = path.file_name().and_then(|name| name.to_str()) else { return false };
    let name = name.strip_suffix(TEMPORARY).unwrap_or(name);
    name == MANIFEST || name == LOCK || (name.starts_with("part-") && name.ends_with(".arrow"))
}

fn take(dir: &Path) -> Result<Lock> {
    Lock::try_take(dir)?.map_err(|holder| {
        Error::usage(format!("{} is being written by {holder}; wait for it, or end it first", dir.display()))
    })
}

fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::io(path, "cannot remove the file", source))
        }
        _ => Ok(()),
    }
}

/// Whether a part is there, and its columns lie where they should.
fn check(path: &Path, plan: &Plan, part: usize) -> Result<()> {
    let file = File::open(path).map_err(|source| Error::io(path, "cannot open a part of the cache", source))?;
    let bytes = file.metadata().map_err(|source| Error::io(path, "cannot look at the file", source))?.len();
    locate(path, &file, bytes, plan, part).map(drop)
}

/// Where the columns of a part lie in its file.
pub(crate) fn locate(path: &Path, file: &File, bytes: u64, plan: &Plan, part: usize) -> Result<Vec<Range<u64>>> {
    let parts = &plan.manifest.parts;
    let expected = parts.iter().find(|entry| entry.number == part).map(|entry| entry.bytes);
    let wrong = |message: String| {
        Error::file(
            path,
            format!(
                "{message}; the file is damaged: remove it with repair_cache (`fulmen cache verify --repair`) and make \
                 the cache again"
            ),
        )
    };
    if expected != Some(bytes) {
        let expected = expected.map_or("none".to_owned(), |bytes| bytes.to_string());
        return Err(wrong(format!("it has {bytes} bytes, expected {expected}")));
    }
    let read = |at: u64, length: usize| read_at(path, file, at, length);
    let rows = plan.rows_of(part);
    arrow::locate(&read, bytes, &plan.fields, rows, &plan.manifest.key, part)?.map_err(wrong)
}
