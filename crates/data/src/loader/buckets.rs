//! Samples of different lengths in batches of a few shapes: all samples of a batch share a padded
//! length.
//!
//! Out of scope: how to choose the lengths (`text::choose_boundaries`), and the padding of a sample
//! within its row, which its dataset writes.

use std::sync::Arc;

use crate::{Error, Field, Result};

/// A few padded lengths, and the bucket of each sample.
///
/// The dataset declares its fields with the longest length on their first axis. In a batch with a
/// shorter length, the rows are shorter: [`Sample::fields`](crate::Sample::fields) tells
/// [`Dataset::read`](crate::Dataset::read) the length to write. All batches have the same number of
/// rows.
///
/// ```
/// use fulmen_data::{Buckets, DType, DataLoader, Dataset, Field, Result, Sample};
///
/// struct Words(Vec<&'static str>);
///
/// impl Dataset for Words {
///     fn len(&self) -> usize {
///         self.0.len()
///     }
///     fn fields(&self) -> Vec<Field> {
///         vec![Field::new("letters", DType::U8, [8])]
///     }
///     fn read(&self, index: usize, sample: &mut Sample<'_>) -> Result<()> {
///         let letters = self.0[index].as_bytes();
///         // Fewer letters than the row has; the rest stays 0.
///         sample.field_mut(0)?[..letters.len()].copy_from_slice(letters);
///         Ok(())
///     }
/// }
///
/// let words = Words(vec!["a", "umbrella", "cat", "thunder", "bolt"]);
/// let lengths: Vec<usize> = words.0.iter().map(|word| word.len()).collect();
/// let loader = DataLoader::builder(words).batch_size(2).buckets(Buckets::new(lengths, &[4, 8])?).build()?;
/// let shapes: Vec<String> = loader.shapes().iter().map(|fields| fields[0].to_string()).collect();
/// assert_eq!(shapes, ["letters u8[4]", "letters u8[8]"]);
/// let batches: Vec<_> = loader.epoch(0).collect::<Result<_>>()?;
/// let read: Vec<(usize, &[u8])> = batches.iter().map(|batch| Ok((batch.bucket(), batch.values(0)?))).collect::<Result<_>>()?;
/// assert_eq!(read, [(0, &b"a\0\0\0cat\0"[..]), (1, b"umbrellathunder\0"), (0, b"boltbolt")]);
/// # Ok::<(), fulmen_data::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Buckets {
    /// The padded lengths, ascending.
    boundaries: Vec<usize>,
    bucket_of: Vec<u32>,
    padding_share: f64,
    /// If `None`: all fields whose first axis has the longest length.
    names: Option<Vec<String>>,
}

impl Buckets {
    /// Buckets with these padded lengths. `lengths` has the length of each sample of the dataset.
    ///
    /// # Errors
    /// Boundaries that do not ascend from at least 1; a sample longer than the last boundary.
    pub fn new(lengths: impl AsRef<[usize]>, boundaries: &[usize]) -> Result<Buckets> {
        let ascend = boundaries.windows(2).all(|pair| pair[0] < pair[1]);
        let (Some(&longest), true) = (boundaries.last(), ascend && boundaries.first() != Some(&0))
        else {
            return Err(Error::usage(format!(
                "the boundaries of buckets are {boundaries:?}; they must ascend, starting from at least 1"
            )));
        };
        let mut bucket_of = Vec::with_capacity(lengths.as_ref().len());
        for (index, &length) in lengths.as_ref().iter().enumerate() {
            if length > longest {
                return Err(Error::usage(format!(
                    "sample {index} has the length {length}, and the longest bucket is {longest}; add a longer one, \
                     or truncate the samples"
                )));
            }
            bucket_of.push(boundaries.partition_point(|&boundary| boundary < length) as u32);
        }
        let tokens: u128 = lengths.as_ref().iter().map(|&length| length as u128).sum();
        let positions: u128 =
            bucket_of.iter().map(|&bucket| boundaries[bucket as usize] as u128).sum();
        let padding_share =
            if positions == 0 { 0.0 } else { (positions - tokens) as f64 / positions as f64 };
        Ok(Buckets { boundaries: boundaries.to_vec(), bucket_of, padding_share, names: None })
    }

    /// Sets the fields whose first axis is the length. The default is all fields whose first axis
    /// is as long as the longest bucket.
    pub fn fields<N: Into<String>>(mut self, names: impl IntoIterator<Item = N>) -> Buckets {
        self.names = Some(names.into_iter().map(Into::into).collect());
        self
    }

    /// The padded lengths, ascending.
    pub fn lengths(&self) -> &[usize] {
        &self.boundaries
    }

    /// The fraction of padding among all positions of the samples, from 0 to 1; 0 if there are no
    /// samples.
    pub fn padding_share(&self) -> f64 {
        self.padding_share
    }

    /// The fields of each bucket, made from those that the dataset declares.
    pub(crate) fn shapes(&self, fields: &[Field]) -> Result<Vec<Vec<Field>>> {
        let longest = self.boundaries.last().copied().unwrap_or(0);
        let list = || fields.iter().map(Field::to_string).collect::<Vec<_>>().join(", ");
        let names: Vec<&str> = match &self.names {
            Some(names) => names.iter().map(String::as_str).collect(),
            None => {
                let varies = |field: &&Field| field.shape.first() == Some(&longest);
                fields.iter().filter(varies).map(|field| field.name.as_str()).collect()
            }
        };
        if names.is_empty() {
            return Err(Error::usage(format!(
                "no field has the first axis {longest}, the longest bucket: the dataset has {}; declare the fields of \
                 varying length with that axis",
                list()
            )));
        }
        for name in &names {
            let field = fields.iter().find(|field| field.name == *name);
            if field.is_none_or(|field| field.shape.first() != Some(&longest)) {
                return Err(Error::usage(format!(
                    "buckets vary the first axis of `{name}`, so it must be a field whose first axis is {longest}, the \
                     length of the longest bucket; the dataset has {}",
                    list()
                )));
            }
        }
        let shape = |&boundary: &usize| {
            let mut fields = fields.to_vec();
            for field in fields.iter_mut().filter(|field| names.contains(&field.name.as_str())) {
                field.shape[0] = boundary;
            }
            fields
        };
        Ok(self.boundaries.iter().map(shape).collect())
    }

    pub(crate) fn check_len(&self, len: usize) -> Result<()> {
        if self.bucket_of.len() == len {
            Ok(())
        } else {
            Err(Error::usage(format!(
                "the buckets were made for {} samples, and the dataset has {len}",
                self.bucket_of.len()
            )))
        }
    }

    /// The error of a loader that cannot use buckets.
    pub(crate) fn conflict_error(&self) -> Error {
        Error::usage(
            "buckets need a dataset that is read in order or with shuffle(true): with a sampler or a stream, the \
             number of batches of a shape would differ from epoch to epoch",
        )
    }

    /// The samples of each bucket.
    pub(crate) fn members(&self) -> Vec<Arc<Vec<usize>>> {
        let mut members = vec![Vec::new(); self.boundaries.len()];
        self.bucket_of
            .iter()
            .enumerate()
            .for_each(|(index, &bucket)| members[bucket as usize].push(index));
        members.into_iter().map(Arc::new).collect()
    }

    /// Sorts the order of an epoch into batches of one bucket each. Returns the sorted samples and
    /// the span of each batch. Full batches are ordered by their last sample; short batches come at
    /// the end.
    pub(crate) fn batches(
        &self,
        order: &[usize],
        size: usize,
        drop_last: bool,
    ) -> (Vec<usize>, Vec<Span>) {
        let mut open: Vec<Vec<usize>> =
            self.boundaries.iter().map(|_| Vec::with_capacity(size.min(order.len()))).collect();
        let mut sorted = Vec::with_capacity(order.len());
        let mut spans = Vec::new();
        let mut close = |samples: &mut Vec<usize>, bucket| {
            let start = sorted.len();
            sorted.append(samples);
            spans.push(Span { start, end: sorted.len(), bucket });
        };
        for &index in order {
            let bucket = self.bucket_of[index] as usize;
            open[bucket].push(index);
            if open[bucket].len() == size {
                close(&mut open[bucket], bucket);
            }
        }
        if !drop_last {
            open.iter_mut()
                .enumerate()
                .filter(|(_, samples)| !samples.is_empty())
                .for_each(|(i, rest)| close(rest, i));
        }
        (sorted, spans)
    }

    /// What the batches depend on, in a few words.
    pub(crate) fn describe(&self) -> String {
        // FNV-1a over the samples' buckets.
        let hash =
            |hash: u64, bucket: &u32| (hash ^ u64::from(*bucket)).wrapping_mul(0x0100_0000_01b3);
        let check = self.bucket_of.iter().fold(0xcbf2_9ce4_8422_2325, hash);
        format!("buckets {:?} ({check:016x})", self.boundaries)
    }
}

/// The positions of a batch's samples in the order of an epoch, and their bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) start: usize,
    pub(crate) end: usize,
    pub(crate) bucket: usize,
}
