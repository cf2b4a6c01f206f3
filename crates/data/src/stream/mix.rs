//! Mixes several streams into one; weights decide which stream each item comes from.
//!
//! Out of scope: datasets that are read by index (`sampler`), and concatenated streams
//! (`adapters`).

use std::fmt;
use std::sync::Arc;

use chacha20::ChaCha8Rng;

use crate::dataset::random::{Purpose, generator, unit};
use crate::sampler::mix::Weights;
use crate::stream::make;
use crate::{Deferred, Fingerprint, Items, Result, Stream, StreamItem};

/// The distance between the epochs of two passes over a repeated stream. It is so large that these
/// epochs differ from all real ones, and from those that a loader uses to repeat a stream.
const PASS: u64 = 1 << 52;

/// When a mixture of streams ends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum MixUntil {
    /// When one stream has ended, so that the weights hold for the whole mixture (Hugging Face's
    /// `first_exhausted`).
    #[default]
    FirstEnds,
    /// When all streams have ended: each item comes once. A stream that has ended is not drawn
    /// again, and the others continue by their weights (WebDataset's `longest`).
    AllEnd,
    /// Never: a stream that ends is repeated, with the order and random numbers of another epoch.
    /// The loader's [`num_samples`](crate::DataLoaderBuilder::num_samples) then sets the length of
    /// an epoch.
    Never,
}

/// Streams whose items are mixed by weights. The choice of the stream depends only on the seed and
/// the epoch.
///
/// ```
/// use fulmen_data::{Fingerprint, Items, MixStream, MixUntil, Result, Stream, StreamItem};
///
/// struct Repeat(&'static str);
///
/// impl Stream for Repeat {
///     type Item = &'static str;
///     fn len(&self) -> Option<usize> {
///         Some(5)
///     }
///     fn items(&self, _epoch: u64) -> Result<Items<&'static str>> {
///         let item = self.0;
///         Ok(Box::new((0..5).map(move |index| Ok(StreamItem { index, origin: item.to_owned(), item }))))
///     }
///     fn fingerprint(&self, fingerprint: &mut Fingerprint) -> Result<()> {
///         fingerprint.add("word", self.0);
///         Ok(())
///     }
/// }
///
/// let words = MixStream::new(vec![(Box::new(Repeat("web")), 0.8), (Box::new(Repeat("books")), 0.2)], 42)?;
/// let words = words.until(MixUntil::AllEnd);
/// assert_eq!((words.len(), words.items(0)?.count()), (Some(10), 10));
/// # Ok::<(), fulmen_data::Error>(())
/// ```
#[must_use]
pub struct MixStream<T> {
    streams: Arc<[Box<dyn Stream<Item = T>>]>,
    weights: Weights,
    until: MixUntil,
    seed: u64,
}

impl<T: Send + 'static> MixStream<T> {
    /// A mixture of streams with a weight for each. The weights need not add up to 1.
    ///
    /// # Errors
    /// Weights that are negative, infinite or all 0.
    pub fn new(streams: Vec<(Box<dyn Stream<Item = T>>, f64)>, seed: u64) -> Result<MixStream<T>> {
        let (streams, weights): (Vec<_>, Vec<_>) = streams.into_iter().unzip();
        let weights = Weights::new("MixStream", &weights, streams.len(), "streams")?;
        Ok(MixStream { streams: streams.into(), weights, until: MixUntil::default(), seed })
    }

    /// When the mixture ends; [`MixUntil::FirstEnds`] unless set.
    pub fn until(mut self, until: MixUntil) -> MixStream<T> {
        self.until = until;
        self
    }
}

impl<T: Send + 'static> Stream for MixStream<T> {
    type Item = T;

    fn len(&self) -> Option<usize> {
        match self.until {
            MixUntil::FirstEnds | MixUntil::Never => None,
            MixUntil::AllEnd => {
                let drawn = self
                    .streams
                    .iter()
                    .zip(self.weights.get())
                    .filter(|(_, weight)| **weight > 0.0);
                drawn
                    .map(|(stream, _)| stream.len())
                    .try_fold(0usize, |sum, len| sum.checked_add(len?))
            }
        }
    }

    fn items(&self, epoch: u64) -> Result<Items<T>> {
        self.deferred(epoch).map(make)
    }

    fn deferred(&self, epoch: u64) -> Result<Items<Deferred<T>>> {
        let parts = self
            .streams
            .iter()
            .map(|stream| Ok(Part { items: stream.deferred(epoch)?, pass: 0, read: 0 }));
        Ok(Box::new(MixItems {
            parts: parts.collect::<Result<_>>()?,
            streams: Arc::clone(&self.streams),
            weights: Some(self.weights.clone()),
            until: self.until,
            epoch,
            random: generator(Purpose::Mix, [self.seed, epoch, u64::MAX - 1]),
        }))
    }

    fn fingerprint(&self, fingerprint: &mut Fingerprint) -> Result<()> {
        fingerprint.add("mix", self.own_description());
        self.streams.iter().try_for_each(|stream| stream.fingerprint(fingerprint))
    }

    fn describe(&self) -> String {
        let streams: Vec<String> = self.streams.iter().map(|stream| stream.describe()).collect();
        format!("{} of [{}]", self.own_description(), streams.join("; "))
    }
}

impl<T> MixStream<T> {
    fn own_description(&self) -> String {
        format!(
            "mixture until {:?} (weights {:?}, seed {})",
            self.until,
            self.weights.get(),
            self.seed
        )
    }
}

impl<T> fmt::Debug for MixStream<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.own_description())
    }
}

/// An epoch of a [`MixStream`].
struct MixItems<T> {
    streams: Arc<[Box<dyn Stream<Item = T>>]>,
    parts: Vec<Part<T>>,
    /// The weights of the streams that have not ended; `None` at the end.
    weights: Option<Weights>,
    until: MixUntil,
    epoch: u64,
    random: ChaCha8Rng,
}

struct Part<T> {
    items: Items<Deferred<T>>,
    /// How many times the stream was restarted, and how many items it gave since.
    pass: u64,
    read: u64,
}

impl<T: Send + 'static> Iterator for MixItems<T> {
    type Item = Result<StreamItem<Deferred<T>>>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let drawn = self.weights.as_ref()?.draw(unit(&mut self.random));
            let count = self.parts.len() as u64;
            let part = &mut self.parts[drawn];
            match part.items.next() {
                Some(Ok(mut item)) => {
                    part.read += 1;
                    // All items have different indices, across streams and passes.
                    item.index = item.index.wrapping_mul(count).wrapping_add(drawn as u64);
                    item.index = item.index.wrapping_add(part.pass.wrapping_mul(PASS));
                    return Some(Ok(item));
                }
                Some(Err(error)) => return Some(Err(error)),
                None => match self.until {
                    MixUntil::FirstEnds => self.weights = None,
                    MixUntil::AllEnd => self.exclude(drawn),
                    // An empty stream would be repeated forever.
                    MixUntil::Never if part.read == 0 => self.exclude(drawn),
                    MixUntil::Never => {
                        let pass = part.pass + 1;
                        let epoch = self.epoch.wrapping_add(pass.wrapping_mul(PASS));
                        match self.streams[drawn].deferred(epoch) {
                            Ok(items) => *part = Part { items, pass, read: 0 },
                            Err(error) => {
                                self.weights = None;
                                return Some(Err(error));
                            }
                        }
                    }
                },
            }
        }
    }
}

impl<T> MixItems<T> {
    fn exclude(&mut self, part: usize) {
        self.weights = self.weights.take().and_then(|weights| {
            let mut weights = weights.get().to_vec();
            weights[part] = 0.0;
            Weights::new("MixStream", &weights, weights.len(), "streams").ok()
        });
    }
}
