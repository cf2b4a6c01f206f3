//! Writes samples into tar files of limited size.
//!
//! Out of scope: one tar file (`file`), reading (`stream`, `source`), and uploading to a store
//! (`Location::upload`).

use std::collections::HashSet;
use std::fs;
use std::path::{Path, PathBuf};

use fulmen_data::{Error, Result};
use fulmen_durable::NewFile;
use fulmen_files as store;

use super::file::{END, TarFile, size_in_tar};

/// Writes shards for the `webdataset` library: `train-000000.tar`, `train-000001.tar` and so on.
/// The files of a sample are consecutive, with the names `key.extension`.
///
/// A shard has a temporary name until it is complete and synced to the disk. If the writer is
/// dropped before [`finish`](TarShardWriter::finish), the complete shards stay. The same samples
/// give the same bytes, because times and users are not written.
///
/// ```
/// use fulmen_shards::TarShardWriter;
///
/// let folder = tempfile::tempdir()?;
/// let mut writer = TarShardWriter::builder(folder.path()).prefix("train").max_samples(2).build()?;
/// for number in 0..3 {
///     let class = number.to_string();
///     writer.write(&format!("{number:06}"), &[("cls", class.as_bytes()), ("txt", b"some text")])?;
/// }
/// let shards = writer.finish()?;
/// assert_eq!(shards.iter().map(|shard| shard.samples).collect::<Vec<_>>(), [2, 1]);
/// assert!(shards[1].path.ends_with("train-000001.tar"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct TarShardWriter {
    settings: TarShardWriterBuilder,
    open: Option<TarFile<NewFile>>,
    written: Vec<WrittenShard>,
    /// The key of the previous sample. The next sample must have another key.
    last_key: Option<String>,
    /// Whether a write has failed, so that a shard is incomplete.
    failed: bool,
}

/// A complete shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrittenShard {
    /// The path of the file.
    pub path: PathBuf,
    /// The number of samples in it.
    pub samples: u64,
    /// Its size in bytes.
    pub bytes: u64,
}

/// The options of a [`TarShardWriter`].
#[derive(Clone, Debug)]
pub struct TarShardWriterBuilder {
    folder: PathBuf,
    prefix: String,
    max_samples: u64,
    max_bytes: u64,
    first_shard: u64,
    overwrite: bool,
}

impl TarShardWriterBuilder {
    /// The prefix of the shards' names; `shard` unless set.
    #[must_use]
    pub fn prefix(mut self, prefix: &str) -> TarShardWriterBuilder {
        self.prefix = prefix.to_owned();
        self
    }

    /// The maximum number of samples per shard; 100,000 unless set.
    #[must_use]
    pub fn max_samples(mut self, samples: u64) -> TarShardWriterBuilder {
        self.max_samples = samples;
        self
    }

    /// The maximum size of a shard; 1 GiB unless set. A single larger sample gets its own shard.
    #[must_use]
    pub fn max_bytes(mut self, bytes: u64) -> TarShardWriterBuilder {
        self.max_bytes = bytes;
        self
    }

    /// The number of the first shard; 0 unless set. To continue an interrupted job, set it to the
    /// number of the first missing shard.
    #[must_use]
    pub fn first_shard(mut self, number: u64) -> TarShardWriterBuilder {
        self.first_shard = number;
        self
    }

    /// Whether to replace existing shards; off unless set.
    #[must_use]
    pub fn overwrite(mut self, overwrite: bool) -> TarShardWriterBuilder {
        self.overwrite = overwrite;
        self
    }

    /// Creates the folder if it does not exist.
    pub fn build(self) -> Result<TarShardWriter> {
        if self.max_samples == 0 {
            return Err(Error::usage("max_samples is 0; a shard has at least one sample"));
        }
        if self.prefix.is_empty() || self.prefix.contains(['/', '\0']) {
            return Err(Error::usage(format!(
                "the prefix {:?} cannot start a file name; expected one like `train`",
                self.prefix
            )));
        }
        fs::create_dir_all(&self.folder)
            .map_err(|source| Error::io(&self.folder, "cannot create the folder", source))?;
        let writer = TarShardWriter {
            settings: self,
            open: None,
            written: Vec::new(),
            last_key: None,
            failed: false,
        };
        // This fails now instead of after writing the first shard.
        writer.refuse_existing(&writer.next_path())?;
        Ok(writer)
    }
}

impl TarShardWriter {
    /// Starts a writer into this folder.
    pub fn builder(folder: impl AsRef<Path>) -> TarShardWriterBuilder {
        TarShardWriterBuilder {
            folder: folder.as_ref().to_owned(),
            prefix: "shard".to_owned(),
            max_samples: 100_000,
            max_bytes: 1 << 30,
            first_shard: 0,
            overwrite: false,
        }
    }

    /// Writes a sample: its key, and its files as pairs of extension and content. A key may contain
    /// folders. Its last part must not contain a dot, because the extension starts at the first
    /// dot.
    ///
    /// # Errors
    /// A key or an extension that a reader would not find again: an empty one, a dot in the key's
    /// last part, the key of the previous sample, a repeated extension. A full disk, or a shard
    /// that already exists. After a failed write, the shard is not completed, and nothing more can
    /// be written.
    pub fn write(&mut self, key: &str, files: &[(&str, &[u8])]) -> Result<()> {
        self.check(key, files)?;
        self.refuse_after_failure()?;
        let sizes = files
            .iter()
            .map(|(extension, content)| (key.len() + 1 + extension.len(), content.len() as u64));
        let bytes: u64 = sizes.map(|(name, content)| size_in_tar(name, content)).sum();
        let full = self.open.as_ref().is_some_and(|shard| {
            shard.samples() >= self.settings.max_samples
                || shard.bytes() + bytes + END > self.settings.max_bytes
        });
        if full {
            self.close_shard()?;
        }
        let shard = match &mut self.open {
            Some(shard) => shard,
            None => {
                let path = self.next_path();
                self.refuse_existing(&path)?;
                self.open.insert(TarFile::new(store::temporary_file(&path)?, path))
            }
        };
        let written = shard.add(key, files.iter().copied());
        self.failed = written.is_err();
        written?;
        self.last_key = Some(key.to_owned());
        Ok(())
    }

    /// Completes the last shard, and returns all shards.
    pub fn finish(mut self) -> Result<Vec<WrittenShard>> {
        self.refuse_after_failure()?;
        self.close_shard()?;
        Ok(self.written)
    }

    /// The complete shards so far.
    pub fn written(&self) -> &[WrittenShard] {
        &self.written
    }

    fn check(&self, key: &str, files: &[(&str, &[u8])]) -> Result<()> {
        let refuse = |reason: &str| {
            Err(Error::usage(format!("the sample `{key}` cannot go into a tar: {reason}")))
        };
        let last = key.rsplit('/').next().unwrap_or_default();
        if last.contains('.') {
            return refuse(
                "its key has a dot after the last slash, where a reader would start the extension",
            );
        }
        if key.split('/').any(|part| matches!(part, "" | "." | "..")) || key.contains('\0') {
            return refuse(
                "between slashes a key has names, not nothing, `.` or `..`, and no zero byte",
            );
        }
        if key.starts_with("__") {
            return refuse("readers skip names that begin with `__`");
        }
        if self.last_key.as_deref() == Some(key) {
            return refuse(
                "the previous sample has the same key, and a reader would merge the two",
            );
        }
        if files.is_empty() {
            return refuse("it has no files");
        }
        let mut extensions = HashSet::new();
        for (extension, _) in files {
            // Readers convert extensions to lower case.
            let extension = extension.to_lowercase();
            if extension.is_empty() || extension.contains(['/', '\0']) {
                return refuse(&format!(
                    "the extension {extension:?} is empty or has a slash or a zero byte"
                ));
            }
            if !extensions.insert(extension.clone()) {
                return refuse(&format!("it has two files with the extension `{extension}`"));
            }
        }
        Ok(())
    }

    fn next_path(&self) -> PathBuf {
        let number = self.settings.first_shard + self.written.len() as u64;
        self.settings.folder.join(format!("{}-{number:06}.tar", self.settings.prefix))
    }

    fn refuse_existing(&self, path: &Path) -> Result<()> {
        if self.settings.overwrite || fs::symlink_metadata(path).is_err() {
            return Ok(());
        }
        Err(Error::file(
            path,
            "the file already exists; use another folder or prefix, continue after it with first_shard, or replace it \
             with overwrite(true)",
        ))
    }

    fn close_shard(&mut self) -> Result<()> {
        if let Some(shard) = self.open.take() {
            let path = shard.path().to_owned();
            let samples = shard.samples();
            let keep = if self.settings.overwrite { store::keep } else { store::persist_noclobber };
            let written =
                shard.finish().and_then(|(file, bytes)| keep(file, &path).map(|()| bytes));
            self.failed = written.is_err();
            self.written.push(WrittenShard { bytes: written?, path, samples });
        }
        Ok(())
    }

    fn refuse_after_failure(&self) -> Result<()> {
        if self.failed {
            Err(Error::file(
                &self.next_path(),
                "an earlier write failed, so samples are missing from this shard; start again with a new writer, \
                 after the complete shards with first_shard",
            ))
        } else {
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_a_failed_write_no_shard_gets_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = TarShardWriter::builder(dir.path()).build().unwrap();
        writer.write("a", &[("x", b"1")]).unwrap();
        // Writing to a file that is open for reading fails, as on a full disk.
        let readable = tempfile::NamedTempFile::new().unwrap();
        let file = store::temporary_file(&dir.path().join("x"))
            .unwrap()
            .with_file(fs::File::open(readable.path()).unwrap());
        let shard = writer.open.as_mut().unwrap();
        *shard = TarFile::new(file, shard.path().to_owned());
        let refused = writer.write("b", &[("x", &[2; 2 << 20])]).unwrap_err();
        assert!(refused.to_string().contains("writing the entry b.x"), "{refused}");
        let second = writer.write("c", &[("x", b"3")]).unwrap_err();
        assert!(second.to_string().contains("an earlier write failed"), "{second}");
        assert!(writer.finish().is_err());
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
