//! Items that are read in sequence: shards of a tar, gzip-compressed records, the responses of a
//! server.
//!
//! Out of scope: the streams themselves, the results of `map`, `shuffle` and `chain` (`adapters`),
//! and items by index (`dataset`).

mod adapters;
pub(crate) mod iterable;
mod mix;

use std::sync::Arc;

use crate::{Field, Fingerprint, Result, Sample};

pub use adapters::{ChainStream, MapStream, ShuffleStream, SkipStream, TakeStream};
pub use iterable::{IterableDataset, Record, Records, StreamDataset};
pub use mix::{MixStream, MixUntil};

/// The items of one epoch, in order.
pub type Items<T> = Box<dyn Iterator<Item = Result<StreamItem<T>>> + Send>;

/// An item of a stream, and where it comes from.
#[derive(Clone, Debug)]
pub struct StreamItem<T> {
    /// The item's number in the stream, before any shuffling. The random numbers of its
    /// augmentation depend on it.
    pub index: u64,
    /// Where it comes from, for messages: a file and a position in it
    /// (`train-0003.tar, entry n01440764_10026`).
    pub origin: String,
    /// The item itself.
    pub item: T,
}

/// An item that any thread can compute later: what was read, and the functions that [`Stream::map`]
/// added.
pub struct Deferred<T>(Box<dyn FnOnce() -> Result<T> + Send>);

impl<T> Deferred<T> {
    /// An item computed by `make`.
    pub fn new(make: impl FnOnce() -> Result<T> + Send + 'static) -> Deferred<T> {
        Deferred(Box::new(make))
    }

    /// Computes the item.
    pub fn make(self) -> Result<T> {
        (self.0)()
    }
}

impl<T> std::fmt::Debug for Deferred<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Deferred").finish_non_exhaustive()
    }
}

/// A collection of items that is read in sequence, epoch after epoch.
///
/// A loader reads a stream on one thread at a time, in order, as fast as it can. All workers run
/// what [`map`](Stream::map) and [`into_dataset`](Stream::into_dataset) add, in parallel. A stream
/// should therefore return raw bytes, and `map` should decode them.
///
/// ```
/// use fulmen_data::{DType, DataLoader, Field, Fingerprint, Items, Result, Stream, StreamItem};
///
/// struct Lines(&'static str);
///
/// impl Stream for Lines {
///     type Item = &'static str;
///     fn len(&self) -> Option<usize> {
///         None
///     }
///     fn items(&self, _epoch: u64) -> Result<Items<&'static str>> {
///         let items = self.0.lines().enumerate();
///         Ok(Box::new(items.map(|(i, item)| Ok(StreamItem { index: i as u64, origin: format!("line {}", i + 1), item }))))
///     }
///     fn fingerprint(&self, fingerprint: &mut Fingerprint) -> Result<()> {
///         fingerprint.add("lines", self.0);
///         Ok(())
///     }
/// }
///
/// let numbers = Lines("7\n8\n9")
///     .map(|line| line.parse::<i32>().map_err(fulmen_data::Error::new))
///     .shuffle(2, 42)
///     .into_dataset(vec![Field::new("number", DType::I32, [])], |number, sample| sample.write_value(0, number));
/// let loader = DataLoader::from_stream(numbers).num_samples(3).batch_size(3).num_workers(2).build()?;
/// let batch = loader.epoch(0).next().ok_or("no batch")??;
/// assert_eq!(batch.values::<i32>(0)?.iter().sum::<i32>(), 24);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait Stream: Send + Sync + 'static {
    /// The type of an item.
    type Item: Send + 'static;

    /// The number of items in an epoch, if it is known without reading them.
    fn len(&self) -> Option<usize>;

    /// The items of epoch `epoch`: always the same items in the same order for the same epoch.
    ///
    /// After an error, the stream continues with the next item if it can find it. If it ends after
    /// an error, the remaining items are lost. A loader with [`OnError::Replace`](crate::OnError),
    /// or with `num_samples` set, then fills the rest of the epoch from the beginning of the
    /// stream. With `Skip` and the stream's own length, the rest of the epoch is padding.
    fn items(&self, epoch: u64) -> Result<Items<Self::Item>>;

    /// Adds everything the items depend on, like
    /// [`Source::fingerprint`](crate::Source::fingerprint).
    fn fingerprint(&self, fingerprint: &mut Fingerprint) -> Result<()>;

    /// A short description of the stream with everything its order depends on, such as a seed. A
    /// run that resumes in the middle of an epoch compares its description with the checkpoint's.
    /// The default is the name of the type.
    fn describe(&self) -> String {
        std::any::type_name::<Self>().to_owned()
    }

    /// The same items, with all work that can be done out of order deferred to [`Deferred::make`].
    /// By default, no work is deferred.
    fn deferred(&self, epoch: u64) -> Result<Items<Deferred<Self::Item>>> {
        let items = self.items(epoch)?;
        Ok(Box::new(items.map(|item| {
            let StreamItem { index, origin, item } = item?;
            Ok(StreamItem { index, origin, item: Deferred::new(move || Ok(item)) })
        })))
    }

    /// Whether the stream is known to be empty.
    fn is_empty(&self) -> bool {
        self.len() == Some(0)
    }

    /// Maps each item with `map`. In a loader the workers call it in parallel; the order stays the
    /// same.
    fn map<T, F>(self, map: F) -> MapStream<Self, F>
    where
        Self: Sized,
        T: Send + 'static,
        F: Fn(Self::Item) -> Result<T> + Send + Sync + 'static,
    {
        MapStream::new(self, map)
    }

    /// Shuffles the items within a buffer of `buffer` items: each item is drawn from the buffer,
    /// and the stream's next item replaces it. The order depends only on the seed and the epoch. A
    /// buffer as long as the stream shuffles it fully; its items are held in memory.
    fn shuffle(self, buffer: usize, seed: u64) -> ShuffleStream<Self>
    where
        Self: Sized,
    {
        ShuffleStream::new(self, buffer, seed)
    }

    /// Appends the items of another stream.
    fn chain<S>(self, then: S) -> ChainStream<Self, S>
    where
        Self: Sized,
        S: Stream<Item = Self::Item>,
    {
        ChainStream::new(self, then)
    }

    /// The first `count` items of each epoch.
    fn take(self, count: usize) -> TakeStream<Self>
    where
        Self: Sized,
    {
        TakeStream::new(self, count)
    }

    /// The items after the first `count` of each epoch. The first `count` are read but not
    /// computed.
    fn skip(self, count: usize) -> SkipStream<Self>
    where
        Self: Sized,
    {
        SkipStream::new(self, count)
    }

    /// Makes a dataset of samples with these fields, for [`DataLoader::from_stream`]. `write`
    /// writes an item into the fields; it gets random numbers from [`Sample::random`].
    ///
    /// [`DataLoader::from_stream`]: crate::DataLoader::from_stream
    fn into_dataset<F>(self, fields: Vec<Field>, write: F) -> StreamDataset<Self, F>
    where
        Self: Sized,
        F: Fn(Self::Item, &mut Sample<'_>) -> Result<()> + Send + Sync + 'static,
    {
        StreamDataset::new(self, fields, write)
    }
}

/// Computes the deferred items of a stream in order. An item that fails is an error in its position
/// and does not end the stream.
pub fn make<T: 'static>(items: Items<Deferred<T>>) -> Items<T> {
    Box::new(items.map(|item| {
        let StreamItem { index, origin, item } = item?;
        Ok(StreamItem { index, origin, item: item.make()? })
    }))
}

macro_rules! forward {
    ($pointer:ident) => {
        impl<S: Stream + ?Sized> Stream for $pointer<S> {
            type Item = S::Item;

            fn len(&self) -> Option<usize> {
                (**self).len()
            }
            fn items(&self, epoch: u64) -> Result<Items<S::Item>> {
                (**self).items(epoch)
            }
            fn fingerprint(&self, fingerprint: &mut Fingerprint) -> Result<()> {
                (**self).fingerprint(fingerprint)
            }
            fn describe(&self) -> String {
                (**self).describe()
            }
            fn deferred(&self, epoch: u64) -> Result<Items<Deferred<S::Item>>> {
                (**self).deferred(epoch)
            }
        }
    };
}

forward!(Arc);
forward!(Box);
