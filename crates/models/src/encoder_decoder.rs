//! [`Decoding`]: the common part of decoders that read an encoder's output.

use fulmen_nn::attention::Attention;
use fulmen_tensor::{AsTensor, DType, Refusal, Tensor};

use crate::attention::{join_heads, padding_mask};
use crate::{CausalLm, EncoderTokens, MODELS, Prompt, StaticCache};

/// A model with an encoder and a decoder.
pub(crate) trait EncoderDecoder {
    /// The name of the operation in faults.
    fn name(&self) -> &'static str;

    /// The first token of the decoder.
    fn start_token(&self) -> i32;

    /// The token that the decoder reads where a label is ignored.
    fn padding_token(&self) -> i32;

    /// Encodes ids `[batch, length]`: the features, and their keys and values for each layer of the
    /// decoder.
    fn encode(
        &self,
        ids: &Tensor,
        mask: Option<&Tensor>,
    ) -> Result<(Tensor, Vec<KeysValues>), Refusal>;

    /// The features of the decoder's ids. Each sees those before it and the encoder's output.
    fn decode(
        &self,
        ids: &Tensor,
        memory: &Memory,
        cache: Option<&StaticCache>,
    ) -> (Tensor, Option<StaticCache>);

    /// The output projection of the decoder.
    fn head(&self, x: Tensor) -> Tensor;

    /// A cache for `batch` sequences.
    fn empty_cache(&self, batch: usize, max_len: usize) -> StaticCache;

    /// The maximum number of tokens of the decoder; `None` if there is no limit.
    fn max_positions(&self) -> Option<usize>;
}

/// Keys and values, each `[batch, heads, length, width]`.
#[derive(Clone)]
pub(crate) struct KeysValues {
    pub(crate) keys: Tensor,
    pub(crate) values: Tensor,
}

/// The encoder's output for a batch of texts.
pub(crate) struct Memory {
    features: Tensor,
    /// Keys and values of the features, for each layer of the decoder.
    keys_values: Vec<KeysValues>,
    mask: Option<Tensor>,
    batch: usize,
}

impl Memory {
    /// Keys and values for a layer. Without a cache, `project` computes them, because a scan over
    /// layers is recorded for its first layer only, while each layer has its own.
    pub(crate) fn keys_values(
        &self,
        layer: usize,
        has_cache: bool,
        project: impl Fn(&Tensor) -> KeysValues,
    ) -> KeysValues {
        match self.keys_values.get(layer).filter(|_| has_cache) {
            Some(keys_values) => keys_values.clone(),
            None => project(&self.features),
        }
    }

    /// Which of the encoder's tokens are visible, bool `[batch, 1, 1, length]`; `None` if all are.
    pub(crate) fn mask(&self) -> Option<&Tensor> {
        self.mask.as_ref()
    }

    /// Attention of queries `[rows, heads, count, width]` to keys and values of the encoder's
    /// tokens, with the mask that `attention` has: `[rows, count, heads·width]`. Each text may have several consecutive rows, the beams
    /// of a search. They attend as if they were tokens of a single row, so that keys are not
    /// copied.
    pub(crate) fn attend(
        &self,
        attention: Attention,
        q: &Tensor,
        keys_values: &KeysValues,
    ) -> Tensor {
        let KeysValues { keys, values } = keys_values;
        let [rows, heads, count, width] = [0, 1, 2, 3].map(|axis| q.size(axis));
        let batch = keys.size(0).max(1);
        let beams = rows / batch;
        let q = q.reshape([batch, beams, heads, count, width]).transpose(1, 2);
        let attended = attention
            .forward(q.reshape([batch, heads, beams * count, width]), keys, values)
            .reshape([batch, heads, beams, count, width])
            .transpose(1, 2);
        join_heads(&attended.reshape([rows, heads, count, width]))
    }
}

/// A decoder together with the encoder's output for a batch of texts, with keys and values already
/// computed.
/// [`generate`](crate::generate()) continues from its [`start`](Decoding::start).
pub struct Decoding<'m> {
    model: &'m dyn EncoderDecoder,
    memory: Memory,
    read: EncoderTokens,
}

impl<'m> Decoding<'m> {
    /// Encodes ids; `attention_mask`, of the same shape, is 0 for padding. Poisoned if the shapes
    /// do not fit.
    pub(crate) fn new(
        model: &'m dyn EncoderDecoder,
        ids: &Tensor,
        attention_mask: Option<&Tensor>,
    ) -> Decoding<'m> {
        let encode = || {
            let ids = ids.live()?;
            if ids.rank() != 2 || attention_mask.is_some_and(|mask| mask.shape() != ids.shape()) {
                let mask = attention_mask.map_or("none".into(), |mask| mask.ty().to_string());
                return Err(format!(
                    "the ids {} are not [batch, length], or the mask {mask} is not",
                    ids.ty()
                )
                .into());
            }
            let mask = attention_mask.map(padding_mask);
            let (features, keys_values) = model.encode(ids, mask.as_ref())?;
            Ok(Memory { features, keys_values, mask, batch: ids.size(0) })
        };
        let memory = encode().unwrap_or_else(|refusal: Refusal| {
            let features = MODELS.record(model.name(), || Err::<Tensor, Refusal>(refusal));
            Memory { features, keys_values: Vec::new(), mask: None, batch: 1 }
        });
        let mask = match attention_mask {
            Some(mask) => mask.ne(0.0),
            None => Tensor::ones(DType::Bool, ids.shape()),
        };
        Decoding { model, memory, read: EncoderTokens { ids: ids.to_dtype(DType::I32), mask } }
    }

    /// The first token of a decoder, for each text.
    pub fn start(&self) -> Prompt {
        Prompt::new(&vec![[self.model.start_token().max(0) as u32]; self.memory.batch])
    }

    /// The logits `[batch, length, vocabulary]` of the token after each of the ids, integers
    /// `[batch, length]`.
    #[track_caller]
    pub fn forward(&self, ids: impl AsTensor) -> Tensor {
        MODELS.record(self.model.name(), || {
            Ok(self.model.head(self.features(ids.as_tensor(), None)?.0))
        })
    }

    /// The decoder's ids for labels, integers `[batch, length]`: each label shifted one position to
    /// the right, after the decoder's first token. So
    /// `decoding.forward(decoding.shift_right(&labels))` gives the logits of the labels. Negative
    /// labels, which the loss ignores, become the padding token, as in transformers.
    #[track_caller]
    pub fn shift_right(&self, labels: impl AsTensor) -> Tensor {
        MODELS.record("shift_right", || {
            let labels = labels.as_tensor().live()?;
            if labels.rank() != 2 || labels.size(1) == 0 || !labels.dtype().is_integer() {
                return Err(
                    format!("the labels {} are not integers [batch, length]", labels.ty()).into()
                );
            }
            let start =
                Tensor::full(DType::I32, [labels.size(0), 1], f64::from(self.model.start_token()));
            let before = labels.narrow(1, 0, labels.size(1) - 1).to_dtype(DType::I32);
            let is_ignored = before.lt(0.0);
            let before = before.masked_fill(is_ignored, f64::from(self.model.padding_token()));
            Ok(Tensor::concatenate(&[&start, &before], 1))
        })
    }

    fn features(
        &self,
        ids: &Tensor,
        cache: Option<&StaticCache>,
    ) -> Result<(Tensor, Option<StaticCache>), Refusal> {
        let ids = ids.live()?;
        self.memory.features.live()?;
        let batch = self.memory.batch;
        if ids.rank() != 2 || batch == 0 || !ids.size(0).is_multiple_of(batch) {
            return Err(format!(
                "the decoder's ids {} are not [batch, length] of {batch} texts",
                ids.ty()
            )
            .into());
        }
        if let Some(max_length) =
            self.model.max_positions().filter(|&max_length| ids.size(1) > max_length)
        {
            return Err(format!(
                "the decoder's ids {} are more than {max_length} positions",
                ids.ty()
            )
            .into());
        }
        Ok(self.model.decode(ids, &self.memory, cache))
    }
}

impl CausalLm for Decoding<'_> {
    fn empty_cache(&self, batch: usize, max_len: usize) -> StaticCache {
        self.model.empty_cache(batch, max_len)
    }

    #[track_caller]
    fn next_token_logits(&self, ids: &Tensor, cache: &StaticCache) -> (Tensor, StaticCache) {
        MODELS.record(self.model.name(), || {
            let (x, after) = self.features(ids, Some(cache))?;
            Ok((self.model.head(x.index(1, -1)), after.unwrap_or_else(|| cache.clone())))
        })
    }

    fn max_positions(&self) -> Option<usize> {
        self.model.max_positions()
    }

    fn encoder_tokens(&self) -> Option<EncoderTokens> {
        Some(self.read.clone())
    }

    fn decoder_start_token(&self) -> Option<i32> {
        Some(self.model.start_token())
    }
}
