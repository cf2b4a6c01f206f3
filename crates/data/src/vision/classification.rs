//! Images with class labels from IDX files, and MNIST as the best known of them.
//!
//! Out of scope: the file format (`idx`), and the conversion of gray bytes to floats, which is
//! faster on the device.

use std::path::{Path, PathBuf};

use fulmen_tensor::DType;

use crate::{Dataset, Error, Field, Fingerprint, IdxFile, Result, Sample};

/// Images and their classes, from two IDX files.
///
/// The fields are `image`, with the dtype of the file and a channel axis in front if the file has
/// none (`u8[1, 28, 28]` for MNIST), and `label`, an `i32`. All labels are checked when the dataset
/// is built.
///
/// ```no_run
/// use fulmen_data::{Dataset, IdxClassification, IdxFile};
///
/// let images = IdxFile::open("letters/images-idx3-ubyte.gz")?;
/// let labels = IdxFile::open("letters/labels-idx1-ubyte.gz")?;
/// let letters = IdxClassification::new(images, labels, 26)?;
/// println!("{} images: {:?}", letters.len(), letters.fields());
/// # Ok::<(), fulmen_data::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct IdxClassification {
    images: IdxFile,
    image: Field,
    image_bytes: usize,
    labels: Vec<i32>,
    labels_path: PathBuf,
    num_classes: usize,
}

impl IdxClassification {
    /// Pairs images with labels, which must be within `0..num_classes`.
    pub fn new(images: IdxFile, labels: IdxFile, num_classes: usize) -> Result<IdxClassification> {
        let (count, rest) = match images.dims() {
            [count, rest @ ..] if !rest.is_empty() => (*count, rest),
            dims => {
                return Err(Error::file(
                    images.path(),
                    format!(
                        "an image file has at least 2 axes, [images, ...]; this one has the shape {dims:?}"
                    ),
                ));
            }
        };
        let &[label_count] = labels.dims() else {
            return Err(Error::file(
                labels.path(),
                format!(
                    "a label file has 1 axis, [labels]; this one has the shape {:?}",
                    labels.dims()
                ),
            ));
        };
        if count != label_count {
            return Err(Error::usage(format!(
                "images and labels do not belong together: {} has {count} images, {} has {label_count} labels",
                images.path().display(),
                labels.path().display()
            )));
        }
        let shape = if rest.len() == 2 { [&[1], rest].concat() } else { rest.to_vec() };
        let image = Field::new("image", images.dtype(), shape);
        let image_bytes = image.sample_bytes()?;
        let labels_path = labels.path().to_owned();
        let labels = read_labels(&labels, num_classes)?;
        Ok(IdxClassification { images, image, image_bytes, labels, labels_path, num_classes })
    }

    /// The labels of all samples, in the order of the samples.
    pub fn labels(&self) -> &[i32] {
        &self.labels
    }

    /// The number of classes.
    pub fn num_classes(&self) -> usize {
        self.num_classes
    }

    /// The bytes of an image, row by row; `None` if the index is out of range.
    fn image(&self, index: usize) -> Option<&[u8]> {
        let start = index.checked_mul(self.image_bytes)?;
        self.images.bytes().get(start..start.checked_add(self.image_bytes)?)
    }
}

/// The labels as `i32`, each checked to be a class.
fn read_labels(file: &IdxFile, num_classes: usize) -> Result<Vec<i32>> {
    let bytes = file.bytes();
    let labels: Vec<i32> = match file.dtype() {
        DType::U8 => bytes.iter().map(|&label| i32::from(label)).collect(),
        DType::I8 => bytes.iter().map(|&label| i32::from(label as i8)).collect(),
        DType::I16 => bytes
            .chunks_exact(2)
            .map(|label| i32::from(i16::from_ne_bytes([label[0], label[1]])))
            .collect(),
        DType::I32 => bytes
            .chunks_exact(4)
            .map(|label| i32::from_ne_bytes([label[0], label[1], label[2], label[3]]))
            .collect(),
        other => {
            return Err(Error::file(
                file.path(),
                format!("labels are integers, but this file holds {other}"),
            ));
        }
    };
    let is_out_of_range =
        |label: i32| usize::try_from(label).map_or(true, |label| label >= num_classes);
    match labels.iter().position(|&label| is_out_of_range(label)) {
        None => Ok(labels),
        Some(sample) => Err(Error::label(format!(
            "label {} of sample {sample} in {} is out of range: there are {num_classes} classes, expected labels from \
             0 to {}",
            labels[sample],
            file.path().display(),
            num_classes.saturating_sub(1)
        ))),
    }
}

impl Dataset for IdxClassification {
    fn len(&self) -> usize {
        self.labels.len()
    }

    fn fields(&self) -> Vec<Field> {
        vec![self.image.clone(), Field::new("label", DType::I32, [])]
    }

    fn read(&self, index: usize, sample: &mut Sample<'_>) -> Result<()> {
        let (Some(&label), Some(image)) = (self.labels.get(index), self.image(index)) else {
            return Err(Error::usage(format!(
                "there is no sample {index}; the dataset has {}",
                self.labels.len()
            )));
        };
        sample.write(0, image)?;
        sample.write_value(1, label)
    }

    fn origin(&self, index: usize) -> Option<String> {
        Some(format!("{}, image {index}", self.images.path().display()))
    }

    /// Adds the two files and the number of classes.
    fn fingerprint(&self, fingerprint: &mut Fingerprint) -> Result<()> {
        fingerprint.add("classes", self.num_classes.to_le_bytes());
        fingerprint.add_file(self.images.path())?;
        fingerprint.add_file(&self.labels_path)
    }
}

/// A split of a dataset.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Split {
    /// The training samples.
    Train,
    /// The test samples.
    Test,
}

impl Split {
    /// The prefixes of MNIST's file names.
    fn prefix(self) -> &'static str {
        match self {
            Split::Train => "train",
            Split::Test => "t10k",
        }
    }
}

/// MNIST, or a dataset with the same layout (Fashion-MNIST, KMNIST): 28 by 28 gray images of 10
/// classes.
///
/// ```no_run
/// use fulmen_data::{Dataset, Mnist, Split};
///
/// let train = Mnist::open("data/mnist", Split::Train)?;
/// assert_eq!(train.fields()[0].to_string(), "image u8[1, 28, 28]");
/// # Ok::<(), fulmen_data::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Mnist(IdxClassification);

impl Mnist {
    /// Reads `train-images-idx3-ubyte` and `train-labels-idx1-ubyte`, or the `t10k-` files, from a
    /// folder; each may end in `.gz`.
    pub fn open(dir: impl AsRef<Path>, split: Split) -> Result<Mnist> {
        let dir = dir.as_ref();
        let images =
            IdxFile::open(find(dir, &format!("{}-images", split.prefix()), "idx3-ubyte")?)?;
        let labels =
            IdxFile::open(find(dir, &format!("{}-labels", split.prefix()), "idx1-ubyte")?)?;
        if images.dtype() != DType::U8 || !matches!(images.dims(), [_, 28, 28]) {
            return Err(Error::file(
                images.path(),
                format!(
                    "MNIST images are u8[N, 28, 28], but this file holds {}{:?}; use IdxClassification for other sizes",
                    images.dtype(),
                    images.dims()
                ),
            ));
        }
        IdxClassification::new(images, labels, 10).map(Mnist)
    }

    /// The labels of all samples, in the order of the samples.
    pub fn labels(&self) -> &[i32] {
        self.0.labels()
    }

    /// The 784 pixels of an image, row by row; `None` if the index is out of range.
    pub fn image(&self, index: usize) -> Option<&[u8]> {
        self.0.image(index)
    }

    /// The number of classes: 10.
    pub fn num_classes(&self) -> usize {
        self.0.num_classes()
    }
}

/// Finds the file under one of its usual names.
fn find(dir: &Path, stem: &str, kind: &str) -> Result<PathBuf> {
    let names = [
        format!("{stem}-{kind}"),
        format!("{stem}-{kind}.gz"),
        format!("{stem}.{kind}"),
        format!("{stem}.{kind}.gz"),
    ];
    match names.iter().map(|name| dir.join(name)).find(|path| path.exists()) {
        Some(path) => Ok(path),
        None => Err(Error::missing(format!(
            "{}: {}; looked for {}",
            dir.display(),
            if dir.is_dir() {
                "a file of the dataset is missing"
            } else {
                "the folder does not exist"
            },
            names.join(", ")
        ))),
    }
}

impl Dataset for Mnist {
    fn len(&self) -> usize {
        self.0.len()
    }

    fn fields(&self) -> Vec<Field> {
        self.0.fields()
    }

    fn read(&self, index: usize, sample: &mut Sample<'_>) -> Result<()> {
        self.0.read(index, sample)
    }

    fn origin(&self, index: usize) -> Option<String> {
        self.0.origin(index)
    }

    fn fingerprint(&self, fingerprint: &mut Fingerprint) -> Result<()> {
        self.0.fingerprint(fingerprint)
    }
}
