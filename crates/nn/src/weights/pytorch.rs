//! PyTorch's own files (`.pt`, `.pth`, `.bin`, `.ckpt`), which are pickles. The pickle is parsed as
//! data; nothing in it is executed.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

use fulmen_tensor::{DType, Literal, TensorType};
use pytorch_reader::{PytorchError, PytorchReader};

use super::file::Value;
use crate::{Error, Result};

/// What an error calls the format.
const FORMAT: &str = "PyTorch file";

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
            .map_err(|e| Error::format(&self.path, FORMAT, format!("`{}`: {e}", self.tensor.name)))
    }
}

/// The tensors of a file, by their dotted names.
pub(super) fn read(path: &Path) -> Result<BTreeMap<String, Value>> {
    let reader = PytorchReader::new(path).map_err(|error| match error {
        PytorchError::Io(error) => failed(path, error),
        other => Error::format(path, FORMAT, other.to_string()),
    })?;
    let tensors = reader.into_tensors().into_iter();
    Ok(tensors
        .map(|(name, tensor)| {
            let ty = TensorType::new(dtype(tensor.dtype()), tensor.shape());
            (name, Value::Stored(StoredTensor { path: path.into(), ty, tensor }))
        })
        .collect())
}

/// Reports damage as such; other errors come from the file system.
fn failed(path: &Path, error: io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof => {
            Error::format(path, FORMAT, error.to_string())
        }
        _ => Error::io("read", path, error),
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
