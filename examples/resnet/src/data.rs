//! The images, and the augmentation of those used for training.

use std::path::{Path, PathBuf};

use fulmen::cli::Result;
use fulmen::data::images::{EncodedImage, ImageDataset, ImagePipeline, ImageSplits};
use fulmen::data::shards::TarSource;
use fulmen::data::{Dataset, Error, FakeDataset, Source as _};

/// The pictures that there are.
pub(crate) struct Pictures {
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

/// Which of them.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Split {
    Train,
    Validation,
    Test,
}

impl Pictures {
    /// Those in a folder. Where each file has a size of its own, `size` is the height and width that they get; shards do not
    /// say how many `classes` they have.
    pub(crate) fn find(folder: &Path, size: usize, classes: usize) -> Result<Pictures> {
        if folder.join("train-000000.tar").is_file() {
            return Ok(Pictures { origin: Origin::Shards(folder.to_owned()), size, classes });
        }
        let splits = ImageSplits::open(folder)
            .map_err(|error| format!("--data-dir {error}; --fake-data tries the program out without data"))?;
        let size = if splits.image_size().is_some() { 32 } else { size };
        let classes = splits.classes().len();
        Ok(Pictures { origin: Origin::Splits(splits), size, classes })
    }

    /// Random ones.
    pub(crate) fn fake(size: usize, classes: usize) -> Pictures {
        Pictures { origin: Origin::Random, size, classes }
    }

    pub(crate) fn classes(&self) -> usize {
        self.classes
    }

    pub(crate) fn channels(&self) -> usize {
        if matches!(&self.origin, Origin::Splits(splits) if splits.is_gray()) { 1 } else { 3 }
    }

    /// Height and width.
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// The fields `image`, `u8[channels, size, size]`, and `label`, `i32[]`. Training images are
    /// cropped and, except digits, flipped differently in each epoch.
    pub(crate) fn open(&self, split: Split) -> Result<Box<dyn Dataset>> {
        let (size, classes) = (self.size, self.classes);
        let any_size = match split {
            Split::Train => ImagePipeline::rgb().random_resized_crop(size).horizontal_flip(0.5),
            _ => ImagePipeline::rgb().resize(size * 8 / 7).center_crop(size),
        };
        let splits = match &self.origin {
            Origin::Splits(splits) => splits,
            Origin::Shards(folder) => {
                let name = if split == Split::Train { "train-*.tar" } else { "val-*.tar" };
                let pictures = TarSource::open(folder.join(name))?.map(move |mut sample| {
                    let label = sample.text("cls")?.parse::<i32>().map_err(Error::new)?;
                    match usize::try_from(label).is_ok_and(|label| label < classes) {
                        true => Ok(EncodedImage { bytes: sample.take("jpg")?, label }),
                        false => {
                            Err(Error::new(format!("class {label}, but --classes {classes}; give how many there are")))
                        }
                    }
                });
                return Ok(Box::new(ImageDataset::new(pictures, any_size)?));
            }
            Origin::Random => {
                let count = if split == Split::Train { 50_000 } else { 10_000 };
                let fake = FakeDataset::new(count).pixels("image", [3, size, size]);
                return Ok(Box::new(fake.integers("label", [], classes)));
            }
        };
        let pipeline = match (splits.image_size(), split) {
            // Digits get a border, within which they are shifted.
            (Some(_), Split::Train) if splits.is_gray() => ImagePipeline::gray().random_crop(size, 4),
            (Some(_), _) if splits.is_gray() => ImagePipeline::gray().center_crop(size),
            (Some(_), Split::Train) => ImagePipeline::rgb().random_crop(size, 4).horizontal_flip(0.5),
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
