//! Items that are read from the beginning to the end: shards of a tar, records behind gzip, what a server sends.
//!
//! Not here: the streams themselves, and items by index (`source`).

use crate::{Fingerprint, Result};

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

/// A collection of items that is read from the beginning to the end, epoch after epoch.
pub trait Stream: Send + Sync + 'static {
    /// What an item is.
    type Item: Send + 'static;

    /// How many items an epoch has, if that is known without reading them.
    fn len(&self) -> Option<usize>;

    /// The items of epoch `epoch`; the same ones in the same order each time for the same epoch. After an error comes
    /// nothing.
    fn items(&self, epoch: u64) -> Result<Items<Self::Item>>;

    /// Adds all that the items depend on, as [`Source::fingerprint`](crate::Source::fingerprint) does.
    fn fingerprint(&self, fingerprint: &mut Fingerprint) -> Result<()>;
}
