//! Converts text files to shards of tokens or texts, whose number is not known in advance.
//!
//! Out of scope: reading the files (`text_files`), and writing a shard (`text_shard`).

use sha2::{Digest, Sha256};

use super::manifest::{Manifest, ShardRecord, SourceFile, Warning};
use super::options::Pack;
use super::output::Output;
use super::plan::shard_name;
use super::progress::Progress;
use super::text_files::TextInput;
use super::text_shard::{Document, OutputFormat, TextShard};
use fulmen_data::internal::in_parallel;
use fulmen_data::{Error, Result};
use fulmen_durable::messages::quantity;

/// The split of the documents that are chosen for validation.
const VALIDATION: &str = "validation";

/// The limit on the size of texts that a thread tokenizes together, in bytes.
const BATCH: usize = 1 << 20;

/// The memory that a document takes in addition to its text and its origin.
const DOCUMENT_OVERHEAD: usize = 64;

/// Packs files of texts into shards of tokens, or of documents. An interrupted run keeps existing
/// shards, and reads the files again up to the point where it was interrupted, which is fast
/// compared to tokenizing.
pub(crate) fn pack_texts(pack: &Pack, progress: &dyn Progress) -> Result<Manifest> {
    let format = OutputFormat::new(pack)?;
    progress.begin("looking at the files", 0);
    let mut splits = pack.splits();
    if pack.validation_share() > 0.0 {
        if splits.iter().any(|split| split == VALIDATION) {
            return Err(Error::usage(format!(
                "the split {VALIDATION} has sources, and `validation` would add documents of other splits to it; use \
                 one of the two"
            )));
        }
        splits.push(VALIDATION.to_owned());
    }
    let inputs = TextInput::find(&pack.sources, &splits)?;
    let source = |input: &TextInput| SourceFile::new(&splits[input.split], &input.location);
    let sources: Result<Vec<SourceFile>> = inputs.iter().map(source).collect();
    let options = [
        ("kind", "texts".to_owned()),
        ("field", pack.text_field().to_owned()),
        ("lines", pack.lines.to_string()),
        ("max_samples", pack.max_documents().to_string()),
        ("separator", pack.separator.clone().unwrap_or_default()),
        ("tokenizer", format.describe()),
        ("validation", pack.validation_share().to_string()),
    ];
    let output = Output::open(pack, &splits, sources?, &options, format.extension(), progress)?;
    let splits = earlier_splits(splits, &output)?;
    let mut earlier = splits.iter().flat_map(|split| &split.earlier_shards);
    if output.is_complete() && earlier.all(|(_, is_there)| *is_there) {
        return output.finish(Vec::new());
    }
    check_space(&output, &splits, &inputs, &format)?;
    output.begin(&[])?;
    let bytes = inputs.iter().map(|input| input.bytes).sum();
    progress
        .begin(if format.extension() == "tar" { "gathering texts" } else { "tokenizing" }, bytes);
    let mut run = Run { output: &output, format: &format, splits };
    let blank = run.add_all(&inputs)?;
    let empty = run.finish()?;
    let left_out = |count: u64, description: &str| {
        let what = match count {
            0 => return None,
            1 => format!("1 document {description} was left out"),
            _ => format!("{count} documents {description} were left out"),
        };
        Some(Warning { sample: String::new(), what })
    };
    let warnings = [left_out(blank, "with only whitespace"), left_out(empty, "without a token")];
    output.finish(warnings.into_iter().flatten().collect())
}

/// Tokens take about half as much space as texts, and texts take little more in a tar file.
/// Compressed files expand; if they need too much space, this is detected only when the disk is
/// full.
fn check_space(
    output: &Output<'_>,
    splits: &[Split],
    inputs: &[TextInput],
    format: &OutputFormat,
) -> Result<()> {
    let bytes: u64 = inputs.iter().map(|input| input.bytes).sum();
    let earlier = splits.iter().flat_map(|split| &split.earlier_shards);
    let done = earlier.map(|(record, _)| record.bytes).sum();
    let needed = if format.extension() == "tar" { bytes } else { bytes / 2 }.saturating_sub(done);
    output.check_free_space(needed, 2 * output.pack.max_bytes)
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
    name: String,
    /// The shards of earlier runs, from the first shard on, and whether they are still there.
    earlier_shards: Vec<(ShardRecord, bool)>,
    /// The number of the shard that the next document belongs to.
    next: usize,
    /// How many documents of this shard have been read.
    documents_read: u64,
    documents: u64,
    open: Option<TextShard>,
    /// How many documents gave no sample.
    empty: u64,
}

/// The splits, with the shards of an earlier run up to the first gap.
fn earlier_splits(names: Vec<String>, output: &Output<'_>) -> Result<Vec<Split>> {
    let extension = if output.pack.tokenizer.is_some() { "tokens" } else { "tar" };
    let splits = names.into_iter().zip(output.earlier_shards()?).map(|(name, shards)| {
        let in_order = shards.into_iter().enumerate();
        let earlier_shards = in_order
            .take_while(|(number, (shard, _))| shard.name == shard_name(&name, *number, extension))
            .map(|(_, shard)| shard)
            .collect();
        Split {
            name,
            earlier_shards,
            next: 0,
            documents_read: 0,
            documents: 0,
            open: None,
            empty: 0,
        }
    });
    Ok(splits.collect())
}

/// A run that writes documents into shards.
struct Run<'a> {
    output: &'a Output<'a>,
    format: &'a OutputFormat,
    splits: Vec<Split>,
}

impl Run<'_> {
    /// Adds the documents of all files, and returns how many blank ones were left out.
    fn add_all(&mut self, inputs: &[TextInput]) -> Result<u64> {
        let mut blank = 0;
        let Output { pack, progress, .. } = *self.output;
        let share = pack.validation_share();
        let validation = self.splits.len() - 1;
        for input in inputs {
            let mut reported = 0;
            let mut batch = Vec::new();
            let mut size = 0;
            let mut memory = 0usize;
            for document in input.documents(pack)? {
                let document = document?;
                if document.item.trim().is_empty() {
                    blank += 1;
                    continue;
                }
                size += document.item.len();
                // Short documents take more memory than their text.
                memory += document.item.len() + document.origin.len() + DOCUMENT_OVERHEAD;
                let is_chosen = in_validation(&document.item, pack.seed, share);
                batch.push((if is_chosen { validation } else { input.split }, document));
                if memory >= BATCH.saturating_mul(pack.threads) {
                    self.add_batch(std::mem::take(&mut batch))?;
                    let by = (size as u64).min(input.bytes - reported);
                    reported += by;
                    progress.advance(by);
                    (size, memory) = (0, 0);
                }
            }
            self.add_batch(batch)?;
            progress.advance(input.bytes - reported);
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
            in_parallel(&needed, self.output.pack.threads, |(_, document)| match document {
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
        let work = self.output.work();
        let pack = self.output.pack;
        let format = self.format;
        let bytes = document.as_ref().map_or(0, |document| format.bytes(document));
        let split = &mut self.splits[index];
        let existing_documents =
            split.earlier_shards.get(split.next).map(|(record, _)| record.documents());
        let open = split.open.as_ref();
        let full = match existing_documents {
            Some(documents) => split.documents_read == documents,
            None => open.is_some_and(|open| {
                open.documents() == pack.max_documents()
                    || open.bytes().saturating_add(bytes) > pack.max_bytes
            }),
        };
        if full {
            self.close(index)?;
        }
        let split = &mut self.splits[index];
        let is_there = split.earlier_shards.get(split.next).is_some_and(|(_, is_there)| *is_there);
        if let (false, Some(document)) = (is_there, document) {
            let shard = match &mut split.open {
                Some(shard) => shard,
                empty => {
                    let name = shard_name(&split.name, split.next, format.extension());
                    empty.insert(TextShard::create(work, &name, format)?)
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
        let Output { pack, progress, .. } = *self.output;
        let split = &mut self.splits[index];
        let earlier = split.earlier_shards.get(split.next).map(|(record, _)| record);
        let changed = |record: &ShardRecord, message: String| {
            pack.to
                .join(&record.name)
                .error(format!("{message}: the sources have changed; use another folder"))
        };
        let empty = match (split.open.take(), earlier) {
            (Some(open), earlier) => {
                let record = open.finish()?;
                if earlier.is_some_and(|earlier| earlier.sha256 != record.sha256) {
                    return Err(changed(
                        &record,
                        "it differs from the shard that was here".to_owned(),
                    ));
                }
                let tokens = record
                    .tokens
                    .map_or(String::new(), |tokens| format!(", {}", quantity(tokens, "token")));
                let documents = quantity(record.samples, "document");
                let note = format!("{}: {documents}{tokens}", record.name);
                let empty = record.empty_documents();
                self.output.publish(index, record)?;
                progress.note(&note);
                empty
            }
            (None, Some(record)) if split.documents_read != record.documents() => {
                let documents = quantity(record.documents(), "document");
                let now = split.documents_read;
                return Err(changed(
                    record,
                    format!("it was made from {documents}, and now there are {now}"),
                ));
            }
            (None, Some(record)) => record.empty_documents(),
            (None, None) => return Ok(()),
        };
        split.empty += empty;
        split.next += 1;
        split.documents_read = 0;
        Ok(())
    }

    /// Completes the last shards. Returns how many documents gave no sample.
    fn finish(mut self) -> Result<u64> {
        for index in 0..self.splits.len() {
            if self.splits[index].documents_read > 0 {
                self.close(index)?;
            }
            let split = &self.splits[index];
            if let Some((record, _)) = split.earlier_shards.get(split.next) {
                return Err(self.output.pack.to.join(&record.name).error(
                    "the sources no longer have documents for it: they have changed; use another folder",
                ));
            }
        }
        if self.splits.iter().all(|split| split.documents == 0) {
            return Err(Error::usage("the sources have no documents, or only whitespace"));
        }
        Ok(self.splits.iter().map(|split| split.empty).sum())
    }
}

impl Split {
    /// How many of the next documents belong to existing shards, up to the first missing shard.
    fn existing_documents(&self) -> u64 {
        let existing =
            self.earlier_shards.iter().skip(self.next).take_while(|(_, is_there)| *is_there);
        existing
            .map(|(record, _)| record.documents())
            .sum::<u64>()
            .saturating_sub(self.documents_read)
    }
}
