//! Uploading shards to an object store, simulated on loopback.

use std::time::Duration;

use fulmen_cli::prepare::{self, PrepareOptions};
use fulmen_files::{Location, StoreOptions};

use crate::prepare::archives::{ImageNet, contents};
use crate::prepare::options;
use crate::prepare::s3::{Answer, S3};

#[test]
fn each_finished_shard_is_uploaded_once() {
    let folder = tempfile::tempdir().unwrap();
    let expected = ImageNet { per_class: 9, val: 5 }.write(folder.path());
    let output = folder.path().join("shards");
    // The first upload is rejected, so the run ends; the written shards stay.
    let mut refused = false;
    let store = S3::start(move |request| match request.method.as_str() {
        "PUT" if !std::mem::replace(&mut refused, true) => Answer::Status(403),
        _ => Answer::Serve,
    });
    let settings = StoreOptions::new()
        .set("aws_endpoint_url", &store.url())
        .set("aws_skip_signature", "true")
        .give_up_after(Duration::from_secs(60));
    let location = Location::from("s3://bucket/imagenet").with_options(settings);
    let run = |making: fn(PrepareOptions) -> PrepareOptions| {
        let making = making(options(&output).threads(1).upload(location.clone()));
        prepare::imagenet(folder.path(), &expected, &making, &())
    };
    let error = run(|making| making).unwrap_err().to_string();
    assert!(error.contains("s3://bucket/imagenet/train-000000.tar"), "{error}");
    assert!(output.join("train-000000.tar").exists());

    run(|making| making).unwrap();
    let whole = contents(&output);
    assert_eq!(whole.len(), 6);
    for (name, bytes) in &whole {
        assert_eq!(store.get(&format!("bucket/imagenet/{name}")).as_ref(), Some(bytes), "{name}");
    }
    let puts = || store.seen().iter().filter(|request| request.method == "PUT").count();
    let before = puts();
    run(|making| making.delete_uploaded(true)).unwrap();
    assert_eq!(contents(&output).into_keys().collect::<Vec<_>>(), ["manifest.json"]);
    run(|making| making.delete_uploaded(true)).unwrap();
    assert_eq!(puts(), before);
}
