//! Makes samples of one length from tokens: ids, padding mask, token types, documents and labels.
//!
//! Out of scope: the tokens, and masking them (`masking`).

use std::sync::Arc;

use super::encoding::first_position;
use super::masking::token_label;
use super::{Encoding, MaskedLanguageModel, Side};
use fulmen_data::{
    DType, Dataset, Error, Field, Fingerprint, IterableDataset, Record, Records, Result, Sample,
    Source, Stage, Stream, StreamItem,
};

/// The label of positions that a loss ignores, as in PyTorch and `transformers`:
/// `CrossEntropyLoss::new().ignore_index(-100)`.
pub const IGNORE_INDEX: i32 = -100;

/// The labels of a causal language model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum CausalLabels {
    /// `labels[i]` is the token after `input_ids[i]`, so labels and logits are aligned. The last
    /// label is [`Encoding::next`] if it is known, and otherwise [`IGNORE_INDEX`].
    #[default]
    Shifted,
    /// `labels` equals `input_ids`, as in `transformers`; the model shifts the labels by one.
    Same,
}

/// Turns tokens into samples. The fields, in this order:
///
/// | field | content | present |
/// | --- | --- | --- |
/// | `input_ids` | `i32[length]` | always |
/// | `attention_mask` | `bool[length]`: true where there is a token, false for padding | always |
/// | `token_type_ids` | `i32[length]`: which text of a pair | [`token_type_ids`](TokenCollator::token_type_ids) |
/// | `segment_ids` | `i32[length]`: which document, from 1; 0 for padding | [`documents`](TokenCollator::documents) |
/// | `position_ids` | `i32[length]`: the position within its document | [`documents`](TokenCollator::documents) |
/// | `labels` | `i32[length]` | [`causal`](TokenCollator::causal), [`masked`](TokenCollator::masked) |
///
/// After a reshape to `[batch, 1, 1, length]`, `attention_mask` is a mask for `fulmen_nn`'s
/// attention. Padding has the label [`IGNORE_INDEX`]. Only its position makes a token padding, so a
/// text may end with the padding token.
///
/// ```
/// use fulmen_text::{Encoding, TokenCollator};
/// use fulmen_data::{Field, HostBatch, Fingerprint, Result, Source};
///
/// struct Reviews; // Two of them, tokenized, with their labels.
///
/// impl Source for Reviews {
///     type Item = (Encoding, i32);
///     fn len(&self) -> usize {
///         2
///     }
///     fn get(&self, index: usize) -> Result<(Encoding, i32)> {
///         Ok((Encoding::from_ids(vec![5; index + 1]), index as i32))
///     }
///     fn origin(&self, index: usize) -> String {
///         format!("review {index}")
///     }
///     fn fingerprint(&self, _: &mut Fingerprint) -> Result<()> {
///         Ok(())
///     }
/// }
///
/// let texts = TokenCollator::new(3, 0);
/// let mut fields = texts.fields();
/// fields.push(Field::new("label", fulmen_data::DType::I32, []));
/// let data = Reviews.into_dataset(fields, move |(encoding, label), sample| {
///     texts.write(encoding, sample, 0)?;
///     sample.write_value(2, label)
/// });
/// let batch = HostBatch::collate(&data, &[0, 1])?;
/// assert_eq!(batch.values::<i32>(0)?, [5, 0, 0, 5, 5, 0]);
/// assert_eq!(batch.values::<bool>(1)?, [true, false, false, true, true, false]);
/// # Ok::<(), fulmen_data::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct TokenCollator {
    length: usize,
    pad_id: u32,
    padding: Side,
    truncation: Option<Side>,
    token_types: bool,
    documents: bool,
    labels: Labels,
}

#[derive(Clone, Debug)]
enum Labels {
    None,
    Causal(CausalLabels),
    Masked(MaskedLanguageModel),
}

impl TokenCollator {
    /// Makes samples of `length` tokens, padded on the right with `pad_id`. A longer text is an
    /// error.
    pub fn new(length: usize, pad_id: u32) -> TokenCollator {
        TokenCollator {
            length,
            pad_id,
            padding: Side::Right,
            truncation: None,
            token_types: false,
            documents: false,
            labels: Labels::None,
        }
    }

    /// The side of the padding; right unless set.
    pub fn padding(mut self, side: Side) -> TokenCollator {
        self.padding = side;
        self
    }

    /// Truncates long texts on this side, including special tokens. For a tokenizer that adds
    /// special tokens, prefer `Tokenizer::max_length`, which keeps them.
    pub fn truncation(mut self, side: Side) -> TokenCollator {
        self.truncation = Some(side);
        self
    }

    /// Whether to add the field `token_type_ids`.
    pub fn token_type_ids(mut self, token_types: bool) -> TokenCollator {
        self.token_types = token_types;
        self
    }

    /// Whether to add the fields `segment_ids` and `position_ids`, which distinguish the documents
    /// of a block; off unless set. `forward_packed` of GPT-2 and the decoders in `fulmen_models`
    /// takes them, so that documents do not see each other. With these fields, causal labels do not
    /// cross document boundaries.
    pub fn documents(mut self, documents: bool) -> TokenCollator {
        self.documents = documents;
        self
    }

    /// Adds the labels of a causal language model, which predicts each token from the tokens before
    /// it.
    pub fn causal(mut self, labels: CausalLabels) -> TokenCollator {
        self.labels = Labels::Causal(labels);
        self
    }

    /// Masks tokens, and adds them as labels. The random numbers come from the sample, so the masks
    /// differ in each epoch.
    pub fn masked(mut self, masked: MaskedLanguageModel) -> TokenCollator {
        self.labels = Labels::Masked(masked);
        self
    }

    /// The fields of a sample.
    pub fn fields(&self) -> Vec<Field> {
        let mut fields =
            vec![self.field("input_ids"), Field::new("attention_mask", DType::Bool, [self.length])];
        if self.token_types {
            fields.push(self.field("token_type_ids"));
        }
        if self.documents {
            fields.extend([self.field("segment_ids"), self.field("position_ids")]);
        }
        if !matches!(self.labels, Labels::None) {
            fields.push(self.field("labels"));
        }
        fields
    }

    fn field(&self, name: &str) -> Field {
        Field::new(name, DType::I32, [self.length])
    }

    /// Writes a sample's fields, starting with field `first`. The tokens are padded to the length
    /// of the field, which is shorter in some batches if the loader has buckets.
    ///
    /// # Errors
    /// More tokens than the length; a token that does not fit in an i32; fields that differ from
    /// [`fields`](TokenCollator::fields).
    pub fn write(
        &self,
        mut encoding: Encoding,
        sample: &mut Sample<'_>,
        first: usize,
    ) -> Result<()> {
        encoding.check()?;
        let length = match sample.fields().get(first) {
            Some(Field { shape, .. }) if shape.len() == 1 => shape[0],
            other => {
                let actual =
                    other.map_or("there is none".to_owned(), |field| format!("it is {field}"));
                return Err(Error::field(format!(
                    "field {first} should hold the tokens as {}, but {actual}; give TokenCollator::fields to the \
                     dataset, and their position to `write`",
                    self.field("input_ids")
                )));
            }
        };
        if let Some(side) = self.truncation {
            encoding.truncate(length, side);
        }
        let tokens = encoding.len();
        let start = first_position(tokens, length, self.padding)?;
        // The labels are made before the ids are written, because masking changes the ids.
        let labels = self.make_labels(&mut encoding, sample)?;

        let mut values = Values { sample, field: first, start };
        values.write(token_label(self.pad_id)?, tokens, |position| {
            token_label(encoding.ids[position])
        })?;
        let mask: Vec<bool> =
            (0..length).map(|position| (start..start + tokens).contains(&position)).collect();
        values.sample.write_slice::<bool>(first + 1, &mask)?;
        values.field += 1;
        if self.token_types {
            let types = &encoding.type_ids;
            values.write(0, tokens, |position| {
                token_label(types.get(position).copied().unwrap_or(0))
            })?;
        }
        if self.documents {
            let starts = &encoding.starts;
            let document_number =
                |position: usize| starts.partition_point(|&start| start <= position);
            values.write(0, tokens, |position| Ok(document_number(position) as i32 + 1))?;
            values.write(0, tokens, |position| {
                let document =
                    document_number(position).checked_sub(1).map_or(0, |last| starts[last]);
                Ok((position - document) as i32)
            })?;
        }
        if let Some(labels) = labels {
            values.write(IGNORE_INDEX, tokens, |position| Ok(labels[position]))?;
        }
        Ok(())
    }

    /// Makes a label for each token, if the samples have labels.
    fn make_labels(
        &self,
        encoding: &mut Encoding,
        sample: &mut Sample<'_>,
    ) -> Result<Option<Vec<i32>>> {
        let mut labels: Vec<i32> = match &self.labels {
            Labels::None => return Ok(None),
            Labels::Masked(_) if !encoding.targets.is_empty() => {
                return Err(Error::usage(
                    "the tokens say which of them a causal language model learns, but the labels are of masked tokens; \
                     use TokenCollator::causal",
                ));
            }
            Labels::Masked(masked) => return masked.apply(encoding, sample.random()).map(Some),
            Labels::Causal(_) => {
                encoding.ids.iter().map(|&id| token_label(id)).collect::<Result<_>>()?
            }
        };
        for (label, &is_target) in labels.iter_mut().zip(&encoding.targets) {
            if !is_target {
                *label = IGNORE_INDEX;
            }
        }
        let shifted = matches!(self.labels, Labels::Causal(CausalLabels::Shifted));
        if shifted && !labels.is_empty() {
            labels.remove(0);
            labels.push(encoding.next.map_or(Ok(IGNORE_INDEX), token_label)?);
        }
        if self.documents {
            // The first token of a document is not predicted from another document. Its label is at
            // the previous position or, if the model shifts the labels, at the same position.
            for &start in &encoding.starts {
                if let Some(label) = labels.get_mut(start - usize::from(shifted)) {
                    *label = IGNORE_INDEX;
                }
            }
        }
        Ok(Some(labels))
    }

    /// Makes a [`Dataset`] of the tokens of a [`Source`], or an [`IterableDataset`] of the tokens
    /// of a [`Stream`].
    ///
    /// ```
    /// use fulmen_text::{PackedDocuments, TokenArray, TokenCollator};
    /// use fulmen_data::HostBatch;
    ///
    /// let mut tokens = TokenArray::new(100)?;
    /// for document in [&[11, 12, 13][..], &[21, 22, 23], &[31]] {
    ///     tokens.push(document)?;
    /// }
    /// let data = TokenCollator::new(4, 0).documents(true).dataset(PackedDocuments::new(tokens, 4)?)?;
    /// let batch = HostBatch::collate(&data, &[0, 1])?;
    /// assert_eq!(batch.values::<i32>(0)?, [11, 12, 13, 31, 21, 22, 23, 0]);
    /// assert_eq!(batch.values::<i32>(2)?, [1, 1, 1, 2, 1, 1, 1, 0]); // segment_ids
    /// assert_eq!(batch.values::<i32>(3)?, [0, 1, 2, 0, 0, 1, 2, 0]); // position_ids
    /// # Ok::<(), fulmen_data::Error>(())
    /// ```
    ///
    /// # Errors
    /// A length of 0 or one that does not fit in an i32; invalid probabilities for masking.
    pub fn dataset<S>(self, tokens: S) -> Result<TokenDataset<S>> {
        self.check()?;
        Ok(TokenDataset { source: tokens, samples: self })
    }

    fn check(&self) -> Result<()> {
        if self.length == 0 || i32::try_from(self.length).is_err() {
            let message = format!("samples of {} tokens; use from 1 to {}", self.length, i32::MAX);
            return Err(Error::usage(message));
        }
        match &self.labels {
            Labels::Masked(masked) => masked.check(),
            _ => Ok(()),
        }
    }

    /// All options in one line.
    pub fn describe(&self) -> String {
        format!("{self:?}")
    }
}

/// Writes the i32 fields in their order.
struct Values<'a, 'b> {
    sample: &'a mut Sample<'b>,
    field: usize,
    /// The position of the first token.
    start: usize,
}

impl Values<'_, '_> {
    fn write(
        &mut self,
        padding: i32,
        tokens: usize,
        value: impl Fn(usize) -> Result<i32>,
    ) -> Result<()> {
        let values = self.sample.values_mut::<i32>(self.field)?;
        if values.len() < self.start + tokens {
            return Err(Error::field(format!(
                "field {} holds {} values, fewer than the first of the sample's fields",
                self.field,
                values.len()
            )));
        }
        values.fill(padding);
        for (index, slot) in values[self.start..self.start + tokens].iter_mut().enumerate() {
            *slot = value(index)?;
        }
        self.field += 1;
        Ok(())
    }
}

/// The tokens of a source or a stream as samples of one length. Made by [`TokenCollator::dataset`].
#[derive(Clone, Debug)]
pub struct TokenDataset<S> {
    source: S,
    samples: TokenCollator,
}

impl<S: Source<Item = Encoding>> Dataset for TokenDataset<S> {
    fn len(&self) -> usize {
        self.source.len()
    }

    fn fields(&self) -> Vec<Field> {
        self.samples.fields()
    }

    fn read(&self, index: usize, sample: &mut Sample<'_>) -> Result<()> {
        let encoding = self.source.get(index)?;
        Stage::Transform.timed(|| self.samples.write(encoding, sample, 0))
    }

    fn origin(&self, index: usize) -> Option<String> {
        Some(self.source.origin(index))
    }

    fn fingerprint(&self, fingerprint: &mut Fingerprint) -> Result<()> {
        fingerprint.add("token samples", self.samples.describe());
        self.source.fingerprint(fingerprint)
    }
}

impl<S: Stream<Item = Encoding>> IterableDataset for TokenDataset<S> {
    fn len(&self) -> Option<usize> {
        self.source.len()
    }

    fn fields(&self) -> Vec<Field> {
        self.samples.fields()
    }

    fn records(&self, epoch: u64) -> Result<Records> {
        let samples = Arc::new(self.samples.clone());
        Ok(Box::new(self.source.deferred(epoch)?.map(move |item| {
            let StreamItem { index, origin, item } = item?;
            let samples = Arc::clone(&samples);
            Ok(Record::new(index, origin, move |sample| {
                let encoding = item.make()?;
                Stage::Transform.timed(|| samples.write(encoding, sample, 0))
            }))
        })))
    }

    fn fingerprint(&self, fingerprint: &mut Fingerprint) -> Result<()> {
        fingerprint.add("token samples", self.samples.describe());
        self.source.fingerprint(fingerprint)
    }

    fn describe(&self) -> String {
        self.source.describe()
    }
}
