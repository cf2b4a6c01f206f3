//! The row of a batch into which a dataset writes one sample.
//!
//! Out of scope: the memory of the batch (`batch`) and the datasets.

use bytemuck::{NoUninit, Pod};
use fulmen_tensor::Element;

use crate::loader::layout::Layout;
use crate::{Error, Field, Result, SampleRng, Stage};

/// Identifies a sample. Together with the dataset, it determines the content of the sample.
#[derive(Clone, Copy, Debug, Default)]
#[allow(missing_docs, reason = "hidden: it is shared with the crates that read formats")]
pub struct SampleKey {
    pub seed: u64,
    pub epoch: u64,
    /// The epoch of the random numbers. It differs from the loader's epoch if a stream is repeated
    /// within an epoch.
    pub random_epoch: u64,
    pub index: u64,
}

/// One row of a batch. [`Dataset::read`](crate::Dataset::read) must write all of its fields.
///
/// Values are written directly into the memory of the batch. Dtype and size are checked against the
/// declared [`Field`]s. If a field is left unwritten, the loader reports an error, because the
/// memory may still hold an earlier batch.
pub struct Sample<'a> {
    layout: &'a Layout,
    bytes: &'a mut [u8],
    row: usize,
    written: &'a mut [bool],
    key: SampleKey,
    /// Created on first use: copying a small sample takes less time than creating it.
    random: Option<SampleRng>,
}

impl<'a> Sample<'a> {
    /// Row `row` of a batch, with no field written yet.
    #[doc(hidden)]
    pub fn new(
        layout: &'a Layout,
        bytes: &'a mut [u8],
        row: usize,
        written: &'a mut [bool],
        key: SampleKey,
    ) -> Sample<'a> {
        written.fill(false);
        Sample { layout, bytes, row, written, key, random: None }
    }

    /// The epoch in which the sample is read.
    pub fn epoch(&self) -> u64 {
        self.key.epoch
    }

    /// Random numbers for this sample. They depend only on the loader's seed, the epoch and the
    /// index of the sample in the loader's dataset. Each call continues the same sequence.
    pub fn random(&mut self) -> &mut SampleRng {
        let SampleKey { seed, random_epoch, index, .. } = self.key;
        self.random.get_or_insert_with(|| SampleRng::new(seed, random_epoch, index))
    }

    /// Runs `work` and adds its time to a stage. [`Stage::timed`] does the same without a sample.
    pub fn timed<T>(&mut self, stage: Stage, work: impl FnOnce() -> T) -> T {
        stage.timed(work)
    }

    /// Returns an error that names the unwritten fields, if there are any.
    #[doc(hidden)]
    pub fn check_complete(&self) -> Result<()> {
        let fields = self.layout.fields().iter().zip(&*self.written);
        let forgotten: Vec<String> =
            fields.filter(|(_, written)| !**written).map(|(f, _)| format!("`{f}`")).collect();
        if forgotten.is_empty() {
            Ok(())
        } else {
            Err(Error::field(format!(
                "Dataset::read did not write {}; it must write every field that Dataset::fields names",
                forgotten.join(", ")
            )))
        }
    }

    /// The fields to write, in order.
    pub fn fields(&self) -> &[Field] {
        self.layout.fields()
    }

    /// The bytes of a field, to be written in place. They are zero until this sample writes them.
    pub fn field_mut(&mut self, field: usize) -> Result<&mut [u8]> {
        self.layout.field(field)?;
        let bytes = &mut self.bytes[self.layout.row(field, self.row)];
        // The allocation is reused and may still hold bytes of an earlier batch.
        if !std::mem::replace(&mut self.written[field], true) {
            bytes.fill(0);
        }
        Ok(bytes)
    }

    /// The elements of a field, to be written in place. They are zero until this sample writes
    /// them.
    pub fn values_mut<T: Element + Pod>(&mut self, field: usize) -> Result<&mut [T]> {
        self.check_dtype::<T>(field)?;
        let bytes = self.field_mut(field)?;
        bytemuck::try_cast_slice_mut(bytes)
            .map_err(|error| Error::field(format!("field {field}: {error}")))
    }

    /// Writes a whole field from bytes in native byte order.
    pub fn write(&mut self, field: usize, bytes: &[u8]) -> Result<()> {
        let declared = self.layout.field(field)?;
        let range = self.layout.row(field, self.row);
        if bytes.len() != range.len() {
            return Err(Error::field(format!(
                "field `{declared}` takes {} bytes per sample, but {} were written",
                range.len(),
                bytes.len()
            )));
        }
        self.bytes[range].copy_from_slice(bytes);
        self.written[field] = true;
        Ok(())
    }

    /// Writes a whole field from a slice of its elements.
    pub fn write_slice<T: Element + NoUninit>(&mut self, field: usize, values: &[T]) -> Result<()> {
        self.check_dtype::<T>(field)?;
        let bytes: &[u8] = bytemuck::cast_slice(values);
        let expected = self.layout.row(field, self.row).len();
        if bytes.len() != expected {
            return Err(Error::field(format!(
                "field `{}` takes {} values per sample, but {} were written",
                self.layout.field(field)?,
                expected / T::DTYPE.size_in_bytes(),
                values.len()
            )));
        }
        self.write(field, bytes)
    }

    /// Writes a scalar field.
    pub fn write_value<T: Element + NoUninit>(&mut self, field: usize, value: T) -> Result<()> {
        self.write_slice(field, &[value])
    }

    fn check_dtype<T: Element>(&self, field: usize) -> Result<()> {
        let declared = self.layout.field(field)?;
        if declared.dtype == T::DTYPE {
            Ok(())
        } else {
            Err(Error::field(format!(
                "field `{declared}` was written as {}; convert the values to {}, or declare the field as {}",
                T::DTYPE,
                declared.dtype,
                T::DTYPE
            )))
        }
    }
}
