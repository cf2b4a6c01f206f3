//! Copies of finished caches in a store: a bucket, or another folder.
//!
//! A copy has the folder of its key, with the files of the cache. Its manifest is written last, so a
//! copy with a manifest is complete. Every part that is read from a store is compared with the
//! checksum in the manifest.

use std::io::Read as _;
use std::path::Path;

use fulmen_data::{Error, Result};
use fulmen_files::Location;

use super::atomic_file::{Disk, NewFile, sha256};
use super::manifest::{self, MANIFEST, PartEntry, Plan, part_name};

/// How much of a part is in memory while it is copied.
const CHUNK: usize = 1 << 20;

/// The plan of the finished copy with this key; `None` if the store has none.
pub(crate) fn find(store: &Location, key: &str) -> Result<Option<Plan>> {
    let file = store.join(MANIFEST);
    let bytes = match file.read_at_most(manifest::MAX_BYTES) {
        Ok(bytes) => bytes,
        Err(error) if error.is_not_found() => return Ok(None),
        Err(error) => return Err(error),
    };
    let plan = manifest::parse(&bytes).map_err(|message| {
        file.error(format!("{message}; remove this copy of the cache, and it is made again"))
    })?;
    Ok((plan.manifest.key == key && plan.is_complete()).then_some(plan))
}

/// Copies the parts of a cache from a store, and then its manifest.
pub(crate) fn download(store: &Location, plan: &Plan, dir: &Path, disk: &Disk) -> Result<()> {
    for part in &plan.manifest.parts {
        download_part(store, part, dir, disk)?;
    }
    manifest::save(dir, &plan.manifest)
}

fn download_part(store: &Location, part: &PartEntry, dir: &Path, disk: &Disk) -> Result<()> {
    let name = part_name(part.number);
    let path = dir.join(&name);
    // An earlier download may have been interrupted.
    if path.is_file() && sha256(&path, |_| {})? == part.sha256 {
        return Ok(());
    }
    let from = store.join(&name);
    let mut reader = from.open()?.take(part.bytes.saturating_add(1));
    let file = NewFile::create(&path, part.bytes, disk)?;
    let mut chunk = vec![0; CHUNK];
    let mut copied: u64 = 0;
    loop {
        let read = reader.read(&mut chunk).map_err(|e| from.read_error(e))?;
        if read == 0 {
            break;
        }
        file.write_at(&chunk[..read], copied)?;
        copied += read as u64;
    }
    let found = file.finish()?;
    if copied == part.bytes && found == part.sha256 {
        return Ok(());
    }
    std::fs::remove_file(&path)
        .map_err(|source| Error::io(&path, "cannot remove a damaged copy", source))?;
    Err(from.error(format!(
        "it is not the part of the cache that its manifest names: it has {} bytes and the SHA-256 {found}, expected {} \
         bytes and {}; remove this copy of the cache, and it is made again",
        if copied > part.bytes { format!("more than {}", part.bytes) } else { copied.to_string() },
        part.bytes,
        part.sha256
    )))
}

/// Copies the files of a finished cache into a store.
pub(crate) fn upload(store: &Location, plan: &Plan, dir: &Path) -> Result<()> {
    if let Some(folder) = store.local() {
        std::fs::create_dir_all(folder)
            .map_err(|source| Error::io(folder, "cannot create the folder", source))?;
    }
    for part in &plan.manifest.parts {
        let name = part_name(part.number);
        let path = dir.join(&name);
        // What the store gets is what its manifest says.
        if sha256(&path, |_| {})? != part.sha256 {
            return Err(Error::file(
                &path,
                "it is damaged, so it is not copied into the store; repair the cache, and open it again",
            ));
        }
        store.join(&name).upload(&path, &|_| {})?;
    }
    store.join(MANIFEST).upload(&dir.join(MANIFEST), &|_| {})
}
