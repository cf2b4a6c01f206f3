//! Cached datasets in buckets of a real server of object stores.

use std::fs;

use fulmen_cache::{CacheExt, CachedDataset};
use fulmen_data::DataLoader;
use fulmen_files::Location;

use crate::cache::Noise;
use crate::keyless;
use crate::moto::Server;

#[test]
fn a_cache_is_copied_to_a_bucket_and_from_there() {
    let test = "a_cache_is_copied_to_a_bucket_and_from_there";
    let Some(server) = Server::for_test(test) else { return };
    for (bucket, path) in [("caches", "s3://caches/digits"), ("sets", "gs://sets/deep/digits")] {
        server.make_bucket(bucket).unwrap();
        let store = Location::from(path).with_options(keyless::options(&server.url(), path));
        let folder = tempfile::tempdir().unwrap();
        let noise = Noise::new(40);
        let open = |machine: &str| {
            let builder = noise.clone().cache(folder.path().join(machine)).variants(2);
            builder.part_bytes(1000).store(store.clone()).open()
        };
        let first = open("first").unwrap();
        assert_eq!(noise.count(), 80);

        // Another machine reads no sample of the original.
        let second = open("second").unwrap();
        assert_eq!(noise.count(), 0, "{path}");
        assert_eq!(all_values(&second), all_values(&first), "{path}");

        // Neither does a machine whose disk lost a part.
        fs::remove_dir_all(second.path()).unwrap();
        assert_eq!(all_values(&open("second").unwrap()), all_values(&first));
        assert_eq!(noise.count(), 0, "{path}");

        // A store that lost its manifest, which comes last, has no finished cache.
        let copy = store.join(first.path().file_name().unwrap());
        let manifest = copy.join("cache.json");
        assert!(manifest.exists().unwrap(), "{path}");
        manifest.remove_object().unwrap();
        open("third").unwrap();
        assert_eq!(noise.count(), 80, "{path}");
        assert!(manifest.exists().unwrap(), "{path}");

        // A bucket that is not there is an error that names it.
        let missing = path.replace(bucket, "nowhere");
        let missing = Location::from(missing.as_str())
            .with_options(keyless::options(&server.url(), &missing));
        let error = noise.clone().cache(folder.path().join("fourth")).store(missing).open();
        let error = error.err().unwrap().to_string();
        assert!(error.contains("nowhere"), "{error}");
    }
}

/// The values of all samples in an epoch's order.
fn all_values(data: &CachedDataset) -> Vec<u8> {
    let loader = DataLoader::builder(data.clone()).batch_size(40).build().unwrap();
    let batch = loader.epoch(1).next().unwrap().unwrap();
    batch.values::<u8>(0).unwrap().to_vec()
}
