//! Writes a shard under a temporary name, hashes it, and renames it when it is complete.
//!
//! Out of scope: the assignment of samples to shards (`plan`).

use std::io::{self, Write};
use std::path::Path;

use fulmen_durable::NewFile;
use sha2::{Digest, Sha256};

use super::images::SampleFiles;
use super::manifest::{ShardRecord, Warning};
use fulmen_data::Result;
use fulmen_data::{internal::checksum, internal::hex};
use fulmen_files as store;
use fulmen_shards::TarFile;

/// A tar shard that is being written.
pub(crate) struct TarShard {
    name: String,
    tar: TarFile<HashedFile>,
    warnings: Vec<Warning>,
}

/// A file that is hashed while it is written.
struct HashedFile {
    file: NewFile,
    hash: Sha256,
}

impl Write for HashedFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.hash.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl TarShard {
    /// Creates a shard in `folder`, whose final name is `name`.
    pub(crate) fn create(folder: &Path, name: &str) -> Result<TarShard> {
        let path = folder.join(name);
        let file = HashedFile { file: store::temporary_file(&path)?, hash: Sha256::new() };
        Ok(TarShard { name: name.to_owned(), tar: TarFile::new(file, path), warnings: Vec::new() })
    }

    pub(crate) fn add(&mut self, key: &str, sample: SampleFiles) -> Result<()> {
        self.tar.add(
            key,
            sample.files.iter().map(|(extension, content)| (*extension, content.as_slice())),
        )?;
        self.warnings.extend(sample.warning.map(|what| Warning { sample: key.to_owned(), what }));
        Ok(())
    }

    pub(crate) fn finish(self) -> Result<ShardRecord> {
        let TarShard { name, tar, warnings } = self;
        let path = tar.path().to_owned();
        let samples = tar.samples();
        let (HashedFile { file, hash }, bytes) = tar.finish()?;
        store::keep(file, &path)?;
        let sha256 = hex(&hash.finalize());
        Ok(ShardRecord { name, samples, tokens: None, bytes, sha256, warnings, documents: None })
    }
}

/// The SHA-256 of a file. Calls `advance` with the size of each chunk.
pub(crate) fn sha256_of(path: &Path, advance: impl FnMut(u64)) -> io::Result<String> {
    checksum::<Sha256>(fulmen_durable::open_regular(path)?, advance)
}

#[cfg(test)]
mod tests {
    use super::*;
    use fulmen_shards::{END, size_in_tar};

    #[test]
    fn a_shard_has_as_many_bytes_as_are_planned() {
        let folder = tempfile::tempdir().unwrap();
        let mut planned = END;
        let mut shard = TarShard::create(folder.path(), "a.tar").unwrap();
        for (length, size) in [(1, 0), (96, 512), (97, 513), (600, 3)] {
            let key = "k".repeat(length);
            shard
                .add(&key, SampleFiles { files: vec![("jpg", vec![7; size])], warning: None })
                .unwrap();
            planned += size_in_tar(key.len() + 4, size as u64);
        }
        assert_eq!(shard.finish().unwrap().bytes, planned);
        // Dropping the unfinished shard removes its file.
        TarShard::create(folder.path(), "b.tar").unwrap();
        assert_eq!(folder.path().read_dir().unwrap().count(), 1);
    }
}
