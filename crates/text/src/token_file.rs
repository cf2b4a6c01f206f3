//! A file of the tokens of documents: written once, then read anywhere by any thread.
//!
//! Not here: its layout (`token_format`), how documents become tokens, and blocks of tokens.

use std::fs::File;
use std::io::{self, BufWriter, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use flate2::Crc;
use fulmen_durable::NewFile;

use super::TokenStore;
use super::ahead::Ahead;
use super::document_reader::in_order;
use super::token_array::{check_range, check_tokens, width};
use super::token_format::{HEAD, Head, number};
use fulmen_data::{Error, Fingerprint, Result, Source, Stream, StreamItem};
use fulmen_files::{keep, temporary_file};

/// Writes a [`TokenFile`].
///
/// The file appears under its name when it is [finished](TokenFileWriter::finish) and on the disk; until then it has a
/// temporary name beside it, and is removed if it is dropped. A document without tokens is left out.
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
    crc: Crc,
    width: usize,
    tokens: u64,
    ends: Vec<u64>,
    vocab_size: usize,
    separator: Option<u32>,
    bytes: Vec<u8>,
    /// A write failed, so that tokens are missing.
    failed: bool,
}

impl TokenFileWriter {
    /// Begins a file of tokens below `vocab_size`. Folders that are missing are made. A file of this name stays what it is
    /// until the new one is finished.
    ///
    /// # Errors
    /// A folder that cannot be made or written to; a vocabulary of none.
    pub fn create(path: impl AsRef<Path>, vocab_size: usize) -> Result<TokenFileWriter> {
        let path = path.as_ref().to_owned();
        let width = width(vocab_size)?;
        let mut file = temporary_file(&path)?;
        let begun = file.write_all(&[0; HEAD as usize]);
        begun.map_err(|source| Error::io(&path, "cannot begin the token file", source))?;
        Ok(TokenFileWriter {
            path,
            file: BufWriter::with_capacity(1 << 20, file),
            crc: Crc::new(),
            width,
            tokens: 0,
            ends: Vec::new(),
            vocab_size,
            separator: None,
            bytes: Vec::new(),
            failed: false,
        })
    }

    /// A token that is put after each document, such as `<|endoftext|>`. It counts as the document's last.
    pub fn separator(mut self, separator: u32) -> TokenFileWriter {
        self.separator = Some(separator);
        self
    }

    /// Adds a document.
    ///
    /// # Errors
    /// A token outside the vocabulary, and a disk that takes no more; after that nothing more can be added, and the file
    /// never gets its name.
    pub fn push(&mut self, document: impl AsRef<[u32]>) -> Result<()> {
        let document = document.as_ref();
        check_tokens(document, self.separator, self.vocab_size)?;
        if document.is_empty() {
            return Ok(());
        }
        self.bytes.clear();
        for token in document.iter().copied().chain(self.separator) {
            self.bytes.extend_from_slice(&token.to_le_bytes()[..self.width]);
            self.tokens += 1;
        }
        self.ends.push(self.tokens);
        self.write()
    }

    /// Adds the documents of a source, which `threads` threads read and tokenize. The order is the source's.
    /// `progress` is told after each document how many have been added.
    ///
    /// # Errors
    /// The first document that cannot be read or written.
    pub fn extend<S>(&mut self, documents: &S, threads: usize, mut progress: impl FnMut(usize)) -> Result<()>
    where
        S: Source<Item: AsRef<[u32]>>,
    {
        in_order(
            documents,
            threads,
            |document| document,
            |index, document| {
                self.push(document).map_err(|error| error.at_sample(index as u64, Some(documents.origin(index))))?;
                progress(index + 1);
                Ok(())
            },
        )
    }

    /// Adds the documents of a stream's first epoch. They are read in order by this thread, and tokenized by `threads`
    /// others. `progress` is told after each document how many have been added.
    ///
    /// # Errors
    /// The first document that cannot be read or written.
    pub fn extend_from_stream<S>(
        &mut self,
        documents: &S,
        threads: usize,
        mut progress: impl FnMut(usize),
    ) -> Result<()>
    where
        S: Stream<Item: AsRef<[u32]>>,
    {
        for (count, document) in Ahead::new(documents.deferred(0)?, threads)?.enumerate() {
            let StreamItem { index, origin, item } = document?;
            self.push(item).map_err(|error| error.at_sample(index, Some(origin)))?;
            progress(count + 1);
        }
        Ok(())
    }

    fn write(&mut self) -> Result<()> {
        if self.failed {
            return Err(Error::file(&self.path, "writing failed before; begin again with a new writer"));
        }
        self.crc.update(&self.bytes);
        let written = self.file.write_all(&self.bytes);
        self.failed = written.is_err();
        written.map_err(|source| Error::io(&self.path, "cannot write the tokens", source))
    }

    /// Writes what is left, brings the file to the disk and gives it its name.
    ///
    /// # Errors
    /// A disk that takes no more; then there is no new file, and an old one is still there.
    pub fn finish(mut self) -> Result<TokenFile> {
        for chunk in std::mem::take(&mut self.ends).chunks(1 << 16) {
            self.bytes.clear();
            self.bytes.extend(chunk.iter().flat_map(|end| end.to_le_bytes()));
            self.write()?;
            self.ends.extend_from_slice(chunk);
        }
        let head = Head {
            width: self.width as u32,
            tokens: self.tokens,
            documents: self.ends.len() as u64,
            vocab_size: self.vocab_size as u64,
            crc: self.crc.sum(),
        };
        let path = self.path;
        let finish = |file: BufWriter<NewFile>| -> io::Result<NewFile> {
            let mut file = file.into_inner().map_err(io::IntoInnerError::into_error)?;
            file.seek(SeekFrom::Start(0))?;
            file.write_all(&head.to_bytes())?;
            Ok(file)
        };
        let file = finish(self.file).map_err(|source| Error::io(&path, "cannot finish the token file", source))?;
        keep(file, &path)?;
        TokenFile::open(path)
    }
}

/// A file of the tokens of documents, as [`TokenFileWriter`] writes it.
///
/// The ends of the documents are held in memory, 8 bytes each; the tokens are read where they are needed.
#[derive(Clone, Debug)]
pub struct TokenFile {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    path: PathBuf,
    file: File,
    head: Head,
    ends: Vec<u64>,
}

impl TokenFile {
    /// Opens a file. Its size and the ends of its documents are checked; its tokens by
    /// [`verify`](TokenFile::verify) alone.
    ///
    /// # Errors
    /// A file that is not there, is no token file, of another version, cut off, or damaged.
    pub fn open(path: impl AsRef<Path>) -> Result<TokenFile> {
        let path = path.as_ref().to_owned();
        let io = |source| Error::io(&path, "cannot read the token file", source);
        // Looked at before it is opened: to open a pipe would wait for a writer.
        let metadata = std::fs::metadata(&path).map_err(io)?;
        if !metadata.is_file() {
            return Err(Error::file(&path, "this is no regular file; expected a token file of fulmen"));
        }
        let mut file = File::open(&path).map_err(io)?;
        let size = metadata.len();
        let head = Head::read(&mut file, size, &path)?;
        // Of a size that the file is known to have.
        let mut bytes = vec![0; head.documents as usize * 8];
        file.seek(SeekFrom::Start(size - bytes.len() as u64)).and_then(|_| file.read_exact(&mut bytes)).map_err(io)?;
        let ends = head.ends(&bytes, &path)?;
        Ok(TokenFile { inner: Arc::new(Inner { path, file, head, ends }) })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.inner.path
    }

    /// The size of the vocabulary that the tokens are of.
    pub fn vocab_size(&self) -> usize {
        self.inner.head.vocab_size as usize
    }

    /// Reads the whole file and compares its checksum.
    ///
    /// # Errors
    /// A file that cannot be read, or has changed since it was written.
    pub fn verify(&self) -> Result<()> {
        let Inner { path, head, .. } = &*self.inner;
        let io = |source| Error::io(path, "cannot read the token file", source);
        // Not through the shared file, whose place others may use where reading moves it.
        let mut file = File::open(path).map_err(io)?;
        file.seek(SeekFrom::Start(HEAD)).map_err(io)?;
        let (mut crc, mut bytes) = (Crc::new(), vec![0; 1 << 20]);
        loop {
            match file.read(&mut bytes).map_err(io)? {
                0 => break,
                count => crc.update(&bytes[..count]),
            }
        }
        head.check(&crc, path)
    }
}

impl TokenStore for TokenFile {
    fn num_tokens(&self) -> u64 {
        self.inner.head.tokens
    }

    fn document_ends(&self) -> &[u64] {
        &self.inner.ends
    }

    fn read(&self, start: u64, tokens: &mut [u32]) -> Result<()> {
        let Inner { path, file, head, .. } = &*self.inner;
        check_range(start, tokens.len(), head.tokens)?;
        let width = head.width as usize;
        let mut bytes = vec![0; tokens.len() * width];
        file.read_exact_at(&mut bytes, HEAD + start * width as u64)
            .map_err(|source| Error::io(path, "cannot read tokens", source))?;
        for (place, token) in tokens.iter_mut().zip(bytes.chunks_exact(width)) {
            *place = number(token) as u32;
        }
        match tokens.iter().position(|&token| u64::from(token) >= head.vocab_size) {
            None => Ok(()),
            Some(place) => Err(Error::file(
                path,
                format!(
                    "token {} is {}, outside its vocabulary of {}: the file is damaged; make it anew",
                    start + place as u64,
                    tokens[place],
                    head.vocab_size
                ),
            )),
        }
    }

    fn origin(&self, document: usize) -> String {
        format!("{}, document {document}", self.inner.path.display())
    }

    fn fingerprint(&self, fingerprint: &mut Fingerprint) -> Result<()> {
        // The checksum tells the content; the file's time would change with a copy.
        fingerprint.add("token file", self.inner.head.to_bytes());
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
        // A file that is open for reading alone takes nothing, as a disk without room does.
        let readable = tempfile::NamedTempFile::new().unwrap();
        let file = temporary_file(&path).unwrap().with_file(File::open(readable.path()).unwrap());
        writer.file = BufWriter::with_capacity(16, file);
        assert!(writer.push([3; 100]).unwrap_err().to_string().contains("cannot write the tokens"));
        assert!(writer.push([4]).unwrap_err().to_string().contains("writing failed before"));
        assert!(writer.finish().unwrap_err().to_string().contains("writing failed before"));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
