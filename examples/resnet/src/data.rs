//! The images, and the augmentation of those used for training.

use std::path::{Path, PathBuf};

use fulmen::cli::Result;
use fulmen::data::images::{EncodedImage, ImageDataset, ImagePipeline, ImageSplits};
use fulmen::data::shards::TarSource;
use fulmen::data::{Dataset, Error, FakeDataset, Source as _};

/// A set of labelled images.
pub(crate) struct ImageSet {
    origin: Origin,
    size: usize,
    classes: usize,
}

enum Origin {
    Splits(ImageSplits),
    /// `train-000000.tar`, `val-000000.tar` and so on.
    Shards(PathBuf),
    Random,
}

/// A split of the images.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Split {
    Train,
    Validation,
    Test,
}

impl ImageSet {
    /// The images in a folder. `size` is the height and width of images that are resized. `classes`
    /// is the number of classes of shards, which do not contain it.
    pub(crate) fn find(folder: &Path, size: usize, classes: usize) -> Result<ImageSet> {
        if folder.join("train-000000.tar").is_file() {
            return Ok(ImageSet { origin: Origin::Shards(folder.to_owned()), size, classes });
        }
        let splits = ImageSplits::open(folder).map_err(|error| {
            format!("--data-dir {error}; --fake-data tries the program out without data")
        })?;
        let size = if splits.image_size().is_some() { 32 } else { size };
        let classes = splits.classes().len();
        Ok(ImageSet { origin: Origin::Splits(splits), size, classes })
    }

    /// Random images.
    pub(crate) fn fake(size: usize, classes: usize) -> ImageSet {
        ImageSet { origin: Origin::Random, size, classes }
    }

    pub(crate) fn classes(&self) -> usize {
        self.classes
    }

    pub(crate) fn channels(&self) -> usize {
        if matches!(&self.origin, Origin::Splits(splits) if splits.is_gray()) { 1 } else { 3 }
    }

    /// The height and width.
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// The fields `image`, `u8[channels, size, size]`, and `label`, `i32[]`. Training images get a
    /// random crop and, except for digits, a random flip in each epoch.
    pub(crate) fn open(&self, split: Split) -> Result<Box<dyn Dataset>> {
        let size = self.size;
        let classes = self.classes;
        let any_size = match split {
            Split::Train => ImagePipeline::rgb().random_resized_crop(size).horizontal_flip(0.5),
            _ => ImagePipeline::rgb().resize(size * 8 / 7).center_crop(size),
        };
        let splits = match &self.origin {
            Origin::Splits(splits) => splits,
            Origin::Shards(folder) => {
                let name = if split == Split::Train { "train-*.tar" } else { "val-*.tar" };
                let images = TarSource::open(folder.join(name))?.map(move |mut sample| {
                    let label = sample.text("cls")?.parse::<i32>().map_err(Error::new)?;
                    let is_valid = usize::try_from(label).is_ok_and(|label| label < classes);
                    if !is_valid {
                        let message =
                            format!("class {label} is not below --classes {classes}; pass the number of classes");
                        return Err(Error::new(message));
                    }
                    Ok(EncodedImage { bytes: sample.take("jpg")?, label })
                });
                return Ok(Box::new(ImageDataset::new(images, any_size)?));
            }
            Origin::Random => {
                let count = if split == Split::Train { 50_000 } else { 10_000 };
                let fake = FakeDataset::new(count).pixels("image", [3, size, size]);
                return Ok(Box::new(fake.integers("label", [], classes)));
            }
        };
        let pipeline = match (splits.image_size(), split) {
            // The random crop shifts digits within a border.
            (Some(_), Split::Train) if splits.is_gray() => {
                ImagePipeline::gray().random_crop(size, 4)
            }
            (Some(_), _) if splits.is_gray() => ImagePipeline::gray().center_crop(size),
            (Some(_), Split::Train) => {
                ImagePipeline::rgb().random_crop(size, 4).horizontal_flip(0.5)
            }
            (Some(_), _) => ImagePipeline::rgb(),
            (None, _) => any_size,
        };
        Ok(match split {
            Split::Train => splits.train(pipeline),
            Split::Validation => splits.validation(pipeline),
            Split::Test => splits.test(pipeline),
        }?)
    }
}
