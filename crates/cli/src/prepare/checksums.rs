//! The expected archives of datasets: their names, checksums, origins and counts.
//!
//! Out of scope: finding and verifying the archives (`archives`).

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::manifest::MAX_JSON_BYTES;
use fulmen_data::{Error, Result};

/// The origin of ImageNet's archives, which are available to registered users.
const IMAGENET_SITE: &str =
    "https://image-net.org/challenges/LSVRC/2012/2012-downloads.php (after registering)";

/// The expected archives and content of a dataset. [`ExpectedContents::imagenet`] and
/// [`ExpectedContents::coco`] describe the official archives. A part of a dataset in the same
/// layout has other counts and checksums.
///
/// ```
/// use fulmen_cli::prepare::ExpectedContents;
///
/// let mut expected = ExpectedContents::imagenet();
/// assert_eq!(expected.samples["train"], 1_281_167);
/// // The validation images alone are official here.
/// expected.samples.remove("train");
/// expected.classes = None;
/// if let Some(archive) = expected.archives.iter_mut().find(|archive| archive.name == "ILSVRC2012_img_train.tar") {
///     archive.md5 = None;
/// }
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExpectedContents {
    /// The required archives. Names that the dataset does not need are ignored.
    #[serde(default)]
    pub archives: Vec<ExpectedArchive>,
    /// The number of samples in each split. A split that is not in the map may have any number.
    #[serde(default)]
    pub samples: BTreeMap<String, u64>,
    /// The number of classes; `None` accepts any number.
    #[serde(default)]
    pub classes: Option<usize>,
}

/// An expected archive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ExpectedArchive {
    /// The name of the file.
    pub name: String,
    /// The MD5 checksum in hexadecimal digits; `None` accepts any file.
    #[serde(default)]
    pub md5: Option<String>,
    /// The place to get it, for the error if it is missing.
    #[serde(default)]
    pub from: String,
}

impl ExpectedContents {
    /// ILSVRC 2012: 1,281,167 training images and 50,000 validation images of 1,000 classes. The
    /// checksums are those that torchvision lists.
    pub fn imagenet() -> ExpectedContents {
        ExpectedContents::new(
            &[
                ("ILSVRC2012_img_train.tar", "1d675b47d978889d74fa0da5fadfb00e", IMAGENET_SITE),
                ("ILSVRC2012_img_val.tar", "29b22e2961454d5413ddabcf34fc5622", IMAGENET_SITE),
                ("ILSVRC2012_devkit_t12.tar.gz", "fa75699e90414af021442c21a62c3abf", IMAGENET_SITE),
            ],
            &[("train", 1_281_167), ("val", 50_000)],
            1_000,
        )
    }

    /// COCO 2017: 118,287 training images and 5,000 validation images with objects of 80
    /// categories.
    pub fn coco() -> ExpectedContents {
        let images = "http://images.cocodataset.org/";
        ExpectedContents::new(
            &[
                (
                    "train2017.zip",
                    "cced6f7f71b7629ddf16f17bbcfab6b2",
                    &format!("{images}zips/train2017.zip"),
                ),
                (
                    "val2017.zip",
                    "442b8da7639aecaf257c1dceb8ba8c80",
                    &format!("{images}zips/val2017.zip"),
                ),
                (
                    "annotations_trainval2017.zip",
                    "f4bbac642086de4f52a3fdda2de5fa2c",
                    &format!("{images}annotations/annotations_trainval2017.zip"),
                ),
            ],
            &[("train", 118_287), ("val", 5_000)],
            80,
        )
    }

    fn new(
        archives: &[(&str, &str, &str)],
        samples: &[(&str, u64)],
        classes: usize,
    ) -> ExpectedContents {
        let archive = |&(name, md5, from): &(&str, &str, &str)| ExpectedArchive {
            name: name.to_owned(),
            md5: Some(md5.to_owned()),
            from: from.to_owned(),
        };
        ExpectedContents {
            archives: archives.iter().map(archive).collect(),
            samples: samples.iter().map(|&(split, count)| (split.to_owned(), count)).collect(),
            classes: Some(classes),
        }
    }

    /// Reads the archives, counts and checksums from a JSON file. The names in the file are those
    /// of this type's fields.
    ///
    /// # Errors
    /// A file that does not exist or does not have this form.
    pub fn read(path: &Path) -> Result<ExpectedContents> {
        let bytes = fulmen_durable::read_regular(path, MAX_JSON_BYTES)
            .map_err(|source| Error::io(path, "reading the expected counts", source))?;
        serde_json::from_slice(&bytes).map_err(|source| {
            Error::file(
                path,
                format!(
                    "{source}; expected {{\"archives\": [{{\"name\": ..., \"md5\": ...}}], \"samples\": {{\"train\": \
                     ...}}, \"classes\": ...}}"
                ),
            )
        })
    }

    pub(crate) fn archive(&self, name: &str) -> Option<&ExpectedArchive> {
        self.archives.iter().find(|archive| archive.name == name)
    }

    /// Checks the number of samples in a split.
    pub(crate) fn check_samples(&self, split: &str, actual: usize, archive: &Path) -> Result<()> {
        match self.samples.get(split) {
            Some(&expected) if expected != actual as u64 => Err(Error::file(
                archive,
                format!(
                    "the {split} split has {actual} samples, expected {expected}: this is not the official archive; \
                     for a part of the dataset, set the expected counts"
                ),
            )),
            _ => Ok(()),
        }
    }

    /// Checks the number of classes.
    pub(crate) fn check_classes(&self, actual: usize, archive: &Path) -> Result<()> {
        match self.classes {
            Some(expected) if expected != actual => {
                Err(Error::file(archive, format!("it has {actual} classes, expected {expected}")))
            }
            _ => Ok(()),
        }
    }
}
