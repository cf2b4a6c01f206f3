//! The `Dataset` trait: a number of samples, their fields, and how to read a sample by index.
//!
//! Also here: datasets of arrays and items, and subsets and splits of other datasets. Out of scope:
//! datasets of file formats, and the order in which samples are read.

mod fake;
mod field;
pub(crate) mod random;
pub(crate) mod sample;
mod source;
mod split;
pub(crate) mod stage;
mod subset;
mod tensor_dataset;

use std::sync::Arc;

use crate::{Error, Fingerprint, Result};

pub use fake::FakeDataset;
pub use field::Field;
pub use random::SampleRng;
pub use sample::Sample;
pub use source::{MapSource, Source, SourceDataset};
pub use split::{Fold, group_k_fold, group_split, k_fold, stratified_k_fold, stratified_split};
pub use stage::Stage;
pub use subset::{ConcatDataset, Subset, random_split};
pub use tensor_dataset::{TensorDataset, TensorDatasetBuilder};

/// A collection of samples that can be read by index, in any order and from any thread.
///
/// ```
/// use fulmen_data::{DType, DataLoader, Dataset, Field, Result, Sample};
///
/// struct Squares;
///
/// impl Dataset for Squares {
///     fn len(&self) -> usize {
///         10
///     }
///     fn fields(&self) -> Vec<Field> {
///         vec![Field::new("x", DType::F32, []), Field::new("y", DType::F32, [])]
///     }
///     fn read(&self, index: usize, sample: &mut Sample<'_>) -> Result<()> {
///         let x = index as f32;
///         sample.write_value(0, x)?;
///         sample.write_value(1, x * x)
///     }
/// }
///
/// let loader = DataLoader::builder(Squares).batch_size(4).build()?;
/// let batch = loader.epoch(0).next().ok_or("no batch")??;
/// assert_eq!(batch.values::<f32>(1)?, [0.0, 1.0, 4.0, 9.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Dataset: Send + Sync + 'static {
    /// The number of samples. It must not change; a loader asks once, when it is built.
    fn len(&self) -> usize;

    /// The fields, the same for every sample. A loader asks once, when it is built.
    fn fields(&self) -> Vec<Field>;

    /// Writes every field of sample `index`. `index` is below [`len`](Dataset::len).
    ///
    /// What it writes may depend only on the index, [`Sample::epoch`] and [`Sample::random`]:
    /// worker threads call it in no particular order. An error or a panic becomes the error of the
    /// sample's batch, prefixed with the index.
    fn read(&self, index: usize, sample: &mut Sample<'_>) -> Result<()>;

    /// Announces that sample `index` will be read in this epoch, a few samples from now and by the
    /// same thread.
    ///
    /// A dataset in memory can let the processor load the sample while others are copied. The
    /// default does nothing.
    fn prefetch(&self, _index: usize, _epoch: u64) {}

    /// Where sample `index` comes from, for messages: a file and a position in it. `None` by
    /// default.
    fn origin(&self, _index: usize) -> Option<String> {
        None
    }

    /// Adds everything the samples depend on: their files and how they are processed. A cache
    /// compares fingerprints to check that it holds the samples of this dataset.
    ///
    /// # Errors
    /// The dataset does not know what its samples depend on. This is the default.
    fn fingerprint(&self, _fingerprint: &mut Fingerprint) -> Result<()> {
        Err(Error::usage(format!(
            "{} does not say what its samples depend on; implement Dataset::fingerprint for it",
            std::any::type_name::<Self>()
        )))
    }

    /// Whether there are no samples.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The first `count` samples, or all samples if there are fewer.
    fn take(self, count: usize) -> Subset<Self>
    where
        Self: Sized,
    {
        let end = count.min(self.len());
        Subset::range(self, 0..end)
    }

    /// The samples after the first `count`.
    fn skip(self, count: usize) -> Subset<Self>
    where
        Self: Sized,
    {
        let len = self.len();
        Subset::range(self, count.min(len)..len)
    }
}

macro_rules! forward {
    ($pointer:ident) => {
        impl<D: Dataset + ?Sized> Dataset for $pointer<D> {
            fn len(&self) -> usize {
                (**self).len()
            }
            fn fields(&self) -> Vec<Field> {
                (**self).fields()
            }
            fn read(&self, index: usize, sample: &mut Sample<'_>) -> Result<()> {
                (**self).read(index, sample)
            }
            fn prefetch(&self, index: usize, epoch: u64) {
                (**self).prefetch(index, epoch);
            }
            fn origin(&self, index: usize) -> Option<String> {
                (**self).origin(index)
            }
            fn fingerprint(&self, fingerprint: &mut Fingerprint) -> Result<()> {
                (**self).fingerprint(fingerprint)
            }
        }
    };
}

forward!(Arc);
forward!(Box);
