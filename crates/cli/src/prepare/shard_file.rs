//! Writing one shard: under a temporary name, hashed on the way, and under its own name when it is whole.
//!
//! Not here: which samples are in it (`plan`).

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use fulmen_durable::NewFile;
use sha2::{Digest, Sha256};

use super::manifest::{Remark, ShardRecord};
use super::sample_set::SampleFiles;
use fulmen_data::{Error, Result};
use fulmen_data::{internal::checksum, internal::hex};
use fulmen_files as store;

/// How much is gathered before it is hashed and written.
const BUFFER: usize = 256 << 10;

/// A file that is hashed while it is written.
pub(crate) struct HashedFile {
    file: BufWriter<Hashing>,
    path: PathBuf,
}

struct Hashing {
    file: NewFile,
    hash: Sha256,
    bytes: u64,
}

impl Write for Hashing {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.file.write(bytes)?;
        self.hash.update(&bytes[..written]);
        self.bytes += written as u64;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

impl HashedFile {
    /// A file that is `name` in `folder` once it is finished.
    pub(crate) fn create(folder: &Path, name: &str) -> Result<HashedFile> {
        let path = folder.join(name);
        let hashing = Hashing { file: store::temporary_file(&path)?, hash: Sha256::new(), bytes: 0 };
        Ok(HashedFile { file: BufWriter::with_capacity(BUFFER, hashing), path })
    }

    /// Gives it its name; says how many bytes it has and their SHA-256.
    pub(crate) fn finish(self) -> Result<(u64, String)> {
        let HashedFile { file, path } = self;
        let written = file.into_inner().map_err(io::IntoInnerError::into_error);
        let Hashing { file, hash, bytes } = written.map_err(|source| Error::io(&path, "writing the shard", source))?;
        store::keep(file, &path)?;
        Ok((bytes, hex(&hash.finalize())))
    }
}

impl Write for HashedFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// A tar shard that is being written.
pub(crate) struct TarShard {
    name: String,
    tar: tar::Builder<HashedFile>,
    samples: u64,
    remarks: Vec<Remark>,
}

impl TarShard {
    pub(crate) fn create(folder: &Path, name: &str) -> Result<TarShard> {
        let file = HashedFile::create(folder, name)?;
        Ok(TarShard { name: name.to_owned(), tar: tar::Builder::new(file), samples: 0, remarks: Vec::new() })
    }

    /// Adds a sample; says how many bytes its files have.
    pub(crate) fn add(&mut self, key: &str, sample: SampleFiles) -> Result<u64> {
        let mut bytes = 0;
        for (extension, content) in &sample.files {
            // No times and no users: the same samples are the same bytes.
            let mut header = tar::Header::new_gnu();
            header.set_size(content.len() as u64);
            header.set_mode(0o644);
            header.set_mtime(0);
            let written = self.tar.append_data(&mut header, format!("{key}.{extension}"), content.as_slice());
            written
                .map_err(|source| Error::io(&self.tar.get_ref().path, &format!("writing {key}.{extension}"), source))?;
            bytes += content.len() as u64;
        }
        self.samples += 1;
        self.remarks.extend(sample.remark.map(|what| Remark { sample: key.to_owned(), what }));
        Ok(bytes)
    }

    pub(crate) fn finish(self) -> Result<ShardRecord> {
        let path = self.tar.get_ref().path.clone();
        let file = self.tar.into_inner().map_err(|source| Error::io(&path, "ending the tar file", source))?;
        let (bytes, sha256) = file.finish()?;
        Ok(ShardRecord {
            name: self.name,
            samples: self.samples,
            tokens: None,
            bytes,
            sha256,
            remarks: self.remarks,
            documents: None,
        })
    }
}

/// The SHA-256 of a file. `advance` is told of each piece's bytes.
pub(crate) fn sha256_of(path: &Path, advance: impl FnMut(u64)) -> io::Result<String> {
    checksum::<Sha256>(File::open(path)?, advance)
}

#[cfg(test)]
mod tests {
    use super::super::plan::tar_bytes;
    use super::*;
    use fulmen_shards::END;

    #[test]
    fn a_shard_has_as_many_bytes_as_are_planned() {
        let folder = tempfile::tempdir().unwrap();
        let mut planned = END;
        let mut shard = TarShard::create(folder.path(), "a.tar").unwrap();
        for (length, size) in [(1, 0), (96, 512), (97, 513), (600, 3)] {
            let key = "k".repeat(length);
            shard.add(&key, SampleFiles { files: vec![("jpg", vec![7; size])], remark: None }).unwrap();
            planned += tar_bytes(&key, [("jpg", size as u64)]);
        }
        assert_eq!(shard.finish().unwrap().bytes, planned);
        // What is not finished is gone.
        TarShard::create(folder.path(), "b.tar").unwrap();
        assert_eq!(folder.path().read_dir().unwrap().count(), 1);
    }
}
