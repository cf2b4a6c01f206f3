//! Adapters of streams: a function, a shuffle buffer, another stream, a limit.
//!
//! Out of scope: the trait with the methods that make them (`stream`), and mixing by weights
//! (`mix`).

use std::sync::Arc;

use chacha20::ChaCha8Rng;

use crate::dataset::random::{Purpose, below, generator};
use crate::stream::make;
use crate::{Deferred, Error, Fingerprint, Items, Result, Stage, Stream, StreamItem};

/// A stream whose items are mapped by a function. Made by [`Stream::map`].
#[derive(Debug)]
pub struct MapStream<S, F> {
    stream: S,
    map: Arc<F>,
}

impl<S, F> MapStream<S, F> {
    pub(crate) fn new(stream: S, map: F) -> MapStream<S, F> {
        MapStream { stream, map: Arc::new(map) }
    }
}

impl<S, T, F> Stream for MapStream<S, F>
where
    S: Stream,
    T: Send + 'static,
    F: Fn(S::Item) -> Result<T> + Send + Sync + 'static,
{
    type Item = T;

    fn len(&self) -> Option<usize> {
        self.stream.len()
    }

    fn items(&self, epoch: u64) -> Result<Items<T>> {
        self.deferred(epoch).map(make)
    }

    fn deferred(&self, epoch: u64) -> Result<Items<Deferred<T>>> {
        let map = Arc::clone(&self.map);
        let items = self.stream.deferred(epoch)?;
        Ok(Box::new(items.map(move |item| {
            let StreamItem { index, origin, item } = item?;
            let map = Arc::clone(&map);
            let item = Deferred::new(move || {
                let item = item.make()?;
                Stage::Transform.timed(|| map(item))
            });
            Ok(StreamItem { index, origin, item })
        })))
    }

    /// Identifies the function only by its type ([`Fingerprint::add_function`]).
    fn fingerprint(&self, fingerprint: &mut Fingerprint) -> Result<()> {
        fingerprint.add_function::<F>("map");
        self.stream.fingerprint(fingerprint)
    }

    fn describe(&self) -> String {
        self.stream.describe()
    }
}

/// A stream whose items are shuffled within a buffer. Made by [`Stream::shuffle`].
#[derive(Clone, Debug)]
pub struct ShuffleStream<S> {
    stream: S,
    buffer: usize,
    seed: u64,
}

impl<S> ShuffleStream<S> {
    pub(crate) fn new(stream: S, buffer: usize, seed: u64) -> ShuffleStream<S> {
        ShuffleStream { stream, buffer, seed }
    }
}

impl<S: Stream> Stream for ShuffleStream<S> {
    type Item = S::Item;

    fn len(&self) -> Option<usize> {
        self.stream.len()
    }

    fn items(&self, epoch: u64) -> Result<Items<S::Item>> {
        self.deferred(epoch).map(make)
    }

    fn deferred(&self, epoch: u64) -> Result<Items<Deferred<S::Item>>> {
        if self.buffer == 0 {
            return Err(Error::usage(
                "a shuffle buffer needs at least 1 item; a buffer of 1 keeps the order",
            ));
        }
        Ok(Box::new(ShuffleItems {
            items: Some(self.stream.deferred(epoch)?),
            buffer: Vec::new(),
            capacity: self.buffer,
            random: generator(Purpose::Shuffle, [self.seed, epoch, self.buffer as u64]),
        }))
    }

    fn fingerprint(&self, fingerprint: &mut Fingerprint) -> Result<()> {
        fingerprint.add("shuffle buffer", self.buffer.to_le_bytes());
        fingerprint.add("shuffle seed", self.seed.to_le_bytes());
        self.stream.fingerprint(fingerprint)
    }

    fn describe(&self) -> String {
        format!("{}, shuffled (buffer {}, seed {})", self.stream.describe(), self.buffer, self.seed)
    }
}

/// An epoch of a [`ShuffleStream`].
struct ShuffleItems<T> {
    /// `None` after the end of the stream.
    items: Option<Items<T>>,
    buffer: Vec<StreamItem<T>>,
    capacity: usize,
    random: ChaCha8Rng,
}

impl<T> Iterator for ShuffleItems<T> {
    type Item = Result<StreamItem<T>>;

    fn next(&mut self) -> Option<Result<StreamItem<T>>> {
        while let Some(items) = &mut self.items
            && self.buffer.len() < self.capacity
        {
            match items.next() {
                Some(Ok(item)) => self.buffer.push(item),
                // The error is returned at once. The items that were read before it follow if the
                // caller continues.
                Some(Err(error)) => return Some(Err(error)),
                None => self.items = None,
            }
        }
        let index = below(&mut self.random, self.buffer.len() as u64) as usize;
        (!self.buffer.is_empty()).then(|| Ok(self.buffer.swap_remove(index)))
    }
}

/// The items of one stream, then those of another. Made by [`Stream::chain`].
#[derive(Clone, Debug)]
pub struct ChainStream<S, T> {
    first: S,
    second: Arc<T>,
}

impl<S, T> ChainStream<S, T> {
    pub(crate) fn new(first: S, second: T) -> ChainStream<S, T> {
        ChainStream { first, second: Arc::new(second) }
    }
}

impl<S: Stream, T: Stream<Item = S::Item>> Stream for ChainStream<S, T> {
    type Item = S::Item;

    fn len(&self) -> Option<usize> {
        self.first.len()?.checked_add(self.second.len()?)
    }

    fn items(&self, epoch: u64) -> Result<Items<S::Item>> {
        self.deferred(epoch).map(make)
    }

    fn deferred(&self, epoch: u64) -> Result<Items<Deferred<S::Item>>> {
        let second = Arc::clone(&self.second);
        let mut open: OpenStream<S::Item> = Some(Box::new(move || second.deferred(epoch)));
        let mut items = self.first.deferred(epoch)?;
        // The second stream continues counting after the highest number of the first.
        let mut next_index = 0u64;
        let mut offset = 0u64;
        Ok(Box::new(std::iter::from_fn(move || {
            loop {
                match (items.next(), open.take()) {
                    (Some(item), opening) => {
                        open = opening;
                        return Some(item.map(|mut item| {
                            next_index = next_index.max(item.index.saturating_add(1));
                            item.index = item.index.wrapping_add(offset);
                            item
                        }));
                    }
                    (None, None) => return None,
                    (None, Some(next)) => match next() {
                        Ok(next) => (items, offset) = (next, next_index),
                        Err(error) => {
                            items = Box::new(std::iter::empty());
                            return Some(Err(error));
                        }
                    },
                }
            }
        })))
    }

    fn fingerprint(&self, fingerprint: &mut Fingerprint) -> Result<()> {
        self.first.fingerprint(fingerprint)?;
        fingerprint.add("chain", []);
        self.second.fingerprint(fingerprint)
    }

    fn describe(&self) -> String {
        format!("{}, then {}", self.first.describe(), self.second.describe())
    }
}

/// Opens the second stream of a chain.
type OpenStream<T> = Option<Box<dyn FnOnce() -> Result<Items<Deferred<T>>> + Send>>;

/// The first items of a stream. Made by [`Stream::take`].
#[derive(Clone, Debug)]
pub struct TakeStream<S> {
    stream: S,
    count: usize,
}

impl<S> TakeStream<S> {
    pub(crate) fn new(stream: S, count: usize) -> TakeStream<S> {
        TakeStream { stream, count }
    }
}

impl<S: Stream> Stream for TakeStream<S> {
    type Item = S::Item;

    fn len(&self) -> Option<usize> {
        // If the length of the stream is unknown, so is the number of items taken.
        self.stream.len().map(|len| len.min(self.count))
    }

    fn items(&self, epoch: u64) -> Result<Items<S::Item>> {
        self.deferred(epoch).map(make)
    }

    fn deferred(&self, epoch: u64) -> Result<Items<Deferred<S::Item>>> {
        let mut items = self.stream.deferred(epoch)?;
        let mut remaining = self.count;
        // Not `Iterator::take`, which would count errors too.
        Ok(Box::new(std::iter::from_fn(move || {
            let item = if remaining > 0 { items.next() } else { None };
            remaining -= usize::from(matches!(item, Some(Ok(_))));
            item
        })))
    }

    fn fingerprint(&self, fingerprint: &mut Fingerprint) -> Result<()> {
        fingerprint.add("take", self.count.to_le_bytes());
        self.stream.fingerprint(fingerprint)
    }

    fn describe(&self) -> String {
        format!("{}, the first {}", self.stream.describe(), self.count)
    }
}

/// The items of a stream after the first ones. Made by [`Stream::skip`].
#[derive(Clone, Debug)]
pub struct SkipStream<S> {
    stream: S,
    count: usize,
}

impl<S> SkipStream<S> {
    pub(crate) fn new(stream: S, count: usize) -> SkipStream<S> {
        SkipStream { stream, count }
    }
}

impl<S: Stream> Stream for SkipStream<S> {
    type Item = S::Item;

    fn len(&self) -> Option<usize> {
        self.stream.len().map(|len| len.saturating_sub(self.count))
    }

    fn items(&self, epoch: u64) -> Result<Items<S::Item>> {
        self.deferred(epoch).map(make)
    }

    fn deferred(&self, epoch: u64) -> Result<Items<Deferred<S::Item>>> {
        let mut remaining = self.count;
        // Not `Iterator::skip`, which would drop errors too.
        Ok(Box::new(self.stream.deferred(epoch)?.filter(move |item| {
            let skipped = remaining > 0 && item.is_ok();
            remaining -= usize::from(skipped);
            !skipped
        })))
    }

    fn fingerprint(&self, fingerprint: &mut Fingerprint) -> Result<()> {
        fingerprint.add("skip", self.count.to_le_bytes());
        self.stream.fingerprint(fingerprint)
    }

    fn describe(&self) -> String {
        format!("{}, without the first {}", self.stream.describe(), self.count)
    }
}
