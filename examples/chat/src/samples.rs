//! Lines of JSON as samples: packed conversations, or pairs of answers.

use std::path::Path;

use fulmen::cli::Result;
use fulmen::data::tables::TextFile;
use fulmen::data::text::{
    CausalLabels, ChatArray, ChatTemplate, ChatTokens, Encoding, PackedDocuments, Side,
    TokenCollator, Tokenizer,
};
use fulmen::data::{self, Dataset, Field, Fingerprint, Sample, Source};

/// A split of the lines. Each tenth line is for validation.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Split {
    Train,
    Validation,
}

/// Some lines of a file.
pub(crate) struct Lines {
    file: TextFile,
    numbers: Vec<usize>,
}

impl Lines {
    pub(crate) fn open(path: &Path, split: Split) -> Result<Lines> {
        let file = TextFile::open(path)?;
        let is_validation = split == Split::Validation;
        let numbers: Vec<usize> =
            (0..file.len()).filter(|number| (number % 10 == 9) == is_validation).collect();
        if numbers.is_empty() {
            let message = format!(
                "{}: the file has {} lines, expected at least 10, and one of them is for validation",
                path.display(),
                file.len()
            );
            return Err(message.into());
        }
        Ok(Lines { file, numbers })
    }
}

impl Source for Lines {
    type Item = String;

    fn len(&self) -> usize {
        self.numbers.len()
    }

    fn get(&self, index: usize) -> data::Result<String> {
        self.file.get(self.numbers[index])
    }

    fn origin(&self, index: usize) -> String {
        self.file.origin(self.numbers[index])
    }

    fn fingerprint(&self, fingerprint: &mut Fingerprint) -> data::Result<()> {
        fingerprint.add("lines", format!("{:?}", self.numbers));
        self.file.fingerprint(fingerprint)
    }
}

/// Whole conversations side by side in blocks of `max_length` tokens, of which only answers have
/// labels.
pub(crate) fn conversations(
    lines: &Lines,
    template: &ChatTemplate,
    tokenizer: &Tokenizer,
    vocab_size: usize,
    max_length: usize,
) -> Result<Box<dyn Dataset>> {
    let mut chats = ChatArray::new(vocab_size, max_length)?;
    chats.extend(lines, template, tokenizer, 1)?;
    println!("{}", chats.counts());
    if chats.counts().conversations == 0 {
        return Err("no conversation has an answer within --max-length".into());
    }
    let blocks = PackedDocuments::new(chats, max_length)?;
    let samples = collator(max_length).documents(true);
    Ok(Box::new(samples.dataset(blocks)?))
}

/// Padding has no label and is only after the tokens, which do not see it, so its id is not read.
fn collator(length: usize) -> TokenCollator {
    TokenCollator::new(length, 0).causal(CausalLabels::Shifted)
}

/// Pairs of answers as samples with `chosen_input_ids`, `chosen_labels`, `rejected_input_ids` and
/// `rejected_labels`, integers `[length]`.
struct Pairs {
    pairs: Vec<[Encoding; 2]>,
    collator: TokenCollator,
}

/// Reads pairs of answers. A pair is left out if one of its answers has no token within
/// `max_length`.
pub(crate) fn pairs(
    lines: &Lines,
    template: &ChatTemplate,
    tokenizer: &Tokenizer,
    max_length: usize,
) -> Result<Box<dyn Dataset>> {
    let mut pairs = Vec::new();
    let mut cut = 0;
    let mut left_out = 0;
    for index in 0..lines.len() {
        let in_line = |e: data::Error| format!("{}: {e}", lines.origin(index));
        let pair = template.render_preference(&lines.get(index)?).map_err(in_line)?;
        let chosen = pair.chosen.tokenize(tokenizer).map_err(in_line)?;
        let rejected = pair.rejected.tokenize(tokenizer).map_err(in_line)?;
        let is_cut = chosen.ids.len().max(rejected.ids.len()) > max_length;
        let pair = [encoding(chosen, max_length), encoding(rejected, max_length)];
        if pair.iter().any(|answer| !answer.targets.contains(&true)) {
            left_out += 1;
            continue;
        }
        cut += usize::from(is_cut);
        pairs.push(pair);
    }
    println!(
        "{} pairs; cut at {max_length} tokens: {cut}; left out without an answer: {left_out}",
        pairs.len()
    );
    let longest = pairs.iter().flatten().map(Encoding::len).max();
    let Some(longest) = longest else {
        return Err("no pair has both answers within --max-length".into());
    };
    let length = longest.next_multiple_of(8).min(max_length);
    Ok(Box::new(Pairs { pairs, collator: collator(length) }))
}

fn encoding(tokens: ChatTokens, max_length: usize) -> Encoding {
    let ChatTokens { ids, generation } = tokens;
    let mut encoding = Encoding { ids, targets: generation, ..Encoding::default() };
    encoding.truncate(max_length, Side::Right);
    // The token after the last one would be a label.
    encoding.next = None;
    encoding
}

impl Dataset for Pairs {
    fn len(&self) -> usize {
        self.pairs.len()
    }

    fn fields(&self) -> Vec<Field> {
        let named = |answer: &str| {
            let fields = self.collator.fields().into_iter();
            fields
                .map(|field| {
                    Field::new(format!("{answer}_{}", field.name), field.dtype, field.shape)
                })
                .collect::<Vec<_>>()
        };
        [named("chosen"), named("rejected")].concat()
    }

    fn read(&self, index: usize, sample: &mut Sample<'_>) -> data::Result<()> {
        let [chosen, rejected] = &self.pairs[index];
        self.collator.write(chosen.clone(), sample, 0)?;
        self.collator.write(rejected.clone(), sample, self.collator.fields().len())
    }

    fn fingerprint(&self, fingerprint: &mut Fingerprint) -> data::Result<()> {
        fingerprint.add("pairs", format!("{:?} {:?}", self.collator, self.pairs));
        Ok(())
    }
}
