//! Cached datasets: they have the same samples as without a cache, and their files survive kills,
//! full disks and concurrent writers.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use fulmen_cache::{
    Access, CacheBuilder, CacheEvent, CacheExt, CachedDataset, cache_info, clear_cache,
    repair_cache, verify_cache,
};
use fulmen_data::{
    DType, DataLoader, Dataset, Error, Field, Fingerprint, HostBatch, Result, Sample, Source,
};

/// What a machine that has the copy in the store reads.
#[test]
fn a_cache_is_copied_to_a_store_and_from_there() {
    let folder = tempfile::tempdir().unwrap();
    let store = folder.path().join("store");
    let noise = Noise::new(40);
    let open = |machine: &str| {
        let builder = noise.clone().cache(folder.path().join(machine)).variants(2);
        builder.part_bytes(1000).store(&store).open()
    };
    let first = open("first").unwrap();
    assert_eq!(noise.count(), 80);
    let copy = store.join(first.path().file_name().unwrap());
    let files = |folder: &Path| {
        let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap());
        let mut files: Vec<(String, Vec<u8>)> = entries
            .map(|entry| {
                (entry.file_name().into_string().unwrap(), fs::read(entry.path()).unwrap())
            })
            .filter(|(name, _)| !name.ends_with(".lock"))
            .collect();
        files.sort();
        files
    };
    assert!(files(&copy).len() > 3);
    assert_eq!(files(&copy), files(first.path()));

    // Another machine reads no sample of the original.
    let second = open("second").unwrap();
    assert_eq!(noise.count(), 0);
    assert_eq!(files(second.path()), files(first.path()));
    let batch = |data: &CachedDataset| {
        let loader = DataLoader::builder(data.clone()).batch_size(40).build().unwrap();
        let batch = loader.epoch(1).next().unwrap().unwrap();
        batch.values::<u8>(0).unwrap().to_vec()
    };
    assert_eq!(batch(&second), batch(&first));

    // A store that lost its copy gets it again from a machine that has it.
    fs::remove_dir_all(&copy).unwrap();
    open("second").unwrap();
    assert_eq!((noise.count(), files(&copy)), (0, files(first.path())));

    // A damaged copy is an error, and leaves no cache behind.
    let part = copy.join("part-00001.arrow");
    let mut bytes = fs::read(&part).unwrap();
    let last = bytes.len() - 1;
    bytes[last] ^= 1;
    for (damaged, expected) in [
        (bytes.clone(), "the SHA-256"),
        (bytes[..last].to_vec(), "bytes and the SHA-256"),
        ([&bytes[..], b"x"].concat(), "it has more than"),
    ] {
        let _ = fs::remove_file(&part);
        fs::write(&part, damaged).unwrap();
        let error = open("third").unwrap_err().to_string();
        assert!(error.contains("part-00001.arrow") && error.contains(expected), "{error}");
        assert!(CachedDataset::open(folder.path().join("third")).is_err());
    }
    // A copy without a manifest is not finished, so the cache is made.
    fs::remove_file(copy.join("cache.json")).unwrap();
    let third = open("third").unwrap();
    assert_eq!(noise.count(), 80);
    assert_eq!(files(third.path()), files(first.path()));
    assert_eq!(files(&copy), files(first.path()));
}

/// Longer than anything takes on a busy machine.
const LONG: Duration = Duration::from_secs(600);

/// Random samples; some may fail or wait.
#[derive(Clone)]
pub(crate) struct Noise {
    len: usize,
    width: usize,
    source: &'static str,
    /// The indices that fail.
    bad: Vec<usize>,
    /// Called with the index of each sample before it is read.
    before_read: Arc<dyn Fn(usize) + Send + Sync>,
    read: Arc<AtomicUsize>,
}

impl Noise {
    pub(crate) fn new(len: usize) -> Noise {
        Noise {
            len,
            width: 7,
            source: "noise",
            bad: Vec::new(),
            before_read: Arc::new(|_| {}),
            read: Arc::default(),
        }
    }

    pub(crate) fn count(&self) -> usize {
        self.read.swap(0, Ordering::Relaxed)
    }
}

impl Dataset for Noise {
    fn len(&self) -> usize {
        self.len
    }
    fn fields(&self) -> Vec<Field> {
        vec![
            Field::new("image", DType::U8, [3, self.width]),
            Field::new("label", DType::I32, []),
            Field::new("real", DType::Bool, [2]),
            Field::new("weight", DType::F64, [1, 2]),
        ]
    }
    fn read(&self, index: usize, sample: &mut Sample<'_>) -> Result<()> {
        self.read.fetch_add(1, Ordering::Relaxed);
        (self.before_read)(index);
        if self.bad.contains(&index) {
            return Err(Error::new("this image is truncated"));
        }
        let image: Vec<u8> =
            (0..3 * self.width).map(|_| sample.random().below(256) as u8).collect();
        let weight = [sample.random().uniform(-1.0, 1.0), index as f64];
        sample.write(0, &image)?;
        sample.write_value(1, index as i32)?;
        sample.write_slice(2, &[index.is_multiple_of(2), true])?;
        sample.write_slice(3, &weight)
    }
    fn origin(&self, index: usize) -> Option<String> {
        Some(format!("noise.bin, record {index}"))
    }
    fn fingerprint(&self, fingerprint: &mut Fingerprint) -> Result<()> {
        fingerprint.add("source", self.source);
        fingerprint.add("width", self.width.to_le_bytes());
        Ok(())
    }
}

/// Bytes of a sample.
const SAMPLE: u64 = 21 + 4 + 2 + 16;

/// A cache with parts of 10 rows.
fn small(data: &Noise, path: &Path) -> CacheBuilder {
    data.clone().cache(path).part_bytes(10 * SAMPLE).workers(2)
}

/// The folder of the one cache in `path`.
fn folder_of(path: &Path) -> PathBuf {
    cache_info(path).unwrap().remove(0).path
}

fn files_of(path: &Path) -> Vec<(String, Vec<u8>)> {
    let mut files: Vec<(String, Vec<u8>)> = fs::read_dir(folder_of(path))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| !path.ends_with("cache.lock"))
        .map(|path| {
            (path.file_name().unwrap().to_str().unwrap().to_owned(), fs::read(path).unwrap())
        })
        .collect();
    files.sort();
    files
}

/// The bytes of all batches of some epochs.
fn epochs(dataset: impl Dataset, epochs: u64) -> Vec<Vec<u8>> {
    let loader = DataLoader::builder(dataset).batch_size(8).num_workers(2).build().unwrap();
    let batches = (0..epochs).flat_map(|epoch| loader.epoch(epoch)).map(|batch| batch.unwrap());
    batches
        .flat_map(|batch| {
            (0..4).map(|field| batch.field_bytes(field).unwrap().to_vec()).collect::<Vec<_>>()
        })
        .collect()
}

#[test]
fn a_cache_holds_what_the_first_epochs_would_have_read() {
    let folder = tempfile::tempdir().unwrap();
    let data = Noise::new(33);
    let cached = small(&data, folder.path()).variants(3).open().unwrap();
    assert_eq!((cached.len(), cached.fields(), cached.variants()), (33, data.fields(), 3));
    assert_eq!(epochs(cached.clone(), 3), epochs(data.clone(), 3));
    // Epochs 3 to 5 read the variants 0 to 2 again.
    assert_eq!(
        epochs(cached.clone(), 6)[epochs(cached.clone(), 3).len()..],
        epochs(cached.clone(), 3)
    );
    assert_eq!(
        cached.origin(12).unwrap(),
        format!("{}, row 2", cached.path().join("part-00001.arrow").display())
    );

    // The second run reads nothing, and the dataset need not exist.
    data.count();
    let cached = small(&data, folder.path()).variants(3).open().unwrap();
    let without = CachedDataset::open(folder.path()).unwrap();
    without.advise(Access::Random).unwrap();
    without.populate().unwrap();
    assert_eq!(data.count(), 0);
    assert_eq!(epochs(cached, 1), epochs(without, 1));
}

#[test]
fn the_files_are_the_same_for_any_number_of_workers() {
    let caches = [0, 1, 2, 7].map(|workers| {
        let folder = tempfile::tempdir().unwrap();
        small(&Noise::new(57), folder.path()).variants(2).workers(workers).open().unwrap();
        files_of(folder.path())
    });
    // 114 rows in parts of 10, and the manifest.
    assert_eq!(caches[0].len(), 13);
    for other in &caches[1..] {
        assert!(*other == caches[0]);
    }
}

#[test]
fn the_estimate_is_the_size_of_the_files() {
    let folder = tempfile::tempdir().unwrap();
    let builder = small(&Noise::new(57), folder.path()).variants(2);
    let estimate = builder.estimate().unwrap();
    assert!(
        !folder.path().join("x").exists() && fs::read_dir(folder.path()).unwrap().next().is_none()
    );
    let events = Arc::new(Mutex::new(Vec::new()));
    let recorder = Arc::clone(&events);
    builder.on_event(move |event| recorder.lock().unwrap().push(event)).open().unwrap();
    let parts = files_of(folder.path()).into_iter().filter(|(name, _)| name.ends_with(".arrow"));
    assert_eq!(estimate.bytes, parts.map(|(_, bytes)| bytes.len() as u64).sum::<u64>());
    assert_eq!((estimate.parts, estimate.missing_parts, estimate.sample_bytes), (12, 12, SAMPLE));

    let events = events.lock().unwrap();
    assert_eq!(events[0], CacheEvent::Started(estimate));
    let Some(CacheEvent::Finished(finished)) = events.last() else { panic!("{events:?}") };
    assert_eq!((finished.missing_parts, finished.bytes), (0, estimate.bytes));
    let last = CacheEvent::Progress { done: 114, total: 114, sample_bytes: SAMPLE };
    assert_eq!(events[events.len() - 2], last);
    assert!(finished.to_string().ends_with("in 12 files, all there"), "{finished}");
}

#[test]
fn a_sample_that_cannot_be_read_stops_it_and_the_next_run_goes_on() {
    for workers in [0, 3] {
        let folder = tempfile::tempdir().unwrap();
        let mut data = Noise::new(60);
        data.bad = vec![47];
        let error = small(&data, folder.path()).workers(workers).open().unwrap_err();
        assert_eq!(error.sample_index(), Some(47));
        assert_eq!(error.to_string(), "sample 47 (noise.bin, record 47): this image is truncated");
        let error = CachedDataset::open(folder.path()).unwrap_err().to_string();
        assert!(error.contains(" of 6 parts; make it again"), "{error}");

        let entry = cache_info(folder.path()).unwrap().remove(0);
        assert!(!entry.is_complete());
        let finished = entry.estimate.parts - entry.estimate.missing_parts;
        assert!(finished >= 3, "{}", entry.estimate);
        data.bad.clear();
        data.count();
        let cached = small(&data, folder.path()).workers(workers).open().unwrap();
        assert_eq!(data.count(), 60 - 10 * finished);
        assert_eq!(epochs(cached, 1), epochs(data, 1));
    }
}

#[test]
fn bad_samples_that_are_allowed_fail_when_they_are_read_from_the_cache() {
    let folder = tempfile::tempdir().unwrap();
    let mut data = Noise::new(60);
    data.bad = vec![12, 47];
    let error = small(&data, folder.path())
        .variants(2)
        .allow_bad_samples(3)
        .open()
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("more than 3 samples") && error.contains("noise.bin, record 12"),
        "{error}"
    );
    let cached = small(&data, folder.path()).variants(2).allow_bad_samples(4).open().unwrap();
    assert_eq!(cached.bad_samples().len(), 4);
    let error = HostBatch::collate(&cached, &[11, 12]).unwrap_err();
    assert_eq!(error.sample_index(), Some(12));
    assert!(
        error.to_string().contains("(noise.bin, record 12): this image is truncated"),
        "{error}"
    );
    assert_eq!(HostBatch::collate(&cached, &[11, 13]).unwrap().values::<i32>(1).unwrap(), [11, 13]);
    assert_eq!(cache_info(folder.path()).unwrap()[0].bad_samples, 4);
}

#[test]
fn what_differs_is_said_and_a_new_cache_stands_beside_the_old() {
    let folder = tempfile::tempdir().unwrap();
    let data = Noise::new(20);
    small(&data, folder.path()).version("v1").open().unwrap();
    let mut other = data.clone();
    other.source = "louder noise";
    let error = small(&other, folder.path()).version("v2").refuse_others(true).open().unwrap_err();
    let text = error.to_string();
    assert!(error.is_usage(), "{text}");
    let expected = "is a cache of other samples: version: was `v1`, is `v2`; source: was `noise`, is `louder noise`;";
    assert!(text.contains(expected), "{text}");

    let recorded = Arc::new(Mutex::new(Vec::new()));
    let events = Arc::clone(&recorded);
    let builder =
        small(&other, folder.path()).on_event(move |event| events.lock().unwrap().push(event));
    let other_cache = builder.open().unwrap();
    let differences = ["version: was `v1`, is ``", "source: was `noise`, is `louder noise`"]
        .map(str::to_owned)
        .to_vec();
    assert_eq!(recorded.lock().unwrap()[0], CacheEvent::Differs { differences });
    let infos = cache_info(folder.path()).unwrap();
    assert_eq!(infos.len(), 2);
    assert!(
        infos.iter().any(|info| info.depends_on.contains(&"source: `louder noise`".to_owned())),
        "{infos:?}"
    );

    let error = CachedDataset::open(folder.path()).unwrap_err().to_string();
    assert!(error.contains("has 2 caches; choose one of them"), "{error}");
    assert_eq!(CachedDataset::open(other_cache.path()).unwrap().len(), 20);
    // Each option is part of the key.
    for builder in [small(&data, folder.path()).seed(1), small(&data, folder.path()).variants(2)] {
        assert_eq!(builder.estimate().unwrap().missing_parts, builder.estimate().unwrap().parts);
    }
}

#[test]
fn a_dataset_that_cannot_say_what_it_depends_on_is_refused() {
    struct DatasetWithoutFingerprint;
    impl Dataset for DatasetWithoutFingerprint {
        fn len(&self) -> usize {
            1
        }
        fn fields(&self) -> Vec<Field> {
            vec![Field::new("x", DType::U8, [])]
        }
        fn read(&self, _: usize, sample: &mut Sample<'_>) -> Result<()> {
            sample.write_value(0, 1u8)
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let error = DatasetWithoutFingerprint.cache(folder.path()).open().unwrap_err().to_string();
    assert!(error.contains("implement Dataset::fingerprint"), "{error}");
    for (builder, expected) in [
        (small(&Noise::new(0), folder.path()), "nothing to cache"),
        (small(&Noise::new(1), folder.path()).variants(0), "at least 1 variant"),
        (small(&Noise::new(1), folder.path()).workers(5000), "more than 1024 threads"),
        (small(&Noise::new(usize::MAX / 2), folder.path()).variants(3), "too many to count"),
    ] {
        let error = builder.open().unwrap_err();
        assert!(error.is_usage() && error.to_string().contains(expected), "{error}");
    }
}

#[test]
fn damage_is_found_named_and_repaired() {
    let folder = tempfile::tempdir().unwrap();
    let data = Noise::new(60);
    let cache = small(&data, folder.path()).open().unwrap();
    let sound = files_of(folder.path());
    let total: u64 = sound
        .iter()
        .filter(|(name, _)| name != "cache.json")
        .map(|(_, bytes)| bytes.len() as u64)
        .sum();
    let mut calls = Vec::new();
    assert_eq!(
        verify_cache(folder.path(), |read, total| calls.push((read, total))).unwrap(),
        total
    );
    assert_eq!(calls.last(), Some(&(total, total)));

    let part = |number: usize| cache.path().join(format!("part-{number:05}.arrow"));
    let write = |path: &Path, bytes: &[u8]| {
        // Parts are read-only.
        fs::remove_file(path).unwrap();
        fs::write(path, bytes).unwrap();
    };
    // A flipped bit in a sample, a truncated file, and a missing file.
    let mut flipped = fs::read(part(1)).unwrap();
    let middle = flipped.len() / 2;
    flipped[middle] ^= 1;
    write(&part(1), &flipped);
    write(&part(3), &fs::read(part(3)).unwrap()[..700]);
    fs::remove_file(part(4)).unwrap();
    let error = verify_cache(folder.path(), |_, _| {}).unwrap_err();
    let text = error.to_string();
    assert!(error.is_file() && text.contains("3 damaged files: "), "{text}");
    for expected in [
        "part-00001.arrow: its content",
        "part-00003.arrow: it has 700 bytes, expected",
        "part-00004.arrow: cannot open",
    ] {
        assert!(text.contains(expected), "{text}");
    }
    let error = CachedDataset::open(folder.path()).unwrap_err().to_string();
    assert!(error.contains("part-00003.arrow: it has 700 bytes"), "{error}");

    let mut removed = repair_cache(folder.path()).unwrap();
    removed.sort();
    assert_eq!(removed, [part(1), part(3), part(4)]);
    data.count();
    small(&data, folder.path()).open().unwrap();
    assert_eq!(data.count(), 30);
    assert!(files_of(folder.path()) == sound);
    assert!(repair_cache(folder.path()).unwrap().is_empty());
}

#[test]
fn what_cannot_be_read_is_not_removed() {
    let folder = tempfile::tempdir().unwrap();
    let cache = small(&Noise::new(60), folder.path()).open().unwrap();
    let path_of = |name: &str| cache.path().join(name);
    let other = small(&Noise::new(20), &folder.path().join("0")).open().unwrap();
    let damaged = other.path().join("part-00000.arrow");
    fs::remove_file(&damaged).unwrap();
    fs::write(&damaged, "").unwrap();
    fs::rename(other.path(), folder.path().join("0123456789abcdef")).unwrap();
    fs::remove_file(path_of("part-00001.arrow")).unwrap();
    // A link to itself cannot be opened, like an unreadable file for users other than root.
    for name in ["part-00003.arrow", "cache.json"] {
        let kept = path_of("kept");
        fs::rename(path_of(name), &kept).unwrap();
        std::os::unix::fs::symlink(name, path_of(name)).unwrap();
        for error in [
            repair_cache(folder.path()).unwrap_err(),
            verify_cache(folder.path(), |_, _| {}).unwrap_err(),
        ] {
            assert!(error.is_file() && error.to_string().contains(name), "{error}");
            assert!(!error.to_string().contains("damaged"), "{error}");
        }
        assert!(
            path_of(name).is_symlink()
                && folder.path().join("0123456789abcdef/part-00000.arrow").exists()
        );
        fs::rename(&kept, path_of(name)).unwrap();
    }
    let removed = repair_cache(folder.path()).unwrap();
    assert_eq!(
        removed,
        [folder.path().join("0123456789abcdef/part-00000.arrow"), path_of("part-00001.arrow")]
    );
}

#[test]
fn caches_of_another_release_are_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let data = Noise::new(20);
    let manifest = small(&data, folder.path()).open().unwrap().path().join("cache.json");
    fs::write(&manifest, "{\"format\": 3, \"what\": \"this release does not know\"}").unwrap();
    for error in [
        repair_cache(folder.path()).unwrap_err(),
        verify_cache(folder.path(), |_, _| {}).unwrap_err(),
    ] {
        assert!(error.to_string().contains("the format 3, this release reads 1"), "{error}");
    }
    let mut other = data.clone();
    other.source = "more noise";
    small(&other, folder.path()).open().unwrap();
    verify_cache(folder.path(), |_, _| {}).unwrap();
    assert!(repair_cache(folder.path()).unwrap().is_empty() && manifest.exists());
    clear_cache(folder.path()).unwrap();
    assert!(!manifest.exists());
}

#[test]
fn a_damaged_manifest_is_an_error_with_its_file() {
    let folder = tempfile::tempdir().unwrap();
    let data = Noise::new(20);
    let cache = small(&data, folder.path()).open().unwrap();
    let manifest = cache.path().join("cache.json");
    let text = fs::read_to_string(&manifest).unwrap();
    for (from, to, expected) in [
        ("\"format\": 1", "\"format\": 3", "it has the format 3, this release reads 1"),
        ("\"samples\": 20", "\"samples\": 18446744073709551615", "cannot be counted"),
        ("\"rows_per_part\": 10", "\"rows_per_part\": 0", "its parts have 0 rows"),
        ("\"rows_per_part\": 10", "\"rows_per_part\": 11", "expected 11"),
        ("\"dtype\": \"u8\"", "\"dtype\": \"u7\"", "the dtype `u7`, which does not exist"),
        ("\"number\": 1", "\"number\": 7", "not numbered 0 to 1"),
        ("{", "", "it is not a manifest"),
    ] {
        let damaged = text.replacen(from, to, 1);
        assert_ne!(damaged, text);
        fs::write(&manifest, damaged).unwrap();
        let error = CachedDataset::open(folder.path()).unwrap_err();
        assert!(error.is_file() && error.to_string().contains(expected), "{expected}: {error}");
    }
}

#[test]
fn clearing_removes_caches_and_nothing_else() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cache");
    assert!(clear_cache(&path).unwrap_err().is_not_found());
    let data = Noise::new(20);
    let open = small(&data, &path).open().unwrap();
    let before = epochs(open.clone(), 1);
    fs::write(path.join("notes.txt"), "mine").unwrap();
    let freed = clear_cache(&path).unwrap();
    assert!(freed > 20 * SAMPLE);
    assert_eq!(fs::read_dir(&path).unwrap().count(), 1);
    // Processes that have the cache open continue.
    #[cfg(unix)]
    assert_eq!(epochs(open, 1), before);
    assert!(CachedDataset::open(&path).unwrap_err().is_not_found());
}

#[test]
fn what_lies_beside_a_cache_is_left_alone() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path();
    let foreign = [
        // Prepared shards have a manifest too, and files of other programs may have a cache's
        // names.
        ("manifest.json", "mine"),
        ("shards/manifest.json", "{\"version\": 1}"),
        ("shards/train-000000.tar", "a shard"),
        ("app/cache.json", "{}"),
        ("app/cache.lock", ""),
        ("app/part-00000.arrow", "a table"),
    ];
    for (name, content) in foreign {
        fs::create_dir_all(path.join(name).parent().unwrap()).unwrap();
        fs::write(path.join(name), content).unwrap();
    }
    let check = || {
        foreign
            .iter()
            .all(|(name, content)| fs::read_to_string(path.join(name)).unwrap() == *content)
    };
    assert!(
        cache_info(path).unwrap_err().is_not_found()
            && clear_cache(path).unwrap_err().is_not_found()
    );
    assert!(
        clear_cache(path.join("app"))
            .unwrap_err()
            .to_string()
            .contains("it is not a manifest of a cache")
    );
    let cache = small(&Noise::new(20), path).open().unwrap();
    assert_eq!(cache_info(path).unwrap().len(), 1);
    assert_eq!(CachedDataset::open(path).unwrap().len(), 20);
    verify_cache(path, |_, _| {}).unwrap();
    assert!(repair_cache(path).unwrap().is_empty() && check());
    // A folder with another name is a cache because of its manifest.
    fs::rename(cache.path(), path.join("mine")).unwrap();
    assert_eq!(CachedDataset::open(path.join("mine")).unwrap().len(), 20);
    clear_cache(path).unwrap();
    assert!(!path.join("mine").exists() && check());
}

#[test]
fn a_cache_without_its_manifest_does_not_interfere_and_can_be_cleared() {
    let folder = tempfile::tempdir().unwrap();
    let data = Noise::new(20);
    let mut other = data.clone();
    other.source = "more noise";
    let first = small(&data, folder.path()).open().unwrap();
    let second = small(&other, folder.path()).open().unwrap();
    // This is the state after a killed `clear`.
    fs::remove_file(first.path().join("cache.json")).unwrap();
    assert_eq!(cache_info(folder.path()).unwrap().len(), 1);
    assert_eq!(CachedDataset::open(folder.path()).unwrap().path(), second.path());
    // A damaged cache is reported, and removed.
    fs::write(second.path().join("cache.json"), "{").unwrap();
    assert!(cache_info(folder.path()).unwrap_err().to_string().contains("it is not a manifest"));
    assert!(
        verify_cache(folder.path(), |_, _| {})
            .unwrap_err()
            .to_string()
            .contains("1 damaged file: ")
    );
    assert_eq!(repair_cache(folder.path()).unwrap(), [second.path().join("cache.json")]);
    small(&other, folder.path()).open().unwrap();
    verify_cache(folder.path(), |_, _| {}).unwrap();
    assert!(clear_cache(folder.path()).unwrap() > 40 * SAMPLE);
    assert!(!folder.path().exists());
}

#[test]
fn repairing_what_is_sound_writes_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let cache = small(&Noise::new(20), folder.path()).open().unwrap();
    let number = || fs::metadata(cache.path().join("cache.json")).map(|file| file.ino()).unwrap();
    let before = number();
    assert!(repair_cache(folder.path()).unwrap().is_empty());
    assert_eq!(number(), before);
}

/// Large samples, each of one repeated byte.
struct LargeSamples {
    len: usize,
    width: usize,
}

impl Dataset for LargeSamples {
    fn len(&self) -> usize {
        self.len
    }
    fn fields(&self) -> Vec<Field> {
        vec![Field::new("x", DType::U8, [self.width])]
    }
    fn read(&self, index: usize, sample: &mut Sample<'_>) -> Result<()> {
        sample.write(0, &vec![index as u8; self.width])
    }
    fn fingerprint(&self, fingerprint: &mut Fingerprint) -> Result<()> {
        fingerprint.add("large", self.width.to_le_bytes());
        Ok(())
    }
}

#[test]
fn parts_of_many_pieces_are_filled_by_many_threads() {
    let folder = tempfile::tempdir().unwrap();
    for (round, workers) in [7, 7, 3, 7, 0].into_iter().enumerate() {
        let len = 110;
        let width = 200_000 + round;
        let data = LargeSamples { len, width };
        let cached = data
            .cache(folder.path())
            .part_bytes(25 * width as u64)
            .workers(workers)
            .open()
            .unwrap();
        for index in 0..len {
            let batch = HostBatch::collate(&cached, &[index]).unwrap();
            assert!(
                batch.values::<u8>(0).unwrap().iter().all(|&byte| byte == index as u8),
                "{index}"
            );
        }
    }
}

#[test]
fn a_panic_of_the_users_ends_the_making_and_the_next_goes_on() {
    /// A dataset whose origin panics.
    struct PanickingOrigin(Noise);
    impl Dataset for PanickingOrigin {
        fn len(&self) -> usize {
            self.0.len()
        }
        fn fields(&self) -> Vec<Field> {
            self.0.fields()
        }
        fn read(&self, index: usize, sample: &mut Sample<'_>) -> Result<()> {
            self.0.read(index, sample)
        }
        fn origin(&self, _: usize) -> Option<String> {
            panic!("nowhere")
        }
        fn fingerprint(&self, fingerprint: &mut Fingerprint) -> Result<()> {
            self.0.fingerprint(fingerprint)
        }
    }
    for workers in [0, 3] {
        let folder = tempfile::tempdir().unwrap();
        let mut data = Noise::new(60);
        data.bad = vec![47];
        let error = PanickingOrigin(data.clone())
            .cache(folder.path())
            .part_bytes(10 * SAMPLE)
            .workers(workers)
            .open();
        let error = error.unwrap_err();
        assert_eq!(error.to_string(), "sample 47: this image is truncated");

        data.bad.clear();
        let panicking = small(&data, folder.path()).workers(workers).on_event(|event| {
            assert!(!matches!(event, CacheEvent::Progress { .. }), "events are not wanted here");
        });
        let result = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| panicking.open()));
        assert!(result.is_err());
        // The lock has been released.
        assert_eq!(small(&data, folder.path()).open().unwrap().len(), 60);
    }
}

#[test]
fn samples_of_a_function_need_a_version() {
    struct Numbers;
    impl Source for Numbers {
        type Item = usize;
        fn len(&self) -> usize {
            5
        }
        fn get(&self, index: usize) -> Result<usize> {
            Ok(index)
        }
        fn origin(&self, index: usize) -> String {
            index.to_string()
        }
        fn fingerprint(&self, fingerprint: &mut Fingerprint) -> Result<()> {
            fingerprint.add("numbers", "5");
            Ok(())
        }
    }
    let folder = tempfile::tempdir().unwrap();
    let data = |factor: usize| {
        let fields = vec![Field::new("x", DType::I32, [])];
        Numbers
            .map(move |number| Ok(number * factor))
            .into_dataset(fields, |number, sample| sample.write_value(0, number as i32))
    };
    let error = data(2).cache(folder.path()).open().unwrap_err();
    assert!(error.is_usage() && error.to_string().contains(".version(\"1\")"), "{error}");
    let cached =
        |factor, version: &str| data(factor).cache(folder.path()).version(version).open().unwrap();
    let values =
        |cached| HostBatch::collate(&cached, &[1, 4]).unwrap().values::<i32>(0).unwrap().to_vec();
    assert_eq!(values(cached(2, "1")), [2, 8]);
    assert_eq!(values(cached(3, "2")), [3, 12]);
}

/// Noise from a file that may be rewritten. The function returns whether it has been rewritten.
struct ChangingDataset<F>(Noise, F);

impl<F: Fn() -> bool + Send + Sync + 'static> Dataset for ChangingDataset<F> {
    fn len(&self) -> usize {
        self.0.len()
    }
    fn fields(&self) -> Vec<Field> {
        self.0.fields()
    }
    fn read(&self, index: usize, sample: &mut Sample<'_>) -> Result<()> {
        self.0.read(index, sample)
    }
    fn fingerprint(&self, fingerprint: &mut Fingerprint) -> Result<()> {
        fingerprint.add("file", if (self.1)() { "new" } else { "old" });
        Ok(())
    }
}

#[test]
fn what_changes_while_the_cache_is_made_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let data = Noise::new(20);
    let read = data.clone();
    let error = ChangingDataset(data, move || read.count() > 0)
        .cache(folder.path())
        .workers(0)
        .open()
        .unwrap_err();
    assert!(error.is_usage() && error.to_string().contains("file: was `old`, is `new`"), "{error}");
    assert!(cache_info(folder.path()).unwrap_err().is_not_found());
}

#[test]
fn what_changes_while_another_process_makes_the_cache_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let data = Noise::new(20);
    let changed = Arc::new(AtomicBool::new(false));
    let builder = || {
        let changed = Arc::clone(&changed);
        ChangingDataset(data.clone(), move || changed.load(Ordering::Relaxed)).cache(folder.path())
    };
    let cache = builder().open().unwrap();
    fs::remove_file(cache.path().join("cache.json")).unwrap();
    let other = fs::File::open(cache.path().join("cache.lock")).unwrap();
    assert!(fulmen_files::lock_soon(|| fulmen_durable::try_lock(&other)).unwrap());
    let mut other = Some(other);
    let change = Arc::clone(&changed);
    data.count();
    let waiting = builder().on_event(move |event| {
        assert!(matches!(event, CacheEvent::Waiting { .. }), "{event:?}");
        change.store(true, Ordering::Relaxed);
        other.take();
    });
    let error = waiting.open().unwrap_err();
    assert!(error.is_usage() && error.to_string().contains("file: was `old`, is `new`"), "{error}");
    assert_eq!(data.count(), 0);
}

#[test]
fn the_second_of_two_writers_waits_and_reads_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let mut data = Noise::new(40);
    let waited = Arc::new(AtomicUsize::new(0));
    let waits = Arc::clone(&waited);
    // The first writer does not end before the second one waits for it.
    data.before_read = Arc::new(move |index| {
        let start = Instant::now();
        while index == 39 && waits.load(Ordering::Relaxed) == 0 && start.elapsed() < LONG {
            std::thread::sleep(Duration::from_millis(1));
        }
    });
    let caches: Vec<CachedDataset> = std::thread::scope(|scope| {
        let threads = [0, 1].map(|_| {
            let waited = Arc::clone(&waited);
            let builder = small(&data, folder.path());
            scope.spawn(move || {
                let count = move |event| {
                    if matches!(&event, CacheEvent::Waiting { holder } if holder.starts_with("process ")) {
                        waited.fetch_add(1, Ordering::Relaxed);
                    }
                };
                builder.on_event(count).open().unwrap()
            })
        });
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(data.count(), 40);
    assert!(waited.load(Ordering::Relaxed) > 0);
    assert_eq!(epochs(caches[0].clone(), 1), epochs(caches[1].clone(), 1));
}

/// The environment variable with the folder of a child process.
const CHILD: &str = "FULMEN_TEST_CACHE_CHILD";

/// Not a test: the tests below run it as a separate process. It stays in its last sample.
#[test]
fn child_that_writes() {
    if let Ok(folder) = std::env::var(CHILD) {
        let mut data = Noise::new(400);
        data.before_read = Arc::new(|index| {
            if index == 399 {
                std::thread::sleep(LONG);
            }
        });
        small(&data, Path::new(&folder)).open().unwrap();
    }
}

#[test]
fn a_killed_writer_leaves_whole_parts_and_the_one_that_waits_takes_over() {
    let folder = tempfile::tempdir().unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "cache::child_that_writes"])
        .env(CHILD, folder.path())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let finished = || match cache_info(folder.path()) {
        Ok(infos) => infos[0].estimate.parts - infos[0].estimate.missing_parts,
        Err(_) => 0,
    };
    while finished() < 3 {
        assert!(child.try_wait().unwrap().is_none(), "the child has ended");
        std::thread::sleep(Duration::from_millis(5));
    }
    let child_id = child.id();
    assert_eq!(
        cache_info(folder.path()).unwrap()[0]
            .writer
            .as_deref()
            .map(|w| w.contains(&child_id.to_string())),
        Some(true)
    );
    assert!(
        clear_cache(folder.path()).unwrap_err().to_string().contains("is being written by process")
    );
    let data = Noise::new(400);
    let mut child = Some(child);
    let kill = move |event| {
        if let (CacheEvent::Waiting { holder }, Some(mut child)) = (event, child.take()) {
            assert!(holder.contains(&child.id().to_string()), "{holder}");
            child.kill().unwrap();
            child.wait().unwrap();
        }
    };
    let cached = small(&data, folder.path()).on_event(kill).open().unwrap();
    let read = data.count();
    assert!(read <= 400 - 30 && read.is_multiple_of(10), "{read}");
    verify_cache(folder.path(), |_, _| {}).unwrap();
    assert!(files_of(folder.path()).iter().all(|(name, _)| !name.contains(".part-")));
    assert_eq!(epochs(cached, 1), epochs(Noise::new(400), 1));
}

/// Not a test: runs with a file system of 3 MB mounted on the folder.
#[test]
#[cfg(target_os = "linux")]
fn child_that_fills_its_disk() {
    /// While sample 30 of 40 is read, another process takes the rest of the disk.
    struct DiskFillingDataset(Noise, PathBuf);
    impl Dataset for DiskFillingDataset {
        fn len(&self) -> usize {
            self.0.len()
        }
        fn fields(&self) -> Vec<Field> {
            self.0.fields()
        }
        fn read(&self, index: usize, sample: &mut Sample<'_>) -> Result<()> {
            if index == 25 && !self.1.exists() {
                let _ = fs::write(&self.1, vec![1; 3 << 20]);
            }
            self.0.read(index, sample)
        }
        fn fingerprint(&self, fingerprint: &mut Fingerprint) -> Result<()> {
            self.0.fingerprint(fingerprint)
        }
    }
    let Ok(folder) = std::env::var(CHILD) else { return };
    let folder = Path::new(&folder);
    let mut data = Noise::new(40);
    data.width = 10_000;
    let path = folder.join("cache");
    let filler = folder.join("filler");
    let builder = |data: &Noise| {
        DiskFillingDataset(data.clone(), filler.clone()).cache(&path).part_bytes(320_000).workers(1)
    };
    let error = builder(&data).open().unwrap_err();
    let text = error.to_string();
    assert!(
        error.is_disk_full() && text.contains("the disk has") && text.contains("continues after"),
        "{text}"
    );
    fs::write(&filler, "").unwrap();
    data.count();
    let cached = builder(&data).open().unwrap();
    assert!(data.count() < 40);
    assert_eq!(cached.len(), 40);
    verify_cache(&path, |_, _| {}).unwrap();

    // A second cache does not fit. It is rejected before it starts, with the missing space.
    data.source = "more noise";
    let error = builder(&data).variants(2).open().unwrap_err();
    let text = error.to_string();
    assert!(
        error.is_disk_full() && text.contains("40 samples × 2 variants × 30.0 kB = 2.4 MB"),
        "{text}"
    );
    assert_eq!(data.count(), 0);
    println!("the disk was filled");
}

#[test]
#[cfg(target_os = "linux")]
fn a_full_disk_is_an_error_with_numbers_and_nothing_is_lost() {
    // Mounting a file system needs a user namespace, which some machines forbid.
    let allowed = Command::new("unshare")
        .args(["-Urm", "true"])
        .status()
        .is_ok_and(|status| status.success());
    if !allowed {
        eprintln!("skipped: this machine has no user namespaces");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let script = "mount -t tmpfs -o size=3m tmpfs \"$1\" && exec \"$2\" --exact cache::child_that_fills_its_disk --nocapture";
    let output = Command::new("unshare")
        .args(["-Urm", "sh", "-c", script, "sh"])
        .arg(folder.path())
        .arg(std::env::current_exe().unwrap())
        .env(CHILD, folder.path())
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && text.contains("the disk was filled"),
        "{text}{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// `tests/reference/cache.py` has read the files in `tests/reference/cache` with pyarrow. Files
/// with the same bytes are read in the same way.
#[test]
fn pyarrow_reads_the_same_values() {
    let folder = tempfile::tempdir().unwrap();
    let data = Noise::new(13);
    let cached = small(&data, folder.path()).version("v1").variants(2).open().unwrap();
    let reference = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reference");
    let parts: Vec<_> =
        files_of(folder.path()).into_iter().filter(|(name, _)| name.ends_with(".arrow")).collect();
    for (name, bytes) in &parts {
        let path = reference.join("cache").join(name);
        if std::env::var_os("UPDATE_EXPECT").is_some() {
            fs::write(&path, bytes).unwrap();
        }
        assert!(
            fs::read(&path).unwrap() == *bytes,
            "{name}: other bytes than pyarrow read; see reference/cache.py"
        );
    }

    let text = fs::read_to_string(reference.join("cache.json")).unwrap();
    let output: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!(output["parts"].as_array().unwrap().len(), parts.len());
    let loader = DataLoader::builder(cached.clone()).batch_size(13).build().unwrap();
    let batches: Vec<HostBatch> =
        (0..2).map(|epoch| loader.epoch(epoch).next().unwrap().unwrap()).collect();
    let column = |name: &str| {
        let parts = output["parts"].as_array().unwrap().iter();
        parts
            .flat_map(|part| part["columns"][name]["values"].as_array().unwrap().clone())
            .collect::<Vec<_>>()
    };
    let bytes: Vec<u64> = column("image").iter().map(|v| v.as_u64().unwrap()).collect();
    let bytes_of =
        |field| batches.iter().flat_map(move |batch| batch.field_bytes(field).unwrap().to_vec());
    assert_eq!(bytes, bytes_of(0).map(u64::from).collect::<Vec<_>>());
    let labels: Vec<i64> = column("label").iter().map(|v| v.as_i64().unwrap()).collect();
    assert_eq!(labels, (0..13).chain(0..13).collect::<Vec<_>>());
    let real: Vec<String> = column("real").iter().map(|v| v.as_str().unwrap().to_owned()).collect();
    assert_eq!((real[0].as_str(), real[1].as_str(), real.len()), ("0101", "0001", 26));
    let weights: Vec<f64> = column("weight").iter().map(|v| v.as_f64().unwrap()).collect();
    let expected = batches.iter().flat_map(|batch| batch.values::<f64>(3).unwrap().to_vec());
    assert_eq!(weights, expected.collect::<Vec<_>>());
    let last = &output["parts"][2];
    assert_eq!(
        last["columns"]["image"]["type"],
        "extension<arrow.fixed_shape_tensor[value_type=uint8, shape=[3,7]]>"
    );
    assert_eq!(last["columns"]["label"]["type"], "int32");
    assert_eq!(last["columns"]["real"]["type"], "fixed_size_binary[2]");
    assert_eq!(last["columns"]["weight"]["shape"], serde_json::json!([1, 2]));
    for (name, value) in [
        ("first_row", "20"),
        ("part", "2"),
        ("samples", "13"),
        ("variants", "2"),
        ("version", "v1"),
    ] {
        assert_eq!(last["metadata"][format!("fulmen.cache.{name}")], value);
    }
    assert_eq!(last["metadata"]["fulmen.cache.key"], cache_info(folder.path()).unwrap()[0].key);
}
