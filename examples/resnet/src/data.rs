//! Where pictures come from: CIFAR, digits, folders by class, tar shards, or nowhere.

use std::path::{Path, PathBuf};

use fulmen::cli::Result;
use fulmen::data::images::{Cifar, EncodedImage, ImageFolder, PictureDataset, Pictures as Pipeline};
use fulmen::data::shards::TarSource;
use fulmen::data::{self, Dataset, FakeDataset, Mnist, Source as _};
use fulmen::prelude::random_split;

/// The pictures that there are.
pub(crate) struct Pictures {
    kind: Kind,
    folder: PathBuf,
    size: usize,
    /// Of shards and of random pictures.
    classes: usize,
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Cifar10,
    Cifar100,
    Digits,
    Folders,
    Shards,
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
const MARKS: [(&str, Kind); 6] = [
    ("data_batch_1.bin", Kind::Cifar10),
    ("train.bin", Kind::Cifar100),
    ("train-images-idx3-ubyte", Kind::Digits),
    ("train-images-idx3-ubyte.gz", Kind::Digits),
    ("train-000000.tar", Kind::Shards),
    ("train", Kind::Folders),
];

impl Pictures {
    /// Those in a folder. Folders by class and shards have pictures of any size, which become `size` high and wide; of shards
    /// nobody says how many `classes` they have.
    pub(crate) fn find(folder: &Path, size: usize, classes: usize) -> Result<Pictures> {
        let Some((_, kind)) = MARKS.iter().find(|(mark, _)| folder.join(mark).exists()) else {
            let marks = MARKS.map(|(mark, _)| mark).join(", ");
            let message = format!(
                "--data-dir {}: it has none of {marks}; give a folder with CIFAR's binary version, MNIST's IDX files, \
                 folders of pictures by class or shards of them, or try the program out with --fake-data",
                folder.display()
            );
            return Err(message.into());
        };
        let size = match kind {
            Kind::Cifar10 | Kind::Cifar100 => 32,
            Kind::Digits => 28,
            Kind::Folders | Kind::Shards | Kind::Fake => size,
        };
        Ok(Pictures { kind: *kind, folder: folder.to_owned(), size, classes })
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
            Kind::Shards | Kind::Fake => self.classes,
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
                let name = if split == Split::Test && has_test { "test" } else { train_or_val(split) };
                Ok(Box::new(ImageFolder::open(self.folder.join(name))?.decode(self.pipeline(split))?))
            }
            Kind::Shards => {
                let shards = TarSource::open(self.folder.join(format!("{}-*.tar", train_or_val(split))))?;
                let classes = self.classes;
                let pictures = shards.map(move |mut sample| {
                    let label = sample.text("cls")?.parse().map_err(data::Error::new)?;
                    match usize::try_from(label).is_ok_and(|label| label < classes) {
                        true => Ok(EncodedImage { bytes: sample.take("jpg")?, label }),
                        false => Err(data::Error::new(format!("class {label} of --classes {classes}; give as many as there are"))),
                    }
                });
                Ok(Box::new(PictureDataset::new(pictures, self.pipeline(split))?))
            }
            Kind::Fake => {
                let count = if split == Split::Train { 50_000 } else { 10_000 };
                let fake = FakeDataset::new(count).pixels("image", [3, self.size, self.size]);
                Ok(Box::new(fake.integers("label", [], self.classes)))
            }
        }
    }

    /// For pictures of any size.
    fn pipeline(&self, split: Split) -> Pipeline {
        match split {
            Split::Train => Pipeline::rgb().random_resized_crop(self.size).horizontal_flip(0.5),
            _ => Pipeline::rgb().resize(self.size * 8 / 7).center_crop(self.size),
        }
    }
}

fn train_or_val(split: Split) -> &'static str {
    if split == Split::Train { "train" } else { "val" }
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
