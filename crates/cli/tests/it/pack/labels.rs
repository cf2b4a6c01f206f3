//! Labels from files, and zip archives.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use fulmen_cli::pack::Pack;
use zip::CompressionMethod;

use crate::pack::archives::{entries, jpeg, zip_of};

/// The number of an image, with gaps as in COCO.
fn number(index: usize) -> usize {
    9 + 16 * index
}

/// A zip of images as COCO's, and a line of labels for each.
fn write_coco(folder: &Path, count: usize) -> Vec<String> {
    let image = |index: usize| {
        let image = number(index);
        (format!("train2017/{image:012}.jpg"), jpeg(image))
    };
    let images: Vec<_> = (0..count).map(image).collect();
    fs::write(folder.join("train2017.zip"), zip_of(&images, CompressionMethod::Stored)).unwrap();
    let line = |index: usize| {
        let image = number(index);
        format!(
            r#"{{"image_id": {image}, "file_name": "{image:012}.jpg", "annotations": [{{"label": 2, "bbox": [473.07,395.930,38.65,28.67],"area": 702.1057499999998}}], "captions": ["\"text\" {index}"]}}"#
        )
    };
    let lines: Vec<String> = (0..count).rev().map(line).collect();
    fs::write(folder.join("train.jsonl"), lines.join("\n")).unwrap();
    lines
}

fn coco(folder: &Path) -> Pack {
    Pack::new(folder.join("shards"))
        .source("train", folder.join("train2017.zip"))
        .labels("train", folder.join("train.jsonl"))
        .max_samples(7)
}

#[test]
fn every_image_of_coco_is_in_one_shard_with_its_record() {
    let folder = tempfile::tempdir().unwrap();
    let lines = write_coco(folder.path(), 20);
    let manifest = coco(folder.path()).run(&()).unwrap();
    // The folder in the zip file is not a class.
    assert!(manifest.classes.is_empty());
    assert_eq!((manifest.splits[0].samples, manifest.splits[0].shards.len()), (20, 3));
    let mut records = BTreeMap::new();
    for shard in &manifest.splits[0].shards {
        for pair in entries(&folder.path().join("shards").join(&shard.name)).chunks(2) {
            let key = pair[0].0.strip_suffix(".jpg").unwrap();
            assert_eq!(pair[1].0, format!("{key}.json"));
            let image: usize = key.parse().unwrap();
            assert_eq!(pair[0].1, jpeg(image));
            records.insert(image, String::from_utf8(pair[1].1.clone()).unwrap());
        }
    }
    // The records are copied unchanged, also the text of numbers.
    let expected = lines.into_iter().rev().enumerate();
    assert_eq!(records, expected.map(|(index, line)| (number(index), line)).collect());
}

#[test]
fn mismatched_labels_and_damaged_zip_files_are_errors_with_the_entry() {
    let folder = tempfile::tempdir().unwrap();
    let lines = write_coco(folder.path(), 4);
    let check = |name: &str, bytes: &[u8], says: &str| {
        let path = folder.path().join(name);
        let before = fs::read(&path).unwrap();
        fs::write(&path, bytes).unwrap();
        let error = coco(folder.path()).run(&()).unwrap_err().to_string();
        assert!(error.contains(name) && error.contains(says), "{error}");
        fs::write(&path, before).unwrap();
        // A run that was started with other archives cannot be continued.
        fs::remove_dir_all(folder.path().join("shards")).unwrap_or_default();
    };
    let entry = |image: usize| (format!("train2017/{image:012}.jpg"), jpeg(image));
    let stored = |numbers: &[usize]| {
        let files: Vec<_> = numbers.iter().map(|&image| entry(image)).collect();
        zip_of(&files, CompressionMethod::Stored)
    };
    check(
        "train2017.zip",
        &stored(&[9, 25, 41, 57, 58]),
        "entry train2017/000000000058.jpg: the labels",
    );
    let more = format!("{}\n{{\"file_name\": \"x.jpg\", \"n\": 1}}", lines.join("\n"));
    check("train.jsonl", more.as_bytes(), "there is no image x.jpg in the sources");
    let twice = format!("{}\n{}", lines.join("\n"), lines[0]);
    check(
        "train.jsonl",
        twice.as_bytes(),
        "line 5: there are two records of the image 000000000057.jpg",
    );
    check(
        "train.jsonl",
        b"{\"file\": \"x\"}",
        "line 1: there is no text \"file_name\"; the line has [\"file\"]",
    );
    check("train.jsonl", b"[1]", "line 1: expected an object");
    check(
        "train.jsonl",
        b"{\"file_name\": \"x\", \"label\": 1.5}",
        "neither text nor a whole number",
    );
    let mixed = b"{\"file_name\": \"x\", \"label\": \"a\"}\n{\"file_name\": \"y\"}";
    check("train.jsonl", mixed, "the image y has no label");
    let whole = fs::read(folder.path().join("train2017.zip")).unwrap();
    check("train2017.zip", &whole[..whole.len() / 2], "is the file truncated?");
    let mut damaged = whole.clone();
    // A position in the data of an image.
    let position =
        whole.windows(4).position(|window| window == [0xff, 0xd8, 0xff, 0xe0]).unwrap() + 8;
    damaged[position] ^= 1;
    check("train2017.zip", &damaged, "entry train2017/000000000009.jpg: Invalid checksum");
    coco(folder.path()).run(&()).unwrap();
}

#[test]
fn labels_are_found_by_path_or_by_name_and_numbers_are_sorted_by_value() {
    let folder = tempfile::tempdir().unwrap();
    let images: Vec<_> = ["a/1.jpg", "b/1.jpg", "b/2.png"]
        .iter()
        .enumerate()
        .map(|(number, name)| ((*name).to_owned(), jpeg(number + 1)))
        .collect();
    fs::write(folder.path().join("x.zip"), zip_of(&images, CompressionMethod::Deflated)).unwrap();
    let run = |labels: &str| {
        fs::write(folder.path().join("labels.csv"), labels).unwrap();
        fs::remove_dir_all(folder.path().join("shards")).unwrap_or_default();
        Pack::new(folder.path().join("shards"))
            .source("train", folder.path().join("x.zip"))
            .labels("train", folder.path().join("labels.csv"))
            .run(&())
            .map_err(|error| error.to_string())
    };
    let manifest =
        run("place,file_name,label\nhere,a/1.jpg,10\n\"a, b\",b/1.jpg,9\n,2.png,10\n").unwrap();
    assert_eq!(manifest.classes, ["9", "10"]);
    let files: BTreeMap<String, String> = entries(&folder.path().join("shards/train-000000.tar"))
        .into_iter()
        .filter(|(name, _)| name.ends_with(".cls") || name.ends_with(".json"))
        .map(|(name, bytes)| (name, String::from_utf8(bytes).unwrap()))
        .collect();
    let expected = [
        ("a/1.cls", "1"),
        ("a/1.json", r#"{"file_name":"a/1.jpg","label":"10","place":"here"}"#),
        ("b/1.cls", "0"),
        ("b/1.json", r#"{"file_name":"b/1.jpg","label":"9","place":"a, b"}"#),
        ("b/2.cls", "1"),
        ("b/2.json", r#"{"file_name":"2.png","label":"10","place":null}"#),
    ];
    let expected = expected.map(|(name, text)| (name.to_owned(), text.to_owned()));
    assert_eq!(files, BTreeMap::from(expected));
    let error = run("file_name,label\n1.jpg,x\n2.png,y\n").unwrap_err();
    assert!(error.contains("two images have the file_name 1.jpg; write their folders"), "{error}");
    let error = run("name,label\n1.jpg,x\n").unwrap_err();
    assert!(error.contains("line 2: there is no \"file_name\"; the columns are"), "{error}");
}
