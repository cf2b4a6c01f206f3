//! The journal of completed work, from which an interrupted run continues.
//!
//! Out of scope: the plan (`plan`).

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use fulmen_durable::try_lock;
use serde::{Deserialize, Serialize};

use super::archives::VerifiedArchive;
use super::manifest::ShardRecord;
use fulmen_data::{Error, Result};
use fulmen_files::lock_soon;

/// The name of the journal's file in the output folder. Its lock also prevents two runs at once.
const NAME: &str = ".fulmen-prepare";

/// The maximum size of a journal, which has a line for each shard.
const MAX_JOURNAL_BYTES: u64 = 1 << 30;

/// An entry about completed work, one line of JSON.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Line {
    /// Everything that the shards depend on, by name.
    Plan(BTreeMap<String, String>),
    /// An archive has the expected checksum.
    Verified(VerifiedArchive),
    /// A shard is complete and has its final name.
    Shard(ShardRecord),
    /// All shards are written. Their number was not known before.
    Complete,
    /// A file is about to be uploaded. From now on, this job may replace the file with this name in
    /// the store.
    Uploading { name: String, to: String },
    /// A file has been uploaded.
    Uploaded(UploadedFile),
}

/// An uploaded file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) struct UploadedFile {
    pub(crate) name: String,
    pub(crate) sha256: String,
    pub(crate) to: String,
}

/// The journal, in a file that only this process holds open.
#[derive(Debug)]
pub(crate) struct Journal {
    folder: PathBuf,
    path: PathBuf,
    state: Mutex<JournalState>,
}

#[derive(Debug)]
struct JournalState {
    file: File,
    plan: Option<BTreeMap<String, String>>,
    verified: Vec<VerifiedArchive>,
    shards: BTreeMap<String, ShardRecord>,
    complete: bool,
    uploading: BTreeSet<(String, String)>,
    uploaded: BTreeSet<UploadedFile>,
}

impl Journal {
    /// Opens the journal of this folder. Creates it if necessary.
    ///
    /// A line that was being written when a run was killed is dropped, and its work is done again.
    pub(crate) fn open(folder: &Path) -> Result<Journal> {
        std::fs::create_dir_all(folder)
            .map_err(|source| Error::io(folder, "making the folder", source))?;
        let path = folder.join(NAME);
        let io = |doing: &str| {
            let path = path.clone();
            let doing = doing.to_owned();
            move |source| Error::io(&path, &doing, source)
        };
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(io("opening the journal"))?;
        match lock_soon(|| try_lock(&file)) {
            Ok(true) => {}
            Ok(false) => {
                return Err(Error::file(
                    folder,
                    "another run is preparing data in this folder; wait until it ends, or choose another folder",
                ));
            }
            Err(source) => return Err(io("locking the journal")(source)),
        }
        let metadata = file.metadata().map_err(io("reading the journal"))?;
        if !metadata.is_file() || metadata.len() > MAX_JOURNAL_BYTES {
            return Err(Error::file(&path, "this is not the journal of a run; remove it"));
        }
        let mut bytes = Vec::new();
        Read::by_ref(&mut file)
            .take(MAX_JOURNAL_BYTES)
            .read_to_end(&mut bytes)
            .map_err(io("reading the journal"))?;
        let mut state = JournalState {
            file,
            plan: None,
            verified: Vec::new(),
            shards: BTreeMap::new(),
            complete: false,
            uploading: BTreeSet::new(),
            uploaded: BTreeSet::new(),
        };
        let mut whole = 0;
        for line in bytes.split_inclusive(|&byte| byte == b'\n') {
            let Some(text) = line.strip_suffix(b"\n") else { break };
            let Ok(line) = serde_json::from_slice(text) else { break };
            state.apply(line);
            whole += text.len() as u64 + 1;
        }
        state.file.set_len(whole).map_err(io("repairing the journal"))?;
        state.file.seek(SeekFrom::End(0)).map_err(io("repairing the journal"))?;
        Ok(Journal { folder: folder.to_owned(), path, state: Mutex::new(state) })
    }

    /// Writes a line durably.
    pub(crate) fn add(&self, line: Line) -> Result<()> {
        let mut text =
            serde_json::to_vec(&line).map_err(|source| Error::runtime("writing JSON", source))?;
        text.push(b'\n');
        let mut state = self.lock();
        let written = state.file.write_all(&text).and_then(|()| state.file.sync_data());
        written.map_err(|source| Error::io(&self.path, "writing the journal", source))?;
        state.apply(line);
        Ok(())
    }

    /// Starts or continues a plan. Rejects a plan that differs from that of an earlier run, and a
    /// folder in which the plan's files would replace files that no run has written.
    pub(crate) fn begin(&self, plan: BTreeMap<String, String>, files: &[&str]) -> Result<()> {
        let earlier = self.lock().plan.clone();
        if let Some(earlier) = earlier {
            let names: BTreeSet<&String> = plan.keys().chain(earlier.keys()).collect();
            let other = names.into_iter().find(|&name| plan.get(name) != earlier.get(name));
            let Some(name) = other else { return Ok(()) };
            let word = |value: Option<&String>| value.map_or("nothing", String::as_str).to_owned();
            return Err(Error::usage(format!(
                "{}: this folder was started with other options or archives: {name} was {} and is now {}; continue \
                 with the same ones, or use another folder",
                self.folder.display(),
                word(earlier.get(name)),
                word(plan.get(name))
            )));
        }
        if let Some(file) =
            files.iter().find(|file| self.folder.join(file).symlink_metadata().is_ok())
        {
            return Err(Error::usage(format!(
                "{}: this program did not write the file {file} and would replace it; use an empty folder",
                self.folder.display()
            )));
        }
        self.add(Line::Plan(plan))
    }

    pub(crate) fn has_verified(&self, archive: &VerifiedArchive) -> bool {
        self.lock().verified.contains(archive)
    }

    /// The first verified archive with the same content.
    pub(crate) fn first_verified(&self, archive: &VerifiedArchive) -> Option<VerifiedArchive> {
        self.lock().verified.iter().find(|verified| verified.has_same_content(archive)).cloned()
    }

    pub(crate) fn shard(&self, name: &str) -> Option<ShardRecord> {
        self.lock().shards.get(name).cloned()
    }

    pub(crate) fn is_complete(&self) -> bool {
        self.lock().complete
    }

    pub(crate) fn has_begun_upload(&self, name: &str, to: &str) -> bool {
        self.lock().uploading.contains(&(name.to_owned(), to.to_owned()))
    }

    pub(crate) fn has_uploaded(&self, shard: &UploadedFile) -> bool {
        self.lock().uploaded.contains(shard)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, JournalState> {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl JournalState {
    fn apply(&mut self, line: Line) {
        match line {
            Line::Plan(plan) => self.plan = Some(plan),
            Line::Verified(archive) => self.verified.push(archive),
            Line::Shard(shard) => {
                self.shards.insert(shard.name.clone(), shard);
            }
            Line::Complete => self.complete = true,
            Line::Uploading { name, to } => {
                self.uploading.insert((name, to));
            }
            Line::Uploaded(shard) => {
                self.uploaded.insert(shard);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(seed: &str) -> BTreeMap<String, String> {
        BTreeMap::from([("seed".to_owned(), seed.to_owned())])
    }

    fn shard(name: &str) -> ShardRecord {
        ShardRecord { name: name.to_owned(), samples: 1, bytes: 2, ..ShardRecord::default() }
    }

    #[test]
    fn a_torn_line_is_dropped_and_later_lines_are_intact() {
        let folder = tempfile::tempdir().unwrap();
        let journal = Journal::open(folder.path()).unwrap();
        journal.begin(plan("1"), &[]).unwrap();
        journal.add(Line::Shard(shard("a.tar"))).unwrap();
        drop(journal);
        let path = folder.path().join(NAME);
        let whole = std::fs::read(&path).unwrap();
        std::fs::write(&path, [whole.as_slice(), b"{\"shard\":{\"name\":\"b.t"].concat()).unwrap();

        let journal = Journal::open(folder.path()).unwrap();
        assert!(journal.shard("a.tar").is_some() && journal.shard("b.tar").is_none());
        journal.add(Line::Shard(shard("c.tar"))).unwrap();
        drop(journal);
        let journal = Journal::open(folder.path()).unwrap();
        journal.begin(plan("1"), &[]).unwrap();
        assert!(journal.shard("a.tar").is_some() && journal.shard("c.tar").is_some());
    }

    #[test]
    fn another_plan_and_foreign_files_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("train-000000.tar"), b"mine").unwrap();
        let journal = Journal::open(folder.path()).unwrap();
        let error = journal.begin(plan("1"), &["train-000000.tar"]).unwrap_err().to_string();
        assert!(error.contains("did not write the file train-000000.tar"), "{error}");
        journal.begin(plan("1"), &[]).unwrap();
        let error = journal.begin(plan("2"), &[]).unwrap_err();
        assert!(
            error.is_usage() && error.to_string().contains("seed was 1 and is now 2"),
            "{error}"
        );
    }

    #[test]
    fn two_at_once_are_refused() {
        let folder = tempfile::tempdir().unwrap();
        let journal = Journal::open(folder.path()).unwrap();
        let error = Journal::open(folder.path()).unwrap_err().to_string();
        assert!(error.contains("another run"), "{error}");
        drop(journal);
        Journal::open(folder.path()).unwrap();
    }
}
