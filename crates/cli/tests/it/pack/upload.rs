//! Uploading shards to an object store, simulated on loopback.

use std::fs;
use std::path::Path;
use std::time::Duration;

use fulmen_cli::pack::Pack;
use fulmen_files::{Location, StoreOptions};

use crate::pack::archives::{ImageNet, contents, imagenet};
use crate::pack::s3::{Answer, S3};

/// A folder in a simulated store. The name is unique, because runs into a folder with the same name
/// exclude each other.
fn place(store: &S3, name: &str) -> (String, Location) {
    let key = format!("bucket/{name}-{}", std::process::id());
    let settings = StoreOptions::new()
        .set("aws_endpoint_url", &store.url())
        .set("aws_skip_signature", "true")
        .give_up_after(Duration::from_secs(60));
    (key.clone(), Location::from(format!("s3://{key}")).with_options(settings))
}

fn pack(folder: &Path, to: &Location) -> Pack {
    let pack = Pack::new(to).source("train", folder.join(crate::pack::archives::TRAIN));
    pack.max_samples(7).threads(1)
}

#[test]
fn each_finished_shard_is_uploaded_once_and_listed() {
    let folder = tempfile::tempdir().unwrap();
    ImageNet { per_class: 9, val: 5 }.write(folder.path());
    let local = folder.path().join("shards");
    Pack::new(&local)
        .source("train", folder.path().join(crate::pack::archives::TRAIN))
        .max_samples(7)
        .run(&())
        .unwrap();
    let whole = contents(&local);

    // The second shard is rejected, so the run ends. The first one stays, and the manifest lists it.
    let mut refused = false;
    let store = S3::start(move |request| match request.method.as_str() {
        "PUT" if request.path.contains("000001") && !std::mem::replace(&mut refused, true) => {
            Answer::Status(403)
        }
        _ => Answer::Serve,
    });
    let (key, location) = place(&store, "imagenet");
    let run = || pack(folder.path(), &location).run(&());
    let error = run().unwrap_err().to_string();
    assert!(error.contains(&format!("s3://{key}/train-000001.tar")), "{error}");
    let stored = |name: &str| store.get(&format!("{key}/{name}"));
    assert_eq!(stored("train-000000.tar").as_ref(), Some(&whole["train-000000.tar"]));
    let manifest = String::from_utf8(stored("manifest.json").unwrap()).unwrap();
    assert!(manifest.contains("train-000000.tar") && manifest.contains("\"complete\": false"));

    run().unwrap();
    for (name, bytes) in &whole {
        assert_eq!(stored(name).as_ref(), Some(bytes), "{name}");
    }
    let puts = |name: &str| {
        let seen = store.seen();
        seen.iter().filter(|it| it.method == "PUT" && it.path.contains(name)).count()
    };
    assert_eq!((puts("train-000000"), puts("train-000001"), puts("train-000002")), (1, 2, 1));
    let before = puts("");
    run().unwrap();
    assert_eq!(puts(""), before);
    // Nothing stays on the disk.
    let left = fs::read_dir(std::env::temp_dir()).unwrap().filter(|entry| {
        let entry = entry.as_ref().unwrap();
        entry.path().join("train-000000.tar").exists()
    });
    assert_eq!(left.count(), 0);
}

#[test]
fn other_files_in_a_store_are_not_replaced() {
    let folder = tempfile::tempdir().unwrap();
    ImageNet { per_class: 9, val: 5 }.write(folder.path());
    let store = S3::start(|_| Answer::Serve);
    let (key, location) = place(&store, "other");
    let name = |name: &str| format!("{key}/{name}");
    let run = || pack(folder.path(), &location).run(&()).map_err(|error| error.to_string());
    // Before the first shard is written.
    store.put(&name("train-000002.tar"), b"mine".to_vec());
    let error = run().unwrap_err();
    assert!(error.contains("there is no manifest.json that lists train-000002.tar"), "{error}");
    assert!(store.get(&name("manifest.json")).is_none());

    location.join("train-000002.tar").remove_object().unwrap();
    run().unwrap();
    let shard = store.get(&name("train-000002.tar")).unwrap();
    // A run that ended after an upload, before the manifest was written: the file is accepted. If
    // another program writes to the name of a missing shard, its file stays.
    let manifest = String::from_utf8(store.get(&name("manifest.json")).unwrap()).unwrap();
    let mut unfinished: serde_json::Value = serde_json::from_str(&manifest).unwrap();
    unfinished["complete"] = false.into();
    unfinished["splits"][0]["shards"].as_array_mut().unwrap().remove(2);
    let unfinished = unfinished.to_string();
    for (content, accepted) in [(shard.as_slice(), true), (b"mine".as_slice(), false)] {
        store.put(&name("manifest.json"), unfinished.clone().into_bytes());
        store.put(&name("train-000002.tar"), content.to_vec());
        let result = run();
        assert_eq!(result.is_ok(), accepted, "{result:?}");
        if let Err(error) = result {
            assert!(error.contains("another file with this name exists"), "{error}");
        }
        assert_eq!(store.get(&name("train-000002.tar")).unwrap(), content);
    }
    // A listed shard that is gone or has another size is written again.
    store.put(&name("manifest.json"), manifest.clone().into_bytes());
    store.put(&name("train-000001.tar"), b"short".to_vec());
    location.join("train-000002.tar").remove_object().unwrap();
    run().unwrap();
    assert_eq!(store.get(&name("train-000002.tar")).unwrap(), shard);
    assert_eq!(store.get(&name("manifest.json")).unwrap(), manifest.as_bytes());
}

#[test]
fn a_second_run_at_the_same_time_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    ImageNet { per_class: 2, val: 2 }.write(folder.path());
    let to = folder.path().join("shards");
    let lock = fulmen_files::Lock::take(&to.join(".fulmen-pack"), "lock").unwrap();
    let error = imagenet(folder.path(), &to).run(&()).unwrap_err();
    assert!(error.is_usage() && error.to_string().contains("is being written by"), "{error}");
    drop(lock);
    imagenet(folder.path(), &to).run(&()).unwrap();
}
