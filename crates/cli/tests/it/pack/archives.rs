//! Small archives in the layout of ImageNet's, and zip files.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{Cursor, Read, Write};
use std::path::Path;

use fulmen_cli::pack::Pack;
use zip::CompressionMethod;
use zip::write::{SimpleFileOptions, ZipWriter};

/// The classes, sorted by name.
pub(crate) const CLASSES: [&str; 3] = ["n01440764", "n02100735", "n02119789"];

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
            (format!("{}_{number}", CLASSES[class]), (class, bytes))
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

    /// Writes the two archives and the labels of the validation images.
    pub(crate) fn write(&self, folder: &Path) {
        let train = self.train();
        // The order in the archive differs from that of the names.
        let inner: Vec<(String, Vec<u8>)> = [2, 1, 0]
            .into_iter()
            .map(|class| {
                let members = train.iter().filter(|(_, image)| image.0 == class);
                let files: Vec<(String, Vec<u8>)> = members
                    .map(|(name, image)| (format!("{name}.JPEG"), image.1.clone()))
                    .collect();
                (format!("{}.tar", CLASSES[class]), tar_of(&files))
            })
            .collect();
        fs::write(folder.join(TRAIN), tar_of(&inner)).unwrap();
        let val = self.val_images();
        let files: Vec<(String, Vec<u8>)> =
            val.iter().map(|(name, image)| (format!("{name}.JPEG"), image.1.clone())).collect();
        fs::write(folder.join(VAL), tar_of(&files)).unwrap();
        let rows = val.iter().map(|(name, image)| format!("{name}.JPEG,{}\n", CLASSES[image.0]));
        let labels = format!("file_name,label\n{}", rows.collect::<String>());
        fs::write(folder.join("val.csv"), labels).unwrap();
    }
}

pub(crate) const TRAIN: &str = "ILSVRC2012_img_train.tar";
pub(crate) const VAL: &str = "ILSVRC2012_img_val.tar";

/// Packs ImageNet's archives in a folder.
pub(crate) fn imagenet(folder: &Path, to: &Path) -> Pack {
    Pack::new(to)
        .source("train", folder.join(TRAIN))
        .source("val", folder.join(VAL))
        .labels("val", folder.join("val.csv"))
        .max_samples(7)
        .threads(2)
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

pub(crate) fn zip_of(files: &[(String, Vec<u8>)], method: CompressionMethod) -> Vec<u8> {
    let options = SimpleFileOptions::default().compression_method(method);
    let mut writer = ZipWriter::new(Cursor::new(Vec::new()));
    for (name, bytes) in files {
        if let Some((folder, _)) = name.split_once('/') {
            // COCO's archives name their folders. Adding a folder a second time fails.
            let _ = writer.add_directory(folder, options);
        }
        writer.start_file(name.as_str(), options).unwrap();
        writer.write_all(bytes).unwrap();
    }
    writer.finish().unwrap().into_inner()
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
