//! [`StoredValue`]: a value that stays outside of memory until a device needs it, such as a tensor of
//! a file.
//!
//! Out of scope: files and their formats; the copy to the devices, see `transfer.rs`.

use std::borrow::Cow;
use std::sync::Arc;

use sha2::{Digest, Sha256};

use crate::literal::convert_floats;
use crate::sharding::Block;
use crate::{DType, Literal, Result, TensorType};

/// A value outside of memory, such as a tensor of a file. [`Tensor::from_stored`] makes it a tensor.
/// Each process reads only the blocks that its devices hold, when they need them.
///
/// [`Tensor::from_stored`]: crate::Tensor::from_stored
pub trait StoredValue: Send + Sync {
    /// Reads the elements of a block, little-endian and in row-major order. The block is within the
    /// value.
    ///
    /// # Errors
    /// The value can no longer be read, or has changed. The message names where it is.
    fn read(&self, block: &Block) -> Result<Vec<u8>>;

    /// A text that differs between different values. Processes compare it instead of the elements.
    ///
    /// # Errors
    /// Those of [`StoredValue::read`].
    fn fingerprint(&self) -> Result<String>;
}

/// The elements of a value on the host.
#[derive(Clone)]
pub(crate) enum HostElements {
    InMemory(Arc<[u8]>),
    Stored(Arc<dyn StoredValue>),
}

impl HostElements {
    /// The elements of a block of the value, which has the type `ty`.
    pub(crate) fn block(&self, ty: &TensorType, block: &Block) -> Result<Cow<'_, [u8]>> {
        match self {
            HostElements::InMemory(elements) => block.elements_of(ty, elements),
            HostElements::Stored(value) => {
                block.check_within(&ty.shape)?;
                value.read(block).map(Cow::Owned)
            }
        }
    }

    /// The whole value.
    pub(crate) fn literal(&self, ty: &TensorType) -> Result<Literal> {
        Literal::from_bytes(ty.clone(), &self.block(ty, &Block::whole(&ty.shape))?)
    }

    /// What processes compare instead of the elements, or the elements themselves.
    pub(crate) fn identity(&self) -> Result<Cow<'_, [u8]>> {
        Ok(match self {
            HostElements::InMemory(elements) => Cow::Borrowed(elements),
            HostElements::Stored(value) => Cow::Owned(value.fingerprint()?.into_bytes()),
        })
    }

    /// Distinguishes values that exist at the same time.
    pub(crate) fn address(&self) -> usize {
        match self {
            HostElements::InMemory(elements) => elements.as_ptr().addr(),
            HostElements::Stored(value) => Arc::as_ptr(value).addr(),
        }
    }

    /// The same numbers in another floating-point dtype, converted block by block when they are
    /// read.
    pub(crate) fn converted(&self, ty: &TensorType, to: DType) -> HostElements {
        let elements = self.clone();
        HostElements::Stored(Arc::new(Converted { elements, ty: ty.clone(), to }))
    }
}

/// A floating-point value of another dtype.
struct Converted {
    elements: HostElements,
    ty: TensorType,
    to: DType,
}

impl StoredValue for Converted {
    fn read(&self, block: &Block) -> Result<Vec<u8>> {
        let elements = self.elements.block(&self.ty, block)?;
        Ok(convert_floats(&elements, self.ty.dtype, self.to))
    }

    fn fingerprint(&self) -> Result<String> {
        let digest = Sha256::digest(self.elements.identity()?);
        Ok(format!("{} {digest:x?} as {}", self.ty, self.to))
    }
}
