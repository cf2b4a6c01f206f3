//! One named part of a sample: its dtype and shape, without the batch axis.
//!
//! Out of scope: the offset of a field in a batch (`layout`).

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
    /// The name of the field.
    pub name: String,
    /// The dtype of its elements.
    pub dtype: DType,
    /// The shape in one sample; empty for a scalar.
    pub shape: Vec<usize>,
}

impl Field {
    /// A field with this name, dtype and shape.
    pub fn new(name: impl Into<String>, dtype: DType, shape: impl Into<Vec<usize>>) -> Field {
        Field { name: name.into(), dtype, shape: shape.into() }
    }

    /// The number of elements in one sample; an error if they do not fit in memory.
    pub fn elements(&self) -> Result<usize> {
        self.product(1)
    }

    /// The number of bytes in one sample; an error if they do not fit in memory.
    pub fn sample_bytes(&self) -> Result<usize> {
        self.product(self.dtype.size_in_bytes())
    }

    fn product(&self, unit: usize) -> Result<usize> {
        // An allocation or slice cannot be larger than isize::MAX.
        let product = self.shape.iter().try_fold(unit, |size, &axis| size.checked_mul(axis));
        product.filter(|&size| size <= isize::MAX as usize).ok_or_else(|| {
            Error::field(format!(
                "field {self}: one sample has more bytes than this machine can address"
            ))
        })
    }
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}{:?}", self.name, self.dtype, self.shape)
    }
}
