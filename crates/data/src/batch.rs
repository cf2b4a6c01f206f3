//! A batch in host memory, and how it is filled from a dataset.
//!
//! Not here: which samples go into it (`plan`), on which thread (`workers`), and the way to a device (`device`).

use std::any::Any;
use std::fmt;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytemuck::CheckedBitPattern;
use fulmen_pjrt::HostBuffer;
use fulmen_tensor::Element;

use crate::layout::Layout;
use crate::pool::Pool;
use crate::sample::Draw;
use crate::{Dataset, Error, Field, Result, Sample};

/// Samples side by side in one allocation, and a mask that tells real samples from padding.
///
/// Every field starts at a multiple of 64 bytes, so that a CPU device can use it in place. All batches have the same
/// number of rows; in a last, short batch the rows from [`valid`](HostBatch::valid) on are padding: copies of the
/// batch's first sample, with a mask of 0. Where several processes share a batch
/// ([`distributed`](crate::DataLoader::distributed)), this is one process's part of it.
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
    bytes: Arc<HostBuffer>,
    layout: Arc<Layout>,
    /// Of the global batch.
    rows: Range<usize>,
    global_batch_size: usize,
    valid: usize,
    epoch: u64,
    index: usize,
}

impl HostBatch {
    /// Reads some samples into a batch of just their number, without a loader.
    ///
    /// ```
    /// use fulmen_data::{HostBatch, TensorDataset};
    ///
    /// let data = TensorDataset::builder().array("x", [3], [7i32, 8, 9]).build()?;
    /// assert_eq!(HostBatch::collate(&data, &[2, 0])?.values::<i32>(0)?, [9, 7]);
    /// # Ok::<(), fulmen_data::Error>(())
    /// ```
    pub fn collate(dataset: &dyn Dataset, samples: &[usize]) -> Result<HostBatch> {
        let len = dataset.len();
        if let Some(outside) = samples.iter().find(|&&sample| sample >= len) {
            return Err(Error::usage(format!("there is no sample {outside}; the dataset has {len}")));
        }
        let layout = Arc::new(Layout::new(dataset.fields(), samples.len())?);
        let pool = Pool::new(layout.size(), 0);
        let content = Content { samples, padding: 0, rows: 0..samples.len(), global_batch_size: samples.len() };
        fill(dataset, &layout, &pool, &content, (0, 0), &AtomicBool::new(false))
    }

    /// Rows of every field, padding included.
    pub fn batch_size(&self) -> usize {
        self.layout.batch_size()
    }

    /// Rows of the batch that all processes share; [`batch_size`](HostBatch::batch_size) where there is one process.
    pub fn global_batch_size(&self) -> usize {
        self.global_batch_size
    }

    /// Which rows of the global batch these are.
    pub fn rows(&self) -> Range<usize> {
        self.rows.clone()
    }

    /// How many of these rows are real samples; they come first. Of a batch that several processes share, a process
    /// may have none.
    pub fn valid(&self) -> usize {
        self.valid
    }

    /// The epoch that the batch belongs to.
    pub fn epoch(&self) -> u64 {
        self.epoch
    }

    /// The batch's number in its epoch, from 0.
    pub fn index(&self) -> usize {
        self.index
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
        bytemuck::checked::try_cast_slice(self.field_bytes(field)?)
            .map_err(|_| Error::field(format!("field `{declared}` holds bytes that are no {}", T::DTYPE)))
    }

    /// One number a row: 1 for a real sample, 0 for padding.
    pub fn mask(&self) -> &[f32] {
        bytemuck::cast_slice(&self.bytes[self.layout.mask()])
    }

    /// The whole allocation; fields lie in it at multiples of 64.
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

/// Which samples make up a batch, or a process's part of it.
pub(crate) struct Content<'a> {
    /// At most as many as there are rows.
    pub(crate) samples: &'a [usize],
    /// The sample that fills the other rows: the first of the global batch.
    pub(crate) padding: usize,
    pub(crate) rows: Range<usize>,
    pub(crate) global_batch_size: usize,
}

/// Reads samples into a batch. `stop` ends it between two samples.
pub(crate) fn fill(
    dataset: &dyn Dataset,
    layout: &Arc<Layout>,
    pool: &Pool,
    content: &Content<'_>,
    (epoch, index): (u64, usize),
    stop: &AtomicBool,
) -> Result<HostBatch> {
    let mut bytes = pool.take()?;
    let memory: &mut [u8] = match Arc::get_mut(&mut bytes) {
        Some(memory) => memory,
        None => return Err(Error::usage("a batch's memory is still in use; this is a bug in fulmen-data")),
    };
    let mut written = vec![false; layout.fields().len()];
    let mut read = |memory: &mut [u8], row, sample| {
        if stop.load(Ordering::Relaxed) {
            return Err(Error::usage("the batches were dropped while this one was read"));
        }
        let mut place = Sample::new(layout, memory, row, &mut written, Draw { seed: 0, epoch, index: sample as u64 });
        // A panic leaves at most a half-written row behind, and the batch is thrown away then.
        catch_unwind(AssertUnwindSafe(|| dataset.read(sample, &mut place)))
            .unwrap_or_else(|payload| Err(panicked("the dataset panicked", payload)))
            .and_then(|()| place.check_complete())
            .map_err(|error| error.at_sample(sample))
    };
    let valid = content.samples.len();
    for (row, &sample) in content.samples.iter().enumerate() {
        read(memory, row, sample)?;
    }
    if valid < layout.batch_size() {
        // The sample may be there already; only a process that has not the first row reads it for the padding alone.
        let from = if content.samples.first() == Some(&content.padding) { 0 } else { valid };
        if from == valid {
            read(memory, valid, content.padding)?;
        }
        pad(layout, memory, from, valid);
    }
    write_mask(layout, memory, valid);
    pool.remember(&bytes);
    let Content { rows, global_batch_size, .. } = content;
    let (rows, global_batch_size) = (rows.clone(), *global_batch_size);
    Ok(HostBatch { bytes, layout: Arc::clone(layout), rows, global_batch_size, valid, epoch, index })
}

/// Fills the rows from `valid` on with copies of row `from`.
///
/// Copies, not zeros: what a model makes of a real sample is finite, and so is its gradient. A zero that it divides by
/// would make the gradient NaN even under a mask of 0.
fn pad(layout: &Layout, memory: &mut [u8], from: usize, valid: usize) {
    for field in 0..layout.fields().len() {
        let source = layout.row(field, from);
        for row in (valid..layout.batch_size()).filter(|&row| row != from && !source.is_empty()) {
            memory.copy_within(source.clone(), layout.row(field, row).start);
        }
    }
}

fn write_mask(layout: &Layout, memory: &mut [u8], valid: usize) {
    for (row, place) in memory[layout.mask()].chunks_exact_mut(size_of::<f32>()).enumerate() {
        let real: f32 = if row < valid { 1.0 } else { 0.0 };
        place.copy_from_slice(&real.to_ne_bytes());
    }
}

/// The error for a panic in code that is not ours, with the message if it has one.
pub(crate) fn panicked(what: &str, payload: Box<dyn Any + Send>) -> Error {
    let message = payload
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| payload.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "(no message)".to_owned());
    // Not dropped: a value that panics in its own drop would end the thread that catches it.
    std::mem::forget(payload);
    Error::panic(format!("{what}: {message}"))
}
