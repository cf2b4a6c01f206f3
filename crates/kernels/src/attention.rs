//! [`FlashAttention`]: attention whose scores stay in vector memory, forward and backward.
//!
//! The last axis of the grid runs over the pairs of a block of queries and a block of keys of which
//! any query sees any key. Tables have these pairs, so hidden blocks take no step. The formulas are
//! those of algorithms 1 and 2 in Dao 2023, "FlashAttention-2: Faster Attention with Better
//! Parallelism and Work Partitioning". The backward pass computes transposed scores, for which the
//! sums of a query are rows.

mod backward;
mod forward;
mod pairs;

use fulmen_error::{Error, Result};
use fulmen_tensor::{AsTensor, DType, Refusal, Tensor, TensorType, custom_gradient};

use crate::padding::pad;
use crate::{Index, KERNELS, Kernel, Memory, Tile, Tiles};

/// The score of a hidden key. It is finite, so that differences of scores are no NaN.
const HIDDEN: f64 = -1e30;

/// Attention by kernels (PyTorch's `scaled_dot_product_attention`).
///
/// Products are of the dtypes of the arguments, and sums are f32, or f64 for f64.
///
/// ```
/// use fulmen_kernels::FlashAttention;
/// use fulmen_tensor::{DType, Tensor};
///
/// let q = Tensor::ones(DType::F32, [2, 8, 32, 16]); // [batch, heads, length, width]
/// let k = Tensor::ones(DType::F32, [2, 4, 32, 16]); // two query heads share a key head
/// let y = FlashAttention::new(0.25).causal(true).forward(&q, &k, &k, None);
/// assert_eq!(y.ty().to_string(), "f32[2, 8, 32, 16]");
/// ```
#[derive(Clone, Debug)]
#[must_use = "this only describes the attention; call forward()"]
pub struct FlashAttention {
    scale: f64,
    softcap: Option<f64>,
    causal: bool,
    window: Option<usize>,
    block_size: usize,
}

/// The sizes and dtypes of one call.
#[derive(Clone, Copy)]
struct Sizes {
    batch: usize,
    heads: usize,
    key_heads: usize,
    queries: usize,
    keys: usize,
    width: usize,
    value_width: usize,
    query_block: usize,
    key_block: usize,
    dtype: DType,
    value_dtype: DType,
    /// The number of rows of segment ids: 1 or the batch; `None` without ids.
    segments: Option<usize>,
}

/// The kernels of one call.
struct Kernels {
    forward: Kernel,
    of_queries: Kernel,
    of_keys: Kernel,
}

impl FlashAttention {
    /// Attention with this factor of the products, usually `1/√width`.
    pub fn new(scale: f64) -> FlashAttention {
        FlashAttention { scale, softcap: None, causal: false, window: None, block_size: 512 }
    }

    /// Whether each query sees only the keys up to its own position.
    pub fn causal(mut self, causal: bool) -> FlashAttention {
        self.causal = causal;
        self
    }

    /// Hides keys that are `window` or more positions before the query.
    pub fn window(mut self, window: Option<usize>) -> FlashAttention {
        self.window = window;
        self
    }

    /// Limits the scaled products `x` to `cap·tanh(x/cap)`.
    pub fn softcap(mut self, cap: Option<f64>) -> FlashAttention {
        self.softcap = cap;
        self
    }

    /// The numbers of queries and keys in a block; 512 unless set. On TPUs a multiple of 128, unless
    /// one block holds the whole length.
    pub fn block_size(mut self, block_size: usize) -> FlashAttention {
        self.block_size = block_size;
        self
    }

    /// The weighted means of the values, `[batch, heads, queries, value width]`, in the dtype of the
    /// values.
    ///
    /// `q` is `[batch, heads, queries, width]`, `k` is `[batch, key heads, keys, width]`, and `v` is
    /// `[batch, key heads, keys, value width]`. Query head `i` uses key head `i·key heads/heads`. The
    /// segment ids are integers `[batch, length]` or `[1, length]`, for as many queries as keys.
    /// Queries see the keys with their id. A query that sees no key gives zeros.
    ///
    /// Poisoned if the types do not fit, or if a size is 0.
    #[track_caller]
    pub fn forward(
        &self,
        q: impl AsTensor,
        k: impl AsTensor,
        v: impl AsTensor,
        segment_ids: Option<&Tensor>,
    ) -> Tensor {
        KERNELS.record("flash_attention", || {
            let tensors = [q.as_tensor(), k.as_tensor(), v.as_tensor()];
            for tensor in tensors.into_iter().chain(segment_ids) {
                tensor.live()?;
            }
            let sizes = self.sizes(tensors, segment_ids)?;
            let kernels = self.kernels(&sizes).map_err(|error| error.to_string())?;
            let mut inputs: Vec<Tensor> = tensors.map(Tensor::clone).to_vec();
            inputs.extend(segment_ids.map(|ids| ids.to_dtype(DType::I32)));
            let Kernels { forward, of_queries, of_keys } = kernels;
            let results = custom_gradient(
                inputs,
                move |inputs| {
                    let results = forward.call(&sizes.padded(&inputs));
                    let [means, log_sums] = &results[..] else { return results };
                    vec![means.narrow(-2, 0, sizes.queries), log_sums.narrow(-1, 0, sizes.queries)]
                },
                move |inputs, results, cotangents| {
                    let arguments = sizes.of_backward(inputs, results, cotangents);
                    let of_q = of_queries.call(&arguments);
                    let of_k_and_v = of_keys.call(&arguments);
                    let lengths = [sizes.queries, sizes.keys, sizes.keys];
                    let all = of_q.iter().chain(&of_k_and_v).zip(lengths);
                    let cut = all.map(|(x, length)| x.narrow(-2, 0, length));
                    cut.chain(inputs[3..].iter().map(Tensor::zeros_like)).collect()
                },
            );
            results.into_iter().next().ok_or_else(|| "the kernel has no result".into())
        })
    }

    fn sizes(&self, [q, k, v]: [&Tensor; 3], ids: Option<&Tensor>) -> Result<Sizes, Refusal> {
        let wrong = || -> Refusal {
            format!(
                "q must be [batch, heads, queries, width], k [batch, key heads, keys, width] and v [batch, key heads, keys, \
                 value width], without sizes of 0, q and k of one floating-point dtype, and the key heads must divide \
                 the heads; got {}, {} and {}",
                q.ty(),
                k.ty(),
                v.ty()
            )
            .into()
        };
        let [batch, heads, queries, width] = q.shape().dims() else { return Err(wrong()) };
        let [key_batch, key_heads, keys, key_width] = k.shape().dims() else {
            return Err(wrong());
        };
        let [value_batch, value_heads, values, value_width] = v.shape().dims() else {
            return Err(wrong());
        };
        let has_elements = [q, k, v].iter().all(|x| x.shape().num_elements() > 0);
        let fits = has_elements
            && [key_batch, value_batch] == [batch; 2]
            && key_width == width
            && [value_heads, values] == [key_heads, keys]
            && heads.is_multiple_of(*key_heads)
            && q.dtype() == k.dtype()
            && q.dtype().is_float()
            && v.dtype().is_float();
        if !fits {
            return Err(wrong());
        }
        if self.block_size == 0 || self.window == Some(0) {
            return Err("the block size and the window must be at least 1".into());
        }
        if let Some(ids) = ids {
            let rows_fit = ids.rank() == 2 && [1, *batch].contains(&ids.shape()[0]);
            if !rows_fit
                || ids.shape()[1] != *queries
                || keys != queries
                || !ids.dtype().is_integer()
            {
                return Err(format!(
                    "the segment ids {} must be integers [batch, length] or [1, length], for as many queries as keys: {} \
                     and {}",
                    ids.ty(),
                    q.ty(),
                    k.ty()
                )
                .into());
            }
        }
        // A block of 16-bit numbers has a multiple of 16 rows.
        let block = |length: usize| self.block_size.min(length.next_multiple_of(16));
        Ok(Sizes {
            batch: *batch,
            heads: *heads,
            key_heads: *key_heads,
            queries: *queries,
            keys: *keys,
            width: *width,
            value_width: *value_width,
            query_block: block(*queries),
            key_block: block(*keys),
            dtype: q.dtype(),
            value_dtype: v.dtype(),
            segments: ids.map(|ids| ids.shape()[0]),
        })
    }

    fn kernels(&self, sizes: &Sizes) -> Result<Kernels, Error> {
        Ok(Kernels {
            forward: self.forward_kernel(sizes)?,
            of_queries: self.query_kernel(sizes)?,
            of_keys: self.key_kernel(sizes)?,
        })
    }

    /// The kernels of calls that use each feature.
    pub(crate) fn examples() -> Result<Vec<Kernel>, Refusal> {
        let mut all = Vec::new();
        for number in 0..4 {
            let dtype = if number % 2 == 0 { DType::F32 } else { DType::Bf16 };
            let q = Tensor::zeros(dtype, [2, 4, 40, 8]);
            let k = Tensor::zeros(dtype, [2, 2, 40, 8]);
            let v = Tensor::zeros(dtype, [2, 2, 40, 16]);
            let ids = (number > 1).then(|| Tensor::zeros(DType::I32, [2, 40]));
            let how = FlashAttention::new(0.5)
                .block_size(16)
                .causal(number > 0)
                .window([None, Some(9)][number % 2])
                .softcap([None, Some(1.5)][number / 2]);
            let sizes = how.sizes([&q, &k, &v], ids.as_ref())?;
            let kernels = how.kernels(&sizes).map_err(|error| error.to_string())?;
            let Kernels { forward, of_queries, of_keys } = kernels;
            all.extend([forward, of_queries, of_keys]);
        }
        Ok(all)
    }

    /// The scores of a product, and the derivative of the bounded scores with respect to the scaled
    /// product; `None` if it is 1.
    fn scores(&self, product: &Tile) -> Scores {
        let scaled = product * self.scale;
        let Some(cap) = self.softcap else { return Scores { scores: scaled, slope: None } };
        let bounded = (scaled * (1.0 / cap)).tanh();
        Scores { scores: &bounded * cap, slope: Some(-&(&bounded * &bounded) + 1.0) }
    }
}

/// The scores of a pair of blocks.
struct Scores {
    scores: Tile,
    slope: Option<Tile>,
}

/// Where the blocks of a step begin, and which axis of the scores has the queries.
struct Place {
    query: Index,
    key: Index,
    query_axis: usize,
}

impl FlashAttention {
    /// Which keys each query of a pair of blocks sees; `None` if it sees all. `ids` are those of the
    /// queries and of the keys.
    fn visible(
        &self,
        k: &Tiles,
        sizes: &Sizes,
        place: &Place,
        ids: &Option<[Memory; 2]>,
    ) -> Option<Tile> {
        let mut shape = [sizes.query_block; 2];
        shape[1 - place.query_axis] = sizes.key_block;
        let query = k.iota(shape, place.query_axis, &place.query);
        let key = k.iota(shape, 1 - place.query_axis, &place.key);
        let limit = |length: usize| k.full(DType::I32, shape, length as f64);
        let causal = self.causal.then(|| key.le(&query));
        let window = self.window.filter(|&window| window < sizes.queries.max(sizes.keys));
        let window = window.map(|window| query.lt(&(&key + window as f64)));
        let keys_padded = !sizes.keys.is_multiple_of(sizes.key_block);
        let real_keys = keys_padded.then(|| key.lt(&limit(sizes.keys)));
        let queries_padded = !sizes.queries.is_multiple_of(sizes.query_block);
        let real_queries = queries_padded.then(|| query.lt(&limit(sizes.queries)));
        let same_segment = ids.as_ref().map(|ids| {
            let mut rows = ids.clone().map(|ids| ids.load());
            // The ids along the first axis of the scores are a column.
            let column = if place.query_axis == 0 { 0 } else { 1 };
            rows[column] = rows[column].transpose();
            rows[0].eq(&rows[1])
        });
        let masks = [causal, window, real_keys, real_queries, same_segment];
        masks.into_iter().flatten().reduce(|visible, more| visible.and(&more))
    }
}

impl Sizes {
    /// The dtype of scores and sums.
    fn wide(&self) -> DType {
        let is_wide = self.dtype == DType::F64 || self.value_dtype == DType::F64;
        if is_wide { DType::F64 } else { DType::F32 }
    }

    fn group(&self) -> usize {
        self.heads / self.key_heads
    }

    fn query_blocks(&self) -> usize {
        self.queries.div_ceil(self.query_block)
    }

    fn key_blocks(&self) -> usize {
        self.keys.div_ceil(self.key_block)
    }

    /// The type of the queries, padded, or of another tensor of theirs with `width` features.
    fn of_queries(&self, dtype: DType, width: usize) -> TensorType {
        let queries = self.query_blocks() * self.query_block;
        TensorType::new(dtype, [self.batch, self.heads, queries, width])
    }

    fn of_keys(&self, dtype: DType, width: usize) -> TensorType {
        let keys = self.key_blocks() * self.key_block;
        TensorType::new(dtype, [self.batch, self.key_heads, keys, width])
    }

    /// The type of one number for each query: a row.
    fn of_sums(&self) -> TensorType {
        let queries = self.query_blocks() * self.query_block;
        TensorType::new(self.wide(), [self.batch, self.heads, 1, queries])
    }

    /// The arguments of the forward kernel, padded to whole blocks.
    fn padded(&self, inputs: &[Tensor]) -> Vec<Tensor> {
        let mut padded = vec![pad(&inputs[0], 2, self.query_block)];
        padded.extend(inputs[1..3].iter().map(|x| pad(x, 2, self.key_block)));
        for ids in &inputs[3..] {
            let ids = pad(ids, 1, self.query_block).unsqueeze(1);
            padded.extend([ids.clone(), ids]);
        }
        padded
    }

    /// The arguments of both backward kernels: those of the forward kernel, the cotangents of the
    /// means, the logarithms of the sums, and for each query the number that all of its weights share.
    fn of_backward(
        &self,
        inputs: &[Tensor],
        results: &[Tensor],
        cotangents: &[Tensor],
    ) -> Vec<Tensor> {
        let wide = |x: &Tensor| x.to_dtype(self.wide());
        let products = wide(&results[0]) * wide(&cotangents[0]);
        let shared = products.sum(-1).unsqueeze(-2) - &cotangents[1];
        let mut arguments = self.padded(inputs);
        arguments.push(pad(&cotangents[0], 2, self.query_block));
        arguments.extend([&results[1], &shared].map(|x| pad(x, 1, self.query_block)));
        arguments
    }

    /// Declares the segment ids of the queries and of the keys, if there are any.
    fn ids(&self, k: &Tiles, query: &Index, key: &Index) -> Option<[Memory; 2]> {
        let segments = self.segments?;
        let ty = TensorType::new(DType::I32, [segments, 1, self.of_sums().shape[3]]);
        let row = if segments == 1 { Index::from(0) } else { k.program(0) };
        let of = |block: &Index| {
            k.input(&ty, &[1, 1, self.query_block], [row.clone(), Index::from(0), block.clone()])
        };
        Some([of(query), of(key)])
    }
}
