//! A batch in host memory.
//!
//! Out of scope: which samples are in a batch (`batch_sampler`), how they are read (`collate`), and
//! the transfer to a device (`device`).

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use bytemuck::CheckedBitPattern;
use fulmen_pjrt::HostBuffer;
use fulmen_tensor::Element;

use crate::loader::layout::Layout;
use crate::{Error, Field, Result};

/// Samples in one allocation, and a mask that distinguishes samples from padding.
///
/// Every field starts at a multiple of 64 bytes, so that a CPU device can use it in place. All
/// batches have the same number of rows. In a short last batch, the rows from
/// [`valid`](HostBatch::valid) on are padding: copies of the batch's first sample, whose mask is 0.
/// If several processes share a batch ([`distributed`](crate::DataLoader::distributed)), this is
/// the part of one process.
///
/// ```
/// use fulmen_data::{DataLoader, TensorDataset};
///
/// let data = TensorDataset::builder().array("x", [3], [7i32, 8, 9]).build()?;
/// let loader = DataLoader::builder(data).batch_size(2).build()?;
/// let batches = loader.epoch(0).collect::<Result<Vec<_>, _>>()?;
/// assert_eq!(batches[1].values::<i32>(0)?, [9, 9]);
/// assert_eq!(batches[1].mask(), [1.0, 0.0]);
/// assert_eq!(batches[1].valid(), 1);
/// # Ok::<(), fulmen_data::Error>(())
/// ```
#[derive(Clone)]
pub struct HostBatch {
    pub(crate) bytes: Arc<HostBuffer>,
    pub(crate) layout: Arc<Layout>,
    /// The position of these rows in the global batch.
    pub(crate) rows: Range<usize>,
    pub(crate) global_batch_size: usize,
    pub(crate) valid: usize,
    pub(crate) epoch: u64,
    pub(crate) index: usize,
    pub(crate) bucket: usize,
}

impl HostBatch {
    /// The number of rows of every field, including padding.
    pub fn batch_size(&self) -> usize {
        self.layout.batch_size()
    }

    /// The number of rows in the batch that all processes share; equal to
    /// [`batch_size`](HostBatch::batch_size) if there is one process.
    pub fn global_batch_size(&self) -> usize {
        self.global_batch_size
    }

    /// The range of these rows in the global batch.
    pub fn rows(&self) -> Range<usize> {
        self.rows.clone()
    }

    /// How many of these rows are samples; they come first. If several processes share a batch, a
    /// process may have none.
    pub fn valid(&self) -> usize {
        self.valid
    }

    /// The epoch of the batch.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The number of the batch in its epoch, from 0.
    pub fn index(&self) -> usize {
        self.index
    }

    /// The index of the batch's shape in the loader's [`shapes`](crate::DataLoader::shapes); 0 if
    /// there is only one.
    pub fn bucket(&self) -> usize {
        self.bucket
    }

    /// The fields, without the batch axis and without the mask.
    pub fn fields(&self) -> &[Field] {
        self.layout.fields()
    }

    /// The index of the field with this name.
    pub fn field_index(&self, name: &str) -> Option<usize> {
        self.fields().iter().position(|field| field.name == name)
    }

    /// The bytes of all rows of a field.
    pub fn field_bytes(&self, field: usize) -> Result<&[u8]> {
        self.layout.field(field)?;
        Ok(&self.bytes[self.layout.rows(field)])
    }

    /// The elements of all rows of a field. `T` must be the field's dtype.
    pub fn values<T: Element + CheckedBitPattern>(&self, field: usize) -> Result<&[T]> {
        let declared = self.layout.field(field)?;
        if declared.dtype != T::DTYPE {
            return Err(Error::field(format!("field `{declared}` was read as {}", T::DTYPE)));
        }
        bytemuck::checked::try_cast_slice(self.field_bytes(field)?).map_err(|_| {
            Error::field(format!("field `{declared}` holds bytes that are not {}", T::DTYPE))
        })
    }

    /// One number per row: 1 for a sample, 0 for padding.
    pub fn mask(&self) -> &[f32] {
        bytemuck::cast_slice(&self.bytes[self.layout.mask()])
    }

    /// The whole allocation. Each field starts at a multiple of 64 bytes.
    pub(crate) fn memory(&self) -> &Arc<HostBuffer> {
        &self.bytes
    }

    pub(crate) fn layout(&self) -> &Layout {
        &self.layout
    }
}

impl fmt::Debug for HostBatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let fields: Vec<String> = self.fields().iter().map(Field::to_string).collect();
        f.debug_struct("HostBatch")
            .field("epoch", &self.epoch)
            .field("index", &self.index)
            .field("batch_size", &self.batch_size())
            .field("valid", &self.valid)
            .field("fields", &fields)
            .finish()
    }
}
