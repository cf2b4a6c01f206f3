//! The images, and the augmentation of those used for training.

use std::path::PathBuf;

use fulmen::cli::{Result, clap};
use fulmen::data::images::{ImagePipeline, ImageSplits, RandAugment};
use fulmen::data::{Dataset, FakeDataset};
use fulmen::models::Labels;

/// The source of images.
#[derive(clap::Args)]
#[command(next_help_heading = "Data")]
pub(crate) struct Data {
    /// A folder with a folder of images per class, at its top or in the folders train, val and
    /// optionally test; or CIFAR's binary version, or MNIST's IDX files.
    #[arg(long, default_value = ".")]
    data_dir: PathBuf,
    /// Use random images instead of --data-dir.
    #[arg(long)]
    fake_data: bool,
    /// The number of classes of --fake-data.
    #[arg(long, default_value_t = 10)]
    fake_classes: usize,
    /// The smallest fraction of an image that a training crop keeps.
    #[arg(long, default_value_t = 0.25)]
    min_crop: f64,
    /// The probability of flipping a training image; use 0 if left and right matter, as for digits.
    #[arg(long, default_value_t = 0.5)]
    flip: f64,
    /// The magnitude of RandAugment, up to 30; 0 for none.
    #[arg(long, default_value_t = 9)]
    rand_augment: usize,
}

#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Split {
    Train,
    Validation,
    Test,
}

impl Data {
    fn splits(&self) -> Result<ImageSplits> {
        let splits = ImageSplits::open(&self.data_dir);
        Ok(splits.map_err(|error| {
            format!("--data-dir {error}; --fake-data tries the program out without data")
        })?)
    }

    /// The names of the classes.
    pub(crate) fn labels(&self) -> Result<Labels> {
        if self.fake_data {
            return Ok(Labels::numbered(self.fake_classes));
        }
        Ok(Labels::new(self.splits()?.classes()))
    }

    /// The fields `image`, `u8[3, size, size]`, and `label`, `i32[]`.
    pub(crate) fn open(&self, split: Split, size: usize) -> Result<Box<dyn Dataset>> {
        if self.fake_data {
            let count = if split == Split::Train { 50_000 } else { 10_000 };
            let fake = FakeDataset::new(count).pixels("image", [3, size, size]);
            return Ok(Box::new(fake.integers("label", [], self.fake_classes)));
        }
        let splits = self.splits()?;
        let resized = if splits.image_size().is_some() { size } else { size * 8 / 7 };
        let evaluation = ImagePipeline::rgb().resize(resized).center_crop(size);
        Ok(match split {
            Split::Validation => splits.validation(evaluation),
            Split::Test => splits.test(evaluation),
            Split::Train => {
                let crop = ImagePipeline::rgb().random_resized_crop_of(
                    size,
                    (self.min_crop, 1.0),
                    (3.0 / 4.0, 4.0 / 3.0),
                );
                let flipped = crop.horizontal_flip(self.flip);
                splits.train(match self.rand_augment {
                    0 => flipped,
                    magnitude => flipped.then(RandAugment::new().magnitude(magnitude)),
                })
            }
        }?)
    }
}
