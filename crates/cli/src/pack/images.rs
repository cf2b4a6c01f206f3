//! The samples of image sources: the numbers of their classes, their labels and their keys.
//!
//! Out of scope: finding images (`entries`), and writing them into shards (`plan`).

use std::collections::{BTreeSet, HashMap, HashSet};

use super::entries::{Entry, find_images};
use super::labels::Labels;
use super::manifest::SourceFile;
use super::options::Pack;
use fulmen_data::Result;
use fulmen_durable::messages::quantity;
use fulmen_shards::{size_in_tar, split as split_name};

/// A sample.
pub(crate) struct ImageSample {
    /// Its name in the shard, without the extension.
    pub(crate) key: String,
    image: Entry,
    class: Option<usize>,
    json: Option<Box<str>>,
}

/// The files of a sample.
pub(crate) struct SampleFiles {
    /// Extension and content of each file.
    pub(crate) files: Vec<(&'static str, Vec<u8>)>,
    /// A warning about the sample.
    pub(crate) warning: Option<String>,
}

/// All samples.
pub(crate) struct ImageSet {
    /// The names of the splits, and their samples.
    pub(crate) splits: Vec<(String, Vec<ImageSample>)>,
    pub(crate) classes: Vec<String>,
    pub(crate) sources: Vec<SourceFile>,
}

impl ImageSample {
    /// The size of the sample's files in a tar, with their headers.
    pub(crate) fn tar_bytes(&self) -> u64 {
        let class = self.class.map(|class| ("cls", class.to_string().len() as u64));
        let json = self.json.as_ref().map(|json| ("json", json.len() as u64));
        let files = [Some((self.image.extension, self.image.bytes())), class, json];
        let sizes = files
            .into_iter()
            .flatten()
            .map(|(extension, bytes)| size_in_tar(self.key.len() + 1 + extension.len(), bytes));
        sizes.fold(0, u64::saturating_add)
    }

    pub(crate) fn read(&self) -> Result<SampleFiles> {
        let image = self.image.read()?;
        let warning = if self.image.extension == "jpg" { jpeg_warning(&image) } else { None };
        let mut files = vec![(self.image.extension, image)];
        files.extend(self.class.map(|class| ("cls", class.to_string().into_bytes())));
        files.extend(self.json.as_ref().map(|json| ("json", json.as_bytes().to_vec())));
        Ok(SampleFiles { files, warning })
    }
}

/// An image with the name of its class, and its record.
type Labeled = (Entry, Option<String>, Option<Box<str>>);

impl ImageSet {
    pub(crate) fn find(pack: &Pack) -> Result<ImageSet> {
        let mut sources = Vec::new();
        let mut splits = Vec::new();
        let mut classes: Option<Vec<String>> = None;
        for split in pack.splits() {
            let images = labeled_images(pack, &split, &mut sources)?;
            let has_labels = pack.labels.iter().any(|(of, _)| *of == split);
            let classes = classes.get_or_insert_with(|| class_names(&images, has_labels));
            let number: HashMap<&str, usize> =
                classes.iter().enumerate().map(|(index, name)| (name.as_str(), index)).collect();
            let mut samples = Vec::with_capacity(images.len());
            let keys = keys(&split, &images)?;
            for ((image, class, json), key) in images.into_iter().zip(keys) {
                let class = match class {
                    None => None,
                    Some(name) => Some(*number.get(name.as_str()).ok_or_else(|| {
                        image.error(format!(
                            "its class {name} is not among the {} of the split {}",
                            quantity(classes.len(), "class"),
                            pack.sources[0].0
                        ))
                    })?),
                };
                samples.push(ImageSample { key, image, class, json });
            }
            splits.push((split, samples));
        }
        Ok(ImageSet { splits, classes: classes.unwrap_or_default(), sources })
    }
}

/// The images of a split with their labels.
fn labeled_images(pack: &Pack, split: &str, sources: &mut Vec<SourceFile>) -> Result<Vec<Labeled>> {
    let mut labels = Vec::new();
    for (_, file) in pack.labels.iter().filter(|(of, _)| of == split) {
        labels.push(Labels::read(file)?);
        sources.push(SourceFile::new(split, file)?);
    }
    let mut images = Vec::new();
    for (_, pattern) in pack.sources.iter().filter(|(of, _)| of == split) {
        for source in pattern.expand()? {
            let (file, entries) = find_images(split, &source, pack.flat || !labels.is_empty())?;
            sources.push(file);
            for entry in entries {
                images.push(labeled(entry, pack.flat, &mut labels)?);
            }
        }
    }
    labels.iter().try_for_each(Labels::check_all_taken)?;
    Ok(images)
}

fn labeled(image: Entry, flat: bool, labels: &mut [Labels]) -> Result<Labeled> {
    for file in &mut *labels {
        if let Some(label) = file.take(&image.path)? {
            return Ok((image, label.class, label.json));
        }
    }
    if !labels.is_empty() {
        return Err(image.error("the labels have no record of this image"));
    }
    match image.class.as_ref().map(ToString::to_string) {
        None if !flat => Err(image.error(
            "it has no class: it is in no folder and in no inner tar file; name a file of `labels`, or pack images \
             without classes with `flat`",
        )),
        class => Ok((image, class, None)),
    }
}

/// The names of classes in order. Whole numbers in a file of labels are sorted by value.
fn class_names(images: &[Labeled], has_labels: bool) -> Vec<String> {
    let names: BTreeSet<&String> =
        images.iter().filter_map(|(_, class, _)| class.as_ref()).collect();
    let mut names: Vec<String> = names.into_iter().cloned().collect();
    if has_labels && names.iter().all(|name| name.parse::<u64>().is_ok()) {
        names.sort_by_key(|name| name.parse::<u64>().unwrap_or_default());
    }
    names
}

/// The keys of samples: the names of their files without extension. If some would be the same, all
/// have their folders too. They must not contain a dot, which would end the key in a shard.
fn keys(split: &str, images: &[Labeled]) -> Result<Vec<String>> {
    let key = |path: &str, folders: bool| {
        let (folder, file) = path.rsplit_once('/').unwrap_or(("", path));
        let stem = file.rsplit_once('.').map_or(file, |(stem, _)| stem).replace('.', "_");
        if folders && !folder.is_empty() { format!("{folder}/{stem}") } else { stem }
    };
    let mut seen = HashSet::with_capacity(images.len());
    let folders = !images.iter().all(|(image, ..)| seen.insert(key(&image.path, false)));
    seen.clear();
    let mut keys = Vec::with_capacity(images.len());
    for (image, ..) in images {
        let key = key(&image.path, folders);
        if split_name(&format!("{key}.{}", image.extension)) != Some((&key, image.extension)) {
            return Err(image.error("readers of shards would leave out this name; rename it"));
        }
        if !seen.insert(key.clone()) {
            return Err(image.error(format!(
                "another image of the {split} split has the name {key} too; readers would merge them"
            )));
        }
        keys.push(key);
    }
    Ok(keys)
}

/// A warning about a JPEG file, from its first and last bytes; pixels are not decoded.
fn jpeg_warning(bytes: &[u8]) -> Option<String> {
    if bytes.starts_with(b"\x89PNG") {
        return Some("a PNG file under the name of a JPEG".to_owned());
    }
    if !bytes.starts_with(&[0xff, 0xd8, 0xff]) {
        return Some("not a JPEG file".to_owned());
    }
    // Some programs append data to an image, so the end marker is searched in the last bytes.
    let tail = &bytes[bytes.len().saturating_sub(4096)..];
    if !tail.windows(2).any(|pair| pair == [0xff, 0xd9]) {
        return Some("a JPEG file without an end marker, probably truncated".to_owned());
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jpeg_files_are_recognized_by_their_first_and_last_bytes() {
        let whole = [&[0xff, 0xd8, 0xff, 0xe0][..], &[1; 9000], &[0xff, 0xd9], &[0; 17]].concat();
        assert_eq!(jpeg_warning(&whole), None);
        assert!(jpeg_warning(&whole[..5000]).unwrap().contains("truncated"));
        assert!(jpeg_warning(b"\x89PNG\r\n").unwrap().contains("PNG"));
        assert!(jpeg_warning(b"").unwrap().contains("not a JPEG"));
    }
}
