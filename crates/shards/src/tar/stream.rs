//! The samples of WebDataset shards in sequence.
//!
//! Out of scope: samples by index (`source`).

use std::sync::Arc;

use super::TarSample;
use super::entries::{TarEntries, read_over};
use super::group::{Groups, Selection};
use crate::files::{FileItem, FileItems, FileList};
use fulmen_data::{Fingerprint, Items, Result, Stream};
use fulmen_files::{Location, open_unpacked};

/// The default limit on the size of a sample, because a small `.gz` can expand to a thousand times
/// its size.
const DEFAULT_LIMIT: u64 = 1 << 30;

/// WebDataset shards, on a local disk or in a store, read in sequence: tar files, plain or
/// compressed with gzip. A sample is a sequence of files whose names are equal up to the first dot.
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
/// The index of an item ([`StreamItem::index`](fulmen_data::StreamItem::index)) is the number of
/// its shard in the list, times 2³², plus its number in the shard. It does not depend on the order
/// in which shards are read. If a shard cannot be read to its end, the stream returns an error and
/// continues with the next shard, so a loader may skip the unreadable part.
#[derive(Clone, Debug)]
pub struct TarShards {
    shards: FileList,
    selection: Arc<Selection>,
}

impl TarShards {
    /// Reads the shards of a location or a pattern ([`Location::expand`]), in the order of the
    /// expansion. Each shard is opened when it is its turn.
    pub fn open(shards: impl Into<Location>) -> Result<TarShards> {
        TarShards::from_list(shards.into().expand()?)
    }

    /// Reads these shards in this order.
    pub fn from_list(shards: impl IntoIterator<Item = impl Into<Location>>) -> Result<TarShards> {
        let shards = FileList::new(shards, "shards to read; expected one tar file")?;
        Ok(TarShards { shards, selection: Arc::new(Selection::new(&[], DEFAULT_LIMIT)) })
    }

    /// Reads the shards in a different order in each epoch, determined by the seed and the epoch.
    /// The samples of a shard stay together; [`Stream::shuffle`] mixes them.
    #[must_use]
    pub fn shuffle_shards(mut self, seed: u64) -> TarShards {
        self.shards.seed = Some(seed);
        self
    }

    /// Reads only the files with these extensions, such as `jpg`.
    #[must_use]
    pub fn extensions(mut self, extensions: &[&str]) -> TarShards {
        self.selection = Arc::new(Selection::new(extensions, self.selection.max_sample_bytes));
        self
    }

    /// The maximum size of a sample; 1 GiB unless set.
    #[must_use]
    pub fn max_sample_bytes(mut self, bytes: u64) -> TarShards {
        self.selection =
            Arc::new(Selection { max_sample_bytes: bytes, ..(*self.selection).clone() });
        self
    }

    /// Sets the number of samples in all shards together, if it is known.
    #[must_use]
    pub fn num_samples(mut self, samples: usize) -> TarShards {
        self.shards.len = Some(samples);
        self
    }

    /// The shards.
    pub fn shards(&self) -> &[Location] {
        &self.shards.files
    }
}

impl Stream for TarShards {
    type Item = TarSample;

    fn len(&self) -> Option<usize> {
        self.shards.len
    }

    fn items(&self, epoch: u64) -> Result<Items<TarSample>> {
        let selection = Arc::clone(&self.selection);
        Ok(self.shards.items(epoch, move |shard| samples(shard, &selection)))
    }

    fn fingerprint(&self, fingerprint: &mut Fingerprint) -> Result<()> {
        self.shards.fingerprint("tar shards", self.describe(), fingerprint)
    }

    fn describe(&self) -> String {
        let only = match &self.selection.extensions[..] {
            [] => String::new(),
            extensions => format!(", only .{}", extensions.join(", .")),
        };
        self.shards.describe("TarShards", &only)
    }
}

/// The samples of a shard up to the first one that cannot be read.
fn samples(shard: &Location, selection: &Arc<Selection>) -> Result<FileItems<TarSample>> {
    let mut groups = Groups::new(
        shard,
        TarEntries::new(shard.clone(), open_unpacked(shard)?, read_over),
        selection,
    );
    let mut failed = false;
    let readable = std::iter::from_fn(move || {
        groups.next(|entries, entry| entries.content(&entry)).transpose()
    })
    .take_while(move |group| !std::mem::replace(&mut failed, group.is_err()));
    Ok(Box::new(readable.zip(0..).map(|(group, number)| {
        let group = group?;
        let position = format!("entry {}", group.key);
        Ok(FileItem { number, position, item: TarSample { key: group.key, files: group.files } })
    })))
}
