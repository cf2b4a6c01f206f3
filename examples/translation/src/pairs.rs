//! Reads pairs of texts, and turns them into tokens and batches.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fulmen::cli::Result;
use fulmen::data::text::{ByteLevelBpe, IGNORE_INDEX, Tokenizer, choose_boundaries, token_lengths};
use fulmen::data::{
    self, Buckets, DType, DataLoader, DataLoaderBuilder, Field, Fingerprint, Source,
};

/// A text and its translation.
pub(crate) type Pair = (String, String);

#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Split {
    Train,
    Validation,
    Test,
}

/// Reads pairs from two files with matching lines, a `.tsv`, or a `.jsonl`.
pub(crate) fn read(files: &[PathBuf]) -> Result<Vec<Pair>> {
    let text =
        |file: &Path| fs::read_to_string(file).map_err(|e| format!("{}: {e}", file.display()));
    let pairs = match files {
        [source, target] => {
            let [sources, targets] = [text(source)?, text(target)?]
                .map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>());
            if sources.len() != targets.len() {
                let [source, target] = [source, target].map(|file| file.display());
                let [s, t] = [sources.len(), targets.len()];
                let message = format!(
                    "{source} has {s} lines and {target} has {t}; each line of one must be the translation of the other's"
                );
                return Err(message.into());
            }
            sources.into_iter().zip(targets).collect()
        }
        [file] => {
            let is_json = file.extension().is_some_and(|extension| extension == "jsonl");
            let (parse, format): (fn(&str) -> Option<Pair>, _) = if is_json {
                (from_json, r#"{"source": "…", "target": "…"}"#)
            } else {
                (from_tsv, "a text, a tab and its translation")
            };
            let failed = |number| format!("{}:{number}: expected {format}", file.display());
            let lines = text(file)?;
            let pairs = (1..)
                .zip(lines.lines())
                .map(|(number, line)| parse(line).ok_or_else(|| failed(number)));
            pairs.collect::<Result<Vec<Pair>, String>>()?
        }
        _ => return Err("pass texts with --pairs, or use --dates or --fake-data".into()),
    };
    Ok(pairs)
}

fn from_json(line: &str) -> Option<Pair> {
    let value: serde_json::Value = serde_json::from_str(line).ok()?;
    Some((value["source"].as_str()?.to_owned(), value["target"].as_str()?.to_owned()))
}

fn from_tsv(line: &str) -> Option<Pair> {
    let mut columns = line.split('\t');
    Some((columns.next()?.to_owned(), columns.next()?.to_owned()))
}

/// A tokenizer, with its padding and end tokens.
#[derive(Clone)]
pub(crate) struct Vocabulary {
    tokenizer: Tokenizer,
    pub(crate) pad: u32,
    pub(crate) end: u32,
}

impl Vocabulary {
    /// The tokenizer in a file.
    pub(crate) fn open(file: &Path, end_token: &str) -> Result<Vocabulary> {
        Vocabulary::new(Tokenizer::from_file(file)?, end_token)
    }

    /// One tokenizer for both languages, trained on their texts.
    pub(crate) fn train(pairs: &[Pair], vocab_size: usize) -> Result<Vocabulary> {
        let bpe = ByteLevelBpe::new(vocab_size)
            .special_tokens(["<pad>", "</s>"])
            .template("$A </s>")
            .single_digits(true);
        Vocabulary::new(
            bpe.train(pairs.iter().flat_map(|(source, target)| [source, target]))?,
            "</s>",
        )
    }

    fn new(tokenizer: Tokenizer, end_token: &str) -> Result<Vocabulary> {
        let pad = tokenizer
            .pad_id()
            .ok_or_else(|| format!("{tokenizer:?} has no padding token, such as <pad>"))?;
        let end = tokenizer.special_id(end_token)?;
        Ok(Vocabulary { tokenizer: tokenizer.special_tokens(false), pad, end })
    }

    pub(crate) fn save(&self, file: &Path) -> Result<()> {
        Ok(self.tokenizer.save(file)?)
    }

    pub(crate) fn len(&self) -> usize {
        self.tokenizer.vocab_size()
    }

    /// The same vocabulary, which truncates texts to this many tokens, including the end token.
    pub(crate) fn max_length(self, length: usize) -> Result<Vocabulary> {
        Ok(Vocabulary { tokenizer: self.tokenizer.max_length(length.saturating_sub(1))?, ..self })
    }

    fn encode(&self, text: &str) -> data::Result<Vec<u32>> {
        let mut ids = self.tokenizer.encode(text)?.ids;
        ids.push(self.end);
        Ok(ids)
    }

    /// The text up to the end token, in one line.
    pub(crate) fn decode(&self, ids: &[i32]) -> Result<String> {
        let ids: Vec<u32> =
            ids.iter().map(|&id| id as u32).take_while(|&id| id != self.end).collect();
        Ok(self.tokenizer.decode(&ids, true)?.replace(['\n', '\r'], " "))
    }
}

/// A loader with batches padded to at most `buckets` lengths. Each length has its own step program.
pub(crate) fn loader(
    pairs: Vec<Pair>,
    vocabulary: Vocabulary,
    buckets: usize,
) -> Result<DataLoaderBuilder> {
    if pairs.is_empty() {
        return Err(
            "there are no texts; a twentieth of --pairs is for validation, and another for testing"
                .into(),
        );
    }
    let pad = vocabulary.pad as i32;
    let tokens = Arc::new(Tokens { pairs, vocabulary });
    let longer = Arc::clone(&tokens)
        .map(|[text, other]| Ok(if text.len() > other.len() { text } else { other }));
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let lengths: Vec<usize> =
        token_lengths(&longer, threads)?.iter().map(|length| length.next_multiple_of(8)).collect();
    let boundaries = choose_boundaries(&lengths, buckets)?;
    let longest = boundaries.lengths().last().copied().unwrap_or(0);
    let fields =
        ["input_ids", "labels"].map(|name| Field::new(name, DType::I32, [longest])).to_vec();
    let dataset = tokens.into_dataset(fields, move |pair, sample| {
        for (field, (ids, padding)) in pair.iter().zip([pad, IGNORE_INDEX]).enumerate() {
            let values = sample.values_mut::<i32>(field)?;
            values.fill(padding);
            values.iter_mut().zip(ids).for_each(|(value, &id)| *value = id as i32);
        }
        Ok(())
    });
    let loader = DataLoader::builder(dataset);
    Ok(if buckets == 1 {
        loader
    } else {
        loader.buckets(Buckets::new(&lengths, boundaries.lengths())?)
    })
}

/// Pairs as tokens, with the end token appended.
struct Tokens {
    pairs: Vec<Pair>,
    vocabulary: Vocabulary,
}

impl Source for Tokens {
    type Item = [Vec<u32>; 2];

    fn len(&self) -> usize {
        self.pairs.len()
    }

    fn get(&self, index: usize) -> data::Result<[Vec<u32>; 2]> {
        let (source, target) = &self.pairs[index];
        Ok([self.vocabulary.encode(source)?, self.vocabulary.encode(target)?])
    }

    fn origin(&self, index: usize) -> String {
        format!("{:?}", self.pairs[index].0)
    }

    fn fingerprint(&self, fingerprint: &mut Fingerprint) -> data::Result<()> {
        self.vocabulary.tokenizer.fingerprint(fingerprint);
        self.pairs.iter().for_each(|(source, target)| fingerprint.add(source, target));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_read_from_two_files_or_one() {
        let folder = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| {
            let file = folder.path().join(name);
            fs::write(&file, text).unwrap();
            file
        };
        let expected = [("a b".to_owned(), "α β".to_owned()), ("c".to_owned(), "γ".to_owned())];
        let source = file("x.en", "a b\nc\n");
        let target = file("x.el", "α β\nγ");
        let tsv = file("x.tsv", "a b\tα β\tCC-BY\nc\tγ\n");
        let json = file(
            "x.jsonl",
            "{\"source\": \"a b\", \"target\": \"α β\"}\n{\"target\": \"γ\", \"source\": \"c\"}\n",
        );
        for files in [vec![source.clone(), target], vec![tsv], vec![json]] {
            assert_eq!(read(&files).unwrap(), expected, "{files:?}");
        }
        let refusal = |files: &[PathBuf]| read(files).unwrap_err().to_string();
        assert!(refusal(&[source, file("y", "α\n")]).contains("has 2 lines and"));
        assert!(
            refusal(&[file("y.tsv", "a\tb\nc")])
                .ends_with("y.tsv:2: expected a text, a tab and its translation")
        );
        assert!(refusal(&[]).contains("--dates"));
    }
}
