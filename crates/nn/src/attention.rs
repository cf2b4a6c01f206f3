//! Attention as a function of queries, keys and values; position encodings; and the cache for
//! generation. [`MultiheadAttention`](crate::MultiheadAttention) is the layer with weights.

mod cache;
mod positions;
mod rotary;

pub use cache::KeyValueCache;
pub use positions::{LearnedPositions, SinusoidalPositions, alibi, alibi_at, sinusoidal};
pub use rotary::{RotaryEmbedding, RotaryScaling};

use fulmen_tensor::{AsTensor, DType, Refusal, Tensor};

use crate::Dropout;
use crate::library::{NN, live};
use crate::precision::precision;

/// `softmax(q kᵀ/√width) v` over the last two axes: queries `[…, length, width]`, keys
/// `[…, positions, width]` and values `[…, positions, value width]` give
/// `[…, length, value width]`. Like PyTorch's function of the same name.
///
/// With `causal`, the query at position `i` sees the keys at `0..=i` only. The softmax is computed
/// in f32; the result has the dtype of the product with the values. [`Attention`] has more
/// settings.
///
/// ```
/// use fulmen_nn::attention::scaled_dot_product_attention;
/// use fulmen_tensor::Tensor;
///
/// let q = Tensor::from_slice(&[0.0f32, 0.0], [2, 1]);
/// let v = Tensor::from_slice(&[1.0f32, 5.0], [2, 1]);
/// let all = scaled_dot_product_attention(&q, &q, &v, false).eval()?;
/// assert_eq!(all.to_vec::<f32>()?, [3.0, 3.0]);
/// let before = scaled_dot_product_attention(&q, &q, &v, true).eval()?;
/// assert_eq!(before.to_vec::<f32>()?, [1.0, 3.0]);
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
#[track_caller]
pub fn scaled_dot_product_attention(
    q: impl AsTensor,
    k: impl AsTensor,
    v: impl AsTensor,
    causal: bool,
) -> Tensor {
    let _scope = NN.open();
    let q = q.as_tensor();
    let k = k.as_tensor();
    let v = v.as_tensor();
    Attention::new().causal(causal).forward(q, k, v)
}

/// [`scaled_dot_product_attention`] with settings.
///
/// ```
/// use fulmen_nn::attention::Attention;
/// use fulmen_tensor::{DType, Tensor};
///
/// let x = Tensor::ones(DType::F32, [2, 8, 5, 16]); // [batch, heads, length, width]
/// let padding = Tensor::from_slice(&[true, true, true, false, false], [5]);
/// let y = Attention::new().causal(true).mask(&padding).forward(&x, &x, &x);
/// assert_eq!(y.ty().to_string(), "f32[2, 8, 5, 16]");
/// ```
#[derive(Clone, Debug, Default)]
#[must_use]
pub struct Attention {
    causal: bool,
    scale: Option<f64>,
    softcap: Option<f64>,
    mask: Option<Tensor>,
    dropout: Option<Dropout>,
    grouped: bool,
}

impl Attention {
    /// Every query sees every key; the scale is `1/√width`.
    pub fn new() -> Attention {
        Attention::default()
    }

    /// Whether the query at position `i` sees the keys at `0..=i` only.
    pub fn causal(mut self, causal: bool) -> Attention {
        self.causal = causal;
        self
    }

    /// The factor of the products, instead of `1/√width`.
    pub fn scale(mut self, scale: f64) -> Attention {
        self.scale = Some(scale);
        self
    }

    /// Limits the scaled products `x` to between `−cap` and `cap`, as `cap·tanh(x/cap)`. Gemma 2
    /// uses it.
    pub fn softcap(mut self, cap: f64) -> Attention {
        self.softcap = Some(cap);
        self
    }

    /// Sets which keys each query sees. The mask broadcasts to the scores `[…, length, positions]`,
    /// and must not enlarge them. Its elements are booleans that are true for visible keys, or
    /// numbers that are added to the products before the softmax: `−∞` for hidden keys. A query
    /// that sees no key gives zeros.
    pub fn mask(mut self, mask: impl AsTensor) -> Attention {
        self.mask = Some(mask.as_tensor().clone());
        self
    }

    /// Drops some of the attention weights while training.
    pub fn dropout(mut self, dropout: &Dropout) -> Attention {
        self.dropout = Some(dropout.clone());
        self
    }

    /// Uses this dropout if none was set.
    pub(crate) fn or_dropout(mut self, dropout: &Dropout) -> Attention {
        self.dropout.get_or_insert_with(|| dropout.clone());
        self
    }

    /// Whether several query heads, on axis −3, may share a head of keys and values. This is
    /// grouped-query attention or, with a single key head, multi-query attention. With `H` query
    /// heads and `h` key heads, query head `i` uses key head `i·h/H`. Without this setting, heads
    /// broadcast.
    ///
    /// ```
    /// use fulmen_nn::attention::Attention;
    /// use fulmen_tensor::{DType, Tensor};
    ///
    /// let q = Tensor::ones(DType::F32, [2, 8, 5, 16]);
    /// let k = Tensor::ones(DType::F32, [2, 2, 5, 16]);
    /// let y = Attention::new().enable_gqa(true).causal(true).forward(&q, &k, &k);
    /// assert_eq!(y.ty().to_string(), "f32[2, 8, 5, 16]");
    /// ```
    pub fn enable_gqa(mut self, grouped: bool) -> Attention {
        self.grouped = grouped;
        self
    }

    /// The number of query heads that share a key head.
    fn group(&self, q: &Tensor, k: &Tensor) -> usize {
        if self.grouped && q.rank() > 2 && k.rank() > 2 {
            q.size(-3).checked_div(k.size(-3)).unwrap_or(1).max(1)
        } else {
            1
        }
    }

    /// What is wrong with the arguments, if anything.
    fn check_inputs(&self, q: &Tensor, k: &Tensor, v: &Tensor) -> Option<String> {
        let qt = q.ty();
        let kt = k.ty();
        let vt = v.ty();
        if let Some(ty) =
            [qt, kt, vt].into_iter().find(|ty| ty.shape.rank() < 2 || !ty.dtype.is_float())
        {
            return Some(format!("{ty} is not a floating-point tensor [.., length, width]"));
        }
        if q.size(-1) != k.size(-1) {
            return Some(format!("the last axes of queries and keys differ: {qt} and {kt}"));
        }
        if k.size(-2) != v.size(-2) {
            return Some(format!("the numbers of keys and values differ (axis -2): {kt} and {vt}"));
        }
        if self.grouped {
            let rank = q.rank().min(k.rank()).min(v.rank());
            let heads = k.size(-3);
            if rank < 3 || heads == 0 || !q.size(-3).is_multiple_of(heads) || v.size(-3) != heads {
                return Some(format!(
                    "the heads of the queries {qt} are not a multiple of those of keys {kt} and values {vt} (axis -3)"
                ));
            }
        }
        if k.size(-2) == 0 {
            return Some(format!("there are no keys: {kt}"));
        }
        let mask = self.mask.as_ref()?;
        let dtype = mask.dtype();
        (dtype != DType::Bool && !dtype.is_float())
            .then(|| format!("the mask {} must be boolean or floating-point", mask.ty()))
    }

    /// The weighted means of the values.
    #[track_caller]
    pub fn forward(&self, q: impl AsTensor, k: impl AsTensor, v: impl AsTensor) -> Tensor {
        let q = q.as_tensor();
        let k = k.as_tensor();
        let v = v.as_tensor();
        self.forward_with_weights(q, k, v).0
    }

    /// The weighted means of the values, and their weights `[…, length, positions]` after dropout.
    #[track_caller]
    pub fn forward_with_weights(
        &self,
        q: impl AsTensor,
        k: impl AsTensor,
        v: impl AsTensor,
    ) -> (Tensor, Tensor) {
        let q = q.as_tensor();
        let k = k.as_tensor();
        let v = v.as_tensor();
        NN.record("scaled_dot_product_attention", || self.weigh(q, k, v))
    }

    fn weigh(&self, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<(Tensor, Tensor), Refusal> {
        live(&[q, k, v])?;
        self.mask.as_ref().map(Tensor::live).transpose()?;
        if let Some(message) = self.check_inputs(q, k, v) {
            return Err(message.into());
        }
        let scale = self.scale.unwrap_or(1.0 / (q.size(-1).max(1) as f64).sqrt());
        let group = self.group(q, k);
        let multiply = |q: &Tensor, k: &Tensor| match group {
            1 => q.matmul(&k.transpose(-2, -1)),
            _ => Tensor::einsum("...hgqd,...hkd->...hgqk", &[&split_heads(q, group), k])
                .flatten(-4, -3),
        };
        let mut product = multiply(q, k);
        let mut scale_of_product = scale;
        if product.live()?.dtype() == DType::F16 {
            let (of_q, of_k) = powers_of_two(scale);
            product = multiply(&(q * of_q), &(k * of_k));
            scale_of_product = scale / (of_q * of_k);
        }
        // A mask must not enlarge the scores.
        if let Some(mask) = &self.mask
            && mask.shape().broadcast(product.shape()).as_ref() != Ok(product.shape())
        {
            return Err(format!(
                "the mask {} does not broadcast to the scores {}",
                mask.ty(),
                product.ty()
            )
            .into());
        }
        let wide = precision(product.dtype());
        let mut scores = product.to_dtype(wide) * scale_of_product;
        if let Some(cap) = self.softcap {
            scores = (scores / cap).tanh() * cap;
        }
        let mut visible = None;
        match &self.mask {
            Some(mask) if mask.dtype() == DType::Bool => visible = Some(mask.clone()),
            Some(mask) => scores = scores + mask.to_dtype(wide),
            None => {}
        }
        if self.causal {
            let square = [q.size(-2), k.size(-2)];
            let before = Tensor::ones(DType::Bool, square).tril(0);
            visible = Some(match visible {
                Some(visible) => visible.and(before),
                None => before,
            });
        }
        if let Some(visible) = visible {
            let hidden = Tensor::full(wide, [], f64::NEG_INFINITY);
            scores = visible.select(&scores, &hidden);
        }
        let mut weights = softmax_of_some(&scores).to_dtype(product.dtype());
        if let Some(dropout) = &self.dropout {
            weights = dropout.forward(&weights);
        }
        weights.live()?;
        let means = match group {
            1 => weights.matmul(v),
            _ => Tensor::einsum("...hgqk,...hkd->...hgqd", &[&split_heads(&weights, group), v])
                .flatten(-4, -3),
        };
        Ok((means, weights))
    }
}

/// Powers of two whose product is close to a scale below 1. The queries and the keys are multiplied
/// by them, which rounds nothing, because their product may be larger than an f16 can hold. As in
/// PyTorch, each gets about the root of the scale.
fn powers_of_two(scale: f64) -> (f64, f64) {
    let exponent = scale.abs().log2().round();
    // An f16 has 2⁻²⁴ at least.
    let exponent = if exponent.is_nan() { 0.0 } else { exponent.clamp(-24.0, 0.0) };
    let of_q = (exponent / 2.0).floor();
    (of_q.exp2(), (exponent - of_q).exp2())
}

/// `[…, heads, length, width]` to `[…, heads/group, group, length, width]`: the heads that share
/// keys have an axis of their own, so that neither the keys nor a mask must be copied.
fn split_heads(x: &Tensor, group: usize) -> Tensor {
    let [outer @ .., heads, length, width] = x.shape().dims() else { return x.clone() };
    x.reshape([outer, &[heads / group, group, *length, *width]].concat())
}

/// The softmax over the last axis. Zeros if all scores are −∞, without NaN in the gradient.
fn softmax_of_some(scores: &Tensor) -> Tensor {
    let largest = scores.detach().max_keepdim(-1);
    let all_hidden = largest.eq(f64::NEG_INFINITY);
    let finite_largest = all_hidden.select(&largest.zeros_like(), &largest);
    let exp = (scores - finite_largest).exp();
    let sum = exp.sum_keepdim(-1);
    &exp / all_hidden.select(&sum.ones_like(), &sum)
}
