//! Converts text files to shards of tokens or texts, whose number is not known in advance.
//!
//! Out of scope: reading the files (`text_files`), and writing a shard (`text_shard`).

use std::collections::BTreeMap;

use sha2::{Digest, Sha256};

use super::archives::SourceFile;
use super::job::{Job, State, check_free_space};
use super::journal::{Journal, Line};
use super::manifest::{MANIFEST, Manifest, ShardRecord, SplitManifest, Warning};
use super::options::PrepareOptions;
use super::plan::shard_name;
use super::progress::Progress;
use super::text_files::TextInput;
use super::text_options::TextOptions;
use super::text_shard::{Document, OutputFormat, TextShard};
use fulmen_data::internal::in_parallel;
use fulmen_data::{Error, Fingerprint, Result};
use fulmen_durable::messages::quantity;
use fulmen_files::Location;

const SPLITS: [&str; 2] = ["train", "validation"];

/// The limit on the size of texts that a thread tokenizes together, in bytes.
const BATCH: usize = 1 << 20;

/// The memory that a document takes in addition to its text and its origin.
const DOCUMENT_OVERHEAD: usize = 64;

/// Converts text files to shards. If `text` has a tokenizer, the shards have tokens
/// ([`TokenFile`](fulmen_text::TokenFile)s `train-000000.tokens` ...). Otherwise they have
/// documents (tar shards with a `.txt` for each document).
///
/// `files` are files, patterns and folders, local or in a store: `.txt` (a document per file or per
/// line), `.jsonl` (a document per line), both optionally compressed with gzip or zstd, and
/// `.parquet` (a document per row). Documents keep the order of the files, so shuffle blocks of
/// tokens when they are read. Documents with only whitespace and documents without tokens are left
/// out.
///
/// An interrupted run can be continued. It keeps existing shards, and reads the files again up to
/// the point where it was interrupted, which is fast compared to tokenizing. The list of files,
/// their sizes and their modification times must be the same.
///
/// ```
/// use fulmen_cli::prepare::{self, PrepareOptions, TextOptions};
///
/// let folder = tempfile::tempdir()?;
/// let file = folder.path().join("words.jsonl");
/// std::fs::write(&file, "{\"text\": \"thunder\"}\n{\"text\": \"\"}\n{\"text\": \"lightning\"}\n")?;
/// let options = PrepareOptions::new(folder.path().join("shards"));
/// let manifest = prepare::text(&[file.into()], &TextOptions::new(), &options, &())?;
/// assert_eq!(manifest.splits[0].samples, 2);
/// assert_eq!(manifest.warnings[0].what, "1 document with only whitespace was left out");
/// # Ok::<(), fulmen_data::Error>(())
/// ```
///
/// # Errors
/// Files of an unknown kind; a line or a row without the text (the error has its position); text
/// that is not UTF-8; an output folder that was started with other options or files, has other
/// files, or is in use by another run; a disk without enough space.
pub fn text(
    files: &[Location],
    text: &TextOptions,
    options: &PrepareOptions,
    progress: &dyn Progress,
) -> Result<Manifest> {
    options.check()?;
    text.check()?;
    let format = OutputFormat::new(text)?;
    progress.begin("looking at the files", 0);
    let inputs = TextInput::find(files)?;
    let journal = Journal::open(&options.output)?;
    let dependencies = dependencies(&inputs, text, &format, options)?;
    let foreign_files = conflicting_files(options, &format)?;
    journal.begin(
        dependencies.clone(),
        &foreign_files.iter().map(String::as_str).collect::<Vec<_>>(),
    )?;

    let job = Job { options, journal: &journal, progress };
    job.begin()?;
    let splits = recorded_splits(&job, &format)?;
    let is_finished = splits
        .iter()
        .flat_map(|split| &split.earlier_shards)
        .all(|(_, state)| matches!(state, State::Done(_)));
    if is_finished
        && journal.is_complete()
        && let Ok(manifest) = Manifest::read(&options.output)
    {
        job.finish(&manifest)?;
        return Ok(manifest);
    }
    let bytes: u64 = inputs.iter().map(|input| input.bytes).sum();
    let done: u64 =
        splits.iter().flat_map(|split| &split.earlier_shards).map(|(record, _)| record.bytes).sum();
    // Tokens take about half as much space as texts, and texts take little more in a tar file.
    // Compressed files expand; if they need too much space, this is detected only when the disk is
    // full.
    let needed = if format.extension() == "tar" { bytes } else { bytes / 2 }.saturating_sub(done);
    check_free_space(
        &options.output,
        if options.delete_uploaded { needed.min(2 * options.max_bytes) } else { needed },
    )?;

    progress
        .begin(if format.extension() == "tar" { "gathering texts" } else { "tokenizing" }, bytes);
    let mut run = Run { job: &job, format: &format, splits };
    let blank = run.add_all(&inputs, text)?;
    let (splits, empty) = run.finish()?;
    journal.add(Line::Complete)?;
    let left_out = |count: u64, description: &str| {
        let what = match count {
            0 => return None,
            1 => format!("1 document {description} was left out"),
            _ => format!("{count} documents {description} were left out"),
        };
        Some(Warning { sample: String::new(), what })
    };
    let warnings = [left_out(blank, "with only whitespace"), left_out(empty, "without a token")];
    let manifest = Manifest {
        version: 1,
        dataset: "text".to_owned(),
        splits,
        classes: Vec::new(),
        sources: inputs
            .iter()
            .map(|input| SourceFile { name: input.location.name(), bytes: input.bytes, md5: None })
            .collect(),
        options: dependencies.into_iter().filter(|(name, _)| name != FILES).collect(),
        warnings: warnings.into_iter().flatten().collect(),
    };
    job.finish(&manifest)?;
    Ok(manifest)
}

/// The name of the plan's entry with the list of files.
const FILES: &str = "the list of files";

/// Everything that the shards depend on.
fn dependencies(
    inputs: &[TextInput],
    text: &TextOptions,
    format: &OutputFormat,
    options: &PrepareOptions,
) -> Result<BTreeMap<String, String>> {
    let mut files = Fingerprint::new();
    inputs.iter().try_for_each(|input| input.location.fingerprint(&mut files))?;
    Ok([
        ("dataset", "text".to_owned()),
        ("field", text.field.clone()),
        ("lines", text.lines.to_string()),
        ("max_bytes", options.max_bytes.to_string()),
        ("max_samples", options.max_samples.to_string()),
        ("seed", options.seed.to_string()),
        ("separator", text.separator.clone().unwrap_or_default()),
        ("tokenizer", format.describe()),
        ("validation", text.validation.to_string()),
        (FILES, files.to_string()),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .into())
}

/// Files in the output folder that the shards or the manifest could replace.
fn conflicting_files(options: &PrepareOptions, format: &OutputFormat) -> Result<Vec<String>> {
    let listing = |source| Error::io(&options.output, "listing the folder", source);
    let mut names = Vec::new();
    for entry in options.output.read_dir().map_err(listing)? {
        let name = entry.map_err(listing)?.file_name().to_string_lossy().into_owned();
        let shard = SPLITS.iter().any(|split| name.starts_with(&format!("{split}-")));
        if name == MANIFEST || shard && name.ends_with(format.extension()) {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

/// Whether a text is for validation. It depends only on the text and the seed.
fn in_validation(text: &str, seed: u64, share: f64) -> bool {
    let mut hash = Sha256::new();
    hash.update(seed.to_le_bytes());
    hash.update(text);
    let mut word = [0; 8];
    word.copy_from_slice(&hash.finalize()[..8]);
    // 53 bits, the precision of an `f64`.
    ((u64::from_le_bytes(word) >> 11) as f64) < share * (1u64 << 53) as f64
}

/// The state of a split.
struct Split {
    name: &'static str,
    /// The shards of earlier runs and their states, from the first shard on.
    earlier_shards: Vec<(ShardRecord, State)>,
    /// The number of the shard that the next document belongs to.
    next: usize,
    /// How many documents of this shard have been read.
    documents_read: u64,
    documents: u64,
    open: Option<TextShard>,
    records: Vec<ShardRecord>,
}

/// The splits, with the shards of an earlier run.
fn recorded_splits(job: &Job<'_>, format: &OutputFormat) -> Result<Vec<Split>> {
    let mut splits = Vec::new();
    for name in SPLITS {
        let earlier_shards: Vec<Option<ShardRecord>> = (0..)
            .map_while(|number| job.journal.shard(&shard_name(name, number, format.extension())))
            .map(Some)
            .collect();
        let states = job.recorded_states(&earlier_shards)?;
        let earlier_shards = earlier_shards.into_iter().flatten().zip(states).collect();
        splits.push(Split {
            name,
            earlier_shards,
            next: 0,
            documents_read: 0,
            documents: 0,
            open: None,
            records: Vec::new(),
        });
    }
    Ok(splits)
}

/// A run that writes documents into shards.
struct Run<'a> {
    job: &'a Job<'a>,
    format: &'a OutputFormat,
    splits: Vec<Split>,
}

impl Run<'_> {
    /// Adds the documents of all files, and returns how many blank ones were left out.
    fn add_all(&mut self, inputs: &[TextInput], text: &TextOptions) -> Result<u64> {
        let mut blank = 0;
        let threshold = text.validation;
        for input in inputs {
            let mut reported = 0;
            let mut batch = Vec::new();
            let mut size = 0;
            let mut memory = 0usize;
            for document in input.documents(text)? {
                let document = document?;
                if document.item.trim().is_empty() {
                    blank += 1;
                    continue;
                }
                size += document.item.len();
                // Short documents take more memory than their text.
                memory += document.item.len() + document.origin.len() + DOCUMENT_OVERHEAD;
                batch.push((
                    usize::from(in_validation(&document.item, self.job.options.seed, threshold)),
                    document,
                ));
                if memory >= BATCH.saturating_mul(self.job.options.threads) {
                    self.add_batch(std::mem::take(&mut batch))?;
                    let by = (size as u64).min(input.bytes - reported);
                    reported += by;
                    self.job.progress.advance(by);
                    (size, memory) = (0, 0);
                }
            }
            self.add_batch(batch)?;
            self.job.progress.advance(input.bytes - reported);
        }
        Ok(blank)
    }

    /// Adds the next documents, each with its split.
    fn add_batch(&mut self, batch: Vec<(usize, fulmen_data::StreamItem<String>)>) -> Result<()> {
        // Documents in existing shards are counted but not tokenized.
        let mut remaining: Vec<u64> = self.splits.iter().map(Split::existing_documents).collect();
        let needed: Vec<(usize, Option<fulmen_data::StreamItem<String>>)> = batch
            .into_iter()
            .map(|(split, document)| match remaining.get_mut(split) {
                Some(remaining) if *remaining > 0 => {
                    *remaining -= 1;
                    (split, None)
                }
                _ => (split, Some(document)),
            })
            .collect();
        let documents =
            in_parallel(&needed, self.job.options.threads, |(_, document)| match document {
                None => Ok(None),
                Some(document) => self
                    .format
                    .document(&document.item)
                    .map(Some)
                    .map_err(|error| Error::new(format!("{}: {error}", document.origin))),
            })?;
        for ((split, _), document) in needed.iter().zip(documents) {
            self.add(*split, document)?;
        }
        Ok(())
    }

    fn add(&mut self, index: usize, document: Option<Document>) -> Result<()> {
        let options = self.job.options;
        let format = self.format;
        let bytes = document.as_ref().map_or(0, |document| format.bytes(document));
        let split = &mut self.splits[index];
        let existing_documents =
            split.earlier_shards.get(split.next).map(|(record, _)| record.documents());
        let open = split.open.as_ref();
        let full = match existing_documents {
            Some(documents) => split.documents_read == documents,
            None => open.is_some_and(|open| {
                open.documents() == options.max_samples as u64
                    || open.bytes().saturating_add(bytes) > options.max_bytes
            }),
        };
        if full {
            self.close(index)?;
        }
        let split = &mut self.splits[index];
        let is_there = split
            .earlier_shards
            .get(split.next)
            .is_some_and(|(_, state)| !matches!(state, State::Missing));
        if let (false, Some(document)) = (is_there, document) {
            let shard = match &mut split.open {
                Some(shard) => shard,
                empty => {
                    let name = shard_name(split.name, split.next, format.extension());
                    empty.insert(TextShard::create(&options.output, &name, format)?)
                }
            };
            shard.add(split.documents, document, bytes)?;
        }
        split.documents_read += 1;
        split.documents += 1;
        Ok(())
    }

    /// Completes the current shard of a split.
    fn close(&mut self, index: usize) -> Result<()> {
        let split = &mut self.splits[index];
        let earlier_shard = split
            .earlier_shards
            .get(split.next)
            .map(|(record, state)| (record.clone(), matches!(state, State::Done(_))));
        let (record, done) = match (split.open.take(), earlier_shard) {
            (Some(open), earlier_shard) => {
                let record = open.finish()?;
                self.job.journal.add(Line::Shard(record.clone()))?;
                if earlier_shard.is_some_and(|(earlier, _)| earlier.sha256 != record.sha256) {
                    self.job.progress.note(&format!(
                        "{}: it has changed since it was first written",
                        record.name
                    ));
                }
                (record, false)
            }
            (None, Some((record, done))) => {
                if split.documents_read != record.documents() {
                    return Err(Error::file(
                        &self.job.options.output.join(&record.name),
                        format!(
                            "it was made from {}, and now there are {}: the files have changed; use another \
                             folder",
                            quantity(record.documents(), "document"),
                            split.documents_read
                        ),
                    ));
                }
                (record, done)
            }
            (None, None) => return Ok(()),
        };
        if !done {
            self.job.upload(&record)?;
            let tokens = record
                .tokens
                .map_or(String::new(), |tokens| format!(", {}", quantity(tokens, "token")));
            let documents = quantity(record.samples, "document");
            self.job.progress.note(&format!("{}: {documents}{tokens}", record.name));
        }
        split.records.push(record);
        split.next += 1;
        split.documents_read = 0;
        Ok(())
    }

    /// Completes the last shards. Also returns how many documents gave no sample.
    fn finish(mut self) -> Result<(Vec<SplitManifest>, u64)> {
        let mut empty = 0;
        for index in 0..self.splits.len() {
            if self.splits[index].documents_read > 0 {
                self.close(index)?;
            }
            let split = &mut self.splits[index];
            for record in &mut split.records {
                empty += record.documents().saturating_sub(record.samples);
                record.documents = None;
            }
            if let Some((record, _)) = split.earlier_shards.get(split.next) {
                return Err(Error::file(
                    &self.job.options.output.join(&record.name),
                    "the files no longer have documents for it: they have changed; use another folder",
                ));
            }
        }
        let splits = self.splits.into_iter().filter(|split| split.documents > 0);
        Ok((splits.map(|split| SplitManifest::new(split.name, split.records)).collect(), empty))
    }
}

impl Split {
    /// How many of the next documents belong to existing shards, up to the first missing shard.
    fn existing_documents(&self) -> u64 {
        let existing = self
            .earlier_shards
            .iter()
            .skip(self.next)
            .take_while(|(_, state)| !matches!(state, State::Missing));
        existing
            .map(|(record, _)| record.documents())
            .sum::<u64>()
            .saturating_sub(self.documents_read)
    }
}
