//! The common part of attention in all models: splitting and joining heads, and masks.

use fulmen_nn::Linear;
use fulmen_nn::attention::{Attention, AttentionMethod, KernelArguments, KeyValueCache};
use fulmen_nn::axes::{axis_parts, constrain};
use fulmen_tensor::{DType, Refusal, Tensor};

use crate::{Result, StaticCache, error};

/// A number in a config.
pub(crate) struct Setting {
    pub(crate) key: &'static str,
    pub(crate) value: usize,
}

impl Setting {
    pub(crate) fn new(key: &'static str, value: usize) -> Setting {
        Setting { key, value }
    }
}

/// Rejects a number of heads that does not divide the number of features.
pub(crate) fn check_heads(heads: Setting, features: Setting) -> Result<()> {
    if heads.value == 0 || features.value == 0 || !features.value.is_multiple_of(heads.value) {
        Err(error::config(format!(
            "`{}` is {}, which does not divide `{}`, {}",
            heads.key, heads.value, features.key, features.value
        )))
    } else {
        Ok(())
    }
}

/// `[batch, length, heads·width]` to `[batch, heads, length, width]`.
pub(crate) fn split_heads(x: &Tensor, heads: usize) -> Tensor {
    x.unflatten(-1, &[heads as isize, -1]).transpose(1, 2)
}

/// `[batch, heads, length, width]` to `[batch, length, heads·width]`.
pub(crate) fn join_heads(x: &Tensor) -> Tensor {
    x.transpose(1, 2).flatten(-2, -1)
}

/// Names the axes of an activation `[batch, length, features]`.
pub(crate) fn tokens(x: Tensor, features: &str) -> Tensor {
    constrain(x, ["batch", "length", features])
}

/// Names the axes of queries `[batch, heads, count, width]`, keys and values. Each device has all
/// keys of its heads.
fn of_heads(q: &Tensor, k: &Tensor, v: &Tensor) -> [Tensor; 3] {
    // Projected where the tokens are, and gathered then.
    let all = |x: &Tensor| {
        let parts = constrain(x, ["batch", "kv_heads", "length", "kv"]);
        constrain(parts, [Some("batch"), Some("kv_heads"), None, Some("kv")])
    };
    [constrain(q, ["batch", "heads", "length", "kv"]), all(k), all(v)]
}

/// The attention mask `[batch, 1, 1, length]` for a mask `[batch, length]` that is nonzero at
/// tokens and 0 at padding.
pub(crate) fn padding_mask(attention_mask: &Tensor) -> Tensor {
    attention_mask.ne(0.0).unsqueeze(1).unsqueeze(1)
}

/// The next tokens of causal sequences: their positions, and which tokens they see.
pub(crate) struct Span {
    /// The positions of the tokens in the sequence, i32 `[count, 1]`.
    pub(crate) queries: Tensor,
    /// The number of positions in the sequence.
    pub(crate) keys: usize,
    /// The number of padding tokens at the front of each sequence, i32 `[batch]`.
    padding: Option<Tensor>,
    packed: Option<Packed>,
}

/// The documents in packed sequences: integers `[batch, count]`.
struct Packed {
    /// The document of each token.
    segment_ids: Tensor,
    /// Its position there.
    positions: Tensor,
}

impl Packed {
    /// Checks that there is a number for each of the ids.
    fn check(&self, ids: &Tensor) -> Result<(), Refusal> {
        for (name, tensor) in [("segment ids", &self.segment_ids), ("positions", &self.positions)] {
            if tensor.live()?.shape() != ids.shape() || !tensor.dtype().is_integer() {
                return Err(format!(
                    "the {name} {} must be integers of the shape of the ids {}",
                    tensor.ty(),
                    ids.ty()
                )
                .into());
            }
        }
        Ok(())
    }
}

/// The sizes of a training step that decide how attention is computed.
pub(crate) struct StepSizes {
    pub(crate) length: usize,
    pub(crate) heads: usize,
    pub(crate) vocabulary: usize,
    /// The layers whose scores are in memory at once: one if each layer is recomputed.
    pub(crate) layers: usize,
    /// The features of a head; the larger number, if keys and values have different ones.
    pub(crate) width: usize,
    /// The dtype of the products.
    pub(crate) dtype: DType,
    /// Whether attention weights are dropped.
    pub(crate) has_dropout: bool,
}

/// The dtype of a product of numbers of this dtype, also in mixed precision.
pub(crate) fn product_dtype(dtype: DType) -> DType {
    let one = Tensor::zeros(dtype, [1]);
    one.matmul(&one).dtype()
}

impl StepSizes {
    /// Up to this length, [`AttentionMethod::Auto`] is plain.
    const SHORT: usize = 2048;

    /// `method`, with a decision for [`AttentionMethod::Auto`]: the kernel if the run takes it and it
    /// fits. Otherwise blocks for sequences of more than 2,048 tokens whose scores,
    /// `4·layers·heads·length²` bytes, are larger than the logits and their gradient,
    /// `6·vocabulary·length` bytes. Plain if the length is split over devices.
    pub(crate) fn decide(&self, method: AttentionMethod) -> AttentionMethod {
        let scores = 4 * self.layers.saturating_mul(self.heads).saturating_mul(self.length);
        let is_long = self.length > StepSizes::SHORT && scores > 6 * self.vocabulary;
        let otherwise = if is_long && axis_parts("length") == 1 {
            AttentionMethod::Blocks
        } else {
            AttentionMethod::Plain
        };
        let arguments = KernelArguments {
            dtype: self.dtype,
            queries: self.length,
            keys: self.length,
            width: self.width,
            value_width: self.width,
            has_mask_or_dropout: self.has_dropout,
        };
        method.decided(&arguments, otherwise)
    }
}

/// Which keys the tokens of a layer see.
pub(crate) enum Visibility {
    /// Those where this mask is true.
    Mask(Tensor),
    /// The last ones up to the token, or all up to it, in its document. In blocks or by the kernel.
    Past { method: AttentionMethod, window: Option<usize>, segment_ids: Option<Tensor> },
}

impl Visibility {
    /// The attention to these keys.
    pub(crate) fn attention(&self, attention: &Attention) -> Attention {
        let attention = attention.clone();
        match self {
            Visibility::Mask(mask) => attention.mask(mask).method(AttentionMethod::Plain),
            Visibility::Past { method, window, segment_ids } => {
                let mut attention = attention.causal(true).method(*method);
                if let Some(window) = window {
                    attention = attention.window(*window);
                }
                if let Some(segment_ids) = segment_ids {
                    attention = attention.segment_ids(segment_ids);
                }
                attention
            }
        }
    }
}

impl Span {
    /// Tokens `[batch, count]`: whole sequences, or the tokens that follow those in the cache.
    pub(crate) fn new(ids: &Tensor, cache: Option<&StaticCache>) -> Span {
        let count = ids.size(1);
        let queries = Tensor::arange(DType::I32, count).unsqueeze(-1);
        match cache.and_then(|cache| Some((cache, cache.layers().first()?))) {
            Some((cache, first)) => Span {
                queries: queries + first.position(),
                keys: first.keys().size(-2),
                padding: cache.padding().cloned(),
                packed: None,
            },
            None => Span { queries, keys: count, padding: None, packed: None },
        }
    }

    /// Whole sequences of packed documents.
    pub(crate) fn packed(
        ids: &Tensor,
        segment_ids: &Tensor,
        positions: &Tensor,
    ) -> Result<Span, Refusal> {
        let packed = Packed { segment_ids: segment_ids.clone(), positions: positions.clone() };
        packed.check(ids)?;
        Ok(Span { packed: Some(packed), ..Span::new(ids, None) })
    }

    /// The positions, counted from the first token that is not padding: `[count]`, or `[batch,
    /// count]` with padding. Those in the documents of packed sequences, `[batch, count]`.
    pub(crate) fn positions(&self) -> Tensor {
        if let Some(packed) = &self.packed {
            return packed.positions.clone();
        }
        let positions = self.queries.squeeze(-1);
        match &self.padding {
            Some(padding) => (positions - padding.unsqueeze(-1)).clamp(0.0, f64::from(i32::MAX)),
            None => positions,
        }
    }

    /// [`positions`](Span::positions) for `[batch, heads, count, width]`.
    pub(crate) fn positions_of_heads(&self) -> Tensor {
        let positions = self.positions();
        if positions.rank() > 1 { positions.unsqueeze(1) } else { positions }
    }

    /// Which keys each token sees, for attention by this method.
    pub(crate) fn visibility(&self, window: Option<usize>, method: AttentionMethod) -> Visibility {
        match method {
            AttentionMethod::Blocks | AttentionMethod::Kernel => {
                let segment_ids = self.packed.as_ref().map(|packed| packed.segment_ids.clone());
                Visibility::Past { method, window, segment_ids }
            }
            _ => Visibility::Mask(self.mask(window)),
        }
    }

    /// Which keys each token sees: itself and those before it (the last `window` ones), but no
    /// padding and no other document. Booleans `[count, keys]`, or `[batch, 1, count, keys]` with
    /// padding or documents.
    pub(crate) fn mask(&self, window: Option<usize>) -> Tensor {
        let keys = Tensor::arange(DType::I32, self.keys);
        let mut mask = keys.le(&self.queries);
        if let Some(window) = window {
            mask = mask.and(keys.gt(&self.queries - window as f64));
        }
        if let Some(Packed { segment_ids: ids, .. }) = &self.packed {
            mask = mask.and(ids.unsqueeze(-1).eq(ids.unsqueeze(-2)).unsqueeze(1));
        }
        match &self.padding {
            Some(padding) => mask.and(keys.ge(padding.reshape([padding.size(0), 1, 1, 1]))),
            None => mask,
        }
    }
}

/// Attention of queries `[batch, heads, count, width]` to keys and values
/// `[batch, key heads, count, width]`. With a cache, keys and values are first appended to it, and
/// the queries attend to everything in it.
pub(crate) fn attend(
    attention: Attention,
    q: &Tensor,
    k: &Tensor,
    v: &Tensor,
    cache: Option<&KeyValueCache>,
) -> (Tensor, Option<KeyValueCache>) {
    let [q, k, v] = of_heads(q, k, v);
    let (attended, cache) = match cache {
        None => (attention.forward(q, k, v), None),
        Some(cache) => {
            let cache = cache.append(&k, &v);
            (attention.forward(q, cache.keys(), cache.values()), Some(cache))
        }
    };
    (tokens(join_heads(&attended), "heads"), cache)
}

/// Self-attention of tokens `[batch, length, features]`. `query`, `key` and `value` are the
/// projections of the tokens.
pub(crate) fn self_attention(
    attention: Attention,
    query: &Linear,
    key: &Linear,
    value: &Linear,
    x: &Tensor,
    heads: usize,
) -> Tensor {
    let [q, k, v] =
        [query, key, value].map(|projection| split_heads(&projection.forward(x), heads));
    attend(attention, &q, &k, &v, None).0
}
