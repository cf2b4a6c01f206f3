//! The samples of WebDataset shards from the beginning to the end, shard after shard.
//!
//! Not here: samples by index (`source`).

use std::io::Read;
use std::sync::Arc;

use super::TarSample;
use super::group::{Groups, Selection};
use super::walk::Sequential;
use fulmen_data::{Fingerprint, Items, Result, Stream, StreamItem};
use fulmen_data::{internal::Purpose, internal::permutation};
use fulmen_files::Location;
use fulmen_files::{fingerprint_all, open_unpacked};

/// A sample is refused if it is larger, unless the caller asks for it: a small `.gz` can hold a thousand times its size.
const DEFAULT_LIMIT: u64 = 1 << 30;

/// WebDataset shards, on a local disk or in a store, read from the beginning to the end: tar files, plain or compressed
/// with gzip, in which files that stand one after the other and share a name up to the first dot are a sample.
///
/// ```
/// use fulmen_data::Stream;
/// use fulmen_shards::{TarShardWriter, TarShards};
///
/// let folder = tempfile::tempdir()?;
/// let mut writer = TarShardWriter::builder(folder.path()).prefix("train").max_samples(2).build()?;
/// for number in 0..5u8 {
///     writer.write(&format!("{number:03}"), &[("bin", &[number])])?;
/// }
/// writer.finish()?;
///
/// let shards = TarShards::open(folder.path().join("train-{000000..000002}.tar"))?.shuffle_shards(7);
/// let epoch = |epoch| -> fulmen_data::Result<Vec<u8>> { shards.items(epoch)?.map(|item| Ok(item?.item.files["bin"][0])).collect() };
/// let mut read = epoch(0)?;
/// assert_eq!(read, epoch(0)?);
/// read.sort();
/// assert_eq!(read, [0, 1, 2, 3, 4]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// The number of an item ([`StreamItem::index`]) is the number of its shard in the list, times 2³², and its place in the
/// shard: it does not depend on the order in which shards are read. After a shard that cannot be read to its end comes an
/// error, and then the next shard, so that a loader may skip what is bad.
#[derive(Clone, Debug)]
pub struct TarShards {
    shards: Arc<[Location]>,
    selection: Arc<Selection>,
    seed: Option<u64>,
    num_samples: Option<usize>,
}

impl TarShards {
    /// The shards that a place or a pattern stands for ([`Location::expand`]), in that order. They are opened when it is
    /// their turn.
    pub fn open(shards: impl Into<Location>) -> Result<TarShards> {
        TarShards::from_list(shards.into().expand()?)
    }

    /// These shards in this order.
    pub fn from_list(shards: impl IntoIterator<Item = impl Into<Location>>) -> Result<TarShards> {
        let shards: Arc<[Location]> = shards.into_iter().map(Into::into).collect();
        if shards.is_empty() {
            return Err(fulmen_data::Error::usage("there are no shards to read; expected one tar file at least"));
        }
        let selection = Arc::new(Selection::new(&[], DEFAULT_LIMIT));
        Ok(TarShards { shards, selection, seed: None, num_samples: None })
    }

    /// Reads the shards of each epoch in another order, which the seed and the epoch decide. Samples of one shard stay
    /// together; [`Stream::shuffle`] mixes them.
    #[must_use]
    pub fn shuffle_shards(mut self, seed: u64) -> TarShards {
        self.seed = Some(seed);
        self
    }

    /// Passes over all files but those with these extensions, such as `jpg`.
    #[must_use]
    pub fn extensions(mut self, extensions: &[&str]) -> TarShards {
        self.selection = Arc::new(Selection::new(extensions, self.selection.max_sample_bytes));
        self
    }

    /// No sample may be larger; 1 GiB unless set.
    #[must_use]
    pub fn max_sample_bytes(mut self, bytes: u64) -> TarShards {
        self.selection = Arc::new(Selection { max_sample_bytes: bytes, ..(*self.selection).clone() });
        self
    }

    /// Says how many samples there are in all shards together, where that is known.
    #[must_use]
    pub fn num_samples(mut self, samples: usize) -> TarShards {
        self.num_samples = Some(samples);
        self
    }

    /// The shards.
    pub fn shards(&self) -> &[Location] {
        &self.shards
    }
}

impl Stream for TarShards {
    type Item = TarSample;

    fn len(&self) -> Option<usize> {
        self.num_samples
    }

    fn items(&self, epoch: u64) -> Result<Items<TarSample>> {
        let order = match self.seed {
            Some(seed) => permutation(Purpose::ShardOrder, seed, epoch, self.shards.len()),
            None => (0..self.shards.len()).collect(),
        };
        let (shards, selection) = (self.shards.clone(), self.selection.clone());
        Ok(Box::new(ShardItems { shards, selection, order: order.into_iter(), open: None }))
    }

    fn fingerprint(&self, fingerprint: &mut Fingerprint) -> Result<()> {
        fingerprint.add("tar shards", self.describe());
        fingerprint_all(&self.shards, fingerprint)
    }

    fn describe(&self) -> String {
        let extensions = match &self.selection.extensions[..] {
            [] => String::new(),
            extensions => format!(", only .{}", extensions.join(", .")),
        };
        let order = self.seed.map_or(String::new(), |seed| format!(", shuffled with seed {seed}"));
        format!("TarShards({} from {}{extensions}{order})", self.shards.len(), self.shards[0].name())
    }
}

/// The items of an epoch.
struct ShardItems {
    shards: Arc<[Location]>,
    selection: Arc<Selection>,
    order: std::vec::IntoIter<usize>,
    open: Option<OpenShard>,
}

struct OpenShard {
    number: usize,
    /// How many samples have been read.
    read: u64,
    groups: Groups<Sequential<Box<dyn Read + Send>>, Vec<u8>>,
}

impl ShardItems {
    fn open(&self, number: usize) -> Result<OpenShard> {
        let location = &self.shards[number];
        let reader = Sequential(open_unpacked(location)?);
        Ok(OpenShard { number, read: 0, groups: Groups::new(location, reader, &self.selection) })
    }
}

impl Iterator for ShardItems {
    type Item = Result<StreamItem<TarSample>>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if self.open.is_none() {
                let number = self.order.next()?;
                match self.open(number) {
                    Ok(shard) => self.open = Some(shard),
                    Err(error) => return Some(Err(error)),
                }
            }
            let Some(shard) = &mut self.open else { continue };
            match shard.groups.next(|member| member.walk.content(&member.entry)) {
                Ok(Some(group)) => {
                    let index = ((shard.number as u64) << 32).wrapping_add(shard.read);
                    shard.read += 1;
                    let origin = format!("{}, entry {}", self.shards[shard.number], group.key);
                    return Some(Ok(StreamItem {
                        index,
                        origin,
                        item: TarSample { key: group.key, files: group.files },
                    }));
                }
                Ok(None) => self.open = None,
                Err(error) => {
                    self.open = None;
                    return Some(Err(error));
                }
            }
        }
    }
}
