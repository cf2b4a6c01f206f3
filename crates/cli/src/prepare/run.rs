//! Converts archives to shards, for all datasets with samples by index.
//!
//! Out of scope: the samples (`imagenet`, `coco`), and text, whose samples are not known in advance
//! (`text`).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::archives::{SourceFile, verify_archives};
use super::checksums::ExpectedContents;
use super::job::{Job, State, check_free_space};
use super::journal::{Journal, Line};
use super::manifest::{MANIFEST, Manifest, ShardRecord, SplitManifest};
use super::options::PrepareOptions;
use super::plan::{Plan, PlannedShard};
use super::progress::Progress;
use super::sample_set::SampleSet;
use super::shard_file::TarShard;
use fulmen_data::internal::in_parallel;
use fulmen_data::{Error, Result};
use fulmen_durable::messages::quantity;

/// Verifies the archives, and writes the missing shards and the manifest.
pub(crate) fn prepare<S: SampleSet>(
    dataset: &str,
    archives: &[PathBuf],
    expected: &ExpectedContents,
    options: &PrepareOptions,
    progress: &dyn Progress,
    open: impl FnOnce() -> Result<S>,
) -> Result<Manifest> {
    options.check()?;
    // The headers are read before the checksums are verified, because this takes only seconds and
    // already detects wrong or truncated files.
    progress.begin("reading the archives' headers", 0);
    let set = open()?;
    let journal = Journal::open(&options.output)?;
    let archives = verify_archives(archives, expected, options.verify, &journal, progress)?;
    let plan = Plan::new(&set, options)?;
    let option_values = BTreeMap::from([
        ("max_bytes".to_owned(), options.max_bytes.to_string()),
        ("max_samples".to_owned(), options.max_samples.to_string()),
        ("seed".to_owned(), options.seed.to_string()),
    ]);
    let mut names: Vec<&str> = plan.shards.iter().map(|shard| shard.name.as_str()).collect();
    names.push(MANIFEST);
    let mut dependencies = option_values.clone();
    dependencies.insert("dataset".to_owned(), dataset.to_owned());
    dependencies.insert("the list of samples".to_owned(), plan.samples.clone());
    let mut sources = Vec::new();
    for (source, changed) in archives {
        let seconds = changed / 1_000_000_000;
        let rest = changed % 1_000_000_000;
        let state = format!("{} bytes, changed {seconds}.{rest:09} s after 1970", source.bytes);
        dependencies.insert(format!("the archive {}", source.name), state);
        sources.push(source);
    }
    journal.begin(dependencies, &names)?;

    let job = Job { options, journal: &journal, progress };
    job.begin()?;
    let records = write_missing(&job, &set, &plan)?;
    let manifest = manifest_of(dataset, &set, &plan, records, sources, option_values)?;
    job.finish(&manifest)?;
    Ok(manifest)
}

/// Writes and uploads the shards that are missing, and returns the records of all.
fn write_missing<S: SampleSet>(job: &Job<'_>, set: &S, plan: &Plan) -> Result<Vec<ShardRecord>> {
    let Job { options, journal, progress } = *job;
    let states = job.states(&plan.shards)?;
    let missing: Vec<(&PlannedShard, Option<ShardRecord>)> = plan
        .shards
        .iter()
        .zip(&states)
        .filter(|(_, state)| !matches!(state, State::Done(_)))
        .map(|(shard, state)| (shard, state.record()))
        .collect();
    let unwritten =
        missing.iter().filter(|(_, written)| written.is_none()).map(|(shard, _)| shard.bytes);
    let bytes = unwritten.clone().fold(0, u64::saturating_add);
    let largest = unwritten.max().unwrap_or(0);
    check_free_space(
        &options.output,
        if options.delete_uploaded {
            bytes.min(largest.saturating_mul(options.threads as u64))
        } else {
            bytes
        },
    )?;
    if missing.len() < plan.shards.len() {
        progress.note(&format!(
            "existing shards: {} of {}",
            plan.shards.len() - missing.len(),
            plan.shards.len()
        ));
    }
    let uploads = missing.iter().filter(|_| options.upload.is_some()).map(|(shard, _)| shard.bytes);
    let total = uploads.fold(bytes, u64::saturating_add);
    progress.begin(
        if options.upload.is_some() { "writing and uploading shards" } else { "writing shards" },
        total,
    );
    let mut records = in_parallel(&missing, options.threads, |(shard, written)| {
        let record = match written {
            Some(record) => record.clone(),
            None => {
                let record = write_shard(set, plan, shard, &options.output, progress)?;
                journal.add(Line::Shard(record.clone()))?;
                record
            }
        };
        job.upload(&record)?;
        progress.note(&format!(
            "{}: {}, {}",
            record.name,
            quantity(record.samples, "sample"),
            quantity(record.bytes, "byte")
        ));
        Ok(record)
    })?;
    records.extend(states.into_iter().filter_map(|state| match state {
        State::Done(record) => Some(record),
        _ => None,
    }));
    Ok(records)
}

fn write_shard(
    set: &dyn SampleSet,
    plan: &Plan,
    planned: &PlannedShard,
    folder: &Path,
    progress: &dyn Progress,
) -> Result<ShardRecord> {
    let mut shard = TarShard::create(folder, &planned.name)?;
    for &index in &plan.orders[planned.split][planned.sample_range.clone()] {
        shard.add(set.key(planned.split, index), set.read(planned.split, index)?)?;
        progress.advance(set.tar_bytes(planned.split, index));
    }
    let record = shard.finish()?;
    if record.bytes != planned.bytes {
        return Err(Error::file(
            &folder.join(&planned.name),
            format!(
                "it has {} bytes, expected {}: an archive has changed in the meantime",
                record.bytes, planned.bytes
            ),
        ));
    }
    Ok(record)
}

fn manifest_of(
    dataset: &str,
    set: &dyn SampleSet,
    plan: &Plan,
    mut records: Vec<ShardRecord>,
    sources: Vec<SourceFile>,
    options: BTreeMap<String, String>,
) -> Result<Manifest> {
    records.sort_by(|a, b| a.name.cmp(&b.name));
    let warnings =
        records.iter_mut().flat_map(|record| std::mem::take(&mut record.warnings)).collect();
    let mut splits = Vec::new();
    for (number, name) in set.splits().iter().enumerate() {
        let names: Vec<&str> = plan
            .shards
            .iter()
            .filter(|shard| shard.split == number)
            .map(|shard| shard.name.as_str())
            .collect();
        let shards = records
            .iter()
            .filter(|record| names.binary_search(&record.name.as_str()).is_ok())
            .cloned()
            .collect();
        let split = SplitManifest::new(name, shards);
        if split.samples != set.len(number) as u64 {
            return Err(Error::new(format!(
                "the {name} split's shards have {} and not {}; remove the folder and start again",
                quantity(split.samples, "sample"),
                set.len(number)
            )));
        }
        splits.push(split);
    }
    Ok(Manifest {
        version: 1,
        dataset: dataset.to_owned(),
        splits,
        classes: set.classes(),
        sources,
        options,
        warnings,
    })
}
