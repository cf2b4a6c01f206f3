//! Reads labelled texts from files, and turns them into samples.

use std::fs;
use std::path::{Path, PathBuf};

use fulmen::cli::Result;
use fulmen::data::tables::{Csv, JsonLines};
use fulmen::data::text::{Encoding, TokenCollator, Tokenizer};
use fulmen::data::{self, DType, Dataset, Field, Fingerprint, Sample, SampleRng, Source};
use fulmen::models::Labels;

/// The minimum number of words of a text. Shorter lines are headings or brackets.
const MIN_WORDS: usize = 5;

/// A text with its class, if that is known.
pub(crate) struct Text {
    text: String,
    pub(crate) label: Option<String>,
}

/// Reads the texts in a `.csv`, `.tsv` or `.jsonl` file with `text` and optionally `label`. In a
/// folder, each `.txt` or `.md` file is a class, and each of its lines is a text.
pub(crate) fn read(path: &Path) -> Result<Vec<Text>> {
    if path.is_dir() {
        return read_folder(path);
    }
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("csv" | "tsv") => {
            let rows = Csv::open(path)?;
            let text = |index| {
                let row = rows.get(index)?;
                let has_label = row.columns().contains(&"label") && !row.is_missing("label")?;
                let label = if has_label { Some(row.str("label")?.to_owned()) } else { None };
                Ok(Text { text: row.str("text")?.to_owned(), label })
            };
            (0..rows.len()).map(text).collect()
        }
        Some("jsonl" | "ndjson") => {
            let lines = JsonLines::open(path)?;
            let text = |index| {
                let line = lines.get(index)?;
                let origin = lines.origin(index);
                let text = line["text"]
                    .as_str()
                    .ok_or_else(|| format!("{origin}: `text` is not a text"))?;
                let label = line
                    .get("label")
                    .filter(|label| !label.is_null())
                    .map(|label| label.as_str().map_or_else(|| label.to_string(), str::to_owned));
                Ok(Text { text: text.to_owned(), label })
            };
            (0..lines.len()).map(text).collect()
        }
        _ => {
            Err(format!("{}: not a folder, a .csv, a .tsv or a .jsonl file", path.display()).into())
        }
    }
}

fn read_folder(folder: &Path) -> Result<Vec<Text>> {
    let failed = |path: &Path, e: std::io::Error| format!("{}: {e}", path.display());
    let mut paths = fs::read_dir(folder)
        .map_err(|e| failed(folder, e))?
        .map(|entry| Ok(entry?.path()))
        .collect::<std::io::Result<Vec<PathBuf>>>()
        .map_err(|e| failed(folder, e))?;
    paths.retain(|path| {
        path.extension().is_some_and(|extension| extension == "txt" || extension == "md")
    });
    paths.sort();
    let mut texts = Vec::new();
    for path in paths {
        let class = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let content = fs::read_to_string(&path).map_err(|e| failed(&path, e))?;
        let long_lines =
            content.lines().filter(|line| line.split_whitespace().count() >= MIN_WORDS);
        texts.extend(
            long_lines.map(|line| Text { text: line.to_owned(), label: Some(class.clone()) }),
        );
    }
    if texts.is_empty() {
        let message = format!(
            "{}: no .txt or .md file has a line of {MIN_WORDS} words or more",
            folder.display()
        );
        return Err(message.into());
    }
    Ok(texts)
}

/// A split of the texts.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Split {
    Train,
    Validation,
    Test,
}

/// The texts of a split. A random tenth is for validation, another for testing.
pub(crate) fn part(texts: Vec<Text>, split: Split) -> Vec<Text> {
    let mut order: Vec<usize> = (0..texts.len()).collect();
    SampleRng::new(0, 0, 0).shuffle(&mut order);
    let tenth = texts.len().div_ceil(10);
    let mut splits = vec![Split::Train; texts.len()];
    for (rank, index) in order.into_iter().take(2 * tenth).enumerate() {
        splits[index] = if rank < tenth { Split::Validation } else { Split::Test };
    }
    texts
        .into_iter()
        .zip(splits)
        .filter(|(_, text_split)| *text_split == split)
        .map(|(text, _)| text)
        .collect()
}

/// Texts as samples, with `input_ids`, `attention_mask` and, if the classes are known, `label`.
pub(crate) struct Samples {
    rows: Vec<(Encoding, Option<i32>)>,
    tokens: TokenCollator,
    max_length: usize,
}

impl Samples {
    /// Samples of texts, truncated to `max_length` tokens. `labels` numbers the classes.
    pub(crate) fn new(
        texts: &[Text],
        tokenizer: Tokenizer,
        max_length: usize,
        labels: &Labels,
    ) -> Result<Samples> {
        let tokenizer = tokenizer.max_length(max_length)?;
        let row = |(number, text): (usize, &Text)| {
            let label = match &text.label {
                None => None,
                Some(name) => Some(*labels.label2id.get(name).ok_or_else(|| {
                    let known: Vec<&str> = labels.label2id.keys().map(String::as_str).collect();
                    format!(
                        "text {number}: its label is `{name}`, expected one of {}",
                        known.join(", ")
                    )
                })? as i32),
            };
            Ok((tokenizer.encode(&text.text)?, label))
        };
        let rows = texts.iter().enumerate().map(row).collect::<Result<Vec<_>>>()?;
        let pad =
            tokenizer.pad_id().ok_or_else(|| format!("{tokenizer:?} has no padding token"))?;
        Samples::from_rows(rows, pad, max_length)
    }

    /// Random samples of up to `max_length` tokens.
    pub(crate) fn fake(
        count: usize,
        vocab_size: usize,
        max_length: usize,
        labels: &Labels,
    ) -> Result<Samples> {
        let row = |index: usize| {
            let mut random = SampleRng::new(0, 0, index as u64);
            let length = random.in_range(1..max_length + 1);
            // The first few ids are special tokens.
            let ids = (0..length).map(|_| random.in_range(5..vocab_size) as u32).collect();
            (Encoding::from_ids(ids), Some(random.below(labels.len()) as i32))
        };
        Samples::from_rows((0..count).map(row).collect(), 1, max_length)
    }

    fn from_rows(
        rows: Vec<(Encoding, Option<i32>)>,
        pad: u32,
        max_length: usize,
    ) -> Result<Samples> {
        let Some(longest) = rows.iter().map(|(tokens, _)| tokens.len()).max() else {
            return Err("there are no texts; pass at least one".into());
        };
        Ok(Samples {
            tokens: TokenCollator::new(padded_length(longest, max_length), pad),
            rows,
            max_length,
        })
    }

    /// The padded length of each sample.
    pub(crate) fn lengths(&self) -> Vec<usize> {
        self.rows.iter().map(|(tokens, _)| padded_length(tokens.len(), self.max_length)).collect()
    }

    /// Whether all samples have labels.
    pub(crate) fn are_labelled(&self) -> bool {
        self.rows.iter().all(|(_, label)| label.is_some())
    }
}

/// Rounds up to a multiple of 8, which suits a TPU.
fn padded_length(length: usize, max_length: usize) -> usize {
    length.max(1).next_multiple_of(8).min(max_length)
}

impl Dataset for Samples {
    fn len(&self) -> usize {
        self.rows.len()
    }

    fn fields(&self) -> Vec<Field> {
        let mut fields = self.tokens.fields();
        if self.are_labelled() {
            fields.push(Field::new("label", DType::I32, []));
        }
        fields
    }

    fn read(&self, index: usize, sample: &mut Sample<'_>) -> data::Result<()> {
        let (tokens, label) = &self.rows[index];
        self.tokens.write(tokens.clone(), sample, 0)?;
        match (sample.fields().len(), label) {
            (3, Some(label)) => sample.write_value(2, *label),
            _ => Ok(()),
        }
    }

    fn fingerprint(&self, fingerprint: &mut Fingerprint) -> data::Result<()> {
        fingerprint.add("texts", format!("{:?} {:?}", self.tokens, self.rows));
        Ok(())
    }
}
