//! The record in a folder: the commit whose files it has, and the files of this commit.
//!
//! Out of scope: requests (`client`, `listing`).

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::path::Path;

use fulmen_data::{Error, Result};
use serde::{Deserialize, Serialize};

use super::client::Client;
use super::listing::RepoFile;
use super::path::HubPath;
use crate::pack::Progress;

/// The folder for the record, the lock and unfinished files, in the folder of the files.
pub(super) const FOLDER: &str = ".fulmen-hub";

/// The file in it that prevents two runs at once.
pub(super) const LOCK: &str = "lock";

const NAME: &str = "commit.json";
const VERSION: u32 = 1;
const MAX_BYTES: u64 = 2 << 30;

/// The number of names in the message that no file was found.
const MAX_NAMES: usize = 5;

/// A commit and its files.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    version: u32,
    /// The repository, as in `hf:OWNER/NAME`.
    repository: String,
    /// The revision that was asked for first.
    revision: String,
    pub(super) commit: String,
    files: Vec<RepoFile>,
}

impl Record {
    pub(super) fn new(path: &HubPath, commit: String, files: Vec<RepoFile>) -> Record {
        let repository = path.repository();
        let revision = path.revision().to_owned();
        Record { version: VERSION, repository, revision, commit, files }
    }

    /// The record of an earlier run.
    pub(super) fn read(folder: &Path) -> Result<Option<Record>> {
        let path = folder.join(FOLDER).join(NAME);
        let bytes = match fulmen_durable::read_regular(&path, MAX_BYTES) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(Error::io(&path, "cannot read the record", error)),
        };
        let refuse = |reason: String| {
            let advice = format!("remove the folder {FOLDER} to fetch again");
            Error::file(
                &path,
                format!("this is not a record of `fulmen data fetch`: {reason}; {advice}"),
            )
        };
        let record: Record =
            serde_json::from_slice(&bytes).map_err(|error| refuse(error.to_string()))?;
        if record.version != VERSION {
            return Err(refuse(format!("version {}, expected {VERSION}", record.version)));
        }
        if record.files.iter().any(|file| !file.hash.is_valid()) {
            return Err(refuse("it has an invalid hash".to_owned()));
        }
        Ok(Some(record))
    }

    /// Refuses another repository, and a revision that is another commit.
    pub(super) fn check(
        self,
        path: &HubPath,
        folder: &Path,
        progress: &dyn Progress,
    ) -> Result<Record> {
        if path.repository() != self.repository {
            return Err(self.refuse(folder, &path.repository()));
        }
        if [&self.revision, &self.commit].iter().any(|known| *known == path.revision()) {
            return Ok(self);
        }
        let commit = Client::new()?.commit(path, progress)?;
        if commit == self.commit {
            return Ok(self);
        }
        let asked = format!("{}@{}, commit {commit}", path.repository(), path.revision());
        Err(self.refuse(folder, &asked))
    }

    fn refuse(&self, folder: &Path, asked: &str) -> Error {
        Error::usage(format!(
            "{} has files of {}@{}, commit {}; fetch {asked} into another folder",
            folder.display(),
            self.repository,
            self.revision,
            self.commit
        ))
    }

    /// The files that were asked for.
    pub(super) fn select(&self, path: &HubPath) -> Result<Vec<&RepoFile>> {
        let selected: Vec<_> = self.files.iter().filter(|file| path.matches(&file.path)).collect();
        if !selected.is_empty() {
            return Ok(selected);
        }
        let names: Vec<_> =
            self.files.iter().map(|file| file.path.escape_debug().to_string()).collect();
        let known = match &names[..] {
            [] => "it has no files".to_owned(),
            [first @ .., _] if first.len() >= MAX_NAMES => {
                format!("it has {} files: {}, …", names.len(), names[..MAX_NAMES].join(", "))
            }
            all => format!("it has {}", all.join(", ")),
        };
        Err(Error::missing(format!("{path}: the commit {} has no such file; {known}", self.commit)))
    }

    /// Writes the record of a first run. Files that are there already must be the commit's. Another
    /// run may have written its record in the meantime.
    pub(super) fn keep(&self, folder: &Path, progress: &dyn Progress) -> Result<()> {
        if let Some(other) = Record::read(folder)? {
            let is_same = other.commit == self.commit && other.repository == self.repository;
            let asked = format!("{}, commit {}", self.repository, self.commit);
            return if is_same { Ok(()) } else { Err(other.refuse(folder, &asked)) };
        }
        for file in &self.files {
            let path = file.inside(folder)?;
            if fs::symlink_metadata(&path).is_ok() && !is_right(file, &path, progress)? {
                return Err(file.differs(&path));
            }
        }
        let path = folder.join(FOLDER).join(NAME);
        let json = serde_json::to_vec_pretty(self).map_err(Error::new)?;
        fulmen_durable::write(&path, Some(json.len() as u64), |out| out.write_all(&json))
            .map_err(|source| Error::io(&path, "cannot write the record", source))
    }
}

/// Whether a local file has the content of the hub's.
fn is_right(file: &RepoFile, path: &Path, progress: &dyn Progress) -> Result<bool> {
    let io = |source| Error::io(path, "cannot read the file", source);
    let mut local = fulmen_durable::open_regular(path).map_err(io)?;
    if local.metadata().map_err(io)?.len() != file.size {
        return Ok(false);
    }
    progress.begin(&format!("verifying {}", path.display()), file.size);
    let mut hash = file.hash.hasher(file.size);
    let mut piece = vec![0; 1 << 20];
    loop {
        match local.read(&mut piece).map_err(io)? {
            0 => return Ok(hash.finish() == file.hash),
            length => {
                hash.update(&piece[..length]);
                progress.advance(length as u64);
            }
        }
    }
}
