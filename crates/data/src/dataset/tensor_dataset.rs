//! A dataset of arrays in memory: sample `i` is row `i` of every array.
//!
//! Out of scope: reading arrays from files.

use bytemuck::NoUninit;
use fulmen_tensor::Element;

use crate::{Dataset, Error, Field, Fingerprint, Result, Sample};

/// Arrays in memory. The first axis of each array is the sample axis.
///
/// ```
/// use fulmen_data::{Dataset, TensorDataset};
///
/// let data = TensorDataset::builder()
///     .array("x", [3, 2], [0.0f32, 0.1, 1.0, 1.1, 2.0, 2.1])
///     .array("y", [3], [0i32, 1, 0])
///     .build()?;
/// assert_eq!(data.len(), 3);
/// assert_eq!(data.fields()[0].to_string(), "x f32[2]");
/// # Ok::<(), fulmen_data::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct TensorDataset {
    len: usize,
    arrays: Vec<Array>,
}

#[derive(Clone, Debug)]
struct Array {
    field: Field,
    samples: usize,
    sample_bytes: usize,
    bytes: Vec<u8>,
}

impl TensorDataset {
    /// Starts a dataset without arrays.
    pub fn builder() -> TensorDatasetBuilder {
        TensorDatasetBuilder { arrays: Ok(Vec::new()) }
    }
}

/// Collects the arrays of a [`TensorDataset`]. [`build`](TensorDatasetBuilder::build) reports the
/// first mistake.
#[derive(Debug)]
#[must_use]
pub struct TensorDatasetBuilder {
    arrays: Result<Vec<Array>>,
}

impl TensorDatasetBuilder {
    /// Adds an array of shape `shape`. Its first axis is the sample axis; the other axes are the
    /// shape of the field. `values` are in row-major order.
    pub fn array<T: Element + NoUninit>(
        mut self,
        name: impl Into<String>,
        shape: impl AsRef<[usize]>,
        values: impl AsRef<[T]>,
    ) -> TensorDatasetBuilder {
        self.arrays = self.arrays.and_then(|mut arrays| {
            arrays.push(Array::new(name.into(), shape.as_ref(), values.as_ref())?);
            Ok(arrays)
        });
        self
    }

    /// Builds the dataset. Each array must have as many values as its shape says, and all must have
    /// the same number of samples.
    pub fn build(self) -> Result<TensorDataset> {
        let arrays = self.arrays?;
        let Some(first) = arrays.first() else {
            return Err(Error::usage(
                "a TensorDataset needs at least one array; add one with `.array(..)`",
            ));
        };
        if let Some(other) = arrays.iter().find(|other| other.samples != first.samples) {
            return Err(Error::usage(format!(
                "array `{}` has {} samples, but array `{}` has {}; the first axis of all arrays must be equal",
                first.field.name, first.samples, other.field.name, other.samples
            )));
        }
        Ok(TensorDataset { len: first.samples, arrays })
    }
}

impl Array {
    fn new<T: Element + NoUninit>(name: String, shape: &[usize], values: &[T]) -> Result<Array> {
        let Some((&samples, rest)) = shape.split_first() else {
            return Err(Error::usage(format!(
                "array `{name}` has the shape []; it needs a first axis, which counts the samples"
            )));
        };
        let field = Field::new(name, T::DTYPE, rest);
        if samples.checked_mul(field.elements()?) != Some(values.len()) {
            return Err(Error::usage(format!(
                "array `{}` has {} values, which do not fill the shape {shape:?}",
                field.name,
                values.len()
            )));
        }
        let sample_bytes = field.sample_bytes()?;
        Ok(Array { field, samples, sample_bytes, bytes: bytemuck::cast_slice(values).to_vec() })
    }
}

impl Dataset for TensorDataset {
    fn len(&self) -> usize {
        self.len
    }

    fn fields(&self) -> Vec<Field> {
        self.arrays.iter().map(|array| array.field.clone()).collect()
    }

    fn read(&self, index: usize, sample: &mut Sample<'_>) -> Result<()> {
        for (i, array) in self.arrays.iter().enumerate() {
            if index >= self.len {
                return Err(Error::usage(format!(
                    "there is no sample {index}; the dataset has {}",
                    self.len
                )));
            }
            let start = index * array.sample_bytes;
            sample.write(i, &array.bytes[start..start + array.sample_bytes])?;
        }
        Ok(())
    }
    fn fingerprint(&self, fingerprint: &mut Fingerprint) -> Result<()> {
        for Array { field, bytes, .. } in &self.arrays {
            fingerprint.add("array", field.to_string());
            fingerprint.add("values", bytes);
        }
        Ok(())
    }
}
