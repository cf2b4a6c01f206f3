//! Writes one tar file of samples.
//!
//! Out of scope: the validity of keys and the size of a shard (`writer`), and renaming the complete
//! file.

use std::fmt;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use fulmen_data::{Error, Result};
use fulmen_durable::messages::quantity;

/// The size of the write buffer.
const BUFFER: usize = 1 << 20;

/// The size of the end of a tar, two blocks of zeros.
pub const END: u64 = 1024;

/// The size of a file in a tar: a header, and the content in blocks of 512 bytes. A name that does
/// not fit into the header adds another header, and the name with its terminating byte.
pub fn size_in_tar(name_bytes: usize, content_bytes: u64) -> u64 {
    let blocks = |bytes: u64| bytes.div_ceil(512).saturating_mul(512).saturating_add(512);
    let name = if name_bytes > 100 { blocks(name_bytes as u64 + 1) } else { 0 };
    blocks(content_bytes).saturating_add(name)
}

/// A tar file of samples. The same samples give the same bytes, because times and users are not
/// written.
pub struct TarFile<W: Write> {
    /// The path, for messages.
    path: PathBuf,
    tar: tar::Builder<CountingWriter<W>>,
    samples: u64,
}

struct CountingWriter<W: Write> {
    inner: BufWriter<W>,
    bytes: u64,
}

#[allow(missing_docs, reason = "hidden: it is shared with the program `fulmen`")]
impl<W: Write> TarFile<W> {
    pub fn new(inner: W, path: PathBuf) -> TarFile<W> {
        let counted = CountingWriter { inner: BufWriter::with_capacity(BUFFER, inner), bytes: 0 };
        TarFile { path, tar: tar::Builder::new(counted), samples: 0 }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn samples(&self) -> u64 {
        self.samples
    }

    /// The number of bytes written so far.
    pub fn bytes(&self) -> u64 {
        self.tar.get_ref().bytes
    }

    /// Adds a sample. `files` has its files by extension.
    pub fn add<'a>(
        &mut self,
        key: &str,
        files: impl IntoIterator<Item = (&'a str, &'a [u8])>,
    ) -> Result<()> {
        for (extension, content) in files {
            let name = format!("{key}.{extension}");
            let mut header = tar::Header::new_gnu();
            header.set_size(content.len() as u64);
            header.set_mode(0o644);
            header.set_mtime(0);
            let written = self.tar.append_data(&mut header, &name, content);
            written.map_err(|source| {
                Error::io(&self.path, &format!("writing the entry {name}"), source)
            })?;
        }
        self.samples += 1;
        Ok(())
    }

    /// Ends the tar. Returns the writer and the number of bytes.
    pub fn finish(self) -> Result<(W, u64)> {
        let refused = |source| Error::io(&self.path, "cannot write the file", source);
        let CountingWriter { inner, bytes } = self.tar.into_inner().map_err(refused)?;
        Ok((inner.into_inner().map_err(|error| refused(error.into_error()))?, bytes))
    }
}

impl<W: Write> Write for CountingWriter<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.inner.write(bytes)?;
        self.bytes += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

impl<W: Write> fmt::Debug for TarFile<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let samples = quantity(self.samples, "sample");
        write!(f, "TarFile({}, {samples})", self.path.display())
    }
}
