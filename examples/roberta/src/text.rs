//! Trains a tokenizer on texts, and turns texts into masked blocks of tokens.

use std::collections::BTreeMap;
use std::fs;
use std::iter::once;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use fulmen::cli::Result;
use fulmen::data::text::{
    ByteLevelBpe, Encoding, MaskedLanguageModel, TokenArray, TokenBlocks, TokenCollator, TokenFile,
    TokenStore, Tokenizer,
};
use fulmen::data::{DType, Dataset, Field, Source, Subset};

/// RoBERTa's special tokens, in the order of its ids.
const SPECIAL: [&str; 5] = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"];

/// The maximum number of blocks in which pairs of tokens are counted, which is enough for a long
/// text.
const MAX_COUNTED: usize = 100_000;

/// Loads the tokenizer in `file`. If it does not exist, trains one on the text and saves it there.
pub(crate) fn tokenizer(text: &Path, file: Option<&Path>, vocab_size: usize) -> Result<Tokenizer> {
    if let Some(file) = file.filter(|file| file.exists()) {
        return Ok(Tokenizer::from_file(file)?);
    }
    if is_tokens(text) {
        return Err(
            format!("{}: pass the --tokenizer that made these tokens", text.display()).into()
        );
    }
    let texts = files(text)?.iter().map(|file| read(file)).collect::<Result<Vec<String>>>()?;
    let bpe = ByteLevelBpe::new(vocab_size)
        .special_tokens(SPECIAL)
        .template("<s> $A </s>")
        .min_frequency(2);
    let tokenizer = bpe.train(texts)?;
    if let Some(file) = file {
        tokenizer.save(file)?;
    }
    Ok(tokenizer)
}

/// A split of a text.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Split {
    Train,
    Validation,
    Test,
}

impl Split {
    /// The split of a block. Of twenty blocks, one is for testing and one for validation.
    fn of_block(block: usize) -> Split {
        match block % 20 {
            18 => Split::Validation,
            19 => Split::Test,
            _ => Split::Train,
        }
    }
}

/// Blocks of `length` tokens, the first `<s>` and the last `</s>`, with a new mask in each epoch:
/// `input_ids` and `labels`, `i32[length]`. Test blocks also have `bigram`: the token that most
/// often follows the previous one.
pub(crate) fn samples(
    text: &Path,
    tokenizer: &Tokenizer,
    length: usize,
    split: Split,
) -> Result<Box<dyn Dataset>> {
    let Some(inner) = length.checked_sub(2).filter(|&inner| inner > 0) else {
        return Err(format!("--length {length}: <s> and </s> leave no space; use 3 or more").into());
    };
    let begin = tokenizer.special_id("<s>")?;
    let end = tokenizer.special_id("</s>")?;
    let blocks = TokenBlocks::new(tokens(text, tokenizer, end)?, inner)?;
    let indices: Vec<usize> =
        (0..blocks.len()).filter(|&block| Split::of_block(block) == split).collect();
    if indices.is_empty() {
        let message = format!(
            "{}: {} samples of {length} tokens; use a longer text",
            text.display(),
            blocks.len()
        );
        return Err(message.into());
    }
    let collator = TokenCollator::new(length, tokenizer.special_id("<pad>")?)
        .masked(MaskedLanguageModel::for_tokenizer(tokenizer)?);
    let mut fields = collator.fields();
    let mut successors = None;
    if split == Split::Test {
        fields.push(Field::new("bigram", DType::I32, [length]));
        successors = Some(likeliest_next(&blocks)?);
    }
    let data = blocks.into_dataset(fields, move |block, sample| {
        let ids: Vec<u32> = once(begin).chain(block.ids).chain([end]).collect();
        if let Some(successors) = &successors {
            let guess = |previous: &u32| successors.get(previous).map_or(-1, |&token| token as i32);
            // The first token has no previous one, and is never masked.
            let guesses: Vec<i32> = once(-1).chain(ids[..length - 1].iter().map(guess)).collect();
            sample.write_slice(3, &guesses)?;
        }
        collator.write(Encoding::from_ids(ids), sample, 0)
    });
    Ok(Box::new(Subset::new(data, indices)?))
}

/// For each token, the token that most often follows it in the training data: the best guess from
/// the previous token alone.
fn likeliest_next(blocks: &TokenBlocks<Arc<dyn TokenStore>>) -> Result<BTreeMap<u32, u32>> {
    let mut counts = BTreeMap::<(u32, u32), u64>::new();
    for block in
        (0..blocks.len()).filter(|&block| Split::of_block(block) == Split::Train).take(MAX_COUNTED)
    {
        for pair in blocks.get(block)?.ids.windows(2) {
            *counts.entry((pair[0], pair[1])).or_default() += 1;
        }
    }
    let mut best = BTreeMap::<u32, (u64, u32)>::new();
    for ((previous, token), count) in counts {
        let best = best.entry(previous).or_insert((count, token));
        *best = (*best).max((count, token));
    }
    Ok(best.into_iter().map(|(previous, (_, token))| (previous, token)).collect())
}

fn tokens(text: &Path, tokenizer: &Tokenizer, end: u32) -> Result<Arc<dyn TokenStore>> {
    if is_tokens(text) {
        let tokens = TokenFile::open(text)?;
        if tokens.vocab_size() > tokenizer.vocab_size() {
            let file = text.display();
            let actual = tokens.vocab_size();
            let expected = tokenizer.vocab_size();
            let message = format!(
                "{file}: its vocabulary has {actual} tokens, not {expected}; pass its --tokenizer"
            );
            return Err(message.into());
        }
        return Ok(Arc::new(tokens));
    }
    let mut tokens = TokenArray::new(tokenizer.vocab_size())?.separator(end);
    let plain = tokenizer.clone().special_tokens(false);
    for file in files(text)? {
        tokens.push(plain.encode(&read(&file)?)?)?;
    }
    Ok(Arc::new(tokens))
}

fn is_tokens(text: &Path) -> bool {
    text.extension().is_some_and(|extension| extension == "tokens")
}

fn read(file: &Path) -> Result<String> {
    Ok(fs::read_to_string(file).map_err(|e| format!("{}: {e}", file.display()))?)
}

/// The file itself, or the text files of a folder sorted by name.
fn files(text: &Path) -> Result<Vec<PathBuf>> {
    let failed = |e: std::io::Error| {
        format!("--text {}: {e}; pass a text or a folder, or --fake-data", text.display())
    };
    if !fs::metadata(text).map_err(failed)?.is_dir() {
        return Ok(vec![text.to_owned()]);
    }
    let mut files = fs::read_dir(text)
        .map_err(failed)?
        .map(|entry| Ok(entry?.path()))
        .collect::<std::io::Result<Vec<_>>>()
        .map_err(failed)?;
    files.retain(|file| {
        file.extension().is_some_and(|extension| extension == "txt" || extension == "md")
    });
    files.sort();
    if files.is_empty() {
        return Err(format!("--text {}: the folder has no .txt or .md file", text.display()).into());
    }
    Ok(files)
}
