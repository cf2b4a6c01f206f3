//! COCO's archives.

use std::collections::BTreeMap;
use std::fs;

use fulmen_cli::prepare::{self, ExpectedContents};

use crate::prepare::archives::{self, entries};
use crate::prepare::{coco_archives as coco, options};

#[test]
fn every_image_of_coco_is_in_one_shard_with_its_annotations() {
    let folder = tempfile::tempdir().unwrap();
    let expected = coco::write_coco(folder.path(), 20, 6);
    let output = folder.path().join("shards");
    let manifest = prepare::coco(folder.path(), &expected, &options(&output), &()).unwrap();
    let classes: Vec<(&str, &str)> =
        manifest.classes.iter().map(|class| (class.id.as_str(), class.name.as_str())).collect();
    assert_eq!(classes, [("1", "person"), ("13", "stop sign"), ("90", "toothbrush")]);
    assert_eq!(manifest.splits.iter().map(|split| split.samples).collect::<Vec<_>>(), [20, 6]);
    assert!(manifest.warnings.is_empty());

    let mut annotations = BTreeMap::new();
    for shard in manifest.splits.iter().flat_map(|split| &split.shards) {
        for pair in entries(&output.join(&shard.name)).chunks(2) {
            let key = pair[0].0.strip_suffix(".jpg").unwrap();
            assert_eq!(pair[1].0, format!("{key}.json"));
            let image: usize = key.parse().unwrap();
            assert_eq!(pair[0].1, archives::jpeg(image));
            annotations.insert(image, String::from_utf8(pair[1].1.clone()).unwrap());
        }
    }
    let expected_numbers: Vec<usize> = (0..20)
        .map(|index| coco::number("train", index))
        .chain((0..6).map(|index| coco::number("val", index)))
        .collect();
    assert_eq!(annotations.len(), 26);
    assert!(expected_numbers.iter().all(|image| annotations.contains_key(image)));
    // Numbers are copied unchanged, and unneeded fields are removed.
    expect_test::expect![[r#"{"image_id":9,"file_name":"000000000009.jpg","width":640,"height":427,"annotations":[{"id":909,"label":0,"category_id":1,"bbox":[0,34,639,388],"area":220834,"iscrowd":1,"segmentation":{"counts": [179,27,392],"size": [426,640]}},{"id":1858,"label":2,"category_id":90,"bbox":[473.07,395.93,38.65,28.67],"area":702.1057499999998,"iscrowd":0,"segmentation":[[510.66,423.01,511.72,420.03]]}],"captions":["image 9, \"text\" 0","image 9, \"text\" 1"]}"#]]
    .assert_eq(&annotations[&9]);
    assert!(annotations[&coco::number("train", 2)].contains(r#""annotations":[],"captions":["#));
}

#[test]
fn mismatched_coco_archives_are_errors_with_the_entry() {
    let folder = tempfile::tempdir().unwrap();
    let expected = coco::write_coco(folder.path(), 4, 3);
    let output = folder.path().join("shards");
    let any = ExpectedContents::default();
    let run = |expected: &ExpectedContents| {
        prepare::coco(folder.path(), expected, &options(&output), &())
            .map(|_| ())
            .map_err(|error| error.to_string())
    };
    let check = |name: &str, bytes: &[u8], expected: &ExpectedContents, says: &str| {
        let path = folder.path().join(name);
        let before = fs::read(&path).unwrap();
        fs::write(&path, bytes).unwrap();
        let error = run(expected).unwrap_err();
        assert!(error.contains(name) && error.contains(says), "{error}");
        fs::write(&path, before).unwrap();
    };
    let entry = |image: usize| (format!("train2017/{image:012}.jpg"), archives::jpeg(image));
    let stored = |numbers: &[usize]| {
        let files: Vec<_> = numbers.iter().map(|&image| entry(image)).collect();
        coco::zip_of(&files, zip::CompressionMethod::Stored)
    };
    check(
        "train2017.zip",
        &stored(&[9, 25]),
        &expected,
        "the train split has 2 samples, expected 4",
    );
    check("train2017.zip", &stored(&[9, 25]), &any, "there is no entry 000000000041.jpg");
    check(
        "train2017.zip",
        &stored(&[9, 25, 41, 57, 58]),
        &any,
        "entry train2017/000000000058.jpg: the annotations do not",
    );
    let whole = fs::read(folder.path().join("train2017.zip")).unwrap();
    check("train2017.zip", &whole[..whole.len() / 2], &any, "is the file truncated?");
    let mut damaged = whole.clone();
    // A position in the data of an image.
    let position =
        whole.windows(4).position(|window| window == [0xff, 0xd8, 0xff, 0xe0]).unwrap() + 8;
    damaged[position] ^= 1;
    check("train2017.zip", &damaged, &any, "entry train2017/000000000009.jpg: Invalid checksum");
    let empty = [("annotations/instances_train2017.json".to_owned(), b"{\"images\": [".to_vec())];
    let zip = coco::zip_of(&empty, zip::CompressionMethod::Deflated);
    check(
        "annotations_trainval2017.zip",
        &zip,
        &any,
        "entry annotations/instances_train2017.json: EOF",
    );
    // A run that was started with the damaged archives cannot be continued.
    fs::remove_dir_all(&output).unwrap();
    run(&expected).unwrap();
}
