//! The commit of a revision, and the files of a commit, as the hub lists them.
//!
//! Out of scope: requests (`client`).

use std::path::{Path, PathBuf};

use fulmen_data::{Error, Result};
use serde::{Deserialize, Serialize};

use super::client::Client;
use super::file_hash::FileHash;
use super::path::HubPath;
use super::record::{FOLDER, Record};
use crate::pack::Progress;

/// The limit on the pages of a listing, of a thousand files each.
const MAX_PAGES: usize = 10_000;

/// A file of a commit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RepoFile {
    /// The path in the repository.
    pub(super) path: String,
    pub(super) size: u64,
    #[serde(flatten)]
    pub(super) hash: FileHash,
}

/// The hub's description of a revision.
#[derive(Deserialize)]
struct Revision {
    sha: String,
}

/// An entry of the hub's listing.
#[derive(Deserialize)]
struct Entry {
    #[serde(rename = "type")]
    kind: String,
    path: String,
    #[serde(default)]
    size: u64,
    oid: String,
    lfs: Option<Lfs>,
}

/// What Git LFS knows of a file. The entry's `oid` is then that of a pointer.
#[derive(Deserialize)]
struct Lfs {
    oid: String,
    size: u64,
}

impl Client {
    /// The commit of the path's revision.
    pub(super) fn commit(&self, path: &HubPath, progress: &dyn Progress) -> Result<String> {
        let url = self.api(path, "revision", path.revision());
        let (Revision { sha }, _) = self.json(url, path, progress)?;
        if FileHash::GitSha1(sha.clone()).is_valid() {
            return Ok(sha);
        }
        Err(not_understood(path, &format!("the commit `{}` is not a hash", sha.escape_debug())))
    }

    /// The commit of the path's revision, and all of its files.
    pub(super) fn list(&self, path: &HubPath, progress: &dyn Progress) -> Result<Record> {
        let commit = self.commit(path, progress)?;
        let mut url = self.api(path, "tree", &commit);
        url.set_query(Some("recursive=true"));
        let mut files = Vec::new();
        for _ in 0..MAX_PAGES {
            let (entries, next): (Vec<Entry>, _) = self.json(url.clone(), path, progress)?;
            for entry in entries.into_iter().filter(|entry| entry.kind == "file") {
                files.push(entry.into_file(path)?);
            }
            match next {
                // Only the query is taken: the next page is at the same address.
                Some(query) => url.set_query(Some(&query)),
                None => return Ok(Record::new(path, commit, files)),
            }
        }
        Err(not_understood(path, &format!("the listing has more than {MAX_PAGES} pages")))
    }
}

fn not_understood(path: &HubPath, reason: &str) -> Error {
    Error::new(format!(
        "{}: the hub's answer is not as expected: {reason}; check HF_ENDPOINT",
        path.repository()
    ))
}

impl Entry {
    fn into_file(self, path: &HubPath) -> Result<RepoFile> {
        let (size, hash) = match self.lfs {
            Some(lfs) => (lfs.size, FileHash::Sha256(lfs.oid)),
            None => (self.size, FileHash::GitSha1(self.oid)),
        };
        let file = RepoFile { path: self.path, size, hash };
        if !file.hash.is_valid() {
            let hash = file.hash.digits().escape_debug();
            let reason = format!("`{hash}` of {} is not a hash", file.path.escape_debug());
            return Err(not_understood(path, &reason));
        }
        file.inside(Path::new("")).map_err(|error| error.context(path.repository()))?;
        Ok(file)
    }
}

impl RepoFile {
    /// The path of the file in a local folder. Refuses names that lead elsewhere.
    pub(super) fn inside(&self, folder: &Path) -> Result<PathBuf> {
        let is_part = |part: &str| !["", ".", "..", FOLDER].contains(&part);
        let inside = fulmen_durable::inside(folder, &self.path).ok();
        inside.filter(|_| self.path.split('/').all(is_part)).ok_or_else(|| {
            let name = self.path.escape_debug();
            Error::content(format!(
                "the repository has a file `{name}`, which would not be inside the folder; nothing was fetched"
            ))
        })
    }

    /// The error for another file in its place.
    pub(super) fn differs(&self, path: &Path) -> Error {
        let hash = self.hash.digits();
        Error::file(
            path,
            format!(
                "this is not the file of the commit, which has {} bytes and the hash {hash}: it was changed after it \
                 was fetched, or is of something else; remove it, or use another folder",
                self.size
            ),
        )
    }
}
