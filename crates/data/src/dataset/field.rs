//! One named part of a sample: its dtype and shape, without the batch axis.
//!
//! Not here: where a field lies in a batch; that is `layout`.

use std::fmt;

use fulmen_tensor::DType;

use crate::{Error, Result};

/// The name, dtype and shape of one part of a sample, without the batch axis.
///
/// ```
/// use fulmen_data::{DType, Field};
///
/// let image = Field::new("image", DType::U8, [1, 28, 28]);
/// assert_eq!(image.to_string(), "image u8[1, 28, 28]");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Field {
    /// What the field is called.
    pub name: String,
    /// The type of its elements.
    pub dtype: DType,
    /// Its shape in one sample; empty for a single value.
    pub shape: Vec<usize>,
}

impl Field {
    /// A field of a sample.
    pub fn new(name: impl Into<String>, dtype: DType, shape: impl Into<Vec<usize>>) -> Field {
        Field { name: name.into(), dtype, shape: shape.into() }
    }

    /// Elements in one sample. An error if that number does not fit in memory.
    pub fn elements(&self) -> Result<usize> {
        self.product(1)
    }

    /// Bytes of one sample. An error if that number does not fit in memory.
    pub fn sample_bytes(&self) -> Result<usize> {
        self.product(self.dtype.size_in_bytes())
    }

    fn product(&self, unit: usize) -> Result<usize> {
        // Beyond isize::MAX nothing can be allocated or sliced.
        let product = self.shape.iter().try_fold(unit, |size, &axis| size.checked_mul(axis));
        product.filter(|&size| size <= isize::MAX as usize).ok_or_else(|| {
            Error::field(format!("field {self}: one sample has more bytes than this machine can address"))
        })
    }
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}{:?}", self.name, self.dtype, self.shape)
    }
}
