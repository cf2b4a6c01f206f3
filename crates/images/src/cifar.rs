//! CIFAR-10 and CIFAR-100 in their binary versions: 32 x 32 images in a few files.
//!
//! Out of scope: fetching the files (<https://www.cs.toronto.edu/~kriz/cifar.html>), and their
//! Python and Matlab versions.

use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::{Image, ImagePipeline};
use fulmen_data::{DType, Dataset, Error, Field, Fingerprint, Result, Sample, Split, Stage};

/// The number of bytes of an image, which has three planes.
const IMAGE_BYTES: usize = 3 * SIDE * SIDE;
const SIDE: usize = 32;

/// The labels in front of each image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Kind {
    /// One label, of 10 classes.
    Ten,
    /// Two labels, of 20 and of 100 classes.
    Hundred { coarse: bool },
}

/// CIFAR-10 or CIFAR-100: the fields `image`, `u8[3, 32, 32]` or the result of a pipeline, and
/// `label`, `i32[]`.
///
/// It reads the binary version with its original file names: `data_batch_1.bin` to
/// `data_batch_5.bin` and `test_batch.bin`, or `train.bin` and `test.bin`. All pixels stay in
/// memory (150 MB).
///
/// ```no_run
/// use fulmen_images::{Cifar, ImagePipeline};
/// use fulmen_data::{DataLoader, Split};
///
/// let train = Cifar::cifar10("cifar-10-batches-bin", Split::Train)?
///     .augment(ImagePipeline::rgb().random_crop(32, 4).horizontal_flip(0.5))?;
/// let loader = DataLoader::builder(train).batch_size(128).shuffle(true).num_workers(4).build()?;
/// # Ok::<(), fulmen_data::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Cifar {
    kind: Kind,
    files: Vec<PathBuf>,
    /// The records, each with its labels and planes, as in the files.
    records: Arc<Vec<u8>>,
    pipeline: Option<ImagePipeline>,
    fields: Vec<Field>,
}

impl Cifar {
    /// Reads CIFAR-10.
    ///
    /// # Errors
    /// A file that does not exist, is not the size of its 10,000 records, or has a label above 9.
    pub fn cifar10(folder: impl AsRef<Path>, split: Split) -> Result<Cifar> {
        let names: &[&str] = match split {
            Split::Train => &[
                "data_batch_1.bin",
                "data_batch_2.bin",
                "data_batch_3.bin",
                "data_batch_4.bin",
                "data_batch_5.bin",
            ],
            Split::Test => &["test_batch.bin"],
        };
        Cifar::open(folder.as_ref(), names, 10_000, Kind::Ten)
    }

    /// Reads CIFAR-100 with its 100 classes.
    ///
    /// # Errors
    /// Those of [`cifar10`](Cifar::cifar10).
    pub fn cifar100(folder: impl AsRef<Path>, split: Split) -> Result<Cifar> {
        Cifar::open_cifar100(folder.as_ref(), split, false)
    }

    /// Reads CIFAR-100 with its 20 superclasses.
    ///
    /// # Errors
    /// Those of [`cifar10`](Cifar::cifar10).
    pub fn cifar100_coarse(folder: impl AsRef<Path>, split: Split) -> Result<Cifar> {
        Cifar::open_cifar100(folder.as_ref(), split, true)
    }

    fn open_cifar100(folder: &Path, split: Split, coarse: bool) -> Result<Cifar> {
        let (name, records) = match split {
            Split::Train => ("train.bin", 50_000),
            Split::Test => ("test.bin", 10_000),
        };
        Cifar::open(folder, &[name], records, Kind::Hundred { coarse })
    }

    fn open(folder: &Path, names: &[&str], each: usize, kind: Kind) -> Result<Cifar> {
        let files: Vec<PathBuf> = names.iter().map(|name| folder.join(name)).collect();
        let record = kind.labels() + IMAGE_BYTES;
        let mut records = Vec::new();
        for file in &files {
            read(file, each, record, &mut records)?;
            let start = records.len() - each * record;
            for (number, record) in records[start..].chunks_exact(record).enumerate() {
                check_labels(kind, record)
                    .map_err(|reason| Error::file(file, format!("record {number}: {reason}")))?;
            }
        }
        let fields = vec![
            Field::new("image", DType::U8, [3, SIDE, SIDE]),
            Field::new("label", DType::I32, []),
        ];
        Ok(Cifar { kind, files, records: Arc::new(records), pipeline: None, fields })
    }

    /// Passes the images through a pipeline.
    ///
    /// # Errors
    /// Invalid options.
    pub fn augment(mut self, pipeline: ImagePipeline) -> Result<Cifar> {
        let pipeline = pipeline.source_size(SIDE);
        self.fields[0] = pipeline.field("image")?;
        self.pipeline = Some(pipeline);
        Ok(self)
    }

    /// The number of classes.
    pub fn classes(&self) -> usize {
        self.kind.classes()
    }

    /// The classes of all images.
    pub(crate) fn labels(&self) -> Vec<i32> {
        (0..self.len()).map_while(|index| Some(self.record(index).ok()?.0)).collect()
    }

    fn record(&self, index: usize) -> Result<(i32, &[u8])> {
        let size = self.kind.labels() + IMAGE_BYTES;
        let record = index
            .checked_mul(size)
            .and_then(|start| self.records.get(start..start.checked_add(size)?))
            .ok_or_else(|| Error::usage(format!("there is no sample {index}")))?;
        let (labels, image) = record.split_at(self.kind.labels());
        let label = match self.kind {
            Kind::Ten | Kind::Hundred { coarse: true } => labels[0],
            Kind::Hundred { coarse: false } => labels[1],
        };
        Ok((i32::from(label), image))
    }
}

impl Kind {
    /// The number of bytes in front of an image.
    fn labels(self) -> usize {
        match self {
            Kind::Ten => 1,
            Kind::Hundred { .. } => 2,
        }
    }

    fn classes(self) -> usize {
        match self {
            Kind::Ten => 10,
            Kind::Hundred { coarse: true } => 20,
            Kind::Hundred { coarse: false } => 100,
        }
    }
}

fn check_labels(kind: Kind, record: &[u8]) -> std::result::Result<(), String> {
    let last_classes: &[u8] = match kind {
        Kind::Ten => &[9],
        Kind::Hundred { .. } => &[19, 99],
    };
    match record.iter().zip(last_classes).find(|(label, last_class)| label > last_class) {
        Some((label, last_class)) => Err(format!(
            "the label is {label}, but the last class is {last_class}; is it a file of another CIFAR?"
        )),
        None => Ok(()),
    }
}

/// Appends the records of a file.
fn read(file: &Path, records: usize, record: usize, into: &mut Vec<u8>) -> Result<()> {
    let opened = fulmen_durable::open_regular(file).map_err(|source| match source.kind() {
        io::ErrorKind::NotFound => Error::io(
            file,
            "the binary version of CIFAR, unpacked (not the Python one), has this file",
            source,
        ),
        _ => Error::io(file, "opening the file", source),
    })?;
    let size =
        opened.metadata().map_err(|source| Error::io(file, "looking at the file", source))?.len();
    let expected = (records * record) as u64;
    if size != expected {
        return Err(Error::file(
            file,
            format!(
                "it has {size} bytes; {records} records of {record} bytes are {expected}: copy or download it again, \
                 or is it a file of another CIFAR?"
            ),
        ));
    }
    let start = into.len();
    into.try_reserve_exact(records * record)
        .map_err(|_| Error::file(file, format!("not enough memory for its {expected} bytes")))?;
    opened
        .take(expected)
        .read_to_end(into)
        .map_err(|source| Error::io(file, "reading the file", source))?;
    if into.len() - start == records * record {
        Ok(())
    } else {
        Err(Error::file(file, "it became shorter while it was read"))
    }
}

impl Dataset for Cifar {
    fn len(&self) -> usize {
        self.records.len() / (self.kind.labels() + IMAGE_BYTES)
    }

    fn fields(&self) -> Vec<Field> {
        self.fields.clone()
    }

    fn read(&self, index: usize, sample: &mut Sample<'_>) -> Result<()> {
        let (label, planes) = self.record(index)?;
        match &self.pipeline {
            None => sample.write(0, planes)?,
            Some(pipeline) => {
                let (red, rest) = planes.split_at(SIDE * SIDE);
                let (green, blue) = rest.split_at(SIDE * SIDE);
                let colors = red.iter().zip(green).zip(blue);
                let pixels = sample
                    .timed(Stage::Decode, || colors.flat_map(|((r, g), b)| [*r, *g, *b]).collect());
                pipeline.write_image(Image::new(SIDE, SIDE, 3, pixels)?, sample, 0)?;
            }
        }
        sample.write_value(1, label)
    }

    fn origin(&self, index: usize) -> Option<String> {
        let each = self.len() / self.files.len().max(1);
        let file = self.files.get(index / each.max(1))?;
        Some(format!("{}, record {}", file.display(), index % each.max(1)))
    }

    fn fingerprint(&self, fingerprint: &mut Fingerprint) -> Result<()> {
        fingerprint.add("labels", format!("{:?}", self.kind));
        if let Some(pipeline) = &self.pipeline {
            fingerprint.add("images", pipeline.to_string());
        }
        self.files.iter().try_for_each(|file| fingerprint.add_file(file))
    }
}
