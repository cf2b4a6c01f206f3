//! [`FakeDataset`]: random samples with given fields. They replace data that is not available yet,
//! or extend the samples of another dataset.
//!
//! Out of scope: arrays in memory (`tensor_dataset`).

use std::sync::Arc;

use bytemuck::NoUninit;
use fulmen_tensor::{DType, Element};

use crate::{Dataset, Error, Field, Fingerprint, Result, Sample, SampleRng};

/// Random samples with the fields of real ones, to try a program, a pod or `preflight` before the
/// data is available. This is torchvision's `FakeData` for samples with any fields.
///
/// A sample depends only on its index: it is the same in every epoch and on every host. Nothing is
/// kept in memory.
///
/// ```
/// use fulmen_data::{Dataset, FakeDataset, HostBatch};
///
/// let imagenet = FakeDataset::new(1_281_167).pixels("image", [3, 224, 224]).integers("label", [], 1000);
/// assert_eq!(imagenet.fields()[0].to_string(), "image u8[3, 224, 224]");
/// let batch = HostBatch::collate(&imagenet, &[0, 1_281_166])?;
/// assert!(batch.values::<i32>(1)?.iter().all(|label| (0..1000).contains(label)));
/// # Ok::<(), fulmen_data::Error>(())
/// ```
#[derive(Clone)]
#[must_use]
pub struct FakeDataset {
    base: Option<Arc<dyn Dataset>>,
    /// The fields of the wrapped dataset.
    base_fields: Vec<Field>,
    len: usize,
    seed: u64,
    fields: Vec<(Field, Values)>,
}

#[derive(Clone, Copy, Debug)]
enum Values {
    Bytes,
    Below(usize),
    Normal,
}

impl FakeDataset {
    /// A dataset of `len` samples without fields.
    pub fn new(len: usize) -> FakeDataset {
        FakeDataset { base: None, base_fields: Vec::new(), len, seed: 0, fields: Vec::new() }
    }

    /// Adds random fields to the samples of a dataset, such as the noise for a generator.
    ///
    /// ```
    /// use fulmen_data::{Dataset, FakeDataset, TensorDataset};
    ///
    /// let digits = TensorDataset::builder().array("digit", [10], (0..10).collect::<Vec<i32>>()).build()?;
    /// let data = FakeDataset::extending(digits).normal("noise", [64]);
    /// let fields: Vec<String> = data.fields().iter().map(ToString::to_string).collect();
    /// assert_eq!((data.len(), fields), (10, vec!["digit i32[]".into(), "noise f32[64]".into()]));
    /// # Ok::<(), fulmen_data::Error>(())
    /// ```
    pub fn extending(dataset: impl Dataset) -> FakeDataset {
        let base_fields = dataset.fields();
        let len = dataset.len();
        FakeDataset { base: Some(Arc::new(dataset)), base_fields, ..FakeDataset::new(len) }
    }

    /// Sets the seed; 0 unless set.
    pub fn seed(self, seed: u64) -> FakeDataset {
        FakeDataset { seed, ..self }
    }

    /// Adds a field of random bytes from 0 to 255, `u8[shape]`.
    pub fn pixels(self, name: impl Into<String>, shape: impl Into<Vec<usize>>) -> FakeDataset {
        self.field(Field::new(name, DType::U8, shape), Values::Bytes)
    }

    /// Adds a field of random classes or tokens from 0 to `bound - 1`, `i32[shape]`. If `bound` is
    /// 0 or larger than an `i32` can hold, reading a sample is an error.
    pub fn integers(
        self,
        name: impl Into<String>,
        shape: impl Into<Vec<usize>>,
        bound: usize,
    ) -> FakeDataset {
        self.field(Field::new(name, DType::I32, shape), Values::Below(bound))
    }

    /// Adds a field with draws from the normal distribution with mean 0 and variance 1,
    /// `f32[shape]`.
    pub fn normal(self, name: impl Into<String>, shape: impl Into<Vec<usize>>) -> FakeDataset {
        self.field(Field::new(name, DType::F32, shape), Values::Normal)
    }

    fn field(mut self, field: Field, values: Values) -> FakeDataset {
        self.fields.push((field, values));
        self
    }
}

impl Dataset for FakeDataset {
    fn len(&self) -> usize {
        self.len
    }

    fn fields(&self) -> Vec<Field> {
        self.base_fields.iter().chain(self.fields.iter().map(|(field, _)| field)).cloned().collect()
    }

    fn read(&self, index: usize, sample: &mut Sample<'_>) -> Result<()> {
        if let Some(dataset) = &self.base {
            dataset.read(index, sample)?;
        }
        // The loader's random numbers are not used here, because they differ from epoch to epoch.
        let mut random = SampleRng::new(self.seed, 0, index as u64);
        for (field_index, (field, values)) in (self.base_fields.len()..).zip(&self.fields) {
            let count = field.elements()?;
            match *values {
                Values::Bytes => {
                    let words = std::iter::repeat_with(|| random.next_u64().to_le_bytes());
                    let bytes: Vec<u8> = words.flatten().take(count).collect();
                    sample.write(field_index, &bytes)?;
                }
                Values::Below(bound) if bound == 0 || i32::try_from(bound).is_err() => {
                    return Err(Error::usage(format!(
                        "`{field}` needs a bound from 1 to 2147483647, not {bound}"
                    )));
                }
                Values::Below(bound) => {
                    fill(sample, field_index, count, || random.below(bound) as i32)?
                }
                Values::Normal => fill(sample, field_index, count, || random.normal() as f32)?,
            }
        }
        Ok(())
    }

    fn origin(&self, index: usize) -> Option<String> {
        self.base.as_ref()?.origin(index)
    }

    fn fingerprint(&self, fingerprint: &mut Fingerprint) -> Result<()> {
        fingerprint.add("fake", format!("{} {} {:?}", self.len, self.seed, self.fields));
        self.base.as_ref().map_or(Ok(()), |dataset| dataset.fingerprint(fingerprint))
    }
}

fn fill<T: Element + NoUninit>(
    sample: &mut Sample<'_>,
    field: usize,
    count: usize,
    value: impl FnMut() -> T,
) -> Result<()> {
    let values: Vec<T> = std::iter::repeat_with(value).take(count).collect();
    sample.write_slice(field, &values)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DataLoader, HostBatch, TensorDataset};

    #[test]
    fn a_sample_is_the_same_in_every_epoch_and_differs_from_others() {
        let data = FakeDataset::new(6)
            .pixels("image", [3, 4, 5])
            .integers("label", [2], 3)
            .normal("x", [7]);
        let loader =
            DataLoader::builder(data.clone()).batch_size(6).num_workers(2).build().unwrap();
        let [first, third] = [0, 2].map(|epoch| loader.epoch(epoch).next().unwrap().unwrap());
        let image = first.values::<u8>(0).unwrap();
        assert_eq!(image, third.values::<u8>(0).unwrap());
        assert_ne!(image[..60], image[60..120]);
        assert!(first.values::<i32>(1).unwrap().iter().all(|label| (0..3).contains(label)));
        let x = first.values::<f32>(2).unwrap();
        assert!(
            x.iter().any(|x| *x < 0.0)
                && x.iter().any(|x| *x > 0.0)
                && x.iter().all(|x| x.abs() < 7.0),
            "{x:?}"
        );
        assert_eq!(HostBatch::collate(&data, &[5]).unwrap().values::<f32>(2).unwrap(), &x[35..]);
    }

    #[test]
    fn random_fields_stand_behind_those_of_a_dataset_and_differ_by_the_seed() {
        let data = TensorDataset::builder().array("x", [3], vec![7i32, 8, 9]).build().unwrap();
        let noise = |seed| {
            let noisy = FakeDataset::extending(data.clone()).seed(seed).normal("noise", [2]);
            let batch = HostBatch::collate(&noisy, &[2, 0]).unwrap();
            assert_eq!((noisy.len(), batch.values::<i32>(0).unwrap()), (3, &[9, 7][..]));
            batch.values::<f32>(1).unwrap().to_vec()
        };
        assert_eq!(noise(1), noise(1));
        assert_ne!(noise(1), noise(2));
    }

    #[test]
    fn a_bound_that_cannot_be_is_refused() {
        for bound in [0, 1 << 40] {
            let data = FakeDataset::new(1).integers("label", [], bound);
            let message = HostBatch::collate(&data, &[0]).unwrap_err().to_string();
            assert!(
                message.contains("label i32[]") && message.contains("needs a bound from 1 to"),
                "{message}"
            );
        }
    }
}
