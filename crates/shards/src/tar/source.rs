//! The samples of local WebDataset shards by index.
//!
//! Out of scope: shards in a store or compressed with gzip, which are read in sequence (`stream`).

use std::collections::{BTreeMap, HashMap};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use super::TarSample;
use super::entries::TarEntries;
use super::group::{Groups, Selection};
use crate::files::{open_local, read_part};
use fulmen_data::internal::Offsets;
use fulmen_data::{Error, Fingerprint, Result, Source};
use fulmen_data::{internal::cores, internal::in_parallel};
use fulmen_files::CachedFile;
use fulmen_files::Location;

/// Local, uncompressed tar files as samples by index. Samples are read in any order, from any
/// thread, without reading other samples. Opening reads all headers once and keeps only the
/// positions.
///
/// ```
/// use fulmen_data::Source;
/// use fulmen_shards::{TarShardWriter, TarSource};
///
/// let folder = tempfile::tempdir()?;
/// let mut writer = TarShardWriter::builder(folder.path()).max_samples(2).build()?;
/// for number in 0..5u8 {
///     writer.write(&format!("{number:03}"), &[("bin", &[number]), ("txt", b"a number")])?;
/// }
/// writer.finish()?;
///
/// let samples = TarSource::open(folder.path().join("*.tar"))?;
/// assert_eq!(samples.len(), 5);
/// assert_eq!(samples.get(3)?.files["bin"], [3]);
/// assert!(samples.origin(3).ends_with("shard-000001.tar, entry 003"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct TarSource {
    shards: Vec<Shard>,
    offsets: Offsets,
    extensions: Vec<String>,
    selection: Arc<Selection>,
}

#[derive(Debug)]
struct Shard {
    location: Location,
    file: CachedFile,
    samples: Vec<SampleEntry>,
    files: Vec<Member>,
}

/// A sample: its key, and the range of its files in the shard's list.
#[derive(Debug)]
struct SampleEntry {
    key: Box<str>,
    first: usize,
    count: usize,
}

#[derive(Debug)]
struct Member {
    /// The index of the file's extension in the list of all extensions.
    extension: u32,
    offset: u64,
    size: u64,
}

impl TarSource {
    /// Opens the shards of a path or a pattern ([`Location::expand`]).
    ///
    /// # Errors
    /// Shards in a store or compressed with gzip (use [`TarShards`](crate::TarShards)); a shard
    /// that is damaged, truncated, or has no samples.
    pub fn open(shards: impl Into<Location>) -> Result<TarSource> {
        TarSource::open_only(shards, &[])
    }

    /// Like [`open`](TarSource::open), but reads only the files with these extensions, such as
    /// `jpg`.
    pub fn open_only(shards: impl Into<Location>, extensions: &[&str]) -> Result<TarSource> {
        TarSource::from_list(shards.into().expand()?, extensions)
    }

    /// Opens these shards. Of each sample, only the files with these extensions are read, or all
    /// files if `extensions` is empty.
    pub fn from_list(
        shards: impl IntoIterator<Item = impl Into<Location>>,
        extensions: &[&str],
    ) -> Result<TarSource> {
        let shards: Vec<Location> = shards.into_iter().map(Into::into).collect();
        let selection = Arc::new(Selection::new(extensions, u64::MAX));
        let samples = in_parallel(&shards, cores(), |shard| index(shard, &selection))?;
        let offsets = Offsets::new(samples.iter().map(Vec::len));
        let mut source =
            TarSource { shards: Vec::new(), offsets, extensions: Vec::new(), selection };
        let mut extension_indices = HashMap::new();
        for (location, samples) in shards.into_iter().zip(samples) {
            source.add(location, samples, &mut extension_indices)?;
        }
        if source.len() == 0 {
            return Err(Error::usage(
                "there are no shards to read; expected at least one tar file",
            ));
        }
        Ok(source)
    }

    fn add(
        &mut self,
        location: Location,
        samples: Vec<IndexedSample>,
        extension_indices: &mut HashMap<String, u32>,
    ) -> Result<()> {
        let file = CachedFile::new(location.local().unwrap_or(Path::new("")), self.shards.len());
        let mut shard = Shard { location, file, samples: Vec::new(), files: Vec::new() };
        for (key, files) in samples {
            shard.samples.push(SampleEntry { key, first: shard.files.len(), count: files.len() });
            for (extension, (offset, size)) in files {
                let next = extension_indices.len() as u32;
                let extension =
                    *extension_indices.entry(extension).or_insert_with_key(|extension| {
                        self.extensions.push(extension.clone());
                        next
                    });
                shard.files.push(Member { extension, offset, size });
            }
        }
        if shard.samples.is_empty() {
            let expected = match &self.selection.extensions[..] {
                [] => "files named `key.extension`".to_owned(),
                extensions => format!("files with the extensions .{}", extensions.join(", .")),
            };
            return Err(shard
                .location
                .error(format!("there are no samples in this tar: expected {expected}")));
        }
        self.shards.push(shard);
        Ok(())
    }

    /// The key of a sample, if the index is in range.
    pub fn key(&self, index: usize) -> Option<&str> {
        self.find(index).map(|(_, sample)| &*sample.key)
    }

    /// The shards.
    pub fn shards(&self) -> Vec<&Location> {
        self.shards.iter().map(|shard| &shard.location).collect()
    }

    fn find(&self, index: usize) -> Option<(&Shard, &SampleEntry)> {
        let (number, sample) = self.offsets.find(index)?;
        let shard = self.shards.get(number)?;
        Some((shard, shard.samples.get(sample)?))
    }
}

/// The files of a sample by extension, each with its offset and size.
type IndexedSample = (Box<str>, BTreeMap<String, (u64, u64)>);

fn index(location: &Location, selection: &Arc<Selection>) -> Result<Vec<IndexedSample>> {
    let (file, size) = open_local(location, "samples of a tar", "TarShards")?;
    let mut start = [0; 2];
    if size >= 2 {
        file.read_exact_at(&mut start, 0).map_err(|source| location.read_error(source))?;
    }
    if start == [0x1f, 0x8b] {
        return Err(location.error(
            "compressed samples cannot be read by index; decompress it, or read it with TarShards",
        ));
    }
    let mut groups =
        Groups::new(location, TarEntries::of_part(location.clone(), &file, 0..size), selection);
    let mut samples = Vec::new();
    while let Some(group) = groups.next(|_, entry| Ok((entry.offset, entry.size)))? {
        samples.push((group.key.into_boxed_str(), group.files));
    }
    Ok(samples)
}

impl Source for TarSource {
    type Item = TarSample;

    fn len(&self) -> usize {
        self.offsets.len()
    }

    fn get(&self, index: usize) -> Result<TarSample> {
        let Some((shard, sample)) = self.find(index) else {
            return Err(Error::usage(format!(
                "there is no sample {index}; there are {}",
                self.len()
            )));
        };
        shard.file.with_file(|file| {
            let members = &shard.files[sample.first..sample.first + sample.count];
            let files = members.iter().map(|member| {
                let extension = &self.extensions[member.extension as usize];
                let Member { offset, size, .. } = *member;
                let position = || format!("entry {}.{extension}, at byte {offset}", sample.key);
                Ok((
                    extension.clone(),
                    read_part(&shard.location, file, offset..offset + size, position)?,
                ))
            });
            Ok(TarSample { key: sample.key.to_string(), files: files.collect::<Result<_>>()? })
        })
    }

    fn origin(&self, index: usize) -> String {
        match self.find(index) {
            Some((shard, sample)) => format!("{}, entry {}", shard.location, sample.key),
            None => format!("sample {index} of {}", self.len()),
        }
    }

    fn fingerprint(&self, fingerprint: &mut Fingerprint) -> Result<()> {
        fingerprint.add("tar source", self.selection.extensions.join("\n"));
        self.shards.iter().try_for_each(|shard| shard.location.fingerprint(fingerprint))
    }
}
