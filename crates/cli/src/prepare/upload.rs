//! Uploads shards to a store, and checks which shards it already has.
//!
//! Out of scope: access to stores (`fulmen-files`).

use std::cell::Cell;
use std::path::Path;

use sha2::Sha256;

use super::journal::{Journal, Line, UploadedFile};
use super::manifest::ShardRecord;
use super::progress::Progress;
use fulmen_data::internal::checksum;
use fulmen_data::{Error, Result};
use fulmen_files::Location;

/// The upload target: a folder in a store, or another local folder.
pub(crate) struct Destination<'a> {
    pub(crate) folder: &'a Location,
    pub(crate) journal: &'a Journal,
    pub(crate) progress: &'a dyn Progress,
}

impl Destination<'_> {
    /// Whether a run has uploaded this shard, and the uploaded file still has the same size.
    pub(crate) fn has(&self, shard: &ShardRecord) -> Result<bool> {
        self.has_file(&shard.name, shard.bytes, &shard.sha256)
    }

    fn has_file(&self, name: &str, bytes: u64, sha256: &str) -> Result<bool> {
        if !self.journal.has_uploaded(&self.line(name, sha256)) {
            return Ok(false);
        }
        match self.folder.join(name).size() {
            Ok(size) => Ok(size == bytes),
            Err(error) if error.is_not_found() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Uploads a shard.
    pub(crate) fn upload_shard(&self, folder: &Path, shard: &ShardRecord) -> Result<()> {
        self.upload(&folder.join(&shard.name), &shard.name, shard.bytes, &shard.sha256)
    }

    /// Uploads a file. A file with this name that another program has written is not replaced: if
    /// it has the same content, it is accepted, and otherwise it is an error.
    pub(crate) fn upload(&self, from: &Path, name: &str, bytes: u64, sha256: &str) -> Result<()> {
        let to = self.folder.join(name);
        let line = self.line(name, sha256);
        if self.has_file(name, bytes, sha256)? {
            self.progress.advance(bytes);
            return Ok(());
        }
        if !self.journal.has_begun_upload(&line.name, &line.to) {
            if to.exists()? {
                if to.size()? == bytes && self.sha256_of(&to)? == sha256 {
                    self.progress.advance(bytes);
                    return self.journal.add(Line::Uploaded(line));
                }
                return Err(Error::usage(format!(
                    "{to}: another file with this name exists and would be replaced; remove it, or upload to another \
                     folder"
                )));
            }
            self.journal.add(Line::Uploading { name: line.name.clone(), to: line.to.clone() })?;
        }
        let reported = Cell::new(0);
        to.upload(from, &|arrived| {
            self.progress.advance(arrived.saturating_sub(reported.replace(arrived)));
        })?;
        self.progress.advance(bytes.saturating_sub(reported.get()));
        let size = to.size()?;
        if size != bytes {
            return Err(Error::runtime(
                format!("uploading {}", from.display()),
                format!("{to} has {size} bytes after the upload, expected {bytes}; run it again"),
            ));
        }
        self.journal.add(Line::Uploaded(line))
    }

    fn line(&self, name: &str, sha256: &str) -> UploadedFile {
        UploadedFile {
            name: name.to_owned(),
            sha256: sha256.to_owned(),
            to: self.folder.join(name).to_string(),
        }
    }

    fn sha256_of(&self, file: &Location) -> Result<String> {
        let hash = checksum::<Sha256>(file.open()?, |_| ());
        hash.map_err(|source| {
            Error::io(Path::new(&file.to_string()), "reading the uploaded file", source)
        })
    }
}
