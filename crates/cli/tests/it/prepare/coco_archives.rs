//! COCO with a few images.

use std::fs;
use std::io::{Cursor, Write};
use std::path::Path;

use fulmen_cli::prepare::ExpectedContents;
use zip::CompressionMethod;
use zip::write::{SimpleFileOptions, ZipWriter};

use crate::prepare::archives::{expected, jpeg};

/// The numbers of images, with gaps as in the official archives.
pub(crate) fn number(split: &str, index: usize) -> usize {
    if split == "train" { 9 + 16 * index } else { 139 + 146 * index }
}

/// The annotations of an image's objects as COCO writes them; every third image has none.
fn instances(image: usize, index: usize) -> Vec<String> {
    if index % 3 == 2 {
        return Vec::new();
    }
    let polygons = format!(
        r#"{{"segmentation": [[510.66,423.01,511.72,420.03]],"area": 702.1057499999998,"iscrowd": 0,"image_id": {image},"bbox": [473.07,395.93,38.65,28.67],"category_id": 90,"id": {}}}"#,
        1768 + 10 * image
    );
    let crowd = format!(
        r#"{{"segmentation": {{"counts": [179,27,392],"size": [426,640]}},"area": 220834,"iscrowd": 1,"image_id": {image},"bbox": [0,34,639,388],"category_id": 1,"id": {}}}"#,
        900 + image
    );
    vec![polygons, crowd]
}

fn annotation_files(split: &str, count: usize) -> [(String, Vec<u8>); 2] {
    let images: Vec<String> = (0..count)
        .rev()
        .map(|index| {
            let image = number(split, index);
            format!(
                r#"{{"license": 3,"file_name": "{image:012}.jpg","coco_url": "x","height": 427,"width": 640,"id": {image}}}"#
            )
        })
        .collect();
    let things: Vec<String> =
        (0..count).flat_map(|index| instances(number(split, index), index)).collect();
    let captions: Vec<String> = (0..count)
        .flat_map(|index| {
            let image = number(split, index);
            (0..2).map(move |number_of_caption| {
                format!(
                    r#"{{"image_id": {image},"id": {},"caption": "image {image}, \"text\" {number_of_caption}"}}"#,
                    7 * image + number_of_caption
                )
            })
        })
        .collect();
    let categories = r#"[{"supercategory": "indoor","id": 90,"name": "toothbrush"},{"supercategory": "person","id": 1,"name": "person"},{"supercategory": "vehicle","id": 13,"name": "stop sign"}]"#;
    let head =
        format!(r#""info": {{"year": 2017}},"licenses": [],"images": [{}]"#, images.join(","));
    [
        (
            format!("annotations/instances_{split}2017.json"),
            format!(
                r#"{{{head},"annotations": [{}],"categories": {categories}}}"#,
                things.join(",")
            )
            .into_bytes(),
        ),
        (
            format!("annotations/captions_{split}2017.json"),
            format!(r#"{{{head},"annotations": [{}]}}"#, captions.join(",")).into_bytes(),
        ),
    ]
}

pub(crate) fn zip_of(files: &[(String, Vec<u8>)], method: CompressionMethod) -> Vec<u8> {
    let options = SimpleFileOptions::default().compression_method(method);
    let mut writer = ZipWriter::new(Cursor::new(Vec::new()));
    for (name, bytes) in files {
        if let Some((folder, _)) = name.split_once('/') {
            // The official archives name their folders. Adding a folder a second time fails.
            let _ = writer.add_directory(folder, options);
        }
        writer.start_file(name.as_str(), options).unwrap();
        writer.write_all(bytes).unwrap();
    }
    writer.finish().unwrap().into_inner()
}

/// Writes the three archives; returns their checksums and counts.
pub(crate) fn write_coco(folder: &Path, train: usize, val: usize) -> ExpectedContents {
    for (split, count) in [("train", train), ("val", val)] {
        let image = |index: usize| {
            let image = number(split, index);
            (format!("{split}2017/{image:012}.jpg"), jpeg(image))
        };
        let images: Vec<_> = (0..count).map(image).collect();
        fs::write(
            folder.join(format!("{split}2017.zip")),
            zip_of(&images, CompressionMethod::Stored),
        )
        .unwrap();
    }
    let files = [annotation_files("train", train), annotation_files("val", val)].concat();
    let zip = zip_of(&files, CompressionMethod::Deflated);
    fs::write(folder.join("annotations_trainval2017.zip"), zip).unwrap();
    let names = ["train2017.zip", "val2017.zip", "annotations_trainval2017.zip"];
    expected(folder, &names, [("train", train), ("val", val)], 3)
}
