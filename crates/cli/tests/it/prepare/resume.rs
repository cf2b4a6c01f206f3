//! Continuing interrupted runs, and uploads.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use fulmen_cli::prepare::{self, ExpectedContents, Progress, shards_info};

use crate::prepare::archives::{ImageNet, contents};
use crate::prepare::{kill_in_the_middle, options, program};

/// The shards that are written.
#[derive(Default)]
pub(crate) struct Notes(pub(crate) std::sync::Mutex<Vec<String>>);

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
    assert_eq!(run(), ["existing shards: 5 of 5"]);
    fs::remove_file(output.join("train-000001.tar")).unwrap();
    let mut damaged = whole["train-000002.tar"].clone();
    damaged[600] ^= 1;
    fs::write(output.join("train-000002.tar"), damaged).unwrap();
    let notes = run();
    assert_eq!(notes.len(), 4, "{notes:?}");
    assert!(notes[0].contains("train-000002.tar: its checksum has changed"), "{notes:?}");
    assert_eq!(contents(&output), whole);

    let other =
        prepare::imagenet(folder.path(), &expected, &options(&output).seed(3), &()).unwrap_err();
    assert!(other.is_usage() && other.to_string().contains("seed was 0 and is now 3"), "{other}");
    assert_eq!(contents(&output), whole);
}

#[test]
fn a_killed_run_continues_with_the_same_bytes() {
    let folder = tempfile::tempdir().unwrap();
    let expected = ImageNet { per_class: 150, val: 10 }.write(folder.path());
    let file = folder.path().join("expected.json");
    fs::write(&file, serde_json::to_vec(&expected).unwrap()).unwrap();
    let command = |output: &Path| {
        let mut command = program();
        command
            .args(["data", "prepare", "imagenet"])
            .arg(folder.path())
            .arg("--output")
            .arg(output);
        command.arg("--expected").arg(&file).args(["--max-samples", "1", "--threads", "2"]);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command
    };
    let undisturbed = folder.path().join("undisturbed");
    assert!(command(&undisturbed).status().unwrap().success());

    let killed = folder.path().join("killed");
    let before = kill_in_the_middle(command(&killed), &killed, "train-000010.tar", 460);
    assert!(before >= 10, "{before}");

    let output = command(&killed).stderr(Stdio::piped()).output().unwrap();
    let printed = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{printed}");
    assert!(printed.contains("existing shards: ") && printed.contains(" of 460"), "{printed}");
    assert_eq!(contents(&killed), contents(&undisturbed));
}

#[test]
fn the_program_prints_errors_and_has_exit_codes() {
    let folder = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| {
        let output = program().args(arguments).current_dir(folder.path()).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, text) = run(&["data", "prepare", "imagenet", "nowhere", "--output", "shards"]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("error: nowhere: the folder does not exist"), "{text}");
    let (code, text) = run(&["data", "prepare", "imagenet", "nowhere"]);
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("--output"), "{text}");
    fs::create_dir(folder.path().join("empty")).unwrap();
    let (code, text) = run(&["data", "info", "empty"]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("there are no .tar files"), "{text}");
}

#[test]
fn shards_are_uploaded_once_and_foreign_files_are_not_replaced() {
    let folder = tempfile::tempdir().unwrap();
    let expected = ImageNet { per_class: 9, val: 5 }.write(folder.path());
    let output = folder.path().join("shards");
    let store = folder.path().join("store");
    fs::create_dir(&store).unwrap();
    let run = |delete| {
        let options = options(&output).upload(store.as_path()).delete_uploaded(delete);
        prepare::imagenet(folder.path(), &expected, &options, &())
    };
    fs::write(store.join("train-000003.tar"), b"mine").unwrap();
    let error = run(false).unwrap_err();
    assert!(
        error.is_usage() && error.to_string().contains("another file with this name exists"),
        "{error}"
    );
    assert_eq!(fs::read(store.join("train-000003.tar")).unwrap(), b"mine");
    fs::remove_file(store.join("train-000003.tar")).unwrap();

    run(false).unwrap();
    let whole = contents(&output);
    assert_eq!(whole.len(), 6);
    assert_eq!(contents(&store), whole);
    // One shard is lost in the store. The others are not written again.
    fs::remove_file(store.join("train-000001.tar")).unwrap();
    let changed = |name: &str| fs::metadata(store.join(name)).unwrap().modified().unwrap();
    let before = changed("train-000000.tar");
    run(true).unwrap();
    assert_eq!(contents(&store), whole);
    assert_eq!(changed("train-000000.tar"), before);
    // Uploaded shards need not exist locally.
    assert_eq!(contents(&output).into_keys().collect::<Vec<_>>(), ["manifest.json"]);
    run(true).unwrap();
    assert_eq!(contents(&output).into_keys().collect::<Vec<_>>(), ["manifest.json"]);
    assert_eq!(changed("train-000000.tar"), before);
    // The run of another folder finds the same bytes there, and accepts them.
    let other = folder.path().join("other");
    let options = options(&other).upload(store.as_path());
    prepare::imagenet(folder.path(), &expected, &options, &()).unwrap();
    assert_eq!(changed("train-000000.tar"), before);
    assert_eq!(contents(&other), whole);
}

#[test]
fn nothing_is_uploaded_into_the_folder_itself() {
    let folder = tempfile::tempdir().unwrap();
    let expected = ImageNet { per_class: 9, val: 5 }.write(folder.path());
    let output = folder.path().join("shards");
    prepare::imagenet(folder.path(), &expected, &options(&output), &()).unwrap();
    let whole = contents(&output);
    std::os::unix::fs::symlink(&output, folder.path().join("link")).unwrap();
    for place in
        [output.clone(), folder.path().join("shards/../shards"), folder.path().join("link")]
    {
        let options = options(&output).upload(place.as_path()).delete_uploaded(true);
        let error = prepare::imagenet(folder.path(), &expected, &options, &()).unwrap_err();
        assert!(
            error.is_usage() && error.to_string().contains("is the folder that the shards"),
            "{error}"
        );
        assert_eq!(contents(&output), whole);
    }
    // An unusable upload target is reported before any shard is written.
    let other = folder.path().join("other");
    let file = folder.path().join("file");
    fs::write(&file, "").unwrap();
    let options = options(&other).upload(file.join("place").as_path());
    prepare::imagenet(folder.path(), &expected, &options, &()).unwrap_err();
    assert!(contents(&other).is_empty());
}

#[test]
fn other_archives_of_the_same_sizes_are_another_plan() {
    let folder = tempfile::tempdir().unwrap();
    let mut expected = ImageNet { per_class: 9, val: 5 }.write(folder.path());
    let output = folder.path().join("shards");
    let archive = folder.path().join("ILSVRC2012_img_val.tar");
    let write = |bytes: &[u8], seconds: u64| {
        let mut file = fs::File::create(&archive).unwrap();
        file.write_all(bytes).unwrap();
        file.set_modified(std::time::UNIX_EPOCH + Duration::from_secs(seconds)).unwrap();
    };
    let run = |expected: &ExpectedContents, verify| {
        let result =
            prepare::imagenet(folder.path(), expected, &options(&output).verify(verify), &());
        result.map(|_| contents(&output))
    };
    let bytes = fs::read(&archive).unwrap();
    let whole = run(&expected, true).unwrap();
    // The same content with a later time. Verifying the checksum shows that the content is equal.
    write(&bytes, 2_000_000_000);
    assert_eq!(run(&expected, true).unwrap(), whole);
    let error = run(&expected, false).unwrap_err();
    assert!(
        error.is_usage() && error.to_string().contains("the archive ILSVRC2012_img_val.tar was"),
        "{error}"
    );

    let mut other = bytes;
    other[520] ^= 1;
    write(&other, 2_000_000_001);
    fs::remove_file(output.join("val-000000.tar")).unwrap();
    expected.archives.iter_mut().for_each(|archive| archive.md5 = None);
    let error = run(&expected, true).unwrap_err();
    assert!(error.is_usage() && error.to_string().contains("2000000001.000000000 s"), "{error}");
}

#[test]
fn unfinished_files_are_removed() {
    let folder = tempfile::tempdir().unwrap();
    let expected = ImageNet { per_class: 9, val: 5 }.write(folder.path());
    let output = folder.path().join("shards");
    prepare::imagenet(folder.path(), &expected, &options(&output), &()).unwrap();
    let names = || {
        let names = fs::read_dir(&output)
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.starts_with('.')).collect::<Vec<_>>()
    };
    assert_eq!(names(), [".fulmen-prepare"]);
    // Files of killed runs do not prevent inspecting the shards.
    fs::write(output.join(".part-AbCdEf"), [1; 700]).unwrap();
    fs::write(output.join(".part-GhIjKl"), [1; 700]).unwrap();
    assert_eq!(shards_info(&[&output]).unwrap().samples(), 32);
    prepare::imagenet(folder.path(), &expected, &options(&output), &()).unwrap();
    assert_eq!(names(), [".fulmen-prepare"]);
}
