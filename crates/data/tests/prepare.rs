//! Archives in the official layout, made into shards by the library and by the program.

mod archives;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use archives::{ImageNet, coco, contents, entries};
use fulmen_data::prepare::{self, Expected, Manifest, PrepareOptions, Progress, shards_info};

fn options(output: &Path) -> PrepareOptions {
    PrepareOptions::new(output).max_samples(7).threads(2)
}

#[test]
fn every_picture_of_imagenet_is_in_one_shard_with_its_class() {
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

    for (split, wanted) in [("train", imagenet.train()), ("val", imagenet.val_pictures())] {
        let mut found = BTreeMap::new();
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
                assert!(found.insert(key.to_owned(), (class, pair[0].1.clone())).is_none());
            }
        }
        assert_eq!(found, wanted);
        // In a random order of three classes two neighbours differ two times of three.
        assert!(runs > found.len() / 3, "{runs} runs of one class in {split}");
    }
    let info = shards_info(&[&output]).unwrap();
    assert_eq!((info.samples(), info.classes.len(), info.extensions["jpg"].0), (90, 3, 90));
    assert_eq!(info.bytes(), manifest.splits.iter().map(|split| split.bytes).sum::<u64>());
    // The PNG file under the name of a JPEG is kept and told.
    assert_eq!(manifest.remarks.len(), 1);
    assert!(manifest.remarks[0].what.contains("PNG"), "{:?}", manifest.remarks);
}

#[test]
fn neither_threads_nor_the_day_change_a_byte_but_the_seed_does() {
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
    // A shard of at most as many bytes: at least one sample each.
    let small = make("small", |options| options.max_bytes(1));
    assert_eq!(small.len(), 27 + 5 + 1);
}

#[test]
fn missing_archives_are_all_named_with_where_they_are_to_be_had() {
    let folder = tempfile::tempdir().unwrap();
    ImageNet { per_class: 1, val: 1 }.write(folder.path());
    fs::remove_file(folder.path().join("ILSVRC2012_img_val.tar")).unwrap();
    fs::remove_file(folder.path().join("ILSVRC2012_devkit_t12.tar.gz")).unwrap();
    let output = folder.path().join("shards");
    let error = prepare::imagenet(folder.path(), &Expected::imagenet(), &options(&output), &()).unwrap_err();
    assert!(error.is_not_found());
    let text = error.to_string();
    assert!(text.contains("of 3 archives 2 are missing"), "{text}");
    for part in ["ILSVRC2012_img_val.tar, from https://", "ILSVRC2012_devkit_t12.tar.gz, from https://"] {
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
    let run = |expected: &Expected, verify| {
        prepare::imagenet(folder.path(), expected, &options(&output).verify(verify), &())
            .map_err(|error| error.to_string())
    };
    let error = run(&Expected::imagenet(), true).unwrap_err();
    assert!(error.contains("it has 3 classes, expected 1000"), "{error}");
    let mut wrong = expected.clone();
    wrong.samples.insert("val".to_owned(), 7);
    let error = run(&wrong, true).unwrap_err();
    assert!(error.contains("ILSVRC2012_img_val.tar: the val split has 6 samples, expected 7"), "{error}");
    let mut wrong = expected.clone();
    wrong.archives[1].md5 = Some("0".repeat(32));
    let error = run(&wrong, true).unwrap_err();
    assert!(error.contains("ILSVRC2012_img_val.tar: its MD5 checksum is "), "{error}");
    // Nothing is written before all is known to be right.
    assert!(contents(&output).is_empty());
    let manifest = run(&wrong, false).unwrap();
    assert!(manifest.sources.iter().all(|source| source.md5.is_none()));
    let manifest = run(&expected, true).unwrap();
    assert!(manifest.sources.iter().all(|source| source.md5.is_some()));
}

#[test]
fn archives_that_are_cut_off_are_named_with_the_entry() {
    let folder = tempfile::tempdir().unwrap();
    let expected = ImageNet { per_class: 4, val: 6 }.write(folder.path());
    let output = folder.path().join("shards");
    for (name, part, says) in [
        ("ILSVRC2012_img_train.tar", 2, "the archive: the tar file is cut off in or after entry n0"),
        ("ILSVRC2012_img_val.tar", 2, "the archive: the tar file is cut off in or after entry ILSVRC2012_val_0000000"),
        ("ILSVRC2012_devkit_t12.tar.gz", 2, "reading the archive"),
    ] {
        let path = folder.path().join(name);
        let whole = fs::read(&path).unwrap();
        fs::write(&path, &whole[..whole.len() / part]).unwrap();
        let error = prepare::imagenet(folder.path(), &expected, &options(&output), &()).unwrap_err().to_string();
        assert!(error.contains(name) && error.contains(says), "{error}");
        fs::write(&path, whole).unwrap();
    }
    // An archive in the archive, whose own end is missing.
    let path = folder.path().join("ILSVRC2012_img_train.tar");
    let mut bytes = fs::read(&path).unwrap();
    let inner = entries(&path)[1].1.clone();
    let place = bytes.windows(inner.len()).position(|window| window == inner).unwrap();
    let end = place + inner.len();
    bytes[end - 1024 - 512..end].fill(7);
    fs::write(&path, bytes).unwrap();
    let error = prepare::imagenet(folder.path(), &expected, &options(&output), &()).unwrap_err().to_string();
    assert!(error.contains("ILSVRC2012_img_train.tar: entry n02100735.tar: reading the header in or after"), "{error}");
}

/// Which shards are written.
#[derive(Default)]
struct Notes(std::sync::Mutex<Vec<String>>);

impl Progress for Notes {
    fn note(&self, text: &str) {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push(text.to_owned());
    }
}

#[test]
fn only_what_is_missing_or_damaged_is_written_again() {
    let folder = tempfile::tempdir().unwrap();
    let expected = ImageNet { per_class: 9, val: 5 }.write(folder.path());
    let output = folder.path().join("shards");
    let run = || {
        let notes = Notes::default();
        prepare::imagenet(folder.path(), &expected, &options(&output), &notes).unwrap();
        notes.0.into_inner().unwrap()
    };
    assert_eq!(run().len(), 5);
    let whole = contents(&output);
    assert_eq!(run(), ["5 of 5 shards are there already"]);
    fs::remove_file(output.join("train-000001.tar")).unwrap();
    let mut damaged = whole["train-000002.tar"].clone();
    damaged[600] ^= 1;
    fs::write(output.join("train-000002.tar"), damaged).unwrap();
    let notes = run();
    assert_eq!(notes.len(), 4, "{notes:?}");
    assert!(notes[0].contains("train-000002.tar: its checksum is not what it was"), "{notes:?}");
    assert_eq!(contents(&output), whole);

    let other = prepare::imagenet(folder.path(), &expected, &options(&output).seed(3), &()).unwrap_err();
    assert!(other.is_usage() && other.to_string().contains("seed was 0 and is now 3"), "{other}");
    assert_eq!(contents(&output), whole);
}

fn program() -> Command {
    Command::new(env!("CARGO_BIN_EXE_fulmen"))
}

#[test]
fn a_killed_run_goes_on_where_it_was_and_makes_the_same_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let expected = ImageNet { per_class: 150, val: 10 }.write(folder.path());
    let file = folder.path().join("expected.json");
    fs::write(&file, serde_json::to_vec(&expected).unwrap()).unwrap();
    let command = |output: &Path| {
        let mut command = program();
        command.args(["data", "prepare", "imagenet"]).arg(folder.path()).arg("--output").arg(output);
        command.arg("--expected").arg(&file).args(["--max-samples", "1", "--threads", "2"]);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command
    };
    let undisturbed = folder.path().join("undisturbed");
    assert!(command(&undisturbed).status().unwrap().success());

    let killed = folder.path().join("killed");
    let mut child = command(&killed).spawn().unwrap();
    while !killed.join("train-000010.tar").exists() {
        assert!(child.try_wait().unwrap().is_none(), "the program ended before it could be killed");
        std::thread::sleep(Duration::from_millis(1));
    }
    child.kill().unwrap();
    assert!(!child.wait().unwrap().success());
    let before = contents(&killed);
    assert!(before.len() >= 10 && before.len() < 460, "{}", before.len());

    let output = command(&killed).stderr(Stdio::piped()).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{said}");
    assert!(said.contains(" of 460 shards are there already"), "{said}");
    assert_eq!(contents(&killed), contents(&undisturbed));
}

#[test]
fn the_program_says_what_is_wrong_and_how_it_ended() {
    let folder = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| {
        let output = program().args(arguments).current_dir(folder.path()).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, text) = run(&["data", "prepare", "imagenet", "nowhere", "--output", "shards"]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("error: nowhere: there is no such folder"), "{text}");
    let (code, text) = run(&["data", "prepare", "imagenet", "nowhere"]);
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("--output"), "{text}");
    fs::create_dir(folder.path().join("empty")).unwrap();
    let (code, text) = run(&["data", "info", "empty"]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("there are no .tar files"), "{text}");
}

#[test]
fn every_picture_of_coco_is_in_one_shard_with_what_is_in_it() {
    let folder = tempfile::tempdir().unwrap();
    let expected = coco::write_coco(folder.path(), 20, 6);
    let output = folder.path().join("shards");
    let manifest = prepare::coco(folder.path(), &expected, &options(&output), &()).unwrap();
    let classes: Vec<(&str, &str)> =
        manifest.classes.iter().map(|class| (class.id.as_str(), class.name.as_str())).collect();
    assert_eq!(classes, [("1", "person"), ("13", "stop sign"), ("90", "toothbrush")]);
    assert_eq!(manifest.splits.iter().map(|split| split.samples).collect::<Vec<_>>(), [20, 6]);
    assert!(manifest.remarks.is_empty());

    let mut found = BTreeMap::new();
    for shard in manifest.splits.iter().flat_map(|split| &split.shards) {
        for pair in entries(&output.join(&shard.name)).chunks(2) {
            let key = pair[0].0.strip_suffix(".jpg").unwrap();
            assert_eq!(pair[1].0, format!("{key}.json"));
            let image: usize = key.parse().unwrap();
            assert_eq!(pair[0].1, archives::jpeg(image));
            found.insert(image, String::from_utf8(pair[1].1.clone()).unwrap());
        }
    }
    let wanted: Vec<usize> =
        (0..20).map(|at| coco::number("train", at)).chain((0..6).map(|at| coco::number("val", at))).collect();
    assert_eq!(found.len(), 26);
    assert!(wanted.iter().all(|image| found.contains_key(image)));
    // Numbers stand as they are in the archive, and what is not of interest is gone.
    expect_test::expect![[r#"{"image_id":9,"file_name":"000000000009.jpg","width":640,"height":427,"annotations":[{"id":909,"label":0,"category_id":1,"bbox":[0,34,639,388],"area":220834,"iscrowd":1,"segmentation":{"counts": [179,27,392],"size": [426,640]}},{"id":1858,"label":2,"category_id":90,"bbox":[473.07,395.93,38.65,28.67],"area":702.1057499999998,"iscrowd":0,"segmentation":[[510.66,423.01,511.72,420.03]]}],"captions":["picture 9, \"text\" 0","picture 9, \"text\" 1"]}"#]]
    .assert_eq(&found[&9]);
    assert!(found[&coco::number("train", 2)].contains(r#""annotations":[],"captions":["#));
}

#[test]
fn archives_of_coco_that_do_not_fit_together_are_named_with_the_entry() {
    let folder = tempfile::tempdir().unwrap();
    let expected = coco::write_coco(folder.path(), 4, 3);
    let output = folder.path().join("shards");
    let any = Expected::default();
    let run = |expected: &Expected| {
        prepare::coco(folder.path(), expected, &options(&output), &()).map(|_| ()).map_err(|error| error.to_string())
    };
    let check = |name: &str, bytes: &[u8], expected: &Expected, says: &str| {
        let path = folder.path().join(name);
        let before = fs::read(&path).unwrap();
        fs::write(&path, bytes).unwrap();
        let error = run(expected).unwrap_err();
        assert!(error.contains(name) && error.contains(says), "{error}");
        fs::write(&path, before).unwrap();
    };
    let picture = |image: usize| (format!("train2017/{image:012}.jpg"), archives::jpeg(image));
    let stored = |numbers: &[usize]| {
        let files: Vec<_> = numbers.iter().map(|&image| picture(image)).collect();
        coco::zip_of(&files, zip::CompressionMethod::Stored)
    };
    check("train2017.zip", &stored(&[9, 25]), &expected, "the train split has 2 samples, expected 4");
    check("train2017.zip", &stored(&[9, 25]), &any, "there is no entry 000000000041.jpg");
    check(
        "train2017.zip",
        &stored(&[9, 25, 41, 57, 58]),
        &any,
        "entry train2017/000000000058.jpg: the annotations do not",
    );
    let whole = fs::read(folder.path().join("train2017.zip")).unwrap();
    check("train2017.zip", &whole[..whole.len() / 2], &any, "is the file cut off?");
    let mut damaged = whole.clone();
    // In the data of a picture.
    let place = whole.windows(4).position(|window| window == [0xff, 0xd8, 0xff, 0xe0]).unwrap() + 8;
    damaged[place] ^= 1;
    check("train2017.zip", &damaged, &any, "entry train2017/000000000009.jpg: its checksum is");
    let empty = [("annotations/instances_train2017.json".to_owned(), b"{\"images\": [".to_vec())];
    let zip = coco::zip_of(&empty, zip::CompressionMethod::Deflated);
    check("annotations_trainval2017.zip", &zip, &any, "entry annotations/instances_train2017.json: EOF");
    run(&expected).unwrap();
}

#[test]
fn shards_are_uploaded_once_and_what_is_there_of_others_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let expected = ImageNet { per_class: 9, val: 5 }.write(folder.path());
    let (output, store) = (folder.path().join("shards"), folder.path().join("store"));
    fs::create_dir(&store).unwrap();
    let run = |delete| {
        let options = options(&output).upload(store.as_path()).delete_uploaded(delete);
        prepare::imagenet(folder.path(), &expected, &options, &())
    };
    fs::write(store.join("train-000003.tar"), b"mine").unwrap();
    let error = run(false).unwrap_err();
    assert!(error.is_usage() && error.to_string().contains("something else is there"), "{error}");
    assert_eq!(fs::read(store.join("train-000003.tar")).unwrap(), b"mine");
    fs::remove_file(store.join("train-000003.tar")).unwrap();

    run(false).unwrap();
    let whole = contents(&output);
    assert_eq!(whole.len(), 6);
    assert_eq!(contents(&store), whole);
    // One is lost in the store; the others are not touched.
    fs::remove_file(store.join("train-000001.tar")).unwrap();
    let changed = |name: &str| fs::metadata(store.join(name)).unwrap().modified().unwrap();
    let before = changed("train-000000.tar");
    run(true).unwrap();
    assert_eq!(contents(&store), whole);
    assert_eq!(changed("train-000000.tar"), before);
    // What is in the store need not be here.
    assert_eq!(contents(&output).into_keys().collect::<Vec<_>>(), ["manifest.json"]);
    run(true).unwrap();
    assert_eq!(contents(&output).into_keys().collect::<Vec<_>>(), ["manifest.json"]);
    assert_eq!(changed("train-000000.tar"), before);
    // Another folder's run finds the same bytes there, and takes them.
    let other = folder.path().join("other");
    let options = options(&other).upload(store.as_path());
    prepare::imagenet(folder.path(), &expected, &options, &()).unwrap();
    assert_eq!(changed("train-000000.tar"), before);
    assert_eq!(contents(&other), whole);
}
