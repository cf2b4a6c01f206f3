//! The IDX file format of MNIST and similar datasets, plain or gzip-compressed.
//!
//! Out of scope: the meaning of the arrays; `classification` pairs images with labels.

use std::io::{self, Read, Seek};
use std::path::{Path, PathBuf};

use flate2::read::MultiGzDecoder;
use fulmen_files::fill;
use fulmen_tensor::DType;

use crate::{Error, Result};

/// The default limit of the uncompressed size: a `.gz` can expand to a thousand times its size.
const DEFAULT_LIMIT: u64 = 16 << 30;

/// Deflate compresses 1032 bytes to one at best.
const MAX_INFLATION: u64 = 1032;

/// An array read from an IDX file.
///
/// Compression is detected from the content, not from the name. The size in the header is checked
/// against the file before memory is allocated for it; too little data, too much, or a broken `.gz`
/// is an error that says what was expected and what was found.
///
/// ```
/// use fulmen_data::{DType, IdxFile};
///
/// let path = std::env::temp_dir().join(format!("fulmen-doc-{}.idx", std::process::id()));
/// std::fs::write(&path, [0, 0, 8, 1, 0, 0, 0, 3, 7, 8, 9])?;
/// let labels = IdxFile::open(&path)?;
/// std::fs::remove_file(&path)?;
/// assert_eq!((labels.dtype(), labels.dims(), labels.bytes()), (DType::U8, &[3][..], &[7, 8, 9][..]));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct IdxFile {
    path: PathBuf,
    dtype: DType,
    dims: Vec<usize>,
    bytes: Vec<u8>,
}

impl IdxFile {
    /// Reads a file of up to 16 GiB of data.
    pub fn open(path: impl AsRef<Path>) -> Result<IdxFile> {
        IdxFile::open_with_limit(path, DEFAULT_LIMIT)
    }

    /// Reads a file of up to `limit` bytes of uncompressed data.
    pub fn open_with_limit(path: impl AsRef<Path>, limit: u64) -> Result<IdxFile> {
        let path = path.as_ref();
        let open = |source| Error::io(path, "cannot open the file", source);
        let mut file = fulmen_durable::open_regular(path).map_err(open)?;
        let metadata = file.metadata().map_err(open)?;
        let mut start = [0; 2];
        let count = fill(&mut file, &mut start)
            .map_err(|source| Error::io(path, "cannot read the file", source))?;
        file.rewind().map_err(|source| Error::io(path, "cannot read the file", source))?;
        let size = metadata.len();
        if count == 2 && start == [0x1f, 0x8b] {
            let reader = MultiGzDecoder::new(io::BufReader::with_capacity(1 << 16, file));
            Reader { path, limit, size, reader, compressed: true }.read()
        } else {
            Reader { path, limit, size, reader: file, compressed: false }.read()
        }
    }

    /// Reads the content of a file.
    #[cfg(feature = "fuzzing")]
    pub(crate) fn parse(bytes: &[u8], limit: u64) -> Result<IdxFile> {
        let path = Path::new("bytes");
        let size = bytes.len() as u64;
        if bytes.starts_with(&[0x1f, 0x8b]) {
            Reader { path, limit, size, reader: MultiGzDecoder::new(bytes), compressed: true }
                .read()
        } else {
            Reader { path, limit, size, reader: bytes, compressed: false }.read()
        }
    }

    /// The file of the array.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The type of the elements.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// The shape.
    pub fn dims(&self) -> &[usize] {
        &self.dims
    }

    /// The elements in row-major order and native byte order.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// A file that is being read.
struct Reader<'a, R> {
    path: &'a Path,
    limit: u64,
    /// The size of the file on disk.
    size: u64,
    reader: R,
    compressed: bool,
}

impl<R: Read> Reader<'_, R> {
    fn read(mut self) -> Result<IdxFile> {
        let (dtype, axes) = self.read_magic()?;
        let dims = self.read_dims(axes)?;
        let size =
            dims.iter().try_fold(dtype.size_in_bytes(), |size, &axis| size.checked_mul(axis));
        let Some(expected) = size.filter(|&size| size <= isize::MAX as usize - 4096) else {
            return Err(self.error(format!(
                "the header claims the shape {dims:?} of {dtype}, which is more than this machine can address; the \
                 file is damaged"
            )));
        };
        self.check_size(&dims, dtype, expected as u64, 4 + 4 * axes as u64)?;
        let mut bytes = self.read_data(&dims, dtype, expected)?;
        if cfg!(target_endian = "little") && dtype.size_in_bytes() > 1 {
            bytes.chunks_exact_mut(dtype.size_in_bytes()).for_each(<[u8]>::reverse);
        }
        Ok(IdxFile { path: self.path.to_owned(), dtype, dims, bytes })
    }

    fn read_magic(&mut self) -> Result<(DType, usize)> {
        let mut magic = [0; 4];
        self.read_header(&mut magic, "4 bytes of magic number")?;
        let [0, 0, code, axes] = magic else {
            let hint = if magic[0] == b'<' {
                " (it looks like a web page: did the download fail?)"
            } else {
                ""
            };
            return Err(self.error(format!(
                "not an IDX file: it starts with the bytes {magic:02x?}, expected [00, 00, element type, number of \
                 axes]{hint}"
            )));
        };
        let dtype = match code {
            0x08 => DType::U8,
            0x09 => DType::I8,
            0x0b => DType::I16,
            0x0c => DType::I32,
            0x0d => DType::F32,
            0x0e => DType::F64,
            _ => {
                return Err(self.error(format!(
                    "not an IDX file: the magic number {magic:02x?} has the element type {code:#04x}, expected one \
                     of 0x08 (u8), 0x09 (i8), 0x0b (i16), 0x0c (i32), 0x0d (f32), 0x0e (f64)"
                )));
            }
        };
        Ok((dtype, usize::from(axes)))
    }

    fn read_dims(&mut self, axes: usize) -> Result<Vec<usize>> {
        let mut header = vec![0; 4 * axes];
        self.read_header(&mut header, &format!("the sizes of {axes} axes"))?;
        let sizes = header
            .chunks_exact(4)
            .map(|size| u32::from_be_bytes([size[0], size[1], size[2], size[3]]) as usize);
        Ok(sizes.collect())
    }

    fn read_header(&mut self, into: &mut [u8], expected: &str) -> Result<()> {
        let count = fill(&mut self.reader, into)
            .map_err(|source| self.read_error(0, into.len(), source))?;
        if count == into.len() {
            Ok(())
        } else {
            Err(self.error(format!(
                "the file ends in its header: expected {expected}, found {count} bytes"
            )))
        }
    }

    /// Checks the size in the header against what the file can hold, before memory is allocated.
    fn check_size(&self, dims: &[usize], dtype: DType, expected: u64, header: u64) -> Result<()> {
        if expected > self.limit {
            return Err(self.error(format!(
                "the header claims {expected} bytes of data ({dtype}{dims:?}), over the limit of {}; if that is right, \
                 raise the limit with IdxFile::open_with_limit",
                self.limit
            )));
        }
        let actual = if self.compressed {
            self.size.saturating_mul(MAX_INFLATION)
        } else {
            self.size.saturating_sub(header)
        };
        if self.compressed && expected > actual {
            return Err(self.error(format!(
                "the header claims {expected} bytes of data ({dtype}{dims:?}), but {} compressed bytes can hold no \
                 more than {actual}; the file is damaged or truncated",
                self.size
            )));
        }
        if !self.compressed && expected != actual {
            return Err(self.size_error(dims, dtype, expected, &actual.to_string()));
        }
        Ok(())
    }

    fn read_data(&mut self, dims: &[usize], dtype: DType, expected: usize) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        // A compressed file may still lie about its size: its memory grows only with the data.
        if !self.compressed {
            bytes.try_reserve_exact(expected + 1).map_err(|_| {
                self.error(format!(
                    "not enough memory for its {expected} bytes of data ({dtype}{dims:?})"
                ))
            })?;
        }
        // Reading one byte more than expected detects surplus data. It also makes the decoder
        // verify the checksum at the end.
        let result = self.reader.by_ref().take(expected as u64 + 1).read_to_end(&mut bytes);
        result.map_err(|source| self.read_error(bytes.len(), expected, source))?;
        if bytes.len() > expected {
            return Err(self.size_error(dims, dtype, expected as u64, "more than that"));
        }
        if bytes.len() < expected {
            return Err(self.size_error(dims, dtype, expected as u64, &bytes.len().to_string()));
        }
        Ok(bytes)
    }

    fn size_error(&self, dims: &[usize], dtype: DType, expected: u64, actual: &str) -> Error {
        self.error(format!(
            "the header promises {expected} bytes of data ({dtype}{dims:?}), found {actual}; copy or download the file \
             again"
        ))
    }

    /// The error for a read that failed after `count` of `expected` bytes.
    fn read_error(&self, count: usize, expected: usize, source: io::Error) -> Error {
        match source.kind() {
            io::ErrorKind::UnexpectedEof if self.compressed => self.error(format!(
                "the gzip file is truncated: its {} compressed bytes end after {count} of {expected} bytes of data; \
                 copy or download the file again",
                self.size
            )),
            io::ErrorKind::InvalidInput | io::ErrorKind::InvalidData if self.compressed => self.error(format!(
                "the gzip file is damaged after {count} of {expected} bytes of data ({source}); copy or download the \
                 file again"
            )),
            _ => Error::io(self.path, &format!("reading failed after {count} of {expected} bytes"), source),
        }
    }

    fn error(&self, message: String) -> Error {
        Error::file(self.path, message)
    }
}
