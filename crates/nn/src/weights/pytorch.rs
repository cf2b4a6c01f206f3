//! PyTorch's own files (`.pt`, `.pth`, `.bin`, `.ckpt`), which are pickles. The pickle is parsed as
//! data; nothing in it is executed.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader, Read as _, Seek as _};
use std::path::{Path, PathBuf};

use fulmen_tensor::{DType, Literal, TensorType};
use pytorch_reader::{PytorchError, PytorchReader};

use zip::ZipArchive;
use zip::result::ZipError;

use super::file::Value;
use crate::{Error, Result, error};

/// What an error calls the format.
const FORMAT: &str = "PyTorch file";

/// How much of a pickle is searched for tensors with a negative bit.
const MAX_PICKLE_BYTES: u64 = 64 << 20;

/// A tensor that is read from its file on request. A PyTorch Lightning checkpoint also has the
/// optimizer's state, twice the size of the weights.
#[derive(Clone, Debug)]
pub(super) struct StoredTensor {
    path: PathBuf,
    ty: TensorType,
    tensor: pytorch_reader::Tensor,
}

impl StoredTensor {
    pub(super) fn ty(&self) -> &TensorType {
        &self.ty
    }

    pub(super) fn read(&self) -> Result<Literal> {
        let bytes = self.tensor.read().map_err(|e| failed(&self.path, e))?;
        Literal::from_bytes(self.ty.clone(), &bytes)
            .map_err(|e| error::format(&self.path, FORMAT, format!("`{}`: {e}", self.tensor.name)))
    }
}

/// The tensors of a file, by their dotted names.
pub(super) fn read(path: &Path) -> Result<BTreeMap<String, Value>> {
    let reader = PytorchReader::new(path).map_err(|error| match error {
        PytorchError::Io(error) => failed(path, error),
        other => error::format(path, FORMAT, other.to_string()),
    })?;
    if has_negated_tensors(&read_pickle(path)?) {
        let message = "it has a tensor with PyTorch's negative or conjugate bit, whose stored values have another \
                       sign, such as `z.conj().imag`; save `tensor.resolve_neg().resolve_conj()` instead";
        return Err(error::format(path, FORMAT, message));
    }
    let tensors = reader.into_tensors().into_iter();
    Ok(tensors
        .map(|(name, tensor)| {
            let ty = TensorType::new(dtype(tensor.dtype()), tensor.shape());
            (name, Value::Stored(StoredTensor { path: path.into(), ty, tensor }))
        })
        .collect())
}

/// The pickle that describes the tensors, or its start: an entry of a zip file, or in older files
/// the start of the file.
fn read_pickle(path: &Path) -> Result<Vec<u8>> {
    let mut pickle = Vec::new();
    let mut file = BufReader::new(File::open(path).map_err(|e| failed(path, e))?);
    if let Ok(mut archive) = ZipArchive::new(&mut file) {
        let entry = archive.file_names_raw().position(|name| name.ends_with(b"data.pkl"));
        if let Some(entry) = entry {
            let entry = archive.by_index(entry).map_err(|e| failed(path, zip_error(e)))?;
            let mut start = entry.take(MAX_PICKLE_BYTES);
            start.read_to_end(&mut pickle).map_err(|e| failed(path, e))?;
        }
        return Ok(pickle);
    }
    file.rewind().map_err(|e| failed(path, e))?;
    file.take(MAX_PICKLE_BYTES).read_to_end(&mut pickle).map_err(|e| failed(path, e))?;
    Ok(pickle)
}

fn zip_error(error: ZipError) -> io::Error {
    match error {
        ZipError::Io(error) => error,
        other => io::Error::new(io::ErrorKind::InvalidData, other.to_string()),
    }
}

/// Whether a tensor has one of PyTorch's bits that change the meaning of stored values. Their names
/// are keys of a table, the last argument of the call that makes the tensor.
fn has_negated_tensors(pickle: &[u8]) -> bool {
    const NEW_TRUE: u8 = 0x88;
    let ends_a_call = |after_key: &[u8]| {
        let value = after_memo(after_key);
        let [NEW_TRUE, b's' | b'u', b't', rest @ ..] = value else { return false };
        after_memo(rest).first() == Some(&b'R')
    };
    [&b"neg"[..], b"conj"].into_iter().any(|key| {
        let mut rest = pickle;
        while let Some(position) = rest.windows(key.len()).position(|bytes| bytes == key) {
            rest = &rest[position + key.len()..];
            if ends_a_call(rest) {
                return true;
            }
        }
        false
    })
}

/// What follows after an instruction that remembers a value, if there is one.
fn after_memo(pickle: &[u8]) -> &[u8] {
    match pickle {
        [b'q', _, rest @ ..] | [b'r', _, _, _, _, rest @ ..] | [0x94, rest @ ..] => rest,
        _ => pickle,
    }
}

/// Reports damage as such; other errors come from the file system.
fn failed(path: &Path, error: io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof => {
            error::format(path, FORMAT, error.to_string())
        }
        _ => error::io("read", path, error),
    }
}

fn dtype(dtype: pytorch_reader::DType) -> DType {
    use pytorch_reader::DType as Theirs;
    match dtype {
        Theirs::F64 => DType::F64,
        Theirs::F32 => DType::F32,
        Theirs::F16 => DType::F16,
        Theirs::BF16 => DType::Bf16,
        Theirs::I64 => DType::I64,
        Theirs::I32 => DType::I32,
        Theirs::I16 => DType::I16,
        Theirs::I8 => DType::I8,
        Theirs::U64 => DType::U64,
        Theirs::U32 => DType::U32,
        Theirs::U16 => DType::U16,
        Theirs::U8 => DType::U8,
        Theirs::Bool => DType::Bool,
    }
}
