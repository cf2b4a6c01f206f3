//! The images: digits, folders by class, or random ones.

use std::path::{Path, PathBuf};

use fulmen::cli::Result;
use fulmen::data::images::{ImageFolder, ImagePipeline};
use fulmen::data::{self, Dataset, FakeDataset, Mnist};
use fulmen::prelude::{TensorDataset, random_split};

/// A set of labelled images.
pub(crate) struct ImageSet {
    kind: Kind,
    /// The number of channels.
    pub(crate) channels: usize,
    /// The height and width.
    pub(crate) size: usize,
    pub(crate) classes: usize,
}

enum Kind {
    Digits(PathBuf),
    Folders(PathBuf),
    Fake,
}

/// A split of the images.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Split {
    Train,
    Validation,
    Test,
}

impl ImageSet {
    /// The images in a folder. Images in folders by class are resized to height and width `size`.
    pub(crate) fn find(folder: &Path, size: usize) -> Result<ImageSet> {
        let path = folder.to_owned();
        if ["", ".gz"]
            .iter()
            .any(|end| folder.join(format!("train-images-idx3-ubyte{end}")).exists())
        {
            return Ok(ImageSet { kind: Kind::Digits(path), channels: 1, size: 28, classes: 10 });
        }
        if folder.join("train").is_dir() {
            let classes = ImageFolder::open(folder.join("train"))?.classes().len();
            return Ok(ImageSet { kind: Kind::Folders(path), channels: 3, size, classes });
        }
        let message = format!(
            "--data-dir {}: there is neither train-images-idx3-ubyte nor the folder train; pass a folder with MNIST's IDX \
             files or with folders of images by class, or try the program out with --fake-data",
            folder.display()
        );
        Err(message.into())
    }

    /// Random color images of ten classes.
    pub(crate) fn fake(size: usize) -> ImageSet {
        ImageSet { kind: Kind::Fake, channels: 3, size, classes: 10 }
    }

    /// The fields `image`, `u8[channels, size, size]`, and `label`, `i32[]`. A tenth of the
    /// training data is held out for validation.
    pub(crate) fn open(&self, split: Split) -> Result<Box<dyn Dataset>> {
        let all: Box<dyn Dataset> = match &self.kind {
            Kind::Digits(folder) => {
                let files =
                    if split == Split::Test { data::Split::Test } else { data::Split::Train };
                Box::new(Mnist::open(folder, files)?)
            }
            Kind::Folders(folder) => {
                let name = if split == Split::Test { "val" } else { "train" };
                let pipeline = ImagePipeline::rgb().resize(self.size).center_crop(self.size);
                Box::new(ImageFolder::open(folder.join(name))?.decode(pipeline)?)
            }
            Kind::Fake => {
                let fake =
                    FakeDataset::new(10_000).pixels("image", [self.channels, self.size, self.size]);
                Box::new(fake.integers("label", [], self.classes))
            }
        };
        if split == Split::Test {
            return Ok(all);
        }
        let held_back = all.len() / 10;
        let lengths = [all.len() - held_back, held_back];
        let [train, validation] = random_split(all, lengths, 0)?;
        Ok(if split == Split::Train { Box::new(train) } else { Box::new(validation) })
    }

    /// `count` classes in turn, for the images to draw: the field `label`.
    pub(crate) fn labels(&self, count: usize) -> Result<TensorDataset> {
        let labels: Vec<i32> = (0..count).map(|i| (i % self.classes) as i32).collect();
        Ok(TensorDataset::builder().array("label", [count], labels).build()?)
    }
}
