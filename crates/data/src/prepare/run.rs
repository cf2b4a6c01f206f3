//! From archives to shards: what all datasets that are samples by index have in common.
//!
//! Not here: what a sample is (`imagenet`, `coco`), and text, whose samples are not known beforehand (`text`).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use super::archives::{SourceFile, verify_archives};
use super::expected::Expected;
use super::journal::{Journal, Line};
use super::manifest::{MANIFEST, Manifest, ShardRecord, SplitManifest};
use super::options::PrepareOptions;
use super::plan::{Plan, PlannedShard};
use super::progress::Progress;
use super::sample_set::SampleSet;
use super::shard_file::{TarShard, sha256_of};
use crate::{Error, Result};

/// What a disk should have left when all is written.
const SPARE: u64 = 64 << 20;

/// Checks the archives, and writes those shards that are not there yet, and the manifest.
pub(crate) fn prepare<S: SampleSet>(
    dataset: &str,
    archives: &[PathBuf],
    expected: &Expected,
    options: &PrepareOptions,
    progress: &dyn Progress,
    open: impl FnOnce() -> Result<S>,
) -> Result<Manifest> {
    options.check()?;
    // The headers are looked at before the checksums: that takes seconds, and finds what is cut off or is something else.
    progress.begin("reading the archives' headers", 0);
    let set = open()?;
    let journal = Journal::open(&options.output)?;
    let sources = verify_archives(archives, expected, options.verify, &journal, progress)?;
    let plan = Plan::new(&set, options)?;
    let facts = BTreeMap::from([
        ("max_bytes".to_owned(), options.max_bytes.to_string()),
        ("max_samples".to_owned(), options.max_samples.to_string()),
        ("seed".to_owned(), options.seed.to_string()),
    ]);
    let mut names: Vec<&str> = plan.shards.iter().map(|shard| shard.name.as_str()).collect();
    names.push(MANIFEST);
    let mut all = facts.clone();
    all.insert("dataset".to_owned(), dataset.to_owned());
    all.insert("the list of samples".to_owned(), plan.samples.clone());
    journal.begin(all, &names)?;

    let done = done(&plan, options, &journal, progress)?;
    let missing: Vec<&PlannedShard> =
        plan.shards.iter().filter(|shard| !done.contains_key(shard.name.as_str())).collect();
    let bytes = missing.iter().map(|shard| shard.bytes).fold(0, u64::saturating_add);
    check_room(&options.output, bytes)?;
    if !done.is_empty() {
        progress.note(&format!("{} of {} shards are there already", done.len(), plan.shards.len()));
    }
    progress.begin("writing shards", bytes);
    let mut records = in_parallel(&missing, options.threads, |shard| {
        let record = write_shard(&set, &plan, shard, &options.output, progress)?;
        journal.add(Line::Shard(record.clone()))?;
        progress.note(&format!("{}: {} samples, {} bytes", record.name, record.samples, record.bytes));
        Ok(record)
    })?;
    records.extend(done.into_values());
    let manifest = manifest(dataset, &set, &plan, records, sources, facts)?;
    manifest.write(&options.output)?;
    Ok(manifest)
}

/// The shards that an earlier run has written and that are still what they were.
fn done(
    plan: &Plan,
    options: &PrepareOptions,
    journal: &Journal,
    progress: &dyn Progress,
) -> Result<BTreeMap<String, ShardRecord>> {
    let written: Vec<ShardRecord> = plan
        .shards
        .iter()
        .filter_map(|shard| journal.shard(&shard.name).filter(|record| record.bytes == shard.bytes))
        .filter(|record| {
            let size = options.output.join(&record.name).metadata().map(|metadata| metadata.len());
            size.is_ok_and(|size| size == record.bytes)
        })
        .collect();
    if options.verify && !written.is_empty() {
        progress.begin("verifying the shards that are there", written.iter().map(|record| record.bytes).sum());
    }
    let records: Vec<&ShardRecord> = written.iter().collect();
    let whole = in_parallel(&records, options.threads, |record| {
        if !options.verify {
            return Ok(true);
        }
        let path = options.output.join(&record.name);
        let found = sha256_of(&path, |bytes| progress.advance(bytes))
            .map_err(|source| Error::io(&path, "reading the shard", source))?;
        if found != record.sha256 {
            progress.note(&format!("{}: its checksum is not what it was; it is written again", record.name));
        }
        Ok(found == record.sha256)
    })?;
    let whole = written.iter().zip(whole).filter(|(_, whole)| *whole);
    Ok(whole.map(|(record, _)| (record.name.clone(), record.clone())).collect())
}

fn write_shard(
    set: &dyn SampleSet,
    plan: &Plan,
    planned: &PlannedShard,
    folder: &Path,
    progress: &dyn Progress,
) -> Result<ShardRecord> {
    let mut shard = TarShard::create(folder, &planned.name)?;
    for &index in &plan.orders[planned.split][planned.places.clone()] {
        shard.add(set.key(planned.split, index), set.read(planned.split, index)?)?;
        progress.advance(set.tar_bytes(planned.split, index));
    }
    let record = shard.finish()?;
    if record.bytes != planned.bytes {
        return Err(Error::file(
            &folder.join(&planned.name),
            format!("it has {} bytes, expected {}: an archive has changed meanwhile", record.bytes, planned.bytes),
        ));
    }
    Ok(record)
}

fn manifest(
    dataset: &str,
    set: &dyn SampleSet,
    plan: &Plan,
    mut records: Vec<ShardRecord>,
    sources: Vec<SourceFile>,
    options: BTreeMap<String, String>,
) -> Result<Manifest> {
    records.sort_by(|a, b| a.name.cmp(&b.name));
    let remarks = records.iter_mut().flat_map(|record| std::mem::take(&mut record.remarks)).collect();
    let mut splits = Vec::new();
    for (number, name) in set.splits().iter().enumerate() {
        let names: Vec<&str> =
            plan.shards.iter().filter(|shard| shard.split == number).map(|shard| shard.name.as_str()).collect();
        let of = records.iter().filter(|record| names.binary_search(&record.name.as_str()).is_ok()).cloned().collect();
        let split = SplitManifest::of(name, of);
        if split.samples != set.len(number) as u64 {
            return Err(Error::new(format!(
                "the {name} split's shards have {} samples and not {}; remove the folder and begin again",
                split.samples,
                set.len(number)
            )));
        }
        splits.push(split);
    }
    Ok(Manifest { version: 1, dataset: dataset.to_owned(), splits, classes: set.classes(), sources, options, remarks })
}

/// Refuses to begin what the disk has no room for.
pub(crate) fn check_room(folder: &Path, bytes: u64) -> Result<()> {
    let room =
        fs4::available_space(folder).map_err(|source| Error::io(folder, "asking for room on the disk", source))?;
    let needed = bytes.saturating_add(if bytes == 0 { 0 } else { SPARE });
    if needed <= room {
        return Ok(());
    }
    let gigabytes = |bytes: u64| bytes as f64 / 1e9;
    Err(Error::file(
        folder,
        format!(
            "the shards still to be written need {:.1} GB and the disk has room for {:.1} GB: {:.1} GB are missing; make \
             room, or give a folder on another disk",
            gigabytes(needed),
            gigabytes(room),
            gigabytes(needed - room)
        ),
    ))
}

/// The results for all items, in their order, by several threads. The first error ends the work.
pub(crate) fn in_parallel<T: Sync, R: Send>(
    items: &[T],
    threads: usize,
    work: impl Fn(&T) -> Result<R> + Sync,
) -> Result<Vec<R>> {
    let next = AtomicUsize::new(0);
    let failed = AtomicBool::new(false);
    let results = Mutex::new((items.iter().map(|_| None).collect::<Vec<Option<R>>>(), None));
    let one = || {
        while !failed.load(Ordering::Relaxed) {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(item) = items.get(at) else { return };
            let result = work(item);
            let mut results = results.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
            match result {
                Ok(result) => results.0[at] = Some(result),
                Err(error) => {
                    failed.store(true, Ordering::Relaxed);
                    results.1.get_or_insert(error);
                }
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads.min(items.len()) {
            // Where no thread can be had, those that are there do the work.
            let _ = std::thread::Builder::new().name("fulmen-prepare".to_owned()).spawn_scoped(scope, one);
        }
        one();
    });
    let (results, error) = results.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
    match error {
        Some(error) => Err(error),
        None => Ok(results.into_iter().flatten().collect()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_without_room_is_refused_with_numbers() {
        let folder = tempfile::tempdir().unwrap();
        check_room(folder.path(), 0).unwrap();
        let error = check_room(folder.path(), 1 << 60).unwrap_err().to_string();
        assert!(error.contains("need 1152921504.7 GB") && error.contains("are missing"), "{error}");
    }

    #[test]
    fn work_in_parallel_keeps_order_and_ends_at_an_error() {
        let items: Vec<u32> = (0..100).collect();
        assert_eq!(in_parallel(&items, 7, |&item| Ok(item * 2)).unwrap()[99], 198);
        let error = in_parallel(&items, 3, |&item| match item {
            40 => Err(Error::new("forty")),
            _ => Ok(item),
        });
        assert_eq!(error.unwrap_err().to_string(), "forty");
    }
}
