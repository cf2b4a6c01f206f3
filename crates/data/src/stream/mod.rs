//! Items that are read from the beginning to the end: shards of a tar, records behind gzip, what a server sends.
//!
//! Not here: the streams themselves, what `map`, `shuffle` and `chain` make (`steps`), and items by index
//! (`dataset`).

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

/// An item of a stream, and where it stood.
#[derive(Clone, Debug)]
pub struct StreamItem<T> {
    /// The item's number in the stream, before any shuffling. The random numbers of its augmentation come from it.
    pub index: u64,
    /// Where it comes from, for messages: a file, and the place in it (`train-0003.tar, entry n01440764_10026`).
    pub origin: String,
    /// The item.
    pub item: T,
}

/// An item that is still to be made, on whatever thread needs it: what reading left, and the functions that
/// [`Stream::map`] put after it.
pub struct Deferred<T>(Box<dyn FnOnce() -> Result<T> + Send>);

impl<T> Deferred<T> {
    /// An item that `make` makes.
    pub fn new(make: impl FnOnce() -> Result<T> + Send + 'static) -> Deferred<T> {
        Deferred(Box::new(make))
    }

    /// Makes it.
    pub fn make(self) -> Result<T> {
        (self.0)()
    }
}

impl<T> std::fmt::Debug for Deferred<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Deferred").finish_non_exhaustive()
    }
}

/// A collection of items that is read from the beginning to the end, epoch after epoch.
///
/// A loader reads a stream on one thread at a time, in order, as fast as it can; what [`map`](Stream::map) and
/// [`into_dataset`](Stream::into_dataset) add is done by all workers at once, so that reading should leave the bytes as
/// they are, and decoding be mapped.
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
    /// What an item is.
    type Item: Send + 'static;

    /// How many items an epoch has, if that is known without reading them.
    fn len(&self) -> Option<usize>;

    /// The items of epoch `epoch`; the same ones in the same order each time for the same epoch.
    ///
    /// After an error comes what stands behind it, where the stream can find that. A stream that ends after an error loses
    /// all that stands behind it: a loader with [`OnError::Replace`](crate::OnError), or with `num_samples` set, fills the
    /// rest of the epoch from the stream's beginning; with `Skip` and the stream's own length the rest is padding.
    fn items(&self, epoch: u64) -> Result<Items<Self::Item>>;

    /// Adds all that the items depend on, as [`Source::fingerprint`](crate::Source::fingerprint) does.
    fn fingerprint(&self, fingerprint: &mut Fingerprint) -> Result<()>;

    /// The stream in a few words, with all that its order depends on, such as a seed. A run that resumes in the middle of
    /// an epoch compares it with the checkpoint's. The name of the type unless said otherwise.
    fn describe(&self) -> String {
        std::any::type_name::<Self>().to_owned()
    }

    /// The same items, with the part of the work that need not be done in order left for later. The items as they are,
    /// unless said otherwise.
    fn deferred(&self, epoch: u64) -> Result<Items<Deferred<Self::Item>>> {
        let items = self.items(epoch)?;
        Ok(Box::new(items.map(|item| {
            let StreamItem { index, origin, item } = item?;
            Ok(StreamItem { index, origin, item: Deferred::new(move || Ok(item)) })
        })))
    }

    /// Whether it is known that there are no items.
    fn is_empty(&self) -> bool {
        self.len() == Some(0)
    }

    /// The items as `map` makes them. In a loader the workers call it, several at once; the order stays.
    fn map<T, F>(self, map: F) -> MapStream<Self, F>
    where
        Self: Sized,
        T: Send + 'static,
        F: Fn(Self::Item) -> Result<T> + Send + Sync + 'static,
    {
        MapStream::new(self, map)
    }

    /// Shuffles the items within a buffer of `buffer` items: each next one is drawn from the buffer, and the stream's next
    /// takes its place. The order depends on the seed and the epoch alone. A buffer that is as long as
    /// the stream shuffles it in full; its items are held in memory.
    fn shuffle(self, buffer: usize, seed: u64) -> ShuffleStream<Self>
    where
        Self: Sized,
    {
        ShuffleStream::new(self, buffer, seed)
    }

    /// These items, then those of another stream.
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

    /// The items behind the first `count` of each epoch. The first are read, but nothing is made of them.
    fn skip(self, count: usize) -> SkipStream<Self>
    where
        Self: Sized,
    {
        SkipStream::new(self, count)
    }

    /// Samples with these fields, into which `write` writes an item, for [`DataLoader::from_stream`].
    /// [`Sample::random`] has random numbers for it.
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

/// The items of a stream that has work left for later, made one after another. One that cannot be made is an error in its
/// place, and ends nothing.
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
