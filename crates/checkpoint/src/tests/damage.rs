//! Flipped bytes, truncated or missing files, and newer versions: each is an error, and an older
//! checkpoint loads.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use crate::{
    Checkpoint, CheckpointWriter, Dtype, Error, LocalStore, MANIFEST, MergeOptions,
    RetentionPolicy, Run, Store, list, merge, newest, prune, remove, remove_unfinished, verify,
};
use serde_json::json;
use sha2::{Digest, Sha256};

use super::common::{SMALL, local, read_all, write, write_process};

/// Two checkpoints. Tests damage the newer one.
fn two(folder: &Path) -> Arc<dyn Store> {
    let store = local(folder);
    write(&store, 1, &SMALL, 2).unwrap();
    write(&store, 2, &SMALL, 2).unwrap();
    store
}

/// Loads the newest valid checkpoint, which must be the older one, and returns the error of the
/// newer one.
fn older_loads(store: &Arc<dyn Store>) -> Error {
    let load = |checkpoint: &Checkpoint| {
        read_all(checkpoint, &SMALL).map(|()| checkpoint.manifest().run.step)
    };
    let (loaded, mut skipped) = newest(store, load).unwrap();
    assert_eq!((loaded, skipped.len()), (Some(1), 1), "{skipped:?}");
    skipped.remove(0)
}

#[test]
fn every_byte_that_flips_is_found_and_an_older_checkpoint_loads() {
    let folder = tempfile::tempdir().unwrap();
    let store = two(folder.path());
    for file in ["manifest.json", "shard_0.safetensors", "shard_1.safetensors"] {
        let path = folder.path().join("step_2").join(file);
        let whole = fs::read(&path).unwrap();
        let header = 8 + u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize;
        for index in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[index] ^= 1 << (index % 8);
            fs::write(&path, bytes).unwrap();
            let error = older_loads(&store);
            let part = match file {
                "manifest.json" => "manifest.json",
                _ if index < header => "the header",
                _ => "of the tensor `",
            };
            let text = error.to_string();
            assert!(
                error.is_damaged() && text.contains(file) && text.contains(part),
                "{index}: {text}"
            );
            if file != "manifest.json" {
                let checkpoint = Checkpoint::open(store.clone(), "step_2").unwrap();
                let damaged = verify(&checkpoint);
                assert!(
                    matches!(&damaged[..], [error] if error.to_string() == text),
                    "{index}: {damaged:?}"
                );
            }
        }
        fs::write(&path, whole).unwrap();
    }
    assert!(verify(&Checkpoint::open(store, "step_2").unwrap()).is_empty());
}

#[test]
fn a_file_that_is_cut_short_is_found() {
    let folder = tempfile::tempdir().unwrap();
    let store = two(folder.path());
    for file in ["manifest.json", "shard_0.safetensors"] {
        let path = folder.path().join("step_2").join(file);
        let whole = fs::read(&path).unwrap();
        for length in (0..whole.len()).step_by(7) {
            fs::write(&path, &whole[..length]).unwrap();
            let error = older_loads(&store);
            assert!(error.is_damaged() && error.to_string().contains(file), "{length}: {error}");
        }
        fs::write(&path, whole).unwrap();
    }
}

#[test]
fn a_shard_that_is_missing_is_named_and_the_only_good_checkpoint_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let store = two(folder.path());
    fs::remove_file(folder.path().join("step_2/shard_1.safetensors")).unwrap();
    let error = older_loads(&store);
    assert!(
        error.is_damaged() && error.to_string().contains("shard_1.safetensors is missing"),
        "{error}"
    );
    // It may be on the disk of the host of that process.
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let text = format!(" is missing on {}. Process 1 of that run wrote it, maybe to", host.trim());
    assert!(error.to_string().contains(&text), "{error}");
    assert!(!error.to_string().contains("damaged"), "{error}");
    assert!(
        prune(&store, &RetentionPolicy { last: 1, ..RetentionPolicy::default() })
            .unwrap()
            .is_empty()
    );
    write(&store, 3, &SMALL, 1).unwrap();
    assert_eq!(
        prune(&store, &RetentionPolicy { last: 1, ..RetentionPolicy::default() }).unwrap(),
        ["step_1"]
    );
    assert!(!folder.path().join("step_1").exists());
    let listed: Vec<_> = list(&store)
        .unwrap()
        .into_iter()
        .map(|listed| (listed.name, listed.checkpoint.is_ok()))
        .collect();
    assert_eq!(listed, [("step_3".to_owned(), true), ("step_2".to_owned(), false)]);
}

#[test]
fn a_manifest_of_a_newer_version_is_refused_and_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let store = two(folder.path());
    let path = folder.path().join("step_2/manifest.json");
    let text = fs::read_to_string(&path).unwrap();
    let manifest = text.split_once("\"manifest\":").unwrap().1.strip_suffix('}').unwrap();
    assert!(manifest.starts_with("{\"format_version\":1,"), "{manifest}");
    let newer = manifest.replacen(
        "{\"format_version\":1,",
        "{\"format_version\":2,\"shards_of_another_kind\":[],",
        1,
    );
    let sha256: String = Sha256::digest(&newer).iter().map(|byte| format!("{byte:02x}")).collect();
    fs::write(&path, format!("{{\"sha256\":\"{sha256}\",\"manifest\":{newer}}}")).unwrap();
    let error = older_loads(&store);
    assert!(
        error.is_newer() && error.to_string().contains("version 2, and this program reads up to 1"),
        "{error}"
    );
}

#[test]
fn shards_without_a_manifest_do_not_count_and_are_overwritten() {
    let folder = tempfile::tempdir().unwrap();
    let store = local(folder.path());
    write(&store, 1, &SMALL, 2).unwrap();
    let writer = CheckpointWriter::new(store.clone(), "step_2").unwrap();
    write_process(&writer, &SMALL, 0, 2).unwrap();
    assert!(older_loads(&store).is_not_found());
    write(&store, 2, &SMALL, 1).unwrap();
    read_all(&Checkpoint::open(store.clone(), "step_2").unwrap(), &SMALL).unwrap();
    let files = || fs::read_dir(folder.path().join("step_2")).unwrap().count();
    assert_eq!(files(), 2, "the shard that was left over is removed");
}

#[test]
fn a_checkpoint_is_replaced_at_once_or_stays() {
    let folder = tempfile::tempdir().unwrap();
    let store = two(folder.path());
    let other = [("fc.weight", Dtype::F32, &[2u64, 3][..], &[1u64, 1][..])];
    let writer = CheckpointWriter::new(store.clone(), "step_2").unwrap();
    let shard = write_process(&writer, &other, 0, 1).unwrap();
    read_all(&Checkpoint::open(store.clone(), "step_2").unwrap(), &SMALL).unwrap();
    // The files of a writer killed here do not matter, and are removed.
    remove_unfinished(&store).unwrap();
    read_all(&Checkpoint::open(store.clone(), "step_2").unwrap(), &SMALL).unwrap();
    let error = writer.clone().commit(Run::default(), vec![shard.clone()]).map(drop);
    assert!(
        error.is_ok() && Checkpoint::open(store.clone(), "step_2").unwrap_err().is_damaged(),
        "its shard is gone"
    );
    let shards = vec![write_process(&writer, &other, 0, 1).unwrap()];
    writer.commit(Run { step: 2, ..Run::default() }, shards).unwrap();
    read_all(&Checkpoint::open(store.clone(), "step_2").unwrap(), &other).unwrap();
    assert_eq!(fs::read_dir(folder.path().join("step_2")).unwrap().count(), 2);
    remove(&store, "step_2").unwrap();
    remove(&store, "step_2").unwrap();
    assert!(!folder.path().join("step_2").exists());
    // Files that are not shards belong to the user.
    fs::create_dir(folder.path().join("merged")).unwrap();
    fs::write(folder.path().join("merged/model.safetensors"), "mine").unwrap();
    remove_unfinished(&store).unwrap();
    remove(&store, "merged").unwrap();
    assert!(folder.path().join("merged/model.safetensors").exists());
}

#[test]
fn a_merge_that_was_interrupted_can_be_repeated() {
    let folder = tempfile::tempdir().unwrap();
    let store = two(folder.path());
    let checkpoint = Checkpoint::open(store.clone(), "step_2").unwrap();
    let several = MergeOptions { max_shard_bytes: Some(1), ..MergeOptions::default() };
    // The last file of the merge cannot be written: its tensor is damaged.
    let shard = folder.path().join("step_2/shard_1.safetensors");
    let whole = fs::read(&shard).unwrap();
    let mut damaged = whole.clone();
    *damaged.last_mut().unwrap() ^= 1;
    fs::write(&shard, damaged).unwrap();
    let merged = folder.path().join("merged");
    for options in [several, MergeOptions::default(), several] {
        assert!(merge(&checkpoint, &*store, "merged", &options).unwrap_err().is_damaged());
        fs::write(merged.join(".part-abcdef"), "left by a killed writer").unwrap();
    }
    assert!(merged.join("merge.unfinished.json").exists());
    // A file of someone else stays, and is named.
    fs::write(merged.join("notes.txt"), "mine").unwrap();
    let error = merge(&checkpoint, &*store, "merged", &several).unwrap_err().to_string();
    assert!(error.contains("the folder has `notes.txt`"), "{error}");
    fs::remove_file(merged.join("notes.txt")).unwrap();

    fs::write(&shard, whole).unwrap();
    let checkpoint = Checkpoint::open(store.clone(), "step_2").unwrap();
    let files = merge(&checkpoint, &*store, "merged", &several).unwrap();
    merge(&checkpoint, &*store, "at once", &several).unwrap();
    for file in files.iter().map(String::as_str).chain(["model.safetensors.index.json"]) {
        let read = |to: &str| fs::read(folder.path().join(to).join(file)).unwrap();
        assert_eq!(read("merged"), read("at once"), "{file}");
    }
    assert!(!merged.join("merge.unfinished.json").exists());
    assert!(merge(&checkpoint, &*store, "merged", &several).is_err(), "a complete one stays");
}

#[test]
fn a_header_is_not_larger_than_its_format_allows() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("step_1");
    fs::create_dir(&path).unwrap();
    let shard = "shard_0.safetensors";
    let forge = |header_bytes: u64| {
        // The file is sparse: it takes no space.
        fs::File::create(path.join(shard)).unwrap().set_len(header_bytes).unwrap();
        let entry = json!({
            "file": shard, "bytes": header_bytes, "header_bytes": header_bytes, "header_crc32c": 0, "sha256": "",
        });
        let manifest =
            json!({ "format_version": 1, "run": {}, "shards": [entry], "tensors": {} }).to_string();
        let sha256 =
            Sha256::digest(&manifest).iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let text = format!("{{\"sha256\":\"{sha256}\",\"manifest\":{manifest}}}");
        fs::write(path.join(MANIFEST), text).unwrap();
        Checkpoint::open_folder(&path)
    };
    for header_bytes in [1 << 40, 1 << 30] {
        let error = forge(header_bytes).unwrap_err().to_string();
        assert!(error.contains("the header of shard_0.safetensors has"), "{error}");
    }
    let errors = verify(&forge(1000).unwrap());
    assert!(errors[0].to_string().contains("checksum"), "{errors:?}");
}

#[test]
fn a_shard_that_is_a_pipe_or_a_device_is_not_read() {
    let folder = tempfile::tempdir().unwrap();
    let store = LocalStore::new(folder.path());
    std::os::unix::fs::symlink("/dev/zero", folder.path().join("device")).unwrap();
    let pipe = folder.path().join("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    for name in ["device", "pipe"] {
        let error = store.read(name, 0, &mut [0; 8]).unwrap_err().to_string();
        assert!(error.contains("regular file"), "{error}");
    }
}
