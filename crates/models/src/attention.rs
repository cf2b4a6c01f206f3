//! The common part of attention in all models: splitting and joining heads, and masks.

use fulmen_nn::Linear;
use fulmen_nn::attention::{Attention, KeyValueCache};
use fulmen_tensor::{DType, Tensor};

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
            },
            None => Span { queries, keys: count, padding: None },
        }
    }

    /// The positions, counted from the first token that is not padding: `[count]`, or `[batch,
    /// count]` with padding.
    pub(crate) fn positions(&self) -> Tensor {
        let positions = self.queries.squeeze(-1);
        match &self.padding {
            Some(padding) => (positions - padding.unsqueeze(-1)).clamp(0.0, f64::from(i32::MAX)),
            None => positions,
        }
    }

    /// [`positions`](Span::positions) for `[batch, heads, count, width]`.
    pub(crate) fn positions_of_heads(&self) -> Tensor {
        match &self.padding {
            Some(_) => self.positions().unsqueeze(1),
            None => self.positions(),
        }
    }

    /// Which keys each token sees: itself and those before it (the last `window` ones), but no
    /// padding. Booleans `[count, keys]`, or `[batch, 1, count, keys]` with padding.
    pub(crate) fn mask(&self, window: Option<usize>) -> Tensor {
        let keys = Tensor::arange(DType::I32, self.keys);
        let mut mask = keys.le(&self.queries);
        if let Some(window) = window {
            mask = mask.and(keys.gt(&self.queries - window as f64));
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
    match cache {
        None => (join_heads(&attention.forward(q, k, v)), None),
        Some(cache) => {
            let cache = cache.append(k, v);
            (join_heads(&attention.forward(q, cache.keys(), cache.values())), Some(cache))
        }
    }
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
    join_heads(&attention.forward(q, k, v))
}
