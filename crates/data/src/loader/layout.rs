//! The layout of a batch in memory: the rows of each field in sequence, each field at a multiple of
//! 64 bytes, the mask last.
//!
//! Out of scope: the memory itself, and what is written into it.

use std::collections::HashSet;
use std::ops::Range;

use crate::{Error, Field, Result};

/// PJRT's CPU plugins use host memory in place only if it starts at a multiple of this.
pub(crate) const ALIGNMENT: usize = 64;

/// The layout of one batch. Offsets are in bytes.
#[derive(Debug)]
pub struct Layout {
    fields: Vec<Field>,
    offsets: Vec<usize>,
    sample_bytes: Vec<usize>,
    mask_offset: usize,
    size: usize,
    batch_size: usize,
}

#[allow(missing_docs, reason = "hidden: it is shared with the crates that read formats")]
impl Layout {
    pub fn new(fields: Vec<Field>, batch_size: usize) -> Result<Layout> {
        let mut names = HashSet::new();
        if let Some(twice) = fields.iter().find(|field| !names.insert(field.name.as_str())) {
            return Err(Error::field(format!(
                "two fields are named `{}`; each field of a dataset needs a unique name",
                twice.name
            )));
        }
        let too_large = || {
            Error::usage(format!(
                "a batch of {batch_size} samples does not fit into this machine's address space; \
                 choose a smaller batch size"
            ))
        };
        let mut offsets = Vec::with_capacity(fields.len());
        let mut sample_bytes = Vec::with_capacity(fields.len());
        let mut end = 0usize;
        for field in &fields {
            let bytes = field.sample_bytes()?;
            offsets.push(end);
            sample_bytes.push(bytes);
            end = advance(end, bytes, batch_size).ok_or_else(too_large)?;
        }
        let size = advance(end, size_of::<f32>(), batch_size).ok_or_else(too_large)?;
        Ok(Layout { fields, offsets, sample_bytes, mask_offset: end, size, batch_size })
    }

    pub fn fields(&self) -> &[Field] {
        &self.fields
    }

    pub fn batch_size(&self) -> usize {
        self.batch_size
    }

    /// Bytes of a whole batch.
    pub fn size(&self) -> usize {
        self.size
    }

    /// The field with this index, or an error that lists the fields.
    pub fn field(&self, index: usize) -> Result<&Field> {
        self.fields.get(index).ok_or_else(|| {
            let names: Vec<String> =
                self.fields.iter().enumerate().map(|(i, f)| format!("{i}: {f}")).collect();
            Error::field(format!(
                "there is no field {index}; the fields are [{}]",
                names.join(", ")
            ))
        })
    }

    /// The bytes of all rows of a field. The index must be valid.
    pub fn rows(&self, index: usize) -> Range<usize> {
        let start = self.offsets[index];
        start..start + self.sample_bytes[index] * self.batch_size
    }

    /// The bytes of one row of a field. The index and the row must be valid.
    pub fn row(&self, index: usize, row: usize) -> Range<usize> {
        let start = self.offsets[index] + row * self.sample_bytes[index];
        start..start + self.sample_bytes[index]
    }

    /// The bytes of the mask.
    pub fn mask(&self) -> Range<usize> {
        self.mask_offset..self.mask_offset + self.batch_size * size_of::<f32>()
    }
}

/// The next aligned offset after `batch_size` rows of `bytes` bytes that start at `start`.
fn advance(start: usize, bytes: usize, batch_size: usize) -> Option<usize> {
    let end =
        bytes.checked_mul(batch_size)?.checked_add(start)?.checked_next_multiple_of(ALIGNMENT)?;
    (end <= isize::MAX as usize).then_some(end)
}

#[cfg(test)]
mod tests {
    use fulmen_tensor::DType;

    use super::*;

    #[test]
    fn every_field_and_the_mask_start_at_a_multiple_of_64() {
        let fields = vec![
            Field::new("a", DType::U8, [3]),
            Field::new("b", DType::I32, []),
            Field::new("c", DType::F64, [0]),
        ];
        let layout = Layout::new(fields, 5).unwrap();
        assert_eq!(layout.rows(0), 0..15);
        assert_eq!(layout.row(0, 4), 12..15);
        assert_eq!(layout.rows(1), 64..84);
        assert_eq!(layout.rows(2), 128..128);
        assert_eq!(layout.mask(), 128..148);
        assert_eq!(layout.size(), 192);
    }

    #[test]
    fn sizes_that_overflow_are_errors() {
        let huge = Field::new("x", DType::F32, [usize::MAX / 2, 3]);
        assert!(Layout::new(vec![huge], 1).unwrap_err().is_field());
        let large = Field::new("x", DType::F32, [1 << 40]);
        assert!(Layout::new(vec![large], 1 << 40).unwrap_err().is_usage());
        assert!(Layout::new(Vec::new(), usize::MAX).unwrap_err().is_usage());
    }
}
