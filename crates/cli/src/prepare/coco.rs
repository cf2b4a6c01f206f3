//! COCO's archives (2017): the images and annotations of the training and validation splits.
//!
//! Out of scope: writing shards (`run`), and the annotation files (`coco_annotations`).

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use super::archives::find_archives;
use super::checksums::ExpectedContents;
use super::coco_annotations::Annotations;
use super::file_slice::FileSlice;
use super::manifest::{Class, Manifest};
use super::options::PrepareOptions;
use super::plan::tar_bytes;
use super::progress::Progress;
use super::run::prepare;
use super::sample_set::{SampleFiles, SampleSet, jpeg_warning};
use super::zip_index::ZipIndex;
use fulmen_data::{Error, Result};

const TRAIN: &str = "train2017.zip";
const VAL: &str = "val2017.zip";
const ANNOTATIONS: &str = "annotations_trainval2017.zip";
const SPLITS: &[&str] = &["train", "val"];

/// Converts COCO's archives of 2017, as downloaded, to tar shards in WebDataset's format.
///
/// `archives` is the folder with `train2017.zip`, `val2017.zip` and `annotations_trainval2017.zip`.
/// A sample has the name of its image (`000000000009`), a `.jpg` with the unchanged image of the
/// archive, and a `.json`:
///
/// ```json
/// {"image_id": 9, "file_name": "000000000009.jpg", "width": 640, "height": 480,
///  "annotations": [{"id": 1038967, "label": 45, "category_id": 51, "bbox": [1.08, 187.69, 611.59, 285.84],
///                   "area": 120057.1, "iscrowd": 0, "segmentation": [[500.49, 473.53]]}],
///  "captions": ["a table with food"]}
/// ```
///
/// `label` is the index of the category in the order of the category numbers, 0 to 79;
/// `category_id` is COCO's number of the category, up to 90. `bbox` is left, top, width and height
/// in pixels. Boxes, areas and outlines (polygons, or run lengths for crowds) are copied from
/// COCO's files. Images without annotations have an empty list. Keypoints are left out.
///
/// Order, resuming and errors are as in [`imagenet`](super::imagenet). In addition, the checksum of
/// each file in the zip archives is verified. The annotations take about 1 GB of memory.
///
/// # Errors
/// Those of [`imagenet`](super::imagenet); an image that is missing in the annotations, or an
/// annotation whose image is missing.
pub fn coco(
    archives: impl AsRef<Path>,
    expected: &ExpectedContents,
    options: &PrepareOptions,
    progress: &dyn Progress,
) -> Result<Manifest> {
    let paths = find_archives(archives.as_ref(), &[TRAIN, VAL, ANNOTATIONS], expected)?;
    prepare("coco", &paths, expected, options, progress, || Coco::open(&paths, expected))
}

struct Coco {
    splits: Vec<CocoSplit>,
}

struct CocoSplit {
    zip: ZipIndex,
    annotations: Annotations,
    images: Vec<ImageEntry>,
}

struct ImageEntry {
    key: String,
    /// The index in the zip file.
    entry: usize,
    json_bytes: u64,
}

impl Coco {
    fn open(paths: &[PathBuf], expected: &ExpectedContents) -> Result<Coco> {
        let annotations = ZipIndex::open(FileSlice::open(&paths[2])?)?;
        let mut splits = Vec::new();
        for (split, path) in SPLITS.iter().zip(paths) {
            let zip = ZipIndex::open(FileSlice::open(path)?)?;
            expected.check_samples(split, zip.entries.len(), path)?;
            let read = Annotations::read(&annotations, &format!("{split}2017"))?;
            splits.push(CocoSplit::new(zip, read)?);
        }
        expected.check_classes(splits[0].annotations.classes.len(), &paths[2])?;
        if splits[0].annotations.classes != splits[1].annotations.classes {
            return Err(Error::file(&paths[2], "the two splits have different categories"));
        }
        Ok(Coco { splits })
    }
}

impl CocoSplit {
    /// Matches images with annotations.
    fn new(zip: ZipIndex, annotations: Annotations) -> Result<CocoSplit> {
        let file = |name: &str| name.rsplit('/').next().unwrap_or(name).to_owned();
        let mut entries: HashMap<String, usize> = HashMap::new();
        for (index, entry) in zip.entries.iter().enumerate() {
            if entries.insert(file(&entry.name), index).is_some() {
                return Err(Error::file(
                    zip.path(),
                    format!("entry {}: another entry has the same file name", entry.name),
                ));
            }
        }
        let mut images = Vec::with_capacity(annotations.images.len());
        for image in &annotations.images {
            let entry = entries.remove(&image.file_name).ok_or_else(|| {
                Error::file(
                    zip.path(),
                    format!("there is no entry {}, which the annotations name", image.file_name),
                )
            })?;
            let stem =
                image.file_name.rsplit_once('.').map_or(image.file_name.as_str(), |(stem, _)| stem);
            let json_bytes = annotations.json(image)?.len() as u64;
            images.push(ImageEntry { key: stem.replace('.', "_"), entry, json_bytes });
        }
        // Reports the first entry in the archive, so that the message is deterministic.
        if let Some(&entry) = entries.values().min() {
            let name = &zip.entries[entry].name;
            return Err(Error::file(
                zip.path(),
                format!("entry {name}: the annotations do not name this image"),
            ));
        }
        Ok(CocoSplit { zip, annotations, images })
    }
}

impl SampleSet for Coco {
    fn splits(&self) -> &'static [&'static str] {
        SPLITS
    }

    fn len(&self, split: usize) -> usize {
        self.splits[split].images.len()
    }

    fn key(&self, split: usize, index: usize) -> &str {
        &self.splits[split].images[index].key
    }

    fn tar_bytes(&self, split: usize, index: usize) -> u64 {
        let split = &self.splits[split];
        let image = &split.images[index];
        let jpg = split.zip.entries[image.entry].size;
        tar_bytes(&image.key, [("jpg", jpg), ("json", image.json_bytes)])
    }

    fn read(&self, split: usize, index: usize) -> Result<SampleFiles> {
        let split = &self.splits[split];
        let jpg = split.zip.read(&split.zip.entries[split.images[index].entry])?;
        let json = split.annotations.json(&split.annotations.images[index])?;
        let warning = jpeg_warning(&jpg);
        Ok(SampleFiles { files: vec![("jpg", jpg), ("json", json)], warning })
    }

    fn classes(&self) -> Vec<Class> {
        self.splits[0].annotations.classes.clone()
    }
}
