//! [Safetensors](https://github.com/huggingface/safetensors) files: named values in a format that
//! Python libraries use.
//!
//! Out of scope: loading values into a model; see [`weights`](crate::weights).

mod checksums;
mod read;
mod write;

pub use checksums::CHECKSUMS;
pub(crate) use read::Reader;
pub use read::{read, read_metadata};
pub use write::write;
pub(crate) use write::write_each;

use fulmen_tensor::{DType, TensorType};

/// The format's name of each dtype. It has no name for `c128`.
const NAMES: [(DType, &str, ::safetensors::Dtype); 14] = [
    (DType::F32, "F32", ::safetensors::Dtype::F32),
    (DType::Bf16, "BF16", ::safetensors::Dtype::BF16),
    (DType::F16, "F16", ::safetensors::Dtype::F16),
    (DType::F64, "F64", ::safetensors::Dtype::F64),
    (DType::I8, "I8", ::safetensors::Dtype::I8),
    (DType::I16, "I16", ::safetensors::Dtype::I16),
    (DType::I32, "I32", ::safetensors::Dtype::I32),
    (DType::I64, "I64", ::safetensors::Dtype::I64),
    (DType::U8, "U8", ::safetensors::Dtype::U8),
    (DType::U16, "U16", ::safetensors::Dtype::U16),
    (DType::U32, "U32", ::safetensors::Dtype::U32),
    (DType::U64, "U64", ::safetensors::Dtype::U64),
    (DType::Bool, "BOOL", ::safetensors::Dtype::BOOL),
    (DType::C64, "C64", ::safetensors::Dtype::C64),
];

/// The format's name of a dtype; `None` if it does not support the dtype.
pub fn to_format(dtype: DType) -> Option<::safetensors::Dtype> {
    NAMES.iter().find(|row| row.0 == dtype).map(|row| row.2)
}

/// The type of a tensor of a checkpoint.
///
/// # Errors
/// No tensor type has such elements. The error is the rest of a message.
pub fn type_of(entry: &fulmen_checkpoint::TensorEntry) -> Result<TensorType, String> {
    let dtype = from_format(entry.dtype)
        .ok_or_else(|| format!("has elements of the unsupported type {}", entry.dtype))?;
    Ok(TensorType::new(dtype, entry.shape.iter().map(|&size| size as usize).collect::<Vec<_>>()))
}

/// The dtype with this name in the format; `None` if it is not supported here.
fn from_format(dtype: ::safetensors::Dtype) -> Option<DType> {
    NAMES.iter().find(|row| row.2 == dtype).map(|row| row.0)
}
