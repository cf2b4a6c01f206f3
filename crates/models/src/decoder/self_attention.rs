//! [`SelfAttention`]: the attention of a layer to earlier tokens, of either kind.

use fulmen_nn::attention::{Attention, KeyValueCache, RotaryEmbedding};
use fulmen_nn::{Dropout, Linear, Module};
use fulmen_tensor::{DType, Tensor};

use super::config::Config;
use super::latent_attention::LatentAttention;
use super::{Norm, PreNorm};
use crate::Result;
use crate::attention::{Visibility, attend, split_heads, tokens};

/// The attention of a layer.
#[derive(Module)]
pub enum SelfAttention {
    /// Several query heads share a head of keys and values.
    Grouped(GroupedQueryAttention),
    /// DeepSeek's: keys and values are made of latent features.
    Latent(LatentAttention),
}

/// Attention with rotated queries and keys.
#[derive(Module)]
pub struct GroupedQueryAttention {
    /// `[heads·width, features]`.
    pub q_proj: Linear,
    /// `[key heads·width, features]`.
    pub k_proj: Linear,
    /// `[key heads·width, features]`.
    pub v_proj: Linear,
    /// `[features, heads·width]`.
    pub o_proj: Linear,
    /// The normalization of each query head.
    pub q_norm: Option<Norm>,
    /// The normalization of each key head.
    pub k_norm: Option<Norm>,
    dropout: Dropout,
    #[module(skip)]
    rope: RotaryEmbedding,
    #[module(skip)]
    attention: Attention,
    sliding: bool,
    heads: usize,
    key_heads: usize,
}

/// What the layers share: the positions of tokens, and the keys that each token sees.
pub(super) struct AttentionMasks {
    pub(super) positions: Tensor,
    pub(super) full: Visibility,
    pub(super) sliding: Visibility,
    /// Whether the backward pass recomputes normalizations and activations.
    pub(super) recompute: bool,
}

impl SelfAttention {
    /// The attention of a layer with this number.
    pub(super) fn new(config: &Config, number: usize) -> Result<SelfAttention> {
        if config.has_latent_attention() {
            return LatentAttention::new(config).map(SelfAttention::Latent);
        }
        GroupedQueryAttention::new(config, number).map(SelfAttention::Grouped)
    }

    /// Whether only the last tokens are seen.
    pub(super) fn is_sliding(&self) -> bool {
        match self {
            SelfAttention::Grouped(attention) => attention.sliding,
            SelfAttention::Latent(_) => false,
        }
    }

    /// Whether some attention weights are dropped.
    pub(super) fn has_dropout(&self) -> bool {
        match self {
            SelfAttention::Grouped(attention) => attention.dropout.is_active(),
            SelfAttention::Latent(attention) => attention.has_dropout(),
        }
    }

    /// A cache for `batch` sequences of up to `max_len` tokens. `width` is that of a key head.
    pub(super) fn empty_cache(
        &self,
        dtype: DType,
        batch: usize,
        max_len: usize,
        width: usize,
    ) -> KeyValueCache {
        match self {
            SelfAttention::Grouped(attention) => {
                KeyValueCache::new(dtype, batch, attention.key_heads, max_len, width)
            }
            SelfAttention::Latent(attention) => attention.empty_cache(dtype, batch, max_len),
        }
    }

    pub(super) fn forward(
        &self,
        x: &Tensor,
        norm: &PreNorm<'_>,
        masks: &AttentionMasks,
        cache: Option<&KeyValueCache>,
    ) -> (Tensor, Option<KeyValueCache>) {
        match self {
            SelfAttention::Grouped(attention) => attention.forward(x, norm, masks, cache),
            SelfAttention::Latent(attention) => {
                attention.forward(&norm.norm.forward(x), masks, cache)
            }
        }
    }

    /// The attention, if query heads share heads of keys and values.
    pub fn grouped(&self) -> Option<&GroupedQueryAttention> {
        match self {
            SelfAttention::Grouped(attention) => Some(attention),
            SelfAttention::Latent(_) => None,
        }
    }

    /// The attention, if keys and values are made of latent features.
    pub fn latent(&self) -> Option<&LatentAttention> {
        match self {
            SelfAttention::Grouped(_) => None,
            SelfAttention::Latent(attention) => Some(attention),
        }
    }
}

impl GroupedQueryAttention {
    fn new(config: &Config, number: usize) -> Result<GroupedQueryAttention> {
        let Config { hidden_size: features, num_attention_heads: heads, .. } = *config;
        let width = config.width();
        let key_heads = config.key_heads();
        let biased = config.attention_bias || config.has_qkv_bias();
        let sliding = config.is_sliding(number);
        let mut attention = Attention::new().enable_gqa(true);
        if let Some(scalar) = config.query_pre_attn_scalar.filter(|_| config.has_post_norms()) {
            attention = attention.scale((scalar as f64).powf(-0.5));
        }
        if let Some(cap) = config.score_bound() {
            attention = attention.softcap(cap);
        }
        let key_projection = || {
            let projection = Linear::new(features, key_heads * width).bias(biased);
            projection.with_axes("kv_heads", "embed")
        };
        let head_norm = || config.has_qk_norm().then(|| Norm::new(config, width));
        Ok(GroupedQueryAttention {
            q_proj: Linear::new(features, heads * width).bias(biased).with_axes("heads", "embed"),
            k_proj: key_projection(),
            v_proj: key_projection(),
            o_proj: Linear::new(heads * width, features)
                .bias(config.has_output_bias())
                .with_axes("embed", "heads"),
            q_norm: head_norm(),
            k_norm: head_norm(),
            dropout: Dropout::new(config.attention_dropout),
            rope: config.rope(sliding)?,
            attention,
            sliding,
            heads,
            key_heads,
        })
    }

    fn forward(
        &self,
        x: &Tensor,
        norm: &PreNorm<'_>,
        masks: &AttentionMasks,
        cache: Option<&KeyValueCache>,
    ) -> (Tensor, Option<KeyValueCache>) {
        let rotated_heads = |x: Tensor, heads: usize, norm: &Option<Norm>| {
            let x = split_heads(&x, heads);
            let x = norm.as_ref().map_or(x.clone(), |norm| norm.forward(&x));
            self.rope.forward_at(x, &masks.positions)
        };
        let [q, k, v] = norm.project(x, [&self.q_proj, &self.k_proj, &self.v_proj]);
        let q = rotated_heads(q, self.heads, &self.q_norm);
        let k = rotated_heads(k, self.key_heads, &self.k_norm);
        let v = split_heads(&v, self.key_heads);
        let visibility = if self.sliding { &masks.sliding } else { &masks.full };
        let attention = visibility.attention(&self.attention).dropout(&self.dropout);
        let (attended, cache) = attend(attention, &q, &k, &v, cache);
        (tokens(self.o_proj.forward(attended), "embed"), cache)
    }
}
