//! [`fetch`]: downloads the files of a model or a dataset from a Hugging Face hub.
//!
//! Each file has a temporary name until its size and hash are those of the hub's listing. An
//! interrupted download can be continued. A folder has the files of one commit, which is recorded in
//! it.
//!
//! Out of scope: reading the files; uploads; the cache folder of Python's `huggingface_hub`.

mod client;
mod download;
mod file_hash;
mod listing;
mod path;
mod record;
mod settings;

use std::fs;
use std::path::Path;

use fulmen_data::{Error, Result};
use fulmen_files::Lock;

use self::client::Client;
use self::download::Download;
use self::listing::RepoFile;
pub use self::path::HubPath;
use self::record::{FOLDER, LOCK, Record};
use crate::free_space::check_free_space;
use crate::pack::Progress;

/// What [`fetch`] has put into a folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Fetched {
    /// The commit of the repository.
    pub commit: String,
    /// The number of files of the commit that were asked for.
    pub files: usize,
    /// The size of these files in bytes.
    pub bytes: u64,
    /// The size in bytes of those that were downloaded, now and not by an earlier run.
    pub downloaded: u64,
}

/// Downloads files of a repository into a folder, which is created if necessary, under their paths in
/// the repository. `.fulmen-hub` in the folder has unfinished files and a record of the commit: a
/// later call continues with this commit, even if the branch has moved, and downloads only what is
/// missing.
///
/// The environment variables are those of `huggingface_hub`: `HF_ENDPOINT` is the address of the hub.
/// The token is in `HF_TOKEN`, or in the file `HF_TOKEN_PATH` or `HF_HOME/token`. `HF_HUB_OFFLINE=1`
/// forbids requests. A request is repeated for `FULMEN_STORE_GIVE_UP_SECONDS` (180) without progress.
///
/// ```no_run
/// use fulmen_cli::hub::{HubPath, fetch};
///
/// let path: HubPath = "hf:openai-community/gpt2@main/*.json".parse()?;
/// let fetched = fetch(&path, "models/gpt2".as_ref(), &())?;
/// assert_eq!(fetched.commit.len(), 40);
/// # Ok::<(), fulmen_data::Error>(())
/// ```
///
/// # Errors
/// The hub does not have the repository, the revision or a file with this name; it does not grant
/// access to it; a file has other content than the hub lists; the folder has another repository or
/// commit, or a file that differs from the commit's; another process is fetching into the folder; the
/// disk does not have enough space.
pub fn fetch(path: &HubPath, folder: &Path, progress: &dyn Progress) -> Result<Fetched> {
    let known = Record::read(folder)?;
    let is_new = known.is_none();
    let record = match known {
        Some(record) => record.check(path, folder, progress)?,
        None => Client::new()?.list(path, progress)?,
    };
    let files = record.select(path)?;
    let bytes = files.iter().map(|file| file.size).sum();
    let done = |downloaded| Fetched {
        commit: record.commit.clone(),
        files: files.len(),
        bytes,
        downloaded,
    };
    if !is_new && missing(&files, folder)?.is_empty() {
        return Ok(done(0));
    }
    let client = Client::new()?;
    let is_new_folder = !folder.exists();
    let work = folder.join(FOLDER);
    let lock = Lock::take(&work, LOCK)?;
    let result = record
        .keep(folder, progress)
        .and_then(|()| download(&client, path, &record, &files, folder, progress));
    if result.is_err() && is_new {
        remove_unused(&work, &files, folder, is_new_folder);
    }
    drop(lock);
    result.map(done)
}

/// Downloads the missing files, and returns their size.
fn download(
    client: &Client,
    path: &HubPath,
    record: &Record,
    files: &[&RepoFile],
    folder: &Path,
    progress: &dyn Progress,
) -> Result<u64> {
    let missing = missing(files, folder)?;
    if missing.is_empty() {
        return Ok(0);
    }
    let bytes = missing.iter().map(|file| file.size).sum();
    let download = Download { client, path, record, folder, progress };
    let present: u64 = missing.iter().map(|file| download.part_size(file)).sum();
    check_free_space(folder, bytes - present.min(bytes), "the missing files")?;
    progress.begin(&format!("fetching {}", path.repository()), bytes);
    for file in missing {
        download.file(file)?;
    }
    Ok(bytes)
}

/// The files that are not in the folder yet. A file gets its name when it is complete, so one with
/// another size was changed since.
fn missing<'a>(files: &[&'a RepoFile], folder: &Path) -> Result<Vec<&'a RepoFile>> {
    let mut missing = Vec::new();
    for file in files {
        let path = file.inside(folder)?;
        match fs::metadata(&path) {
            Ok(metadata) if metadata.is_file() && metadata.len() == file.size => {}
            Ok(_) => return Err(file.differs(&path)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => missing.push(*file),
            Err(error) => return Err(Error::io(&path, "cannot read the file's size", error)),
        }
    }
    Ok(missing)
}

/// Removes the record of a first run that got no bytes, so that a refused run leaves nothing. Errors
/// do not matter, because a later run continues with the record.
fn remove_unused(work: &Path, files: &[&RepoFile], folder: &Path, is_new_folder: bool) {
    let is_there = |file: &&RepoFile| file.inside(folder).is_ok_and(|path| path.exists());
    let has_bytes = |entry: fs::DirEntry| {
        let is_part = entry.path().extension().is_some_and(|extension| extension == "part");
        is_part && entry.metadata().is_ok_and(|metadata| metadata.len() > 0)
    };
    let has_part = fs::read_dir(work).is_ok_and(|entries| entries.flatten().any(has_bytes));
    if has_part || files.iter().any(is_there) {
        return;
    }
    let _ = fs::remove_dir_all(work);
    if is_new_folder {
        let _ = fs::remove_dir(folder);
    }
}
