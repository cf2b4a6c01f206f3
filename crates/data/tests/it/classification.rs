//! MNIST and other labeled images: the real digits, and files that do not belong together.

use std::fs;
use std::path::{Path, PathBuf};

use fulmen_cache::CacheExt;
use fulmen_data::{
    DataLoader, Dataset, Error, Fingerprint, HostBatch, IdxClassification, IdxFile, Mnist, Split,
};

fn digits() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/mnist/data")
}

fn idx(code: u8, dims: &[u32], data: &[u8]) -> Vec<u8> {
    let mut bytes = vec![0, 0, code, dims.len() as u8];
    bytes.extend(dims.iter().flat_map(|dim| dim.to_be_bytes()));
    bytes.extend(data);
    bytes
}

/// Image and label files in a temporary folder.
struct Pair(tempfile::TempDir);

impl Pair {
    fn new(images: &[u8], labels: &[u8]) -> Pair {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("train-images-idx3-ubyte"), images).unwrap();
        fs::write(dir.path().join("train-labels-idx1-ubyte"), labels).unwrap();
        Pair(dir)
    }

    fn open(&self, classes: usize) -> Result<IdxClassification, Error> {
        let images = IdxFile::open(self.0.path().join("train-images-idx3-ubyte"))?;
        let labels = IdxFile::open(self.0.path().join("train-labels-idx1-ubyte"))?;
        IdxClassification::new(images, labels, classes)
    }

    /// The message, with the folder as `DIR`.
    fn message(&self, error: &Error) -> String {
        error.to_string().replace(&self.0.path().display().to_string(), "DIR")
    }
}

#[test]
fn the_real_digits_are_read() {
    let train = Mnist::open(digits(), Split::Train).unwrap();
    let test = Mnist::open(digits(), Split::Test).unwrap();
    assert_eq!((train.len(), test.len(), test.num_classes()), (9000, 1000, 10));
    assert_eq!(test.labels()[..8], [0, 3, 7, 6, 8, 9, 3, 3]);
    let fields: Vec<String> = train.fields().iter().map(ToString::to_string).collect();
    assert_eq!(fields, ["image u8[1, 28, 28]", "label i32[]"]);

    // Ink on paper: the middle of a digit is darker than its rim, and every image has ink.
    let loader = DataLoader::builder(test).batch_size(1000).build().unwrap();
    let batch = loader.epoch(0).next().unwrap().unwrap();
    let images = batch.values::<u8>(0).unwrap();
    let mut rim = 0u64;
    let mut middle = 0u64;
    for image in images.chunks_exact(784) {
        assert!(image.iter().any(|&pixel| pixel > 200));
        let pixel = |row: usize, column: usize| u64::from(image[row * 28 + column]);
        rim +=
            (0..28).map(|i| pixel(0, i) + pixel(27, i) + pixel(i, 0) + pixel(i, 27)).sum::<u64>();
        middle +=
            (0..28).map(|i| pixel(13, i) + pixel(14, i) + pixel(i, 13) + pixel(i, 14)).sum::<u64>();
    }
    assert!(middle > 20 * rim, "{middle} in the middle, {rim} on the rim");
}

#[test]
fn idx_samples_can_be_cached_and_are_told_apart() {
    let images: Vec<u8> = (0..3 * 784).map(|byte| (byte % 253) as u8).collect();
    let pair = Pair::new(&idx(8, &[3, 28, 28], &images), &idx(8, &[3], &[1, 9, 4]));
    let open = || Mnist::open(pair.0.path(), Split::Train).unwrap();
    assert_eq!(
        open().origin(2).unwrap(),
        format!("{}, image 2", pair.0.path().join("train-images-idx3-ubyte").display())
    );
    let cached = open().cache(pair.0.path().join("cache")).open().unwrap();
    let batch = HostBatch::collate(&cached, &[2, 0]).unwrap();
    assert_eq!(batch.values::<u8>(0).unwrap(), [&images[2 * 784..], &images[..784]].concat());
    assert_eq!(batch.values::<i32>(1).unwrap(), [4, 1]);

    let fingerprint = |data: &dyn Dataset| {
        let mut fingerprint = Fingerprint::new();
        data.fingerprint(&mut fingerprint).unwrap();
        fingerprint.to_string()
    };
    let first = fingerprint(&open());
    assert_eq!(first, fingerprint(&pair.open(10).unwrap()));
    assert_ne!(first, fingerprint(&pair.open(11).unwrap()));
    fs::write(pair.0.path().join("train-labels-idx1-ubyte"), idx(8, &[3], &[1, 9, 5])).unwrap();
    assert_ne!(first, fingerprint(&open()));
}

#[test]
fn images_and_labels_of_different_length_name_both_files_and_counts() {
    let pair = Pair::new(&idx(8, &[3, 28, 28], &[0; 3 * 784]), &idx(8, &[2], &[1, 2]));
    let error = Mnist::open(pair.0.path(), Split::Train).unwrap_err();
    assert!(error.is_usage());
    assert_eq!(
        pair.message(&error),
        "images and labels do not belong together: DIR/train-images-idx3-ubyte has 3 images, \
         DIR/train-labels-idx1-ubyte has 2 labels"
    );
}

#[test]
fn a_label_out_of_range_names_label_sample_file_and_classes() {
    let pair = Pair::new(&idx(8, &[3, 28, 28], &[0; 3 * 784]), &idx(8, &[3], &[1, 9, 10]));
    let error = Mnist::open(pair.0.path(), Split::Train).unwrap_err();
    assert!(error.is_label());
    assert_eq!(
        pair.message(&error),
        "label 10 of sample 2 in DIR/train-labels-idx1-ubyte is out of range: there are 10 classes, expected labels \
         from 0 to 9"
    );
    assert!(pair.open(11).is_ok());
    let negative =
        Pair::new(&idx(8, &[2, 4], &[0; 8]), &idx(0x0c, &[2], &[0, 0, 0, 1, 255, 255, 255, 254]));
    let error = negative.open(10).unwrap_err();
    assert!(negative.message(&error).starts_with("label -2 of sample 1 in"), "{error}");
}

#[test]
fn a_missing_file_lists_what_was_looked_for() {
    let dir = tempfile::tempdir().unwrap();
    let error = Mnist::open(dir.path(), Split::Test).unwrap_err();
    assert!(error.is_not_found() && error.is_file());
    assert_eq!(
        error.to_string().replace(&dir.path().display().to_string(), "DIR"),
        "DIR: a file of the dataset is missing; looked for t10k-images-idx3-ubyte, t10k-images-idx3-ubyte.gz, \
         t10k-images.idx3-ubyte, t10k-images.idx3-ubyte.gz"
    );
    let error = Mnist::open(dir.path().join("none"), Split::Train).unwrap_err();
    assert!(
        error.to_string().contains("the folder does not exist; looked for train-images"),
        "{error}"
    );
}

#[test]
fn other_images_than_mnists_keep_their_shape() {
    let image = |dims: &[u32]| {
        let bytes = dims.iter().product::<u32>() as usize;
        Pair::new(&idx(8, dims, &vec![7; bytes]), &idx(8, &[2], &[0, 1]))
    };
    let shape = |dims: &[u32]| image(dims).open(2).unwrap().fields()[0].shape.clone();
    assert_eq!(shape(&[2, 5, 4]), [1, 5, 4]);
    assert_eq!(shape(&[2, 3, 5, 4]), [3, 5, 4]);
    assert_eq!(shape(&[2, 6]), [6]);
    let small = image(&[2, 5, 4]);
    let error = Mnist::open(small.0.path(), Split::Train).unwrap_err();
    assert!(
        small
            .message(&error)
            .contains("MNIST images are u8[N, 28, 28], but this file holds u8[2, 5, 4]"),
        "{error}"
    );
}

#[test]
fn files_in_each_others_place_are_refused() {
    let images = idx(8, &[2, 28, 28], &[0; 2 * 784]);
    let labels = idx(8, &[2], &[0, 1]);
    assert!(
        Pair::new(&labels, &labels).open(10).unwrap_err().to_string().contains("at least 2 axes")
    );
    assert!(Pair::new(&images, &images).open(10).unwrap_err().to_string().contains("has 1 axis"));
    let floats = idx(0x0d, &[2], &[0; 8]);
    assert!(
        Pair::new(&images, &floats)
            .open(10)
            .unwrap_err()
            .to_string()
            .contains("labels are integers")
    );
}
