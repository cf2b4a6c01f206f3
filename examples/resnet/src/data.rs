//! Where pictures come from: CIFAR, digits, folders by class, or nowhere.

use std::path::{Path, PathBuf};

use fulmen::cli::Result;
use fulmen::data::images::{Cifar, ImageFolder, Pictures as Pipeline};
use fulmen::data::{self, Dataset, FakeDataset, Mnist};
use fulmen::prelude::random_split;

/// The pictures that there are.
pub(crate) struct Pictures {
    kind: Kind,
    folder: PathBuf,
    size: usize,
    /// Of random pictures.
    classes: usize,
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Cifar10,
    Cifar100,
    Digits,
    Folders,
    Fake,
}

/// Which of them.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Split {
    Train,
    Validation,
    Test,
}

/// What tells the kinds of folders apart.
const MARKS: [(&str, Kind); 5] = [
    ("data_batch_1.bin", Kind::Cifar10),
    ("train.bin", Kind::Cifar100),
    ("train-images-idx3-ubyte", Kind::Digits),
    ("train-images-idx3-ubyte.gz", Kind::Digits),
    ("train", Kind::Folders),
];

impl Pictures {
    /// Those in a folder; of folders by class, `size` is the height and width that they get.
    pub(crate) fn find(folder: &Path, size: usize) -> Result<Pictures> {
        let Some((_, kind)) = MARKS.iter().find(|(mark, _)| folder.join(mark).exists()) else {
            let marks = MARKS.map(|(mark, _)| mark).join(", ");
            let message = format!(
                "--data-dir {}: it has none of {marks}; give a folder with CIFAR's binary version, MNIST's IDX files or \
                 folders of pictures by class, or try the program out with --fake-data",
                folder.display()
            );
            return Err(message.into());
        };
        let size = match kind {
            Kind::Cifar10 | Kind::Cifar100 => 32,
            Kind::Digits => 28,
            Kind::Folders | Kind::Fake => size,
        };
        Ok(Pictures { kind: *kind, folder: folder.to_owned(), size, classes: 0 })
    }

    /// Random ones.
    pub(crate) fn fake(size: usize, classes: usize) -> Pictures {
        Pictures { kind: Kind::Fake, folder: PathBuf::new(), size, classes }
    }

    pub(crate) fn classes(&self) -> Result<usize> {
        Ok(match self.kind {
            Kind::Cifar10 | Kind::Digits => 10,
            Kind::Cifar100 => 100,
            Kind::Folders => ImageFolder::open(self.folder.join("train"))?.classes().len(),
            Kind::Fake => self.classes,
        })
    }

    pub(crate) fn channels(&self) -> usize {
        if self.kind == Kind::Digits { 1 } else { 3 }
    }

    /// Height and width.
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// The fields `image`, `u8[channels, size, size]`, and `label`, `i32[]`. What is trained on is cropped and flipped anew in
    /// each epoch, but for digits.
    pub(crate) fn open(&self, split: Split) -> Result<Box<dyn Dataset>> {
        let files = if split == Split::Test { data::Split::Test } else { data::Split::Train };
        match self.kind {
            Kind::Cifar10 => cifar(Cifar::cifar10(&self.folder, files)?, split),
            Kind::Cifar100 => cifar(Cifar::cifar100(&self.folder, files)?, split),
            Kind::Digits => part(Mnist::open(&self.folder, files)?, split),
            Kind::Folders => {
                let has_test = self.folder.join("test").exists();
                let name = match split {
                    Split::Train => "train",
                    Split::Test if has_test => "test",
                    Split::Validation | Split::Test => "val",
                };
                let pipeline = match split {
                    Split::Train => Pipeline::rgb().random_resized_crop(self.size).horizontal_flip(0.5),
                    _ => Pipeline::rgb().resize(self.size * 8 / 7).center_crop(self.size),
                };
                Ok(Box::new(ImageFolder::open(self.folder.join(name))?.decode(pipeline)?))
            }
            Kind::Fake => {
                let count = if split == Split::Train { 50_000 } else { 10_000 };
                let fake = FakeDataset::new(count).pixels("image", [3, self.size, self.size]);
                Ok(Box::new(fake.integers("label", [], self.classes)))
            }
        }
    }
}

fn cifar(cifar: Cifar, split: Split) -> Result<Box<dyn Dataset>> {
    match split {
        Split::Train => part(cifar.augment(Pipeline::rgb().random_crop(32, 4).horizontal_flip(0.5))?, split),
        _ => part(cifar, split),
    }
}

/// A tenth of what there is to train on is held back for validation.
fn part(data: impl Dataset, split: Split) -> Result<Box<dyn Dataset>> {
    if split == Split::Test {
        return Ok(Box::new(data));
    }
    let held_back = data.len() / 10;
    let lengths = [data.len() - held_back, held_back];
    let [train, validation] = random_split(data, lengths, 0)?;
    Ok(Box::new(if split == Split::Train { train } else { validation }))
}
