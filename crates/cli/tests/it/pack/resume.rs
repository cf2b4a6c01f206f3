//! Continuing interrupted runs, and uploads.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use fulmen_cli::pack::{Manifest, Progress, shards_info};

use crate::pack::archives::{ImageNet, TRAIN, VAL, contents, imagenet};
use crate::pack::{kill_in_the_middle, program};

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
    ImageNet { per_class: 9, val: 5 }.write(folder.path());
    let output = folder.path().join("shards");
    let run = || {
        let notes = Notes::default();
        imagenet(folder.path(), &output).run(&notes).unwrap();
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

    let other = imagenet(folder.path(), &output).seed(3).run(&()).unwrap_err();
    assert!(other.is_usage() && other.to_string().contains("seed was 0 and is now 3"), "{other}");
    assert_eq!(contents(&output), whole);
}

#[test]
fn a_killed_run_continues_with_the_same_bytes() {
    let folder = tempfile::tempdir().unwrap();
    ImageNet { per_class: 40, val: 10 }.write(folder.path());
    let command = |output: &Path| {
        let mut command = program();
        command.current_dir(folder.path()).args(["data", "pack", TRAIN]);
        command.args([&format!("val={VAL}"), "--labels", "val=val.csv"]).arg("--to").arg(output);
        command.args(["--max-samples", "1", "--threads", "2"]);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command
    };
    let undisturbed = folder.path().join("undisturbed");
    assert!(command(&undisturbed).status().unwrap().success());

    let killed = folder.path().join("killed");
    let before = kill_in_the_middle(command(&killed), &killed, "train-000010.tar", 130);
    assert!(before >= 10, "{before}");
    let error = Manifest::read(&killed).unwrap_err().to_string();
    assert!(error.contains("has not finished"), "{error}");

    let output = command(&killed).stderr(Stdio::piped()).output().unwrap();
    let printed = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{printed}");
    assert!(printed.contains("existing shards: ") && printed.contains(" of 130"), "{printed}");
    assert_eq!(contents(&killed), contents(&undisturbed));
}

#[test]
fn the_program_prints_errors_and_has_exit_codes() {
    let folder = tempfile::tempdir().unwrap();
    let run = |arguments: &[&str]| {
        let output = program().args(arguments).current_dir(folder.path()).output().unwrap();
        (output.status.code(), String::from_utf8(output.stderr).unwrap())
    };
    let (code, text) = run(&["data", "pack", "nowhere.tar", "--to", "shards"]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("error: nowhere.tar: opening the archive: No such file"), "{text}");
    let (code, text) = run(&["data", "pack", "nowhere", "--to", "shards"]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("error: nowhere: no such file or folder"), "{text}");
    let (code, text) = run(&["data", "pack", "nowhere.tar"]);
    assert_eq!(code, Some(2), "{text}");
    assert!(text.contains("--to"), "{text}");
    fs::create_dir(folder.path().join("empty")).unwrap();
    let (code, text) = run(&["data", "info", "empty"]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("there are no .tar files"), "{text}");
}

#[test]
fn other_files_are_not_replaced() {
    let folder = tempfile::tempdir().unwrap();
    ImageNet { per_class: 9, val: 5 }.write(folder.path());
    let output = folder.path().join("shards");
    let run = || imagenet(folder.path(), &output).run(&());
    fs::create_dir(&output).unwrap();
    fs::write(output.join("train-000003.tar"), b"mine").unwrap();
    let error = run().unwrap_err();
    let says = "there is no manifest.json that lists train-000003.tar";
    assert!(error.is_usage() && error.to_string().contains(says), "{error}");
    fs::remove_file(output.join("train-000003.tar")).unwrap();
    fs::write(output.join("manifest.json"), b"{\"name\": \"mine\"}").unwrap();
    let error = run().unwrap_err();
    assert!(error.is_usage() && error.to_string().contains("not a manifest of packed"), "{error}");
    fs::write(output.join("manifest.json"), b"{\"version\": 1, \"dataset\": \"coco\"}").unwrap();
    assert!(run().unwrap_err().to_string().contains("version 1 of the manifest, expected 2"));
    fs::remove_file(output.join("manifest.json")).unwrap();

    run().unwrap();
    let whole = contents(&output);
    // A run that was killed between a shard and the manifest: the shard is accepted. Another file
    // with the name of a shard that is missing stays.
    let mut unfinished: serde_json::Value =
        serde_json::from_slice(&whole["manifest.json"]).unwrap();
    unfinished["complete"] = false.into();
    unfinished["splits"][0]["shards"].as_array_mut().unwrap().remove(1);
    let unfinished = serde_json::to_vec(&unfinished).unwrap();
    fs::write(output.join("manifest.json"), &unfinished).unwrap();
    run().unwrap();
    assert_eq!(contents(&output), whole);
    fs::write(output.join("manifest.json"), &unfinished).unwrap();
    fs::write(output.join("train-000001.tar"), b"mine").unwrap();
    let error = run().unwrap_err();
    assert!(error.to_string().contains("another file with this name exists"), "{error}");
    assert_eq!(fs::read(output.join("train-000001.tar")).unwrap(), b"mine");
}

#[test]
fn an_unusable_output_is_reported_before_any_shard_is_written() {
    let folder = tempfile::tempdir().unwrap();
    ImageNet { per_class: 9, val: 5 }.write(folder.path());
    fs::write(folder.path().join("file"), "").unwrap();
    imagenet(folder.path(), &folder.path().join("file/shards")).run(&()).unwrap_err();
    let pictures = folder.path().join("pictures");
    fs::create_dir_all(pictures.join("cat")).unwrap();
    fs::write(pictures.join("cat/a.jpg"), [0xff, 0xd8, 0xff, 0xd9]).unwrap();
    std::os::unix::fs::symlink(&pictures, folder.path().join("link")).unwrap();
    for place in ["pictures", "pictures/shards/new", "pictures/../pictures/new", "link/shards"] {
        let pack = fulmen_cli::pack::Pack::new(folder.path().join(place));
        let error = pack.source("train", &pictures).run(&()).unwrap_err();
        let text = error.to_string();
        assert!(error.is_usage() && text.contains("is in the source"), "{text}");
    }
    assert_eq!(fs::read_dir(&pictures).unwrap().count(), 1);
}

#[test]
fn a_refused_run_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    ImageNet { per_class: 9, val: 5 }.write(folder.path());
    // Shards that no manifest lists, an invalid manifest, and the manifest of other options.
    let output = folder.path().join("shards");
    for (name, content) in [("train-000003.tar", "mine"), ("manifest.json", "{}")] {
        fs::create_dir(&output).unwrap();
        fs::write(output.join(name), content).unwrap();
        imagenet(folder.path(), &output).run(&()).unwrap_err();
        assert_eq!(contents(&output).into_keys().collect::<Vec<_>>(), [name]);
        assert!(!output.join(".fulmen-pack").exists());
        fs::remove_dir_all(&output).unwrap();
    }
    imagenet(folder.path(), &output).run(&()).unwrap();
    let whole = contents(&output);
    assert!(imagenet(folder.path(), &output).seed(3).run(&()).unwrap_err().is_usage());
    assert!(contents(&output) == whole && !output.join(".fulmen-pack").exists());

    // A text that cannot be read is found later.
    let texts = folder.path().join("texts");
    fs::create_dir(&texts).unwrap();
    fs::write(texts.join("a.jsonl"), "{\"text\": \"a\"}\nnot JSON\n").unwrap();
    let new = folder.path().join("new");
    let pack = fulmen_cli::pack::Pack::new(new.clone()).source("train", texts);
    let error = pack.max_bytes(1 << 20).run(&()).unwrap_err();
    assert!(error.to_string().contains("a.jsonl"), "{error}");
    assert!(!new.join(".fulmen-pack").exists());
}

#[test]
fn sources_that_changed_are_another_plan() {
    let folder = tempfile::tempdir().unwrap();
    ImageNet { per_class: 9, val: 5 }.write(folder.path());
    let output = folder.path().join("shards");
    let archive = folder.path().join(VAL);
    let run = || imagenet(folder.path(), &output).run(&()).map(|_| contents(&output));
    let whole = run().unwrap();
    let mut other = fs::read(&archive).unwrap();
    other[520] ^= 1;
    let mut file = fs::File::create(&archive).unwrap();
    file.write_all(&other).unwrap();
    file.set_modified(std::time::UNIX_EPOCH + Duration::from_secs(2_000_000_001)).unwrap();
    fs::remove_file(output.join("val-000000.tar")).unwrap();
    let error = run().unwrap_err();
    let text = error.to_string();
    assert!(error.is_usage() && text.contains(&format!("the source {VAL} was val=")), "{text}");
    assert!(text.contains("2000000001.000000000 s"), "{text}");
    assert_eq!(contents(&output).len() + 1, whole.len());
    // Labels are sources too.
    ImageNet { per_class: 9, val: 5 }.write(folder.path());
    fs::remove_dir_all(&output).unwrap();
    run().unwrap();
    let labels = fs::read_to_string(folder.path().join("val.csv")).unwrap();
    fs::write(folder.path().join("val.csv"), labels.replace("n02119789", "n02100735")).unwrap();
    let text = run().unwrap_err().to_string();
    assert!(text.contains("the source val.csv was"), "{text}");
}

#[test]
fn unfinished_files_are_removed() {
    let folder = tempfile::tempdir().unwrap();
    ImageNet { per_class: 9, val: 5 }.write(folder.path());
    let output = folder.path().join("shards");
    let run = || imagenet(folder.path(), &output).run(&()).unwrap();
    run();
    let whole = contents(&output);
    let work = output.join(".fulmen-pack");
    assert!(!work.exists());
    // Files of killed runs do not prevent inspecting the shards.
    fs::create_dir(&work).unwrap();
    fs::write(work.join(".part-AbCdEf"), [1; 700]).unwrap();
    fs::write(work.join("train-000001.tar"), [1; 700]).unwrap();
    assert_eq!(shards_info(&[&output]).unwrap().samples(), 32);
    run();
    assert!(!work.exists());
    assert_eq!(contents(&output), whole);
}
