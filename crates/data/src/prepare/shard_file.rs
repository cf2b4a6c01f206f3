//! Writing one shard: under a temporary name, hashed on the way, and under its own name when it is whole.
//!
//! Not here: which samples are in it (`plan`).

use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::archives::hexadecimal;
use super::manifest::{Remark, ShardRecord, sync_folder};
use super::sample_set::SampleFiles;
use crate::{Error, Result};

/// How much is gathered before it is hashed and written.
const BUFFER: usize = 256 << 10;

/// A file that is hashed while it is written.
pub(crate) struct HashedFile {
    file: BufWriter<Hashing>,
    temporary: PathBuf,
    path: PathBuf,
}

struct Hashing {
    file: File,
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
        let temporary = folder.join(format!(".{name}.partial"));
        let file = File::create(&temporary).map_err(|source| Error::io(&temporary, "making the shard", source))?;
        let hashing = Hashing { file, hash: Sha256::new(), bytes: 0 };
        Ok(HashedFile { file: BufWriter::with_capacity(BUFFER, hashing), temporary, path: folder.join(name) })
    }

    /// Gives it its name; says how many bytes it has and their SHA-256.
    pub(crate) fn finish(self) -> Result<(u64, String)> {
        let HashedFile { file, temporary, path } = self;
        let done = || -> io::Result<(u64, String)> {
            let Hashing { file, hash, bytes } = file.into_inner().map_err(io::IntoInnerError::into_error)?;
            file.sync_all()?;
            std::fs::rename(&temporary, &path)?;
            path.parent().map_or(Ok(()), sync_folder)?;
            Ok((bytes, hexadecimal(&hash.finalize())))
        };
        done().map_err(|source| Error::io(&path, "writing the shard", source))
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
            written.map_err(|source| {
                Error::io(&self.tar.get_ref().temporary, &format!("writing {key}.{extension}"), source)
            })?;
            bytes += content.len() as u64;
        }
        self.samples += 1;
        self.remarks.extend(sample.remark.map(|what| Remark { sample: key.to_owned(), what }));
        Ok(bytes)
    }

    pub(crate) fn finish(self) -> Result<ShardRecord> {
        let temporary = self.tar.get_ref().temporary.clone();
        let file = self.tar.into_inner().map_err(|source| Error::io(&temporary, "ending the tar file", source))?;
        let (bytes, sha256) = file.finish()?;
        Ok(ShardRecord { name: self.name, samples: self.samples, tokens: None, bytes, sha256, remarks: self.remarks })
    }
}

/// The SHA-256 of a file.
pub(crate) fn sha256_of(path: &Path, advance: impl Fn(u64)) -> io::Result<String> {
    let mut file = File::open(path)?;
    let mut hash = Sha256::new();
    let mut chunk = vec![0; BUFFER];
    loop {
        let read = file.read(&mut chunk)?;
        if read == 0 {
            return Ok(hexadecimal(&hash.finalize()));
        }
        hash.update(&chunk[..read]);
        advance(read as u64);
    }
}
