//! Finds and verifies the archives of a dataset.
//!
//! Out of scope: the content of the archives.

use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use md5::Md5;
use serde::{Deserialize, Serialize};

use super::checksums::ExpectedContents;
use super::file_slice::FileSlice;
use super::journal::{Journal, Line};
use super::progress::Progress;
use fulmen_data::internal::checksum;
use fulmen_data::{Error, Result};

/// A file from which shards were made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SourceFile {
    /// The name, without folders.
    pub name: String,
    /// The size in bytes.
    pub bytes: u64,
    /// The MD5 checksum, if it was verified.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub md5: Option<String>,
}

/// The checksum of an archive that was verified, and has not changed since.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct VerifiedArchive {
    name: String,
    bytes: u64,
    /// The modification time, in nanoseconds since 1970.
    pub(crate) changed: u128,
    md5: String,
}

impl VerifiedArchive {
    /// Whether the content is the same, regardless of the modification time.
    pub(crate) fn has_same_content(&self, other: &VerifiedArchive) -> bool {
        (&self.name, self.bytes, &self.md5) == (&other.name, other.bytes, &other.md5)
    }
}

/// The paths of the archives with these names. The error lists all missing archives and where to
/// get them.
pub(crate) fn find_archives(
    folder: &Path,
    names: &[&str],
    expected: &ExpectedContents,
) -> Result<Vec<PathBuf>> {
    if !folder.is_dir() {
        return Err(Error::missing(format!(
            "{}: the folder does not exist; expected one with the archives {}",
            folder.display(),
            names.join(", ")
        )));
    }
    let paths: Vec<PathBuf> = names.iter().map(|name| folder.join(name)).collect();
    let missing: Vec<String> = names
        .iter()
        .zip(&paths)
        .filter(|(_, path)| !path.is_file())
        .map(|(&name, _)| match expected.archive(name) {
            Some(archive) if !archive.from.is_empty() => format!("{name}, from {}", archive.from),
            _ => name.to_owned(),
        })
        .collect();
    if missing.is_empty() {
        return Ok(paths);
    }
    Err(Error::missing(format!(
        "{}: of {} archives {} missing:\n  {}\nPut {} there, as downloaded.",
        folder.display(),
        names.len(),
        if missing.len() == 1 { "1 is".to_owned() } else { format!("{} are", missing.len()) },
        missing.join("\n  "),
        if missing.len() == 1 { "it" } else { "them" }
    )))
}

/// Verifies the archives' checksums if `verify` is set. Returns the archives, each with its
/// modification time in nanoseconds since 1970, which distinguishes archives of the same size. If
/// the journal already has an archive with the same verified content, the time is the recorded one,
/// even if the file's time has changed. Archives that an earlier run verified are not read again.
pub(crate) fn verify_archives(
    paths: &[PathBuf],
    expected: &ExpectedContents,
    verify: bool,
    journal: &Journal,
    progress: &dyn Progress,
) -> Result<Vec<(SourceFile, u128)>> {
    paths.iter().map(|path| verify_archive(path, expected, verify, journal, progress)).collect()
}

fn verify_archive(
    path: &Path,
    expected: &ExpectedContents,
    verify: bool,
    journal: &Journal,
    progress: &dyn Progress,
) -> Result<(SourceFile, u128)> {
    let metadata =
        path.metadata().map_err(|source| Error::io(path, "looking at the archive", source))?;
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let bytes = metadata.len();
    let changed = metadata
        .modified()
        .ok()
        .and_then(|time| time.duration_since(UNIX_EPOCH).ok())
        .map_or(0, |time| time.as_nanos());
    let Some(md5) =
        expected.archive(&name).and_then(|archive| archive.md5.as_ref()).filter(|_| verify)
    else {
        return Ok((SourceFile { name, bytes, md5: None }, changed));
    };
    let md5 = md5.to_ascii_lowercase();
    let verified = VerifiedArchive { name: name.clone(), bytes, changed, md5: md5.clone() };
    if !journal.has_verified(&verified) {
        let actual = md5_of(path, progress)?;
        if actual != md5 {
            return Err(Error::file(
                path,
                format!(
                    "its MD5 checksum is {actual}, expected {md5} ({bytes} bytes): it is damaged or a different \
                     edition; download it again, or turn off verification to use it as it is"
                ),
            ));
        }
        journal.add(Line::Verified(verified.clone()))?;
    }
    let first = journal.first_verified(&verified).map_or(changed, |first| first.changed);
    Ok((SourceFile { name, bytes, md5: Some(md5) }, first))
}

fn md5_of(path: &Path, progress: &dyn Progress) -> Result<String> {
    let section = FileSlice::open(path)?;
    progress.begin(
        &format!("verifying {}", path.file_name().unwrap_or_default().display()),
        section.len(),
    );
    let hash = checksum::<Md5>(section, |read| progress.advance(read));
    hash.map_err(|source| Error::io(path, "reading the archive", source))
}
