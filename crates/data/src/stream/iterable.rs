//! Datasets whose samples come in sequence: records that write themselves into a batch.
//!
//! Out of scope: items without fields (`stream`), samples by index (`dataset`), and how records
//! become batches (`loader`).

use std::fmt;
use std::sync::Arc;

use crate::{Field, Fingerprint, Result, Sample, Stage, Stream, StreamItem};

/// The records of one epoch, in order.
pub type Records = Box<dyn Iterator<Item = Result<Record>> + Send>;

/// One sample of an [`IterableDataset`] that has been read but not yet decoded and written.
pub struct Record {
    index: u64,
    origin: String,
    write: Box<WriteSample>,
}

type WriteSample = dyn FnOnce(&mut Sample<'_>) -> Result<()> + Send;

impl Record {
    /// Makes the record with number `index` in the dataset, counted before any shuffling. `origin`
    /// says where it comes from. `write` writes all of its fields; a worker thread calls it once.
    pub fn new(
        index: u64,
        origin: impl Into<String>,
        write: impl FnOnce(&mut Sample<'_>) -> Result<()> + Send + 'static,
    ) -> Record {
        Record { index, origin: origin.into(), write: Box::new(write) }
    }

    /// The record's number in the dataset, before any shuffling. Its random numbers depend on it.
    pub fn index(&self) -> u64 {
        self.index
    }

    /// Where it comes from, for messages.
    pub fn origin(&self) -> &str {
        &self.origin
    }

    pub(crate) fn write(self, sample: &mut Sample<'_>) -> Result<()> {
        (self.write)(sample)
    }
}

impl fmt::Debug for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Record")
            .field("index", &self.index)
            .field("origin", &self.origin)
            .finish_non_exhaustive()
    }
}

/// Samples that are read in sequence (PyTorch's `IterableDataset`).
///
/// [`Stream::into_dataset`] makes one from a stream of items. Implement it yourself only if a
/// sample consists of several items. [`DataLoader::from_stream`](crate::DataLoader::from_stream)
/// reads it in batches.
/// ```
/// use fulmen_data::{DType, DataLoader, Field, Fingerprint, IterableDataset, Record, Records, Result};
///
/// /// Pairs of numbers and their squares.
/// struct Squares(u64);
///
/// impl IterableDataset for Squares {
///     fn len(&self) -> Option<usize> {
///         Some(self.0 as usize)
///     }
///
///     fn fields(&self) -> Vec<Field> {
///         vec![Field::new("x", DType::F32, []), Field::new("y", DType::F32, [])]
///     }
///
///     fn records(&self, _epoch: u64) -> Result<Records> {
///         let record = |i: u64| {
///             Record::new(i, format!("number {i}"), move |sample| {
///                 let x = i as f32;
///                 sample.write_value(0, x)?;
///                 sample.write_value(1, x * x)
///             })
///         };
///         Ok(Box::new((0..self.0).map(move |i| Ok(record(i)))))
///     }
///
///     fn fingerprint(&self, fingerprint: &mut Fingerprint) -> Result<()> {
///         fingerprint.add("length", self.0.to_le_bytes());
///         Ok(())
///     }
/// }
///
/// let loader = DataLoader::from_stream(Squares(4)).batch_size(4).build()?;
/// let batch = loader.epoch(0).next().ok_or("no batch")??;
/// assert_eq!(batch.values::<f32>(1)?, [0.0, 1.0, 4.0, 9.0]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait IterableDataset: Send + Sync + 'static {
    /// The number of records in an epoch, if it is known without reading them.
    fn len(&self) -> Option<usize>;

    /// The fields, the same for every sample. A loader asks once, when it is built.
    fn fields(&self) -> Vec<Field>;

    /// The records of epoch `epoch`: always the same records in the same order for the same epoch.
    /// One thread at a time reads them; all workers write records in parallel.
    fn records(&self, epoch: u64) -> Result<Records>;

    /// Adds everything the samples depend on, like
    /// [`Dataset::fingerprint`](crate::Dataset::fingerprint).
    fn fingerprint(&self, fingerprint: &mut Fingerprint) -> Result<()>;

    /// A short description of the dataset with everything its order depends on, such as a seed. The
    /// default is the name of the type.
    fn describe(&self) -> String {
        std::any::type_name::<Self>().to_owned()
    }

    /// Whether the dataset is known to be empty.
    fn is_empty(&self) -> bool {
        self.len() == Some(0)
    }
}

macro_rules! forward {
    ($pointer:ident) => {
        impl<D: IterableDataset + ?Sized> IterableDataset for $pointer<D> {
            fn len(&self) -> Option<usize> {
                (**self).len()
            }
            fn fields(&self) -> Vec<Field> {
                (**self).fields()
            }
            fn records(&self, epoch: u64) -> Result<Records> {
                (**self).records(epoch)
            }
            fn fingerprint(&self, fingerprint: &mut Fingerprint) -> Result<()> {
                (**self).fingerprint(fingerprint)
            }
            fn describe(&self) -> String {
                (**self).describe()
            }
        }
    };
}

forward!(Arc);
forward!(Box);

/// A dataset that writes the items of a stream into the fields of samples. Made by
/// [`Stream::into_dataset`].
#[derive(Debug)]
pub struct StreamDataset<S, F> {
    stream: S,
    fields: Vec<Field>,
    write: Arc<F>,
}

impl<S, F> StreamDataset<S, F> {
    pub(crate) fn new(stream: S, fields: Vec<Field>, write: F) -> StreamDataset<S, F> {
        StreamDataset { stream, fields, write: Arc::new(write) }
    }
}

impl<S, F> IterableDataset for StreamDataset<S, F>
where
    S: Stream,
    F: Fn(S::Item, &mut Sample<'_>) -> Result<()> + Send + Sync + 'static,
{
    fn len(&self) -> Option<usize> {
        self.stream.len()
    }

    fn fields(&self) -> Vec<Field> {
        self.fields.clone()
    }

    fn records(&self, epoch: u64) -> Result<Records> {
        let write = Arc::clone(&self.write);
        Ok(Box::new(self.stream.deferred(epoch)?.map(move |item| {
            let StreamItem { index, origin, item } = item?;
            let write = Arc::clone(&write);
            Ok(Record::new(index, origin, move |sample| {
                let item = item.make()?;
                Stage::Transform.timed(|| write(item, sample))
            }))
        })))
    }

    fn fingerprint(&self, fingerprint: &mut Fingerprint) -> Result<()> {
        fingerprint.add_function::<F>("write");
        self.stream.fingerprint(fingerprint)
    }

    fn describe(&self) -> String {
        self.stream.describe()
    }
}
