//! Small archives in the layout of the official ones.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::Path;

use flate2::Compression;
use flate2::write::GzEncoder;
use fulmen_cli::prepare::{ExpectedArchive, ExpectedContents};
use md5::{Digest, Md5};

/// The classes of `reference/meta.mat`, sorted by name, with their numbers in the development kit.
const CLASSES: [(&str, usize); 3] = [("n01440764", 3), ("n02100735", 2), ("n02119789", 1)];

/// ImageNet with three classes.
pub(crate) struct ImageNet {
    pub(crate) per_class: usize,
    pub(crate) val: usize,
}

/// The class and the content of each image, by name.
pub(crate) type Images = BTreeMap<String, (usize, Vec<u8>)>;

impl ImageNet {
    pub(crate) fn train(&self) -> Images {
        let image = |class: usize, number: usize| {
            let bytes = if (class, number) == (1, 0) {
                b"\x89PNG\r\n...".to_vec()
            } else {
                jpeg(class * 1000 + number)
            };
            (format!("{}_{number}", CLASSES[class].0), (class, bytes))
        };
        (0..3)
            .flat_map(|class| (0..self.per_class).map(move |number| image(class, number)))
            .collect()
    }

    pub(crate) fn val_images(&self) -> Images {
        let image = |number: usize| {
            (format!("ILSVRC2012_val_{number:08}"), (number * 7 % 3, jpeg(5000 + number)))
        };
        (1..=self.val).map(image).collect()
    }

    /// Writes the three archives; returns their checksums and counts.
    pub(crate) fn write(&self, folder: &Path) -> ExpectedContents {
        let train = self.train();
        // The order in the archive differs from that of the names.
        let inner: Vec<(String, Vec<u8>)> = [2, 1, 0]
            .into_iter()
            .map(|class| {
                let members = train.iter().filter(|(_, image)| image.0 == class);
                let files: Vec<(String, Vec<u8>)> = members
                    .map(|(name, image)| (format!("{name}.JPEG"), image.1.clone()))
                    .collect();
                (format!("{}.tar", CLASSES[class].0), tar_of(&files))
            })
            .collect();
        fs::write(folder.join("ILSVRC2012_img_train.tar"), tar_of(&inner)).unwrap();
        let val = self.val_images();
        let files: Vec<(String, Vec<u8>)> =
            val.iter().map(|(name, image)| (format!("{name}.JPEG"), image.1.clone())).collect();
        fs::write(folder.join("ILSVRC2012_img_val.tar"), tar_of(&files)).unwrap();
        let truth: String = val.values().map(|image| format!("{}\n", CLASSES[image.0].1)).collect();
        let kit = tar_of(&[
            ("ILSVRC2012_devkit_t12/readme.txt".to_owned(), b"not needed".to_vec()),
            (
                "ILSVRC2012_devkit_t12/data/ILSVRC2012_validation_ground_truth.txt".to_owned(),
                truth.into_bytes(),
            ),
            (
                "ILSVRC2012_devkit_t12/data/meta.mat".to_owned(),
                include_bytes!("../../reference/meta.mat").to_vec(),
            ),
        ]);
        let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
        gzip.write_all(&kit).unwrap();
        fs::write(folder.join("ILSVRC2012_devkit_t12.tar.gz"), gzip.finish().unwrap()).unwrap();
        let names =
            ["ILSVRC2012_img_train.tar", "ILSVRC2012_img_val.tar", "ILSVRC2012_devkit_t12.tar.gz"];
        expected(folder, &names, [("train", train.len()), ("val", val.len())], 3)
    }
}

/// The checksums and counts of the archives in a folder.
pub(crate) fn expected(
    folder: &Path,
    names: &[&str],
    samples: [(&str, usize); 2],
    classes: usize,
) -> ExpectedContents {
    let archive = |name: &&str| ExpectedArchive {
        name: (*name).to_owned(),
        md5: Some(
            Md5::digest(fs::read(folder.join(name)).unwrap())
                .iter()
                .map(|byte| format!("{byte:02x}"))
                .collect(),
        ),
        from: String::new(),
    };
    ExpectedContents {
        archives: names.iter().map(archive).collect(),
        samples: samples
            .into_iter()
            .map(|(split, count)| (split.to_owned(), count as u64))
            .collect(),
        classes: Some(classes),
    }
}

/// Bytes that start and end like a JPEG, with a different length and content for each number.
pub(crate) fn jpeg(number: usize) -> Vec<u8> {
    let inside = (0..number * 37 % 1500).map(|position| ((position * 31 + number) % 251) as u8);
    [0xff, 0xd8, 0xff, 0xe0].into_iter().chain(inside).chain([0xff, 0xd9]).collect()
}

pub(crate) fn tar_of(files: &[(String, Vec<u8>)]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (name, bytes) in files {
        let mut header = tar::Header::new_gnu();
        header.set_size(bytes.len() as u64);
        header.set_mode(0o644);
        builder.append_data(&mut header, name, bytes.as_slice()).unwrap();
    }
    builder.into_inner().unwrap()
}

/// Names and contents of the files in a tar file.
pub(crate) fn entries(path: &Path) -> Vec<(String, Vec<u8>)> {
    let mut archive = tar::Archive::new(File::open(path).unwrap());
    let mut files = Vec::new();
    for entry in archive.entries().unwrap() {
        let mut entry = entry.unwrap();
        let name = entry.path().unwrap().to_str().unwrap().to_owned();
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes).unwrap();
        files.push((name, bytes));
    }
    files
}

/// Names and contents of the visible files in a folder.
pub(crate) fn contents(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let named = files.map(|path| (path.file_name().unwrap().to_str().unwrap().to_owned(), path));
    named
        .filter(|(name, _)| !name.starts_with('.'))
        .map(|(name, path)| (name, fs::read(path).unwrap()))
        .collect()
}
