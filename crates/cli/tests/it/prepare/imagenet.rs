//! ImageNet's archives.

use std::collections::BTreeMap;
use std::fs;

use fulmen_cli::prepare::{self, ExpectedContents, Manifest, PrepareOptions, shards_info};

use crate::prepare::archives::{ImageNet, contents, entries};
use crate::prepare::options;

#[test]
fn every_image_of_imagenet_is_in_one_shard_with_its_class() {
    let folder = tempfile::tempdir().unwrap();
    let imagenet = ImageNet { per_class: 20, val: 30 };
    let expected = imagenet.write(folder.path());
    let output = folder.path().join("shards");
    let manifest = prepare::imagenet(folder.path(), &expected, &options(&output), &()).unwrap();

    let classes: Vec<&str> = manifest.classes.iter().map(|class| class.id.as_str()).collect();
    assert_eq!(classes, ["n01440764", "n02100735", "n02119789"]);
    assert_eq!(manifest.classes[0].name, "tench, Tinca tinca");
    assert_eq!(manifest.splits.iter().map(|split| split.samples).collect::<Vec<_>>(), [60, 30]);
    assert_eq!(manifest.splits.iter().map(|split| split.shards.len()).collect::<Vec<_>>(), [9, 5]);
    assert_eq!(Manifest::read(&output).unwrap(), manifest);

    for (split, expected_images) in [("train", imagenet.train()), ("val", imagenet.val_images())] {
        let mut actual_images = BTreeMap::new();
        let shards = manifest.splits.iter().find(|it| it.name == split).unwrap();
        let mut runs = 0;
        let mut last = None;
        for shard in &shards.shards {
            let files = entries(&output.join(&shard.name));
            assert_eq!(files.len() as u64, 2 * shard.samples);
            for pair in files.chunks(2) {
                let key = pair[0].0.strip_suffix(".jpg").unwrap();
                assert_eq!(pair[1].0, format!("{key}.cls"));
                let class: usize = std::str::from_utf8(&pair[1].1).unwrap().parse().unwrap();
                runs += usize::from(last.replace(class) != Some(class));
                assert!(actual_images.insert(key.to_owned(), (class, pair[0].1.clone())).is_none());
            }
        }
        assert_eq!(actual_images, expected_images);
        // In a random order of three classes, two neighbors differ with a probability of 2/3.
        assert!(runs > actual_images.len() / 3, "{runs} runs of one class in {split}");
    }
    let info = shards_info(&[&output]).unwrap();
    assert_eq!((info.samples(), info.classes.len(), info.extensions["jpg"].0), (90, 3, 90));
    assert_eq!(info.bytes(), manifest.splits.iter().map(|split| split.bytes).sum::<u64>());
    // The PNG file with a JPEG's name is kept and reported.
    assert_eq!(manifest.warnings.len(), 1);
    assert!(manifest.warnings[0].what.contains("PNG"), "{:?}", manifest.warnings);
}

#[test]
fn only_the_seed_changes_the_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let expected = ImageNet { per_class: 9, val: 5 }.write(folder.path());
    let make = |name: &str, options: fn(PrepareOptions) -> PrepareOptions| {
        let output = folder.path().join(name);
        prepare::imagenet(folder.path(), &expected, &options(self::options(&output)), &()).unwrap();
        contents(&output)
    };
    let one = make("one", |options| options.threads(1));
    assert_eq!(make("many", |options| options.threads(5)), one);
    assert_ne!(make("seed", |options| options.seed(1)), one);
    // With a tiny size limit, each shard still has at least one sample.
    let small = make("small", |options| options.max_bytes(1));
    assert_eq!(small.len(), 27 + 5 + 1);
}

#[test]
fn all_missing_archives_are_listed_with_their_origins() {
    let folder = tempfile::tempdir().unwrap();
    ImageNet { per_class: 1, val: 1 }.write(folder.path());
    fs::remove_file(folder.path().join("ILSVRC2012_img_val.tar")).unwrap();
    fs::remove_file(folder.path().join("ILSVRC2012_devkit_t12.tar.gz")).unwrap();
    let output = folder.path().join("shards");
    let error =
        prepare::imagenet(folder.path(), &ExpectedContents::imagenet(), &options(&output), &())
            .unwrap_err();
    assert!(error.is_not_found());
    let text = error.to_string();
    assert!(text.contains("of 3 archives 2 are missing"), "{text}");
    for part in
        ["ILSVRC2012_img_val.tar, from https://", "ILSVRC2012_devkit_t12.tar.gz, from https://"]
    {
        assert!(text.contains(part), "{text}");
    }
    assert!(!text.contains("img_train"), "{text}");
    assert!(!output.exists());
}

#[test]
fn wrong_counts_and_checksums_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let expected = ImageNet { per_class: 4, val: 6 }.write(folder.path());
    let output = folder.path().join("shards");
    let run = |expected: &ExpectedContents, verify| {
        prepare::imagenet(folder.path(), expected, &options(&output).verify(verify), &())
            .map_err(|error| error.to_string())
    };
    let error = run(&ExpectedContents::imagenet(), true).unwrap_err();
    assert!(error.contains("it has 3 classes, expected 1000"), "{error}");
    let mut wrong = expected.clone();
    wrong.samples.insert("val".to_owned(), 7);
    let error = run(&wrong, true).unwrap_err();
    assert!(
        error.contains("ILSVRC2012_img_val.tar: the val split has 6 samples, expected 7"),
        "{error}"
    );
    let mut wrong = expected.clone();
    wrong.archives[1].md5 = Some("0".repeat(32));
    let error = run(&wrong, true).unwrap_err();
    assert!(error.contains("ILSVRC2012_img_val.tar: its MD5 checksum is "), "{error}");
    // Nothing is written before all archives are verified.
    assert!(contents(&output).is_empty());
    let manifest = run(&wrong, false).unwrap();
    assert!(manifest.sources.iter().all(|source| source.md5.is_none()));
    let manifest = run(&expected, true).unwrap();
    assert!(manifest.sources.iter().all(|source| source.md5.is_some()));
}

#[test]
fn truncated_archives_are_errors_with_the_entry() {
    let folder = tempfile::tempdir().unwrap();
    let expected = ImageNet { per_class: 4, val: 6 }.write(folder.path());
    let output = folder.path().join("shards");
    for (name, part, says) in [
        (
            "ILSVRC2012_img_train.tar",
            2,
            "the archive: entry n02100735.tar, at byte 7680: the file ends 4608 bytes before the entry does",
        ),
        (
            "ILSVRC2012_img_val.tar",
            2,
            "the archive: entry ILSVRC2012_val_00000004.JPEG, at byte 5120: the file ends 1024 bytes before the entry \
             does",
        ),
        ("ILSVRC2012_devkit_t12.tar.gz", 2, "reading the archive"),
    ] {
        let path = folder.path().join(name);
        let whole = fs::read(&path).unwrap();
        fs::write(&path, &whole[..whole.len() / part]).unwrap();
        let error = prepare::imagenet(folder.path(), &expected, &options(&output), &())
            .unwrap_err()
            .to_string();
        assert!(error.contains(name) && error.contains(says), "{error}");
        fs::write(&path, whole).unwrap();
    }
    // The archive of a class lacks its end.
    let path = folder.path().join("ILSVRC2012_img_train.tar");
    let mut bytes = fs::read(&path).unwrap();
    let inner = entries(&path)[1].1.clone();
    let position = bytes.windows(inner.len()).position(|window| window == inner).unwrap();
    let end = position + inner.len();
    bytes[end - 1024 - 512..end].fill(7);
    fs::write(&path, bytes).unwrap();
    let error = prepare::imagenet(folder.path(), &expected, &options(&output), &())
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("ILSVRC2012_img_train.tar: entry n02100735.tar: the header at byte "),
        "{error}"
    );
}
