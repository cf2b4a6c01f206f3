//! The content of shards: samples, files by extension, classes.
//!
//! Out of scope: reading samples for training (`fulmen-shards`).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::file_slice::FileSlice;
use fulmen_data::{Error, Result};
use fulmen_shards::split;

/// The maximum size of a `.cls` file that is read. A longer file is not a class number.
const MAX_CLASS_BYTES: u64 = 32;

/// The content of shards, as returned by [`shards_info`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShardsInfo {
    /// The shards, by name.
    pub shards: Vec<ShardInfo>,
    /// The number of files with each extension, and their total size in bytes.
    pub extensions: BTreeMap<String, (u64, u64)>,
    /// The number of samples in each class, by the number in their `.cls` files.
    pub classes: BTreeMap<u64, u64>,
}

impl ShardsInfo {
    /// The number of samples in all shards.
    pub fn samples(&self) -> u64 {
        self.shards.iter().map(|shard| shard.samples).sum()
    }

    /// The total size of the shards in bytes.
    pub fn bytes(&self) -> u64 {
        self.shards.iter().map(|shard| shard.bytes).sum()
    }
}

/// The content of one shard.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardInfo {
    /// The path of the file.
    pub path: PathBuf,
    /// The number of samples.
    pub samples: u64,
    /// The size in bytes.
    pub bytes: u64,
}

/// Inspects tar shards in WebDataset's format. The part of a file's name before its first dot is
/// the sample's key, the rest is the extension, and the files of a sample are consecutive.
/// Extensions are reported in lower case. Files that readers ignore are not counted: files without
/// an extension, hidden files, and `__name__`.
///
/// Each path is a tar file, or a folder whose `.tar` files are read in the order of their names.
/// Only headers and class numbers are read.
///
/// ```
/// use std::fs;
///
/// let folder = tempfile::tempdir()?;
/// let mut tar = tar::Builder::new(fs::File::create(folder.path().join("train-000000.tar"))?);
/// for (name, bytes) in [("a.jpg", &b"..."[..]), ("a.cls", b"7"), ("b.jpg", b"....")] {
///     let mut header = tar::Header::new_gnu();
///     header.set_size(bytes.len() as u64);
///     tar.append_data(&mut header, name, bytes)?;
/// }
/// tar.finish()?;
///
/// let info = fulmen_cli::pack::shards_info(&[folder.path()])?;
/// assert_eq!(info.samples(), 2);
/// assert_eq!(info.extensions["jpg"], (2, 7));
/// assert_eq!(info.classes[&7], 1);
/// # Ok::<(), fulmen_data::Error>(())
/// ```
///
/// # Errors
/// A path that does not exist, a folder without shards, a file that is not a tar file or is
/// truncated.
pub fn shards_info(paths: &[impl AsRef<Path>]) -> Result<ShardsInfo> {
    let mut info = ShardsInfo::default();
    for path in paths {
        let path = path.as_ref();
        if path.is_dir() {
            let shards = tar_files(path)?;
            if shards.is_empty() {
                return Err(Error::missing(format!(
                    "{}: there are no .tar files in this folder",
                    path.display()
                )));
            }
            shards.iter().try_for_each(|shard| add_shard(shard, &mut info))?;
        } else {
            add_shard(path, &mut info)?;
        }
    }
    Ok(info)
}

fn tar_files(folder: &Path) -> Result<Vec<PathBuf>> {
    let listing = |source| Error::io(folder, "listing the folder", source);
    let mut files = Vec::new();
    for entry in folder.read_dir().map_err(listing)? {
        let path = entry.map_err(listing)?.path();
        // A hidden file is a shard that is still being written.
        let hidden = path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        if !hidden && path.extension().is_some_and(|extension| extension == "tar") && path.is_file()
        {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

fn add_shard(path: &Path, info: &mut ShardsInfo) -> Result<()> {
    let section = FileSlice::open(path)?;
    let mut samples = 0;
    let mut last: Option<String> = None;
    for entry in section.tar_entries("this shard", true) {
        let entry = entry?;
        // Readers ignore these files too.
        let Some((key, extension)) = split(&entry.name) else { continue };
        let extension = extension.to_lowercase();
        if last.as_deref() != Some(key) {
            samples += 1;
            last = Some(key.to_owned());
        }
        let (files, bytes) = info.extensions.entry(extension.clone()).or_default();
        *files += 1;
        *bytes += entry.size;
        if extension == "cls" && entry.size <= MAX_CLASS_BYTES {
            let reading =
                |source| Error::io(path, &format!("reading entry {}", entry.name), source);
            let text = section
                .part(entry.offset, entry.size)
                .map_or(Ok(Vec::new()), |part| part.read_all())
                .map_err(reading)?;
            if let Some(class) =
                std::str::from_utf8(&text).ok().and_then(|text| text.trim().parse().ok())
            {
                *info.classes.entry(class).or_default() += 1;
            }
        }
    }
    info.shards.push(ShardInfo { path: path.to_owned(), samples, bytes: section.len() });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_that_readers_ignore_are_not_counted() {
        let folder = tempfile::tempdir().unwrap();
        let mut tar =
            tar::Builder::new(std::fs::File::create(folder.path().join("a.tar")).unwrap());
        for name in ["a/b.JPG", "a/b.seg.png", "readme", "__meta__/x.json", "a/._b.jpg", "c.jpg"] {
            let mut header = tar::Header::new_gnu();
            header.set_size(3);
            tar.append_data(&mut header, name, &b"..."[..]).unwrap();
        }
        tar.finish().unwrap();
        let info = shards_info(&[folder.path()]).unwrap();
        assert_eq!(info.samples(), 2);
        let extensions = [("jpg".to_owned(), (2, 6)), ("seg.png".to_owned(), (1, 3))];
        assert_eq!(info.extensions.into_iter().collect::<Vec<_>>(), extensions);
    }
}
