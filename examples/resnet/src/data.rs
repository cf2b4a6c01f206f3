//! Where pictures come from, and how those to train on are changed in each epoch.

use std::path::Path;

use fulmen::cli::Result;
use fulmen::data::images::{ImageSplits, Pictures as Pipeline};
use fulmen::data::{Dataset, FakeDataset};

/// The pictures that there are.
pub(crate) struct Pictures {
    /// None for random ones.
    splits: Option<ImageSplits>,
    size: usize,
    classes: usize,
}

/// Which of them.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Split {
    Train,
    Validation,
    Test,
}

impl Pictures {
    /// Those in a folder; where each file has a size of its own, `size` is the height and width that they get.
    pub(crate) fn find(folder: &Path, size: usize) -> Result<Pictures> {
        let splits = ImageSplits::open(folder)
            .map_err(|error| format!("--data-dir {error}; --fake-data tries the program out without data"))?;
        let (size, classes) = (splits.picture_size().map_or(size, |all| all.height), splits.classes().len());
        Ok(Pictures { splits: Some(splits), size, classes })
    }

    /// Random ones.
    pub(crate) fn fake(size: usize, classes: usize) -> Pictures {
        Pictures { splits: None, size, classes }
    }

    pub(crate) fn classes(&self) -> usize {
        self.classes
    }

    pub(crate) fn channels(&self) -> usize {
        if self.splits.as_ref().is_some_and(ImageSplits::is_gray) { 1 } else { 3 }
    }

    /// Height and width.
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// The fields `image`, `u8[channels, size, size]`, and `label`, `i32[]`. What is trained on is cropped and flipped in another
    /// way in each epoch, but for digits.
    pub(crate) fn open(&self, split: Split) -> Result<Box<dyn Dataset>> {
        let size = self.size;
        let Some(splits) = &self.splits else {
            let count = if split == Split::Train { 50_000 } else { 10_000 };
            let fake = FakeDataset::new(count).pixels("image", [3, size, size]);
            return Ok(Box::new(fake.integers("label", [], self.classes)));
        };
        let pipeline = match (splits.picture_size(), split) {
            (Some(_), _) if splits.is_gray() => Pipeline::gray(),
            (Some(_), Split::Train) => Pipeline::rgb().random_crop(size, size / 8).horizontal_flip(0.5),
            (Some(_), _) => Pipeline::rgb(),
            (None, Split::Train) => Pipeline::rgb().random_resized_crop(size).horizontal_flip(0.5),
            (None, _) => Pipeline::rgb().resize(size * 8 / 7).center_crop(size),
        };
        Ok(match split {
            Split::Train => splits.train(pipeline),
            Split::Validation => splits.validation(pipeline),
            Split::Test => splits.test(pipeline),
        }?)
    }
}
