//! [`ImageSplits`]: a folder of labeled images, split into training, validation and test.
//!
//! Out of scope: reading each kind of folder (`image_folder`, `cifar`, `mnist`).

use std::path::{Path, PathBuf};

use crate::image_folder::class_names;
use crate::mnist::MnistImages;
use crate::{Cifar, ImageFolder, ImagePipeline, ImageSize};
use fulmen_data::{Dataset, Error, Fold, Mnist, Result, Split, Subset, stratified_split};

/// Labeled images in a folder, split into training, validation and test.
///
/// The content of the folder determines its kind:
///
/// | content | kind |
/// | --- | --- |
/// | `data_batch_1.bin` … | CIFAR-10, the binary version |
/// | `train.bin`, `test.bin` | CIFAR-100, the binary version |
/// | `train-images-idx3-ubyte`, `.gz` too, … | MNIST or a dataset in its form |
/// | `train/CLASS/…`, perhaps `val` (or `valid`, `validation`) and `test` | images by class, already divided |
/// | `CLASS/…` | images by class |
///
/// If a folder has no validation images, a tenth of each class of its training images is held out
/// for validation, always the same ones. For `CLASS/…`, another tenth is held out for the test. For
/// `train` and `val` without `test`, `val` is also the test.
///
/// ```
/// use fulmen_data::Dataset;
/// use fulmen_images::{Encoding, ImageSplits, Image, ImagePipeline, encode_image};
///
/// let folder = tempfile::tempdir()?;
/// for class in ["cat", "dog"] {
///     std::fs::create_dir(folder.path().join(class))?;
///     for n in 0..10 {
///         let image = encode_image(&Image::black(12, 8, 3)?, Encoding::Png)?;
///         std::fs::write(folder.path().join(class).join(format!("{n}.png")), image)?;
///     }
/// }
/// let pets = ImageSplits::open(folder.path())?;
/// assert_eq!(pets.classes(), ["cat", "dog"]);
/// let train = pets.train(ImagePipeline::rgb().random_resized_crop(8).horizontal_flip(0.5))?;
/// let eval = ImagePipeline::rgb().resize(10).center_crop(8);
/// let [validation, test] = [pets.validation(eval.clone())?, pets.test(eval)?];
/// assert_eq!((train.len(), validation.len(), test.len()), (16, 2, 2));
/// assert_eq!(train.fields()[0].to_string(), "image u8[3, 8, 8]");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct ImageSplits {
    root: PathBuf,
    layout: Layout,
    classes: Vec<String>,
}

#[derive(Clone, Debug)]
enum Layout {
    Cifar10,
    Cifar100,
    Mnist,
    /// Folders of classes in `train` and similar folders.
    PreSplit {
        validation: Option<PathBuf>,
        test: Option<PathBuf>,
    },
    Classes,
}

#[derive(Clone, Copy, PartialEq)]
enum Part {
    Train,
    Validation,
    Test,
}

/// The files by which a dataset is recognized.
const MARKER_FILES: [(&str, Layout); 6] = [
    ("data_batch_1.bin", Layout::Cifar10),
    ("train.bin", Layout::Cifar100),
    ("train-images-idx3-ubyte", Layout::Mnist),
    ("train-images-idx3-ubyte.gz", Layout::Mnist),
    ("train-images.idx3-ubyte", Layout::Mnist),
    ("train-images.idx3-ubyte.gz", Layout::Mnist),
];

impl ImageSplits {
    /// Inspects a folder. The images are listed and read later, by the methods that return
    /// datasets.
    ///
    /// # Errors
    /// A folder that cannot be listed or is not of a kind above; classes of `val` or `test` that
    /// differ from those of `train`.
    pub fn open(root: impl AsRef<Path>) -> Result<ImageSplits> {
        let root = root.as_ref().to_owned();
        let numbers = |count: usize| (0..count).map(|class| class.to_string()).collect();
        if let Some((_, layout)) =
            MARKER_FILES.into_iter().find(|(mark, _)| root.join(mark).is_file())
        {
            let classes = numbers(if matches!(layout, Layout::Cifar100) { 100 } else { 10 });
            return Ok(ImageSplits { root, layout, classes });
        }
        let folder = |names: &[&str]| {
            names.iter().map(|name| root.join(name)).find(|folder| folder.is_dir())
        };
        let Some(train) = folder(&["train"]) else {
            let classes = class_names(&root)?;
            if classes.is_empty() {
                let marks: Vec<&str> = MARKER_FILES.iter().take(3).map(|(mark, _)| *mark).collect();
                return Err(Error::file(
                    &root,
                    format!(
                        "it has no folders of classes (CLASS/image.jpg or train/CLASS/image.jpg), and none of the \
                         files {} of CIFAR and MNIST",
                        marks.join(", ")
                    ),
                ));
            }
            return Ok(ImageSplits { root, layout: Layout::Classes, classes });
        };
        let classes = class_names(&train)?;
        let validation = folder(&["val", "valid", "validation"]);
        let test = folder(&["test"]);
        for other in [&validation, &test].into_iter().flatten() {
            let other_classes = class_names(other)?;
            let only = |names: &[String], those: &[String]| {
                names.iter().find(|name| !those.contains(name)).cloned()
            };
            let difference = match (only(&classes, &other_classes), only(&other_classes, &classes))
            {
                (Some(name), _) => format!("it has no folder {name:?}, which train has"),
                (None, Some(name)) => format!("train has no folder {name:?}"),
                (None, None) => continue,
            };
            return Err(Error::file(
                other,
                format!("{difference}; the classes of both must be the same"),
            ));
        }
        Ok(ImageSplits { root, layout: Layout::PreSplit { validation, test }, classes })
    }

    /// The names of the classes; a label is an index into them. The names of CIFAR's and MNIST's
    /// classes are numbers.
    pub fn classes(&self) -> &[String] {
        &self.classes
    }

    /// The size of all images of CIFAR and MNIST; `None` if each file has its own size.
    pub fn image_size(&self) -> Option<ImageSize> {
        match self.layout {
            Layout::Cifar10 | Layout::Cifar100 => Some(ImageSize::from(32)),
            Layout::Mnist => Some(ImageSize::from(28)),
            Layout::PreSplit { .. } | Layout::Classes => None,
        }
    }

    /// Whether all images are gray, as in MNIST.
    pub fn is_gray(&self) -> bool {
        matches!(self.layout, Layout::Mnist)
    }

    /// The training images, passed through a pipeline: the fields `image` and `label`.
    ///
    /// # Errors
    /// Images that do not exist or cannot be listed; invalid options of the pipeline, or a pipeline
    /// that does not decide the size; too few images to hold out a tenth of each class.
    pub fn train(&self, pipeline: ImagePipeline) -> Result<Box<dyn Dataset>> {
        self.part(Part::Train, pipeline)
    }

    /// The validation images.
    ///
    /// # Errors
    /// Those of [`train`](ImageSplits::train).
    pub fn validation(&self, pipeline: ImagePipeline) -> Result<Box<dyn Dataset>> {
        self.part(Part::Validation, pipeline)
    }

    /// The test images.
    ///
    /// # Errors
    /// Those of [`train`](ImageSplits::train).
    pub fn test(&self, pipeline: ImagePipeline) -> Result<Box<dyn Dataset>> {
        self.part(Part::Test, pipeline)
    }

    fn part(&self, part: Part, pipeline: ImagePipeline) -> Result<Box<dyn Dataset>> {
        let files = if part == Part::Test { Split::Test } else { Split::Train };
        let folder = |folder: &Path, part, held_out| {
            let folder = ImageFolder::open(folder)?;
            let labels = folder.labels();
            self.divide(folder.decode(pipeline.clone())?, &labels, part, held_out)
        };
        match &self.layout {
            Layout::Cifar10 | Layout::Cifar100 => {
                let cifar = match self.layout {
                    Layout::Cifar10 => Cifar::cifar10(&self.root, files)?,
                    _ => Cifar::cifar100(&self.root, files)?,
                };
                let labels = cifar.labels();
                self.divide(cifar.augment(pipeline)?, &labels, part, Holdout::for_part(part))
            }
            Layout::Mnist => {
                let mnist = Mnist::open(&self.root, files)?;
                let labels = mnist.labels().to_vec();
                self.divide(
                    MnistImages::new(mnist, pipeline)?,
                    &labels,
                    part,
                    Holdout::for_part(part),
                )
            }
            Layout::PreSplit { validation, test } => {
                let own_folder = match part {
                    Part::Train => None,
                    Part::Validation => validation.as_ref(),
                    Part::Test => test.as_ref().or(validation.as_ref()),
                };
                match (own_folder, validation) {
                    (Some(own_folder), _) => folder(own_folder, part, Holdout::Nothing),
                    (None, Some(_)) => folder(&self.root.join("train"), part, Holdout::Nothing),
                    // Without test images, the validation images are used.
                    (None, None) if part == Part::Test => {
                        folder(&self.root.join("train"), Part::Validation, Holdout::Validation)
                    }
                    (None, None) => folder(&self.root.join("train"), part, Holdout::Validation),
                }
            }
            Layout::Classes => folder(&self.root, part, Holdout::ValidationAndTest),
        }
    }

    /// The part `part` of a dataset that is not split yet.
    fn divide(
        &self,
        dataset: impl Dataset,
        labels: &[i32],
        part: Part,
        held_out: Holdout,
    ) -> Result<Box<dyn Dataset>> {
        let share = match held_out {
            Holdout::Nothing => return Ok(Box::new(dataset)),
            Holdout::Validation => 0.1,
            Holdout::ValidationAndTest => 0.2,
        };
        let Fold { train, validation: mut held_out_indices } = stratified_split(labels, share, 0)
            .map_err(|error| {
            let advice = "lay them out as train/CLASS/… and val/CLASS/…";
            Error::file(
                &self.root,
                format!("a tenth of its images cannot be held out ({error}); {advice}"),
            )
        })?;
        // Sorting by label and taking every second image gives both parts their share of each
        // class.
        held_out_indices.sort_by_key(|&index| labels[index]);
        let every_second =
            |first| held_out_indices.iter().copied().skip(first).step_by(2).collect();
        let indices = match (part, held_out) {
            (Part::Train, _) => train,
            (Part::Validation, Holdout::ValidationAndTest) => every_second(0),
            (Part::Test, Holdout::ValidationAndTest) => every_second(1),
            (Part::Validation | Part::Test, _) => held_out_indices,
        };
        Ok(Box::new(Subset::new(dataset, indices)?))
    }
}

/// The images held out from training.
#[derive(Clone, Copy)]
enum Holdout {
    Nothing,
    Validation,
    ValidationAndTest,
}

impl Holdout {
    /// What is held out if the dataset has test files.
    fn for_part(part: Part) -> Holdout {
        if part == Part::Test { Holdout::Nothing } else { Holdout::Validation }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::fs;

    use fulmen_data::HostBatch;

    use super::*;
    use crate::{Encoding, Image, encode_image};

    /// Writes images with `count` shades of gray, different in each call.
    fn fill(folder: &Path, first: u8, count: u8) {
        fs::create_dir_all(folder).unwrap();
        for shade in first..first + count {
            let image = Image::new(4, 4, 1, vec![shade; 16]).unwrap();
            let file = encode_image(&image, Encoding::Png).unwrap();
            fs::write(folder.join(format!("{shade}.png")), file).unwrap();
        }
    }

    /// The shades of the images with this label.
    fn shades(dataset: &dyn Dataset, label: i32) -> BTreeSet<u8> {
        let all: Vec<usize> = (0..dataset.len()).collect();
        let batch = HostBatch::collate(dataset, &all).unwrap();
        let pixels = batch.values::<u8>(0).unwrap();
        let labels = batch.values::<i32>(1).unwrap();
        pixels
            .chunks(16)
            .zip(labels)
            .filter(|(_, other)| **other == label)
            .map(|(pixels, _)| pixels[0])
            .collect()
    }

    fn parts(splits: &ImageSplits) -> [Box<dyn Dataset>; 3] {
        let pipeline = || ImagePipeline::gray().resize(4).center_crop(4);
        [splits.train(pipeline()), splits.validation(pipeline()), splits.test(pipeline())]
            .map(Result::unwrap)
    }

    #[test]
    fn folders_of_classes_are_divided_by_class_and_always_in_the_same_way() {
        let root = tempfile::tempdir().unwrap();
        fill(&root.path().join("ash"), 0, 30);
        fill(&root.path().join("oak"), 100, 10);
        let splits = ImageSplits::open(root.path()).unwrap();
        assert_eq!(
            (splits.classes(), splits.image_size()),
            (&["ash".to_owned(), "oak".to_owned()][..], None)
        );
        let all = parts(&splits);
        for (label, expected) in [(0, [24, 3, 3]), (1, [8, 1, 1])] {
            let shades: Vec<_> = all.iter().map(|part| shades(&**part, label)).collect();
            assert_eq!([0, 1, 2].map(|part| shades[part].len()), expected, "{shades:?}");
            // All images are different.
            let union: BTreeSet<_> = shades.iter().flatten().collect();
            assert_eq!(union.len(), expected.iter().sum::<usize>());
        }
        let reopened = parts(&ImageSplits::open(root.path()).unwrap());
        assert_eq!(
            [0, 1, 2].map(|part| shades(&*all[part], 0)),
            [0, 1, 2].map(|part| shades(&*reopened[part], 0))
        );
    }

    #[test]
    fn what_is_divided_already_stays_so() {
        let root = tempfile::tempdir().unwrap();
        for (class, first) in [("ash", 0), ("oak", 100)] {
            fill(&root.path().join("train").join(class), first, 20);
        }
        let lengths = || parts(&ImageSplits::open(root.path()).unwrap()).map(|part| part.len());
        assert_eq!(lengths(), [36, 4, 4], "a tenth is held back, and tested with too");
        fill(&root.path().join("valid/oak"), 150, 3);
        let error = ImageSplits::open(root.path()).unwrap_err().to_string();
        assert!(error.contains("valid: it has no folder \"ash\", which train has"), "{error}");
        fill(&root.path().join("valid/ash"), 50, 2);
        assert_eq!(lengths(), [40, 5, 5]);
        fill(&root.path().join("test/ash"), 60, 1);
        fill(&root.path().join("test/oak"), 160, 1);
        assert_eq!(lengths(), [40, 5, 2]);
        fill(&root.path().join("test/elm"), 200, 1);
        let error = ImageSplits::open(root.path()).unwrap_err().to_string();
        assert!(error.contains("train has no folder \"elm\""), "{error}");
    }

    #[test]
    fn a_folder_of_something_else_or_of_too_few_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let error = ImageSplits::open(root.path()).unwrap_err().to_string();
        assert!(
            error.contains("no folders of classes") && error.contains("data_batch_1.bin"),
            "{error}"
        );
        fill(&root.path().join("ash"), 0, 1);
        fill(&root.path().join("oak"), 100, 9);
        let error = ImageSplits::open(root.path())
            .unwrap()
            .train(ImagePipeline::gray().center_crop(4))
            .err()
            .unwrap();
        assert!(error.to_string().contains("lay them out as train/CLASS"), "{error}");
        assert!(ImageSplits::open(root.path().join("none")).is_err());
    }

    #[test]
    fn digits_go_through_a_pipeline() {
        let splits =
            ImageSplits::open(concat!(env!("CARGO_MANIFEST_DIR"), "/../../examples/mnist/data"))
                .unwrap();
        assert_eq!((splits.classes().len(), splits.is_gray()), (10, true));
        let plain = splits.validation(ImagePipeline::gray()).unwrap();
        let turned = splits.validation(ImagePipeline::rgb().horizontal_flip(1.0)).unwrap();
        let lengths = [splits.train(ImagePipeline::gray()).unwrap().len(), plain.len()];
        assert_eq!(
            (lengths, splits.test(ImagePipeline::gray()).unwrap().len()),
            ([8100, 900], 1000)
        );
        let [plain, turned] =
            [&plain, &turned].map(|set| HostBatch::collate(&**set, &[7]).unwrap());
        let plain = plain.values::<u8>(0).unwrap();
        let turned = turned.values::<u8>(0).unwrap();
        let expected: Vec<u8> =
            plain.chunks(28).flat_map(|row| row.iter().rev().copied()).collect();
        assert_eq!(turned, expected.repeat(3));
    }
}
