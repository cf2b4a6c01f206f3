//! A file with the tokens of documents. It is written once, then read with random access from any
//! thread.
//!
//! Out of scope: its layout (`token_format`), tokenizing, and blocks of tokens.

use std::fs::File;
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crc32c::{crc32c, crc32c_append};
use fulmen_durable::NewFile;

use super::TokenStore;
use super::document_reader::in_order;
use super::prefetch::Prefetch;
use super::token_format::{Documents, HEADER_BYTES, Header, check_range, padding_bytes};
use fulmen_data::{Error, Fingerprint, Result, Source, Stream, StreamItem};
use fulmen_files::{keep, temporary_file, zeros};

/// Writes a [`TokenFile`].
///
/// The file gets its name when it is [finished](TokenFileWriter::finish) and synced to the disk;
/// until then it has a temporary name in the same folder. If the writer is dropped before, the
/// temporary file is removed. Documents without tokens are left out.
///
/// The file is a [safetensors](https://github.com/huggingface/safetensors) file with the tensors
/// `tokens` (u16, or u32 for more than 65,536 tokens) and `ends` (u64: the number of tokens up to
/// the end of each document). Python can read it with `safetensors.numpy.load_file`.
///
/// ```
/// use fulmen_text::{TokenFile, TokenFileWriter, TokenStore};
///
/// let folder = tempfile::tempdir()?;
/// let path = folder.path().join("train.tokens");
/// let mut writer = TokenFileWriter::create(&path, 50_257)?.separator(50_256);
/// writer.push([15496, 995])?;
/// writer.push([11, 12, 13])?;
/// let file: TokenFile = writer.finish()?;
/// assert_eq!((file.num_tokens(), file.document_ends()), (7, &[3, 7][..]));
/// let mut tokens = [0; 3];
/// file.read(2, &mut tokens)?;
/// assert_eq!(tokens, [50_256, 11, 12]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct TokenFileWriter {
    path: PathBuf,
    file: BufWriter<NewFile>,
    documents: Documents,
    /// The checksum of the tokens so far.
    crc: u32,
    bytes: Vec<u8>,
    /// Whether a write has failed, so that tokens are missing.
    failed: bool,
}

impl TokenFileWriter {
    /// Starts a file of token ids below `vocab_size`. Missing folders are created. An existing file
    /// stays until the new one is finished.
    ///
    /// # Errors
    /// A folder that cannot be created or written to; an empty vocabulary.
    pub fn create(path: impl AsRef<Path>, vocab_size: usize) -> Result<TokenFileWriter> {
        let path = path.as_ref().to_owned();
        let documents = Documents::new(vocab_size)?;
        let mut file = temporary_file(&path)?;
        file.write_all(&[0; HEADER_BYTES])
            .map_err(|source| Error::io(&path, "cannot create the token file", source))?;
        let file = BufWriter::with_capacity(1 << 20, file);
        Ok(TokenFileWriter { path, file, documents, crc: 0, bytes: Vec::new(), failed: false })
    }

    /// A token appended to each document, such as `<|endoftext|>`. It counts as the document's last
    /// token.
    #[must_use]
    pub fn separator(mut self, separator: u32) -> TokenFileWriter {
        self.documents.separator = Some(separator);
        self
    }

    /// Adds a document.
    ///
    /// # Errors
    /// A token outside the vocabulary; a full disk. After a failed write nothing more can be added,
    /// and the file cannot be finished.
    pub fn push(&mut self, document: impl AsRef<[u32]>) -> Result<()> {
        self.bytes.clear();
        self.documents.push(document.as_ref(), &mut self.bytes)?;
        self.crc = crc32c_append(self.crc, &self.bytes);
        self.write()
    }

    /// Adds the documents of a source in its order. `threads` threads read and tokenize them.
    /// `progress` is called after each document with the number of documents so far.
    ///
    /// # Errors
    /// The error of the first document that cannot be read or written.
    pub fn extend<S>(
        &mut self,
        documents: &S,
        threads: usize,
        mut progress: impl FnMut(usize),
    ) -> Result<()>
    where
        S: Source<Item: AsRef<[u32]>>,
    {
        in_order(
            documents,
            threads,
            |document| document,
            |index, document| {
                self.push(document).map_err(|error| {
                    error.at_sample(index as u64, Some(documents.origin(index)))
                })?;
                progress(index + 1);
                Ok(())
            },
        )
    }

    /// Adds the documents of a stream's first epoch. The calling thread reads them in order, and
    /// `threads` other threads tokenize them. `progress` is called after each document with the
    /// number of documents so far.
    ///
    /// # Errors
    /// The error of the first document that cannot be read or written.
    pub fn extend_from_stream<S>(
        &mut self,
        documents: &S,
        threads: usize,
        mut progress: impl FnMut(usize),
    ) -> Result<()>
    where
        S: Stream<Item: AsRef<[u32]>>,
    {
        for (count, document) in Prefetch::new(documents.deferred(0)?, threads)?.enumerate() {
            let StreamItem { index, origin, item } = document?;
            self.push(item).map_err(|error| error.at_sample(index, Some(origin)))?;
            progress(count + 1);
        }
        Ok(())
    }

    fn write(&mut self) -> Result<()> {
        if self.failed {
            return Err(Error::file(
                &self.path,
                "an earlier write failed; start again with a new writer",
            ));
        }
        let written = self.file.write_all(&self.bytes);
        self.failed = written.is_err();
        written.map_err(|source| Error::io(&self.path, "cannot write the tokens", source))
    }

    /// Writes the remaining data, syncs the file and gives it its name.
    ///
    /// # Errors
    /// A full disk. In this case there is no new file, and an existing file stays.
    pub fn finish(mut self) -> Result<TokenFile> {
        self.bytes = vec![
            0;
            padding_bytes(self.documents.num_tokens() * self.documents.width as u64)
                as usize
        ];
        self.write()?;
        let padding = crc32c(&self.bytes);
        let mut ends = 0;
        for chunk in std::mem::take(&mut self.documents.ends).chunks(1 << 16) {
            self.bytes.clear();
            self.bytes.extend(chunk.iter().flat_map(|end| end.to_le_bytes()));
            ends = crc32c_append(ends, &self.bytes);
            self.write()?;
            self.documents.ends.extend_from_slice(chunk);
        }
        let header = self.documents.header(self.crc, padding, ends);
        let path = self.path;
        let finish = |file: BufWriter<NewFile>| -> io::Result<NewFile> {
            let mut file = file.into_inner().map_err(io::IntoInnerError::into_error)?;
            file.seek(SeekFrom::Start(0))?;
            file.write_all(&header)?;
            Ok(file)
        };
        let file = finish(self.file)
            .map_err(|source| Error::io(&path, "cannot finish the token file", source))?;
        keep(file, &path)?;
        TokenFile::open(path)
    }
}

/// A file with the tokens of documents, written by [`TokenFileWriter`].
///
/// The ends of the documents are kept in memory, 8 bytes each; tokens are read on request.
#[derive(Clone, Debug)]
pub struct TokenFile {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    path: PathBuf,
    file: File,
    header: Header,
    documents: Documents,
}

impl TokenFile {
    /// Opens a file and checks its size and the ends of its documents. Only
    /// [`verify`](TokenFile::verify) checks the tokens.
    ///
    /// # Errors
    /// A file that does not exist, is not a token file, is truncated, or is damaged.
    pub fn open(path: impl AsRef<Path>) -> Result<TokenFile> {
        let path = path.as_ref().to_owned();
        let io = |source| Error::io(&path, "cannot read the token file", source);
        let mut file = fulmen_durable::open_regular(&path).map_err(io)?;
        let size = file.metadata().map_err(io)?.len();
        let header = Header::read(&mut file, size, &path)?;
        // The size is already checked against the file.
        let (offset, size) = header.ends_region;
        let mut ends = zeros(&path, size as usize)?;
        file.read_exact_at(&mut ends, offset).map_err(io)?;
        let documents = header.documents(&ends, &path)?;
        Ok(TokenFile { inner: Arc::new(Inner { path, file, header, documents }) })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.inner.path
    }

    /// The size of the vocabulary.
    pub fn vocab_size(&self) -> usize {
        self.inner.header.vocab_size
    }

    /// Reads the whole file and verifies its checksums.
    ///
    /// # Errors
    /// A file that cannot be read, or has changed since it was written.
    pub fn verify(&self) -> Result<()> {
        let Inner { path, header, .. } = &*self.inner;
        let io = |source| Error::io(path, "cannot read the token file", source);
        // This opens the file again, because on some systems reading at an offset moves the
        // position of a handle, and other threads may use the shared one.
        let mut file = fulmen_durable::open_regular(path).map_err(io)?;
        file.seek(SeekFrom::Start(8 + header.text.len() as u64)).map_err(io)?;
        header.read_all(&mut file, path, |_, _| {})
    }
}

impl TokenStore for TokenFile {
    fn num_tokens(&self) -> u64 {
        self.inner.header.num_tokens
    }

    fn document_ends(&self) -> &[u64] {
        &self.inner.documents.ends
    }

    fn read(&self, start: u64, tokens: &mut [u32]) -> Result<()> {
        let Inner { path, file, header, documents } = &*self.inner;
        check_range(start, tokens.len(), header.num_tokens)?;
        let mut bytes = vec![0; tokens.len() * header.width];
        file.read_exact_at(&mut bytes, header.tokens_offset + start * header.width as u64)
            .map_err(|source| Error::io(path, "cannot read tokens", source))?;
        documents.decode(&bytes, tokens);
        match tokens.iter().position(|&token| token as usize >= header.vocab_size) {
            None => Ok(()),
            Some(index) => Err(Error::file(
                path,
                format!(
                    "token {} is {}, outside its vocabulary of {}: the file is damaged; create it again",
                    start + index as u64,
                    tokens[index],
                    header.vocab_size
                ),
            )),
        }
    }

    fn origin(&self, document: usize) -> String {
        format!("{}, document {document}", self.inner.path.display())
    }

    fn fingerprint(&self, fingerprint: &mut Fingerprint) -> Result<()> {
        // The checksums identify the content. The modification time would differ for a copy.
        fingerprint.add("token file", &self.inner.header.text);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn after_a_failed_write_the_file_does_not_get_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.tokens");
        let mut writer = TokenFileWriter::create(&path, 100).unwrap();
        writer.push([1, 2]).unwrap();
        // Writing to a file that is open for reading fails, as on a full disk.
        let readable = tempfile::NamedTempFile::new().unwrap();
        let file = temporary_file(&path).unwrap().with_file(File::open(readable.path()).unwrap());
        writer.file = BufWriter::with_capacity(16, file);
        assert!(writer.push([3; 100]).unwrap_err().to_string().contains("cannot write the tokens"));
        assert!(writer.push([4]).unwrap_err().to_string().contains("an earlier write failed"));
        assert!(writer.finish().unwrap_err().to_string().contains("an earlier write failed"));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
