//! Attention as a function of queries, keys and values; position encodings; and the cache for
//! generation. [`MultiheadAttention`](crate::MultiheadAttention) is the layer with weights.

mod auto;
mod blocks;
mod cache;
#[cfg(feature = "kernels")]
mod kernel;
mod method;
mod positions;
mod rotary;

pub use auto::KernelArguments;
pub use cache::KeyValueCache;
pub use method::AttentionMethod;
pub use positions::{LearnedPositions, SinusoidalPositions, alibi, alibi_at, sinusoidal};
pub use rotary::{RotaryEmbedding, RotaryScaling};

use fulmen_tensor::{AsTensor, DType, Refusal, Shape, Tensor, TensorType};

use self::blocks::{Blocks, Inputs};
use crate::Dropout;
use crate::axes::axis_parts;
use crate::library::{NN, live};
use crate::precision::{precision, product_dtype};

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
/// By [`method`](Attention::method), all scores are in memory at once, or those of one block of
/// queries and keys at a time.
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
    window: Option<usize>,
    segment_ids: Option<Tensor>,
    method: AttentionMethod,
    block_size: Option<usize>,
}

/// Without a vocabulary to compare with, [`AttentionMethod::Auto`] takes blocks from this number of
/// tokens on. `4·heads·length²` bytes of scores exceed `6·vocabulary·length` bytes of logits at
/// 6,012 tokens in Llama 3 8B, and at 6,282 in GPT-2.
const LONG: usize = 6_000;

/// The scores of a block and 32 heads are 32 MiB.
const BLOCK_SIZE: usize = 512;

/// Blocks of other documents are left out, and more small blocks have no common document.
const PACKED_BLOCK_SIZE: usize = 256;

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

    /// Hides all but the last `window` keys up to the query's position: the query at position `i`
    /// does not see the keys at `0..=i − window`. Usually together with
    /// [`causal`](Attention::causal), as in Mistral and Gemma 2 and 3; alone it hides no later keys.
    pub fn window(mut self, window: usize) -> Attention {
        self.window = Some(window);
        self
    }

    /// Which segment each position belongs to: integers `[length]` or `[batch, length]`, whose
    /// leading axes are the first ones of the scores. Queries see only keys of their own segment,
    /// so that documents that are packed into one sequence do not see each other. Queries and keys
    /// must be at the same positions. [`AttentionMethod::Blocks`] leaves out a block of queries and
    /// keys if their ranges of ids overlap in no sample. If ids increase, as those of packed documents
    /// do, these are the blocks without a common document.
    ///
    /// ```
    /// use fulmen_nn::attention::Attention;
    /// use fulmen_tensor::Tensor;
    ///
    /// let q = Tensor::from_slice(&[0.0f32; 3], [3, 1]);
    /// let v = Tensor::from_slice(&[1.0f32, 3.0, 8.0], [3, 1]);
    /// let documents = Tensor::from_slice(&[1, 1, 2], [3]);
    /// let y = Attention::new().segment_ids(&documents).forward(&q, &q, &v).eval()?;
    /// assert_eq!(y.to_vec::<f32>()?, [2.0, 2.0, 8.0]);
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    pub fn segment_ids(mut self, segment_ids: impl AsTensor) -> Attention {
        self.segment_ids = Some(segment_ids.as_tensor().clone());
        self
    }

    /// How to compute it. The results differ only in rounding; dropout drops the same weights.
    /// [`AttentionMethod::Blocks`] and [`AttentionMethod::Kernel`] cannot return the weights.
    ///
    /// ```
    /// use fulmen_nn::attention::{Attention, AttentionMethod};
    /// use fulmen_tensor::{DType, Tensor, random};
    ///
    /// let x = random::normal(&random::key(0), DType::F32, [2, 700, 8]);
    /// let plain = Attention::new().causal(true).method(AttentionMethod::Plain);
    /// let blocks = plain.clone().method(AttentionMethod::Blocks);
    /// let distance = (plain.forward(&x, &x, &x) - blocks.forward(&x, &x, &x)).abs().max([0, 1, 2]);
    /// assert!(distance.eval()?.to_f64()[0] < 1e-5);
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    pub fn method(mut self, method: AttentionMethod) -> Attention {
        self.method = method;
        self
    }

    /// The numbers of queries and of keys in a block; unless set 512, or 256 with
    /// [`segment_ids`](Attention::segment_ids). A smaller block needs less memory and more steps. The lengths need not be multiples of it.
    pub fn block_size(mut self, block_size: usize) -> Attention {
        self.block_size = Some(block_size);
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
        if self.block_size == Some(0) {
            return Some("the block size is 0; it must be at least 1".into());
        }
        if let Some(ids) = &self.segment_ids {
            let length = q.size(-2);
            let outer = q.rank() - 2 - usize::from(self.grouped);
            let fits = ids.rank() > 0
                && ids.rank() - 1 <= outer
                && (0..ids.rank() - 1)
                    .all(|axis| [1, q.shape()[axis]].contains(&ids.shape()[axis]))
                && [ids.size(-1), k.size(-2)] == [length; 2]
                && q.rank() >= k.rank();
            if !fits || !ids.dtype().is_integer() {
                return Some(format!(
                    "the segment ids {} must be integers [length] or [batch, length], and queries and keys as many: \
                     {qt} and {kt}",
                    ids.ty()
                ));
            }
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
        let method = self.method_for(q, k, v);
        if method == AttentionMethod::Plain {
            return self.forward_with_weights(q, k, v).0;
        }
        NN.record("scaled_dot_product_attention", || self.in_blocks(method, q, k, v))
    }

    /// The method, with a decision for [`AttentionMethod::Auto`].
    fn method_for(&self, q: &Tensor, k: &Tensor, v: &Tensor) -> AttentionMethod {
        if self.method != AttentionMethod::Auto {
            return self.method;
        }
        // What is wrong with the arguments, another function says.
        let product = product_dtype(q.dtype(), k.dtype());
        let Ok(dtype) = product.and_then(|product| product_dtype(product, v.dtype())) else {
            return AttentionMethod::Plain;
        };
        if [q, k, v].iter().any(|x| x.rank() < 2) {
            return AttentionMethod::Plain;
        }
        let is_long = q.size(-2).saturating_mul(k.size(-2)) > LONG * LONG;
        let otherwise = if is_long && axis_parts("length") == 1 {
            AttentionMethod::Blocks
        } else {
            AttentionMethod::Plain
        };
        let arguments = KernelArguments {
            dtype,
            queries: q.size(-2),
            keys: k.size(-2),
            width: q.size(-1),
            value_width: v.size(-1),
            has_mask_or_dropout: self.mask.is_some()
                || self.dropout.as_ref().is_some_and(Dropout::is_active),
        };
        self.method.decided(&arguments, otherwise)
    }

    /// The weighted means of the values, and their weights `[…, length, positions]` after dropout.
    /// The method is plain; poisoned if another one was asked for.
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
        NN.record("scaled_dot_product_attention", || match self.method {
            AttentionMethod::Blocks | AttentionMethod::Kernel => Err(format!(
                "attention in `{}` never has all weights; ask for them with the method `plain`",
                self.method
            )
            .into()),
            _ => self.weigh(q, k, v),
        })
    }

    /// Checks the arguments.
    fn check(&self, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<(), Refusal> {
        live(&[q, k, v])?;
        self.mask.as_ref().map(Tensor::live).transpose()?;
        self.segment_ids.as_ref().map(Tensor::live).transpose()?;
        self.check_inputs(q, k, v).map_or(Ok(()), |message| Err(message.into()))
    }

    /// Checks that the mask does not enlarge the scores.
    fn check_mask(&self, dtype: DType, scores: &Shape) -> Result<(), Refusal> {
        match &self.mask {
            Some(mask) if mask.shape().broadcast(scores).as_ref() != Ok(scores) => Err(format!(
                "the mask {} does not broadcast to the scores {}",
                mask.ty(),
                TensorType::new(dtype, scores.clone())
            )
            .into()),
            _ => Ok(()),
        }
    }

    fn scale_of(&self, q: &Tensor) -> f64 {
        self.scale.unwrap_or(1.0 / (q.size(-1).max(1) as f64).sqrt())
    }

    /// [`AttentionMethod::Blocks`] and [`AttentionMethod::Kernel`].
    fn in_blocks(
        &self,
        method: AttentionMethod,
        q: &Tensor,
        k: &Tensor,
        v: &Tensor,
    ) -> Result<Tensor, Refusal> {
        self.check(q, k, v)?;
        if axis_parts("length") > 1 {
            return Err(format!(
                "attention in `{method}` needs whole sequences, but the rules for axes split `length`; use the method `plain`"
            )
            .into());
        }
        let group = self.group(q, k);
        let outer = |x: &Tensor| Shape::from(&x.shape()[..x.rank() - 2]);
        // With an axis for the query heads that share a key head.
        let grouped = |x: &Tensor| match group {
            1 => x.unsqueeze(-3),
            _ if x.size(-3) == 1 => x.unsqueeze(-3),
            _ => split_heads(x, group),
        };
        let mut of_heads = outer(q).dims().to_vec();
        if let Some(heads) = of_heads.last_mut() {
            *heads /= group;
        }
        let of_keys = Shape::from(of_heads).broadcast(&outer(k))?;
        let mut scores = of_keys.dims().to_vec();
        if let Some(heads) = scores.last_mut() {
            *heads *= group;
        }
        let product = product_dtype(q.dtype(), k.dtype())?;
        self.check_mask(product, &[&scores[..], &[q.size(-2), k.size(-2)]].concat().into())?;
        let all = of_keys.broadcast(&outer(v))?;
        let spread = |x: &Tensor, inner: usize| {
            let inner = &x.shape()[x.rank() - inner..];
            x.broadcast_to([all.dims(), inner].concat())
        };
        let rank = all.rank() + 3;
        let means = product_dtype(product, v.dtype())?;
        let inputs = Inputs {
            q: spread(&grouped(q), 3).to_dtype(product),
            k: spread(k, 2).to_dtype(product),
            v: spread(v, 2).to_dtype(means),
            mask: self.mask.as_ref().map(|mask| grouped(&with_rank(mask, rank - 1, 0))),
            segment_ids: self
                .segment_ids
                .as_ref()
                .map(|ids| with_rank(ids, rank - 1, ids.rank() - 1)),
            dropout: self.dropout.as_ref().map(Dropout::start_draw).transpose()?.flatten(),
        };
        let how = Blocks {
            block_size: self.block_size.unwrap_or(match (method, &self.segment_ids) {
                (AttentionMethod::Blocks, Some(_)) => PACKED_BLOCK_SIZE,
                _ => BLOCK_SIZE,
            }),
            scale: self.scale_of(q),
            softcap: self.softcap,
            causal: self.causal,
            window: self.window.map(|window| window.min(q.size(-2).max(k.size(-2)))),
        };
        let means = match method {
            #[cfg(feature = "kernels")]
            AttentionMethod::Kernel => how.forward_by_kernel(&inputs)?,
            #[cfg(not(feature = "kernels"))]
            AttentionMethod::Kernel => {
                return Err("attention by `kernel` needs the feature `kernels` of fulmen".into());
            }
            _ => how.forward(&inputs),
        };
        Ok(if group == 1 { means.squeeze(-3) } else { means.flatten(-4, -3) })
    }

    /// Which keys each query sees; `None` if it sees all. Booleans that broadcast to the scores.
    fn visible(&self, q: &Tensor, k: &Tensor) -> Option<Tensor> {
        let square = || Tensor::ones(DType::Bool, [q.size(-2), k.size(-2)]);
        let masked = self.mask.clone().filter(|mask| mask.dtype() == DType::Bool);
        let causal = self.causal.then(|| square().tril(0));
        let furthest = q.size(-2).max(k.size(-2));
        let window = self.window.map(|window| square().triu(1 - window.min(furthest) as i64));
        let same_segment = self.segment_ids.as_ref().map(|ids| {
            let ids = with_rank(ids, q.rank().max(k.rank()) - 1, ids.rank() - 1);
            ids.unsqueeze(-1).eq(ids.unsqueeze(-2))
        });
        let all = [masked, causal, window, same_segment].into_iter().flatten();
        all.reduce(|visible, more| visible.and(more))
    }

    fn weigh(&self, q: &Tensor, k: &Tensor, v: &Tensor) -> Result<(Tensor, Tensor), Refusal> {
        self.check(q, k, v)?;
        let scale = self.scale_of(q);
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
        self.check_mask(product.dtype(), product.shape())?;
        let wide = precision(product.dtype());
        let mut scores = product.to_dtype(wide) * scale_of_product;
        if let Some(cap) = self.softcap {
            scores = (scores / cap).tanh() * cap;
        }
        if let Some(mask) = self.mask.as_ref().filter(|mask| mask.dtype() != DType::Bool) {
            scores = scores + mask.to_dtype(wide);
        }
        if let Some(visible) = self.visible(q, k) {
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

/// The tensor with axes of size 1 before its axis `axis`, so that it has `rank` axes.
fn with_rank(x: &Tensor, rank: usize, axis: usize) -> Tensor {
    (x.rank()..rank).fold(x.clone(), |x, _| x.unsqueeze(axis as isize))
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
