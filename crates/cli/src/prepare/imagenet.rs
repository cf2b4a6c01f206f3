//! ImageNet's archives (ILSVRC 2012): an archive of one archive per class, an archive of validation
//! images, and the development kit.
//!
//! Out of scope: writing shards (`run`), and the kit's files (`imagenet_devkit`).

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::archives::find_archives;
use super::checksums::ExpectedContents;
use super::file_slice::FileSlice;
use super::imagenet_devkit::ImagenetDevkit;
use super::manifest::{Class, Manifest};
use super::options::PrepareOptions;
use super::plan::tar_bytes;
use super::progress::Progress;
use super::run::prepare;
use super::sample_set::{SampleFiles, SampleSet, jpeg_warning};
use fulmen_data::{Error, Result};

const TRAIN: &str = "ILSVRC2012_img_train.tar";
const VAL: &str = "ILSVRC2012_img_val.tar";
const DEVKIT: &str = "ILSVRC2012_devkit_t12.tar.gz";
const SPLITS: &[&str] = &["train", "val"];

/// Converts ImageNet's archives, as downloaded, to tar shards in WebDataset's format.
///
/// `archives` is the folder with `ILSVRC2012_img_train.tar`, `ILSVRC2012_img_val.tar` and
/// `ILSVRC2012_devkit_t12.tar.gz`. A sample has a `.jpg`, the unchanged image of the archive, and a
/// `.cls`, its class index as a decimal number. As in torchvision, the index is the position of the
/// class's WordNet id among all ids in sorted order. Samples are named like the images
/// (`n01440764_10026`).
///
/// The images are shuffled over all shards by the seed, so that shards can be read in sequence.
/// This does not need a temporary copy: the headers of the archives are read once, and then each
/// image is read from its position. The names and positions take about 150 MB of memory. An image
/// that does not start or end like a JPEG is kept unchanged and listed in the manifest's warnings;
/// the official archive has one PNG file.
///
/// An interrupted run can be continued: existing shards are not written again. `expected` is
/// [`ExpectedContents::imagenet`], or the counts of a part of ImageNet in the same layout. In a
/// part, classes without training images are left out.
///
/// # Errors
/// Archives that are missing (the error lists all of them), are truncated, or have other checksums
/// or counts than expected; an output folder that was started with other options, has other files,
/// or is in use by another run; a disk without enough space.
pub fn imagenet(
    archives: impl AsRef<Path>,
    expected: &ExpectedContents,
    options: &PrepareOptions,
    progress: &dyn Progress,
) -> Result<Manifest> {
    let paths = find_archives(archives.as_ref(), &[TRAIN, VAL, DEVKIT], expected)?;
    prepare("imagenet", &paths, expected, options, progress, || {
        ImageNet::open(&paths[0], &paths[1], &paths[2], expected)
    })
}

/// The positions of all images.
struct ImageNet {
    archives: [FileSlice; 2],
    images: [Vec<ImageEntry>; 2],
    classes: Vec<Class>,
}

struct ImageEntry {
    key: Box<str>,
    start: u64,
    size: u64,
    class: u32,
}

impl ImageNet {
    fn open(
        train: &Path,
        val: &Path,
        devkit: &Path,
        expected: &ExpectedContents,
    ) -> Result<ImageNet> {
        let kit = ImagenetDevkit::read(devkit)?;
        let archives = [FileSlice::open(train)?, FileSlice::open(val)?];

        let mut inner = BTreeMap::new();
        for entry in archives[0].tar_entries("the archive") {
            let entry = entry?;
            let wnid = entry
                .name
                .trim_start_matches("./")
                .strip_suffix(".tar")
                .unwrap_or_default()
                .to_owned();
            if !kit.names.contains_key(&wnid) {
                return Err(Error::file(
                    train,
                    format!(
                        "entry {}: expected archives named after the classes of the kit, as n01440764.tar",
                        entry.name
                    ),
                ));
            }
            if inner.insert(wnid, (entry.offset, entry.size)).is_some() {
                return Err(Error::file(train, format!("there are two entries {}", entry.name)));
            }
        }
        expected.check_classes(inner.len(), train)?;

        let mut images = [Vec::new(), Vec::new()];
        for (class, (wnid, &(start, size))) in inner.iter().enumerate() {
            let section = archives[0]
                .part(start, size)
                .ok_or_else(|| Error::file(train, "it has changed"))?;
            for entry in section.tar_entries(&format!("entry {wnid}.tar")) {
                let entry = entry?;
                let key = key_of(&entry.name);
                let start = start + entry.offset;
                images[0].push(ImageEntry { key, start, size: entry.size, class: class as u32 });
            }
        }
        expected.check_samples("train", images[0].len(), train)?;

        let wnids: BTreeSet<&str> = inner.keys().map(String::as_str).collect();
        let class_of_wnid: BTreeMap<&str, u32> =
            wnids.iter().zip(0..).map(|(&wnid, class)| (wnid, class)).collect();
        for entry in archives[1].tar_entries("the archive") {
            let entry = entry?;
            let key = key_of(&entry.name);
            let number = key.rsplit('_').next().and_then(|digits| digits.parse::<usize>().ok());
            let wnid = number.and_then(|number| kit.validation.get(number.checked_sub(1)?)).ok_or_else(|| {
                Error::file(
                    val,
                    format!(
                        "entry {}: expected images with numbers from 1 to {}, as the kit has classes for",
                        entry.name,
                        kit.validation.len()
                    ),
                )
            })?;
            let class = *class_of_wnid.get(wnid.as_str()).ok_or_else(|| {
                Error::file(
                    val,
                    format!("entry {}: its class {wnid} has no training images", entry.name),
                )
            })?;
            images[1].push(ImageEntry { key, start: entry.offset, size: entry.size, class });
        }
        expected.check_samples("val", images[1].len(), val)?;

        let class = |(index, wnid): (usize, &&str)| Class {
            index,
            id: (*wnid).to_owned(),
            name: kit.names.get(*wnid).cloned().unwrap_or_default(),
        };
        let classes = wnids.iter().enumerate().map(class).collect();
        Ok(ImageNet { archives, images, classes })
    }
}

/// A sample's name: the file's name without folders and extension. It must not contain a dot,
/// because a dot would end the name in a shard.
fn key_of(name: &str) -> Box<str> {
    let file = name.rsplit('/').next().unwrap_or(name);
    let stem = file.rsplit_once('.').map_or(file, |(stem, _)| stem);
    stem.replace('.', "_").into()
}

impl SampleSet for ImageNet {
    fn splits(&self) -> &'static [&'static str] {
        SPLITS
    }

    fn len(&self, split: usize) -> usize {
        self.images[split].len()
    }

    fn key(&self, split: usize, index: usize) -> &str {
        &self.images[split][index].key
    }

    fn tar_bytes(&self, split: usize, index: usize) -> u64 {
        let image = &self.images[split][index];
        tar_bytes(&image.key, [("jpg", image.size), ("cls", image.class.to_string().len() as u64)])
    }

    fn read(&self, split: usize, index: usize) -> Result<SampleFiles> {
        let image = &self.images[split][index];
        let archive = &self.archives[split];
        let bytes = archive
            .part(image.start, image.size)
            .map(|part| part.read_all())
            .unwrap_or_else(|| Err(std::io::ErrorKind::UnexpectedEof.into()))
            .map_err(|source| {
                Error::io(
                    archive.path(),
                    &format!("reading entry {} (has the archive changed?)", image.key),
                    source,
                )
            })?;
        let warning = jpeg_warning(&bytes);
        Ok(SampleFiles {
            files: vec![("jpg", bytes), ("cls", image.class.to_string().into_bytes())],
            warning,
        })
    }

    fn classes(&self) -> Vec<Class> {
        self.classes.clone()
    }
}
