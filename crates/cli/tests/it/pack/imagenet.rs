//! ImageNet's archives.

use std::collections::BTreeMap;
use std::fs;

use fulmen_cli::pack::{Manifest, Pack, shards_info};

use crate::pack::archives::{self, CLASSES, ImageNet, TRAIN, VAL, contents, entries};

#[test]
fn every_image_of_imagenet_is_in_one_shard_with_its_class() {
    let folder = tempfile::tempdir().unwrap();
    let imagenet = ImageNet { per_class: 20, val: 30 };
    imagenet.write(folder.path());
    let output = folder.path().join("shards");
    let manifest = archives::imagenet(folder.path(), &output).run(&()).unwrap();

    assert_eq!(manifest.classes, CLASSES);
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
    let shards = manifest.splits.iter().flat_map(|split| &split.shards);
    let warnings: Vec<_> = shards.flat_map(|shard| &shard.warnings).collect();
    assert_eq!(warnings.len(), 1);
    assert!(
        warnings[0].what.contains("PNG") && warnings[0].sample == "n02100735_0",
        "{warnings:?}"
    );
    assert!(!output.join(".fulmen-pack").exists());
}

#[test]
fn only_the_seed_changes_the_bytes() {
    let folder = tempfile::tempdir().unwrap();
    ImageNet { per_class: 9, val: 5 }.write(folder.path());
    let make = |name: &str, change: fn(Pack) -> Pack| {
        let output = folder.path().join(name);
        change(archives::imagenet(folder.path(), &output)).run(&()).unwrap();
        contents(&output)
    };
    let one = make("one", |pack| pack.threads(1));
    assert_eq!(make("many", |pack| pack.threads(5)), one);
    assert_ne!(make("seed", |pack| pack.seed(1)), one);
    // With a tiny size limit, each shard still has at least one sample.
    let small = make("small", |pack| pack.max_bytes(1));
    assert_eq!(small.len(), 27 + 5 + 1);
}

#[test]
fn truncated_archives_are_errors_with_the_entry() {
    let folder = tempfile::tempdir().unwrap();
    ImageNet { per_class: 4, val: 6 }.write(folder.path());
    let output = folder.path().join("shards");
    let run = || archives::imagenet(folder.path(), &output).run(&()).unwrap_err().to_string();
    for (name, part, says) in [
        (
            TRAIN,
            2,
            "the archive: entry n02100735.tar, at byte 7680: the file ends 4608 bytes before the entry does",
        ),
        (
            VAL,
            2,
            "the archive: entry ILSVRC2012_val_00000004.JPEG, at byte 5120: the file ends 1024 bytes before the entry \
             does",
        ),
    ] {
        let path = folder.path().join(name);
        let whole = fs::read(&path).unwrap();
        fs::write(&path, &whole[..whole.len() / part]).unwrap();
        let error = run();
        assert!(error.contains(name) && error.contains(says), "{error}");
        fs::write(&path, whole).unwrap();
    }
    // The archive of a class lacks its end.
    let path = folder.path().join(TRAIN);
    let mut bytes = fs::read(&path).unwrap();
    let inner = entries(&path)[1].1.clone();
    let position = bytes.windows(inner.len()).position(|window| window == inner).unwrap();
    let end = position + inner.len();
    bytes[end - 1024 - 512..end].fill(7);
    fs::write(&path, bytes).unwrap();
    let error = run();
    assert!(
        error.contains("ILSVRC2012_img_train.tar: entry n02100735.tar: the header at byte "),
        "{error}"
    );
}
