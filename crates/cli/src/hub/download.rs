//! Downloads a file: continues an unfinished one, and moves it to its place when it is right.
//!
//! Out of scope: which files are missing (`mod.rs`).

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use fulmen_data::{Error, Result};
use reqwest::StatusCode;
use reqwest::blocking::Response;
use reqwest::header;

use super::client::{Client, Failure, Patience, chain};
use super::file_hash::Hasher;
use super::listing::RepoFile;
use super::path::HubPath;
use super::record::{FOLDER, Record};
use crate::pack::Progress;

/// Bytes read at a time.
const PIECE: usize = 256 << 10;

/// Downloads into a folder.
pub(super) struct Download<'a> {
    pub(super) client: &'a Client,
    pub(super) path: &'a HubPath,
    pub(super) record: &'a Record,
    pub(super) folder: &'a Path,
    pub(super) progress: &'a dyn Progress,
}

/// An unfinished file.
struct Part<'a> {
    path: PathBuf,
    local: File,
    /// The bytes in the file.
    done: u64,
    /// The hash of these bytes.
    hash: Hasher,
    file: &'a RepoFile,
}

impl Download<'_> {
    /// An unfinished file is named by its hash, so parts of different contents are never joined.
    fn part_path(&self, file: &RepoFile) -> PathBuf {
        self.folder.join(FOLDER).join(format!("{}.part", file.hash.digits()))
    }

    /// How many bytes of a file an earlier run has downloaded.
    pub(super) fn part_size(&self, file: &RepoFile) -> u64 {
        self.part_path(file).metadata().map_or(0, |metadata| metadata.len().min(file.size))
    }

    /// Downloads a file, verifies it, and moves it to its place.
    pub(super) fn file(&self, file: &RepoFile) -> Result<()> {
        let to = file.inside(self.folder)?;
        // The bytes of this file that were reported as progress. A second attempt reports only more.
        let mut reported = 0;
        loop {
            let mut part = Part::open(self.part_path(file), file)?;
            let is_continued = part.done > 0;
            self.report(&mut reported, part.done);
            let is_whole = self.fill(&mut part, &mut reported)?;
            let Part { path, local, hash, .. } = part;
            if is_whole && hash.finish() == file.hash {
                return move_to_place(&path, &local, &to, file);
            }
            drop(local);
            fs::remove_file(&path)
                .map_err(|source| Error::io(&path, "cannot remove the file", source))?;
            if !is_continued {
                return Err(self.wrong(file));
            }
            let note = "the part of an earlier run was damaged; fetching it again";
            self.progress.note(&format!("{}: {note}", file.path.escape_debug()));
        }
    }

    fn wrong(&self, file: &RepoFile) -> Error {
        let name = file.path.escape_debug();
        let hash = file.hash.digits();
        Error::content(format!(
            "{}: {name}: the download is not the file of the commit, which has {} bytes and the hash {hash}; it was \
             deleted: run the same command again, and check HF_ENDPOINT and proxies if this repeats",
            self.path.repository(),
            file.size
        ))
    }

    fn report(&self, reported: &mut u64, done: u64) {
        if let Some(more) = done.checked_sub(*reported) {
            *reported = done;
            self.progress.advance(more);
        }
    }

    /// Appends the missing bytes to a part, with as many requests as are necessary. Returns whether
    /// the server's file has the listed size.
    fn fill(&self, part: &mut Part<'_>, reported: &mut u64) -> Result<bool> {
        let url = self.client.file_address(self.path, &self.record.commit, &part.file.path);
        let mut patience = self.client.patience(self.progress);
        while part.done < part.file.size {
            let answer = self.client.get(&url, self.path, part.done, &mut patience)?;
            match start_of(&answer) {
                Some(start) if start == part.done => {}
                // The server does not continue files.
                Some(0) => part.restart()?,
                _ => {
                    let text = "the server sends other bytes than were requested".to_owned();
                    patience.failed(self.path, Failure::Broken(text))?;
                    continue;
                }
            }
            if answer.content_length().is_some_and(|rest| part.done + rest != part.file.size) {
                return Ok(false);
            }
            match self.append(part, answer, reported, &mut patience)? {
                None => {}
                Some(_) if part.done > part.file.size => return Ok(false),
                Some(reason) => patience.failed(self.path, Failure::Broken(reason))?,
            }
        }
        Ok(part.done == part.file.size)
    }

    /// Appends an answer to a part. Returns why it ended early, if it did.
    fn append(
        &self,
        part: &mut Part<'_>,
        mut answer: Response,
        reported: &mut u64,
        patience: &mut Patience<'_>,
    ) -> Result<Option<String>> {
        let mut piece = vec![0; PIECE];
        while part.done <= part.file.size {
            match answer.read(&mut piece) {
                Ok(0) => break,
                Ok(length) => {
                    part.append(&piece[..length])?;
                    patience.progress();
                    self.report(reported, part.done.min(part.file.size));
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Ok(Some(chain(&error))),
            }
        }
        Ok((part.done != part.file.size).then(|| "the connection ended early".to_owned()))
    }
}

/// The position of an answer's first byte in the file.
fn start_of(answer: &Response) -> Option<u64> {
    if answer.status() != StatusCode::PARTIAL_CONTENT {
        return Some(0);
    }
    let range = answer.headers().get(header::CONTENT_RANGE)?.to_str().ok()?;
    range.trim().strip_prefix("bytes ")?.split_once('-')?.0.parse().ok()
}

impl<'a> Part<'a> {
    /// Opens an unfinished file, and hashes what it has.
    fn open(path: PathBuf, file: &'a RepoFile) -> Result<Part<'a>> {
        let io = |source| Error::io(&path, "cannot open the unfinished file", source);
        // For reading too, because a pipe would otherwise wait for a reader.
        let mut options = OpenOptions::new();
        let mut local = options.create(true).read(true).append(true).open(&path).map_err(io)?;
        let metadata = local.metadata().map_err(io)?;
        if !metadata.is_file() {
            return Err(Error::file(&path, "this is not a regular file; remove it"));
        }
        let mut hash = file.hash.hasher(file.size);
        let mut done = 0;
        if metadata.len() > file.size {
            local.set_len(0).map_err(io)?;
        }
        let mut piece = vec![0; PIECE];
        loop {
            match local.read(&mut piece).map_err(io)? {
                0 => break,
                length => {
                    hash.update(&piece[..length]);
                    done += length as u64;
                }
            }
        }
        Ok(Part { path, local, done, hash, file })
    }

    fn restart(&mut self) -> Result<()> {
        self.local.set_len(0).map_err(|source| self.error(source))?;
        self.done = 0;
        self.hash = self.file.hash.hasher(self.file.size);
        Ok(())
    }

    fn append(&mut self, bytes: &[u8]) -> Result<()> {
        self.local.write_all(bytes).map_err(|source| self.error(source))?;
        self.hash.update(bytes);
        self.done += bytes.len() as u64;
        Ok(())
    }

    fn error(&self, source: io::Error) -> Error {
        let missing = self.file.size - self.done.min(self.file.size);
        let source = fulmen_durable::explain(source, &self.path, Some(missing));
        Error::io(&self.path, "cannot write the file", source)
    }
}

/// Moves a complete file to its place, unless another file is there.
fn move_to_place(part: &Path, local: &File, to: &Path, file: &RepoFile) -> Result<()> {
    let io = |source| Error::io(to, "cannot move the file to its place", source);
    local.sync_all().map_err(io)?;
    fs::create_dir_all(to.parent().unwrap_or(to)).map_err(io)?;
    if fs::symlink_metadata(to).is_ok() {
        return Err(file.differs(to));
    }
    fs::rename(part, to).map_err(io)?;
    fulmen_durable::sync_folder(to).map_err(io)
}
