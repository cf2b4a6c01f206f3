//! [`LatentAttention`]: DeepSeek's attention, whose keys and values are made of a few latent features.

use fulmen_nn::attention::{Attention, KeyValueCache, RotaryEmbedding};
use fulmen_nn::axes::constrain;
use fulmen_nn::{Dropout, Linear, Module};
use fulmen_tensor::{DType, Tensor};

use super::config::{Config, LatentSizes};
use super::{AttentionMasks, Norm};
use crate::Result;
use crate::attention::{attend, join_heads, split_heads, tokens};

/// transformers' constant of the normalizations of latent features, whatever the config says.
const EPS: f64 = 1e-6;

/// Multi-head latent attention (DeepSeek-AI 2024, "DeepSeek-V2"). Each token has a few latent features,
/// from which the keys and values of all heads are made, and one rotated part of the keys that all heads
/// share.
///
/// Generation caches only these, `kv_lora_rank + qk_rope_head_dim` numbers for each token. It does not
/// make keys and values of them again: queries are multiplied by the weight of the keys instead, and
/// means of latent features by the weight of the values.
///
/// ```
/// use fulmen_models::decoder::{Config, Decoder, ModelType};
/// use fulmen_models::{CausalLm, Pretrained};
/// use fulmen_nn::Module;
///
/// let model = Decoder::new(Config {
///     vocab_size: 50,
///     hidden_size: 16,
///     intermediate_size: 32,
///     num_hidden_layers: 1,
///     num_attention_heads: 4,
///     num_key_value_heads: Some(4),
///     kv_lora_rank: Some(8),
///     qk_rope_head_dim: Some(2),
///     ..Config::new(ModelType::DeepseekV3)
/// })?;
/// let attention = model.model.layers[0].self_attn.latent().unwrap();
/// // 128 features of keys and 128 of values for each of the four heads.
/// assert_eq!(attention.kv_b_proj.weight.ty().to_string(), "f32[1024, 8]");
///
/// model.initialize(0);
/// let cache = model.empty_cache(1, 100);
/// let [latent, rotated, _] = cache.layers()[0].types();
/// assert_eq!(latent.to_string(), "f32[1, 1, 100, 8]");
/// assert_eq!(rotated.to_string(), "f32[1, 1, 100, 2]");
/// # Ok::<(), fulmen_models::Error>(())
/// ```
#[derive(Module)]
pub struct LatentAttention {
    /// `[heads·query width, features]`, if queries have no latent features.
    pub q_proj: Option<Linear>,
    /// `[latent, features]`: the latent features of queries.
    pub q_a_proj: Option<Linear>,
    /// The normalization of the latent features of queries.
    pub q_a_layernorm: Option<Norm>,
    /// `[heads·query width, latent]`.
    pub q_b_proj: Option<Linear>,
    /// `[latent + rotated, features]`: the latent features of keys and values, and the rotated part of
    /// keys.
    pub kv_a_proj_with_mqa: Linear,
    /// The normalization of the latent features of keys and values.
    pub kv_a_layernorm: Norm,
    /// `[heads·(plain + value width), latent]`: of each head, the part of keys that is not rotated,
    /// then values.
    pub kv_b_proj: Linear,
    /// `[features, heads·value width]`.
    pub o_proj: Linear,
    dropout: Dropout,
    #[module(skip)]
    rope: RotaryEmbedding,
    #[module(skip)]
    attention: Attention,
    #[module(skip)]
    sizes: LatentSizes,
    heads: usize,
}

/// What the keys and values of tokens are made of.
struct Latent {
    /// `[batch, length, latent]`.
    features: Tensor,
    /// The rotated part of keys, `[batch, 1, length, rotated]`.
    rotated: Tensor,
}

impl LatentAttention {
    pub(super) fn new(config: &Config) -> Result<LatentAttention> {
        let Config { hidden_size: features, num_attention_heads: heads, .. } = *config;
        let sizes = config.latent_sizes();
        let biased = config.attention_bias;
        let queries = heads * sizes.query();
        let to_heads = |of: usize, to: usize, axis: &'static str| {
            Linear::new(of, to).bias(false).with_axes("heads", axis)
        };
        let to_latent = |to: usize, axis: &'static str| {
            Linear::new(features, to).bias(biased).with_axes(axis, "embed")
        };
        let norm = |features: usize| Norm::with_eps(config, features, EPS);
        let keys_and_values = heads * (sizes.plain + sizes.value);
        Ok(LatentAttention {
            q_proj: sizes.queries.is_none().then(|| to_heads(features, queries, "embed")),
            q_a_proj: sizes.queries.map(|rank| to_latent(rank, "q_lora")),
            q_a_layernorm: sizes.queries.map(norm),
            q_b_proj: sizes.queries.map(|rank| to_heads(rank, queries, "q_lora")),
            kv_a_proj_with_mqa: to_latent(sizes.keys + sizes.rotated, "kv_lora"),
            kv_a_layernorm: norm(sizes.keys),
            kv_b_proj: to_heads(sizes.keys, keys_and_values, "kv_lora"),
            o_proj: Linear::new(heads * sizes.value, features)
                .bias(biased)
                .with_axes("embed", "heads"),
            dropout: Dropout::new(config.attention_dropout),
            rope: config.rope(false)?,
            attention: Attention::new().enable_gqa(true).scale(config.latent_scale()?),
            sizes,
            heads,
        })
    }

    /// Whether some attention weights are dropped.
    pub(super) fn has_dropout(&self) -> bool {
        self.dropout.is_active()
    }

    /// A cache of latent features as keys, and of the rotated parts as values.
    pub(super) fn empty_cache(&self, dtype: DType, batch: usize, max_len: usize) -> KeyValueCache {
        let room = |width: usize| Tensor::zeros(dtype, [batch, 1, max_len, width]);
        let LatentSizes { keys, rotated, .. } = self.sizes;
        KeyValueCache::from_tensors([room(keys), room(rotated), Tensor::zeros(DType::I32, [])])
    }

    pub(super) fn forward(
        &self,
        x: &Tensor,
        masks: &AttentionMasks,
        cache: Option<&KeyValueCache>,
    ) -> (Tensor, Option<KeyValueCache>) {
        let LatentSizes { plain, rotated, .. } = self.sizes;
        let q = split_heads(&self.queries(x), self.heads);
        let q_rotated = self.rope.forward_at(q.narrow(-1, plain, rotated), &masks.positions);
        let q_plain = q.narrow(-1, 0, plain);
        let latent = self.latent(x, masks);
        let attention = masks.full.attention(&self.attention).dropout(&self.dropout);
        let (attended, cache) = match cache {
            None => (self.attend_to_heads(attention, &q_plain, &q_rotated, &latent), None),
            Some(cache) => {
                let cache = cache.append(latent.features.unsqueeze(1), &latent.rotated);
                let attended = self.attend_to_latent(attention, &q_plain, &q_rotated, &cache);
                (attended, Some(cache))
            }
        };
        (tokens(self.o_proj.forward(attended), "embed"), cache)
    }

    /// The queries of all heads, `[batch, length, heads·query width]`, not rotated.
    fn queries(&self, x: &Tensor) -> Tensor {
        let x = match (&self.q_a_proj, &self.q_a_layernorm) {
            (Some(projection), Some(norm)) => {
                norm.forward(&tokens(projection.forward(x), "q_lora"))
            }
            _ => x.clone(),
        };
        let projection = self.q_b_proj.as_ref().or(self.q_proj.as_ref());
        projection.map_or(x.clone(), |projection| projection.forward(&x))
    }

    fn latent(&self, x: &Tensor, masks: &AttentionMasks) -> Latent {
        let LatentSizes { keys, rotated, .. } = self.sizes;
        let both = tokens(self.kv_a_proj_with_mqa.forward(x), "kv_lora");
        let of_keys = both.narrow(-1, keys, rotated).unsqueeze(1);
        Latent {
            features: self.kv_a_layernorm.forward(&both.narrow(-1, 0, keys)),
            rotated: self.rope.forward_at(of_keys, &masks.positions),
        }
    }

    /// Attention to keys and values that are made of latent features, `[batch, length,
    /// heads·value width]`.
    fn attend_to_heads(
        &self,
        attention: Attention,
        q_plain: &Tensor,
        q_rotated: &Tensor,
        latent: &Latent,
    ) -> Tensor {
        let LatentSizes { plain, value, .. } = self.sizes;
        let both = split_heads(&self.kv_b_proj.forward(&latent.features), self.heads);
        let of_all_heads = latent.rotated.to_dtype(both.dtype()).broadcast_to(q_rotated.shape());
        let q = Tensor::concatenate(&[q_plain, q_rotated], -1);
        let k = Tensor::concatenate(&[&both.narrow(-1, 0, plain), &of_all_heads], -1);
        attend(attention, &q, &k, &both.narrow(-1, plain, value), None).0
    }

    /// The same attention to the latent features in a cache.
    fn attend_to_latent(
        &self,
        attention: Attention,
        q_plain: &Tensor,
        q_rotated: &Tensor,
        cache: &KeyValueCache,
    ) -> Tensor {
        let LatentSizes { plain, value, .. } = self.sizes;
        let weight = self.kv_b_proj.weight.get().to_dtype(q_plain.dtype());
        let weight = weight.unflatten(0, &[self.heads as isize, -1]);
        let of_keys = weight.narrow(1, 0, plain);
        let of_values = weight.narrow(1, plain, value);
        let q_latent = Tensor::einsum("bhqn,hnr->bhqr", &[q_plain, &of_keys]);
        let q = Tensor::concatenate(&[&q_latent, q_rotated], -1);
        let k = Tensor::concatenate(&[cache.keys(), cache.values()], -1);
        // Each device has all latent features.
        let whole = [Some("batch"), None, None, None];
        let means = attention.forward(
            constrain(q, ["batch", "heads", "length", "kv"]),
            constrain(k, whole),
            constrain(cache.keys(), whole),
        );
        let attended = Tensor::einsum("bhqr,hvr->bhqv", &[&means, &of_values]);
        tokens(join_heads(&attended), "heads")
    }
}
