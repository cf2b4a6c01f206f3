//! Attention whose memory grows with the length of the sequence, not with its square.
//!
//! One loop runs over the pairs of a block of queries and a block of keys of which any query sees
//! any key; other pairs are not computed. Which pairs a causal mask or a window hides is known before.
//! Pairs whose documents differ in all samples are found on the device, and the loop passes over them.
//! The scores of one pair exist at a time. Each query keeps
//! the largest score so far, the sum of exponentials, and the weighted sum of values. The result is
//! exact, as the sums are rescaled when a larger score appears (Milakov and Gimelshein 2018, "Online
//! normalizer calculation for softmax"). The backward pass computes the scores again, from the
//! logarithm of the sum that the forward pass keeps. The formulas are those of algorithms 1 and 2
//! in Dao 2023, "FlashAttention-2: Faster Attention with Better Parallelism and Work Partitioning".
//!
//! It uses only operations of XLA, so it runs on every platform. It is not a kernel: the scores of
//! a pair are written to the device's memory.

use fulmen_tensor::internal::bernoulli_part;
use fulmen_tensor::{DType, Tensor, Tree, autocast, cond, custom_gradient, scan};

use crate::layers::dropout::Draw;
use crate::padding::pad;
use crate::precision::precision;

/// The tensors of an attention. `…` are the same leading axes for all but the mask and the segment
/// ids, which broadcast; `g` is the number of query heads that share a key head.
#[derive(Clone, Tree)]
pub(super) struct Inputs {
    /// `[…, g, queries, width]`.
    pub(super) q: Tensor,
    /// `[…, keys, width]`.
    pub(super) k: Tensor,
    /// `[…, keys, value width]`.
    pub(super) v: Tensor,
    /// `[…, g, queries, keys]`: true for visible keys, or numbers to add.
    pub(super) mask: Option<Tensor>,
    /// `[…, 1, length]`: integers. Queries see the keys with the same number.
    pub(super) segment_ids: Option<Tensor>,
    pub(super) dropout: Option<Draw>,
}

/// The settings of an attention.
#[derive(Clone, Debug)]
pub(super) struct Blocks {
    pub(super) block_size: usize,
    pub(super) scale: f64,
    pub(super) softcap: Option<f64>,
    pub(super) causal: bool,
    pub(super) window: Option<usize>,
}

/// Where a pair of blocks begins, i32 scalars, or where each of several pairs begins.
#[derive(Tree)]
struct Pair {
    query: Tensor,
    key: Tensor,
    /// With segment ids, whether any query may see any key in any sample: booleans.
    is_visible: Option<Tensor>,
}

impl Pair {
    /// The next carry of a loop. If no query sees any key, it is the last one.
    fn step<C: Tree>(&self, carry: C, next: impl FnOnce(C) -> C) -> C {
        match &self.is_visible {
            Some(is_visible) => cond(is_visible, carry, next, |carry| carry),
            None => next(carry),
        }
    }
}

/// A part of an axis, which is counted from the last.
struct Part<'a> {
    from_last: usize,
    start: &'a Tensor,
    size: usize,
}

/// The axis of queries in the queries and their results, and in the scores.
const QUERIES: usize = 2;

impl Part<'_> {
    /// The starts and sizes of a slice. An axis of one element stays whole, as it broadcasts.
    fn of(parts: &[Part<'_>], x: &Tensor) -> (Vec<Tensor>, Vec<usize>) {
        let mut starts = vec![Tensor::zeros(DType::I32, []); x.rank()];
        let mut sizes = x.shape().dims().to_vec();
        for part in parts {
            let axis = x.rank() - part.from_last;
            if sizes[axis] > 1 {
                starts[axis] = part.start.clone();
                sizes[axis] = part.size;
            }
        }
        (starts, sizes)
    }
}

fn slice(x: &Tensor, parts: &[Part<'_>]) -> Tensor {
    let (starts, sizes) = Part::of(parts, x);
    x.dynamic_slice(&starts, &sizes)
}

fn replace(x: &Tensor, parts: &[Part<'_>], new: &Tensor) -> Tensor {
    x.dynamic_update_slice(new, &Part::of(parts, x).0)
}

fn add(x: &Tensor, parts: &[Part<'_>], more: &Tensor) -> Tensor {
    replace(x, parts, &(slice(x, parts) + more))
}

/// The sum over the axes along which `like`, of the same rank, has one element.
fn sum_to(x: Tensor, like: &Tensor) -> Tensor {
    let axes = (0..x.rank() as isize).filter(|&axis| like.size(axis) == 1 && x.size(axis) > 1);
    let axes: Vec<isize> = axes.collect();
    if axes.is_empty() { x } else { x.sum_keepdim(&axes[..]) }
}

/// What both passes have: padded tensors, the shapes, and the settings.
struct Pass<'a> {
    how: &'a Blocks,
    /// Padded to whole blocks.
    t: Inputs,
    /// Without padding.
    queries: usize,
    keys: usize,
    query_block: usize,
    key_block: usize,
    /// The dtype of scores and sums.
    wide: DType,
}

/// What each query keeps while the loop goes over the keys.
#[derive(Tree)]
struct Running {
    /// The weighted mean of the values, before the division by `sum`.
    mean: Tensor,
    /// The largest score.
    largest: Tensor,
    /// The sum of the exponentials.
    sum: Tensor,
}

/// The results of the forward pass.
#[derive(Tree)]
struct Results {
    /// The weighted means of the values.
    means: Tensor,
    /// The logarithm of each query's sum of exponentials, which is 0 if it sees no key.
    log_sums: Tensor,
}

/// The sums of the backward pass: the cotangents of the padded tensors.
#[derive(Tree)]
struct Cotangents {
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Option<Tensor>,
}

/// What the backward pass has of the results, padded.
struct OfResults {
    /// The cotangents of the means.
    means: Tensor,
    /// The sum of each query's means times their cotangents, without the cotangent of its logarithm.
    offset: Tensor,
    /// The logarithms of the sums.
    log_sum: Tensor,
}

/// The scores of a pair of blocks.
struct Scores {
    /// −∞ where a key is hidden.
    scores: Tensor,
    /// The derivative of the bounded scores with respect to the products; `None` if it is 1.
    slope: Option<Tensor>,
}

impl Blocks {
    /// The weighted means of the values, `[…, g, queries, value width]`, in the dtype of the values.
    pub(super) fn forward(self, inputs: &Inputs) -> Tensor {
        let how = self.clone();
        let results = custom_gradient(
            inputs.clone(),
            |inputs| autocast(None, || Pass::new(&self, &inputs).forward()),
            move |inputs, results, cotangents| {
                autocast(None, || Pass::new(&how, inputs).backward(inputs, results, cotangents))
            },
        );
        results.means
    }
}

impl<'a> Pass<'a> {
    fn new(how: &'a Blocks, inputs: &Inputs) -> Pass<'a> {
        let queries = inputs.q.size(-2);
        let keys = inputs.k.size(-2);
        let query_block = how.block_size.min(queries).max(1);
        let key_block = how.block_size.min(keys).max(1);
        let t = Inputs {
            q: pad(&inputs.q, QUERIES, query_block),
            k: pad(&inputs.k, 2, key_block),
            v: pad(&inputs.v, 2, key_block),
            mask: inputs.mask.as_ref().map(|m| pad(&pad(m, QUERIES, query_block), 1, key_block)),
            segment_ids: inputs.segment_ids.as_ref().map(|ids| pad(ids, 1, query_block)),
            dropout: inputs.dropout.clone(),
        };
        let wide = precision(inputs.q.dtype());
        Pass { how, t, queries, keys, query_block, key_block, wide }
    }

    /// The starts of the pairs of blocks in which any query sees any key: those of the queries, and
    /// those of the keys.
    fn pairs(&self) -> Pair {
        let mut starts = [Vec::new(), Vec::new()];
        for query in (0..self.queries).step_by(self.query_block) {
            let last_query = (query + self.query_block).min(self.queries) - 1;
            for key in (0..self.keys).step_by(self.key_block) {
                let last_key = (key + self.key_block).min(self.keys) - 1;
                let is_later = self.how.causal && key > last_query;
                let is_too_early = self.how.window.is_some_and(|window| last_key + window <= query);
                if !is_later && !is_too_early {
                    starts[0].push(query as i32);
                    starts[1].push(key as i32);
                }
            }
        }
        let is_visible = self.t.segment_ids.as_ref().map(|ids| self.pairs_in_segment(ids, &starts));
        let [query, key] = starts.map(|starts| Tensor::from_slice(&starts, [starts.len()]));
        Pair { query, key, is_visible }
    }

    /// Whether the segment ids of a pair of blocks may be the same anywhere: their ranges overlap in
    /// any sample. Ids that increase, as those of packed documents do, are the same somewhere then.
    fn pairs_in_segment(&self, ids: &Tensor, [queries, keys]: &[Vec<i32>; 2]) -> Tensor {
        let blocks = ids.unflatten(-1, &[-1, self.query_block as isize]);
        let all = [blocks.min(-1), blocks.max(-1)];
        let of = |starts: &[i32], size: usize| {
            let numbers: Vec<i32> = starts.iter().map(|start| start / size as i32).collect();
            let numbers = Tensor::from_slice(&numbers, [numbers.len()]);
            all.each_ref().map(|all| all.index_select(-1, &numbers))
        };
        let [query_low, query_high] = of(queries, self.query_block);
        let [key_low, key_high] = of(keys, self.key_block);
        let overlap = query_low.le(key_high).and(key_low.le(query_high));
        let samples: Vec<isize> = (0..overlap.rank() as isize - 1).collect();
        overlap.any(&samples[..])
    }

    fn query_part<'p>(&self, at: &'p Pair) -> [Part<'p>; 1] {
        [Part { from_last: QUERIES, start: &at.query, size: self.query_block }]
    }

    fn key_part<'p>(&self, at: &'p Pair) -> [Part<'p>; 1] {
        [Part { from_last: 2, start: &at.key, size: self.key_block }]
    }

    /// The parts of a tensor with the axes of the scores.
    fn score_parts<'p>(&self, at: &'p Pair) -> [Part<'p>; 2] {
        let [query] = self.query_part(at);
        [query, Part { from_last: 1, start: &at.key, size: self.key_block }]
    }

    /// A block of a tensor in the dtype of sums. On a TPU, a product of such blocks still takes one
    /// pass of 16 bits by default, and its result is not rounded.
    fn wide_block(&self, x: &Tensor, part: &[Part<'_>]) -> Tensor {
        slice(x, part).to_dtype(self.wide)
    }

    /// The scores of queries with keys.
    fn scores(&self, q: &Tensor, k: &Tensor, at: &Pair) -> Scores {
        let mut scores = Tensor::einsum("...gqd,...kd->...gqk", &[q, k]) * self.how.scale;
        let mut slope = None;
        if let Some(cap) = self.how.softcap {
            let bounded = (scores / cap).tanh();
            slope = Some(1.0 - &bounded * &bounded);
            scores = bounded * cap;
        }
        if let Some(mask) = self.t.mask.as_ref().filter(|mask| mask.dtype() != DType::Bool) {
            scores = scores + self.wide_block(mask, &self.score_parts(at));
        }
        if let Some(visible) = self.visible(at) {
            let hidden = Tensor::full(self.wide, [], f64::NEG_INFINITY);
            scores = visible.select(&scores, &hidden);
        }
        Scores { scores, slope }
    }

    /// Which keys each query of a pair of blocks sees; `None` if it sees all.
    fn visible(&self, at: &Pair) -> Option<Tensor> {
        let query = Tensor::arange(DType::I32, self.query_block).unsqueeze(-1) + &at.query;
        let key = Tensor::arange(DType::I32, self.key_block) + &at.key;
        let causal = self.how.causal.then(|| key.le(&query));
        let window = self.how.window.map(|window| key.gt(&query - window as f64));
        let is_padded = !self.keys.is_multiple_of(self.key_block);
        let inside = is_padded.then(|| key.lt(self.keys as f64));
        let masked = self.t.mask.as_ref().filter(|mask| mask.dtype() == DType::Bool);
        let masked = masked.map(|mask| slice(mask, &self.score_parts(at)));
        let same_segment = self.t.segment_ids.as_ref().map(|ids| {
            let of = |start, size| slice(ids, &[Part { from_last: 1, start, size }]);
            let queries = of(&at.query, self.query_block);
            queries.unsqueeze(-1).eq(of(&at.key, self.key_block).unsqueeze(-2))
        });
        [causal, window, inside, masked, same_segment]
            .into_iter()
            .flatten()
            .reduce(|visible, more| visible.and(more))
    }

    /// Drops the elements of a block of weights that a dropout of all weights would drop.
    fn drop(&self, weights: &Tensor, at: &Pair) -> Tensor {
        let Some(Draw { key, p }) = &self.t.dropout else { return weights.clone() };
        let outer = &weights.shape()[..weights.rank() - 2];
        let mut starts = vec![Tensor::zeros(DType::I32, []); outer.len()];
        starts.extend([at.query.clone(), at.key.clone()]);
        let shape = [outer, &[self.queries, self.keys]].concat();
        let kept = bernoulli_part(key, 1.0 - p, shape, &starts, weights.shape());
        kept.select(&(weights / (1.0 - p)), &weights.zeros_like())
    }

    /// Zeros with the axes of the queries, and another number of features.
    fn zeros(&self, features: usize) -> Tensor {
        let outer = &self.t.q.shape()[..self.t.q.rank() - 1];
        Tensor::zeros(self.wide, [outer, &[features]].concat())
    }

    fn forward(&self) -> Results {
        let largest = self.zeros(1) + f64::NEG_INFINITY;
        let mean = self.zeros(self.t.v.size(-1));
        let init = Running { mean, largest, sum: self.zeros(1) };
        let (all, ()) = scan(init, self.pairs(), |all, at| {
            (at.step(all, |all| self.forward_pair(&all, &at)), ())
        });
        let Running { mean, largest, sum } = all;
        let sees_nothing = sum.eq(0.0);
        let mean = mean / sees_nothing.select(&sum.ones_like(), &sum);
        let log_sum = sees_nothing.select(&sum.zeros_like(), &(largest + sum.log()));
        let cut = |x: &Tensor| x.narrow(-2, 0, self.queries);
        Results { means: cut(&mean).to_dtype(self.t.v.dtype()), log_sums: cut(&log_sum) }
    }

    /// What the queries keep after a pair of blocks.
    fn forward_pair(&self, all: &Running, at: &Pair) -> Running {
        let part = &self.query_part(at);
        let q = self.wide_block(&self.t.q, part);
        let [k, v] = [&self.t.k, &self.t.v].map(|x| self.wide_block(x, &self.key_part(at)));
        let Scores { scores, .. } = self.scores(&q, &k, at);
        let [mean, largest, sum] = [&all.mean, &all.largest, &all.sum].map(|all| slice(all, part));
        let next = largest.maximum(scores.max_keepdim(-1));
        let finite = next.eq(f64::NEG_INFINITY).select(&next.zeros_like(), &next);
        let weights = (scores - &finite).exp();
        let shrink = (largest - finite).exp();
        let sum = sum * &shrink + weights.sum_keepdim(-1);
        let more = Tensor::einsum("...gqk,...ke->...gqe", &[&self.drop(&weights, at), &v]);
        let mean = mean * shrink + more;
        Running {
            mean: replace(&all.mean, part, &mean),
            largest: replace(&all.largest, part, &next),
            sum: replace(&all.sum, part, &sum),
        }
    }

    /// The cotangents of all tensors of `inputs`.
    fn backward(&self, inputs: &Inputs, results: &Results, cotangents: &Results) -> Inputs {
        let wide = |x: &Tensor| x.to_dtype(self.wide);
        let all = |x: &Tensor| pad(x, QUERIES, self.query_block);
        let products = wide(&results.means) * wide(&cotangents.means);
        let offset = all(&(products.sum_keepdim(-1) - &cotangents.log_sums));
        let of_means = all(&cotangents.means);
        let log_sum = all(&results.log_sums);
        let bias = self.t.mask.as_ref().filter(|mask| mask.dtype() != DType::Bool);
        let zeros = |x: &Tensor| Tensor::zeros(self.wide, x.shape());
        let init = Cotangents {
            q: zeros(&self.t.q),
            k: zeros(&self.t.k),
            v: zeros(&self.t.v),
            bias: bias.map(zeros),
        };
        let of_results = OfResults { means: of_means, offset, log_sum };
        let (sums, ()) = scan(init, self.pairs(), |sums, at| {
            (at.step(sums, |sums| self.backward_pair(&sums, &of_results, &at)), ())
        });
        let cut = |sum: &Tensor, input: &Tensor| {
            let start = vec![0; input.rank()];
            let cut = sum.slice(&start, input.shape(), &vec![1; input.rank()]);
            cut.to_dtype(input.dtype())
        };
        let mut of_inputs = inputs.map_tensors(&mut Tensor::zeros_like);
        of_inputs.q = cut(&sums.q, &inputs.q);
        of_inputs.k = cut(&sums.k, &inputs.k);
        of_inputs.v = cut(&sums.v, &inputs.v);
        if let (Some(of_bias), Some(mask)) = (&sums.bias, &inputs.mask) {
            of_inputs.mask = Some(cut(of_bias, mask));
        }
        of_inputs
    }

    /// The sums after a pair of blocks.
    fn backward_pair(&self, sums: &Cotangents, of_results: &OfResults, at: &Pair) -> Cotangents {
        let OfResults { means: of_means, offset, log_sum } = of_results;
        let query = &self.query_part(at);
        let key = &self.key_part(at);
        let [q, of_mean] = [&self.t.q, of_means].map(|x| self.wide_block(x, query));
        let [k, v] = [&self.t.k, &self.t.v].map(|x| self.wide_block(x, key));
        let Scores { scores, slope } = self.scores(&q, &k, at);
        let weights = (scores - slice(log_sum, query)).exp();
        let kept = self.drop(&weights, at);
        let of_v = Tensor::einsum("...gqk,...gqe->...ke", &[&kept, &of_mean]);
        let of_kept = Tensor::einsum("...gqe,...ke->...gqk", &[&of_mean, &v]);
        let of_scores = weights * (self.drop(&of_kept, at) - slice(offset, query));
        let of_products = slope.map_or(of_scores.clone(), |slope| &of_scores * slope);
        let of_products = of_products * self.how.scale;
        let of_q = Tensor::einsum("...gqk,...kd->...gqd", &[&of_products, &k]);
        let of_k = Tensor::einsum("...gqk,...gqd->...kd", &[&of_products, &q]);
        Cotangents {
            q: add(&sums.q, query, &of_q),
            k: add(&sums.k, key, &of_k),
            v: add(&sums.v, key, &of_v),
            bias: sums
                .bias
                .as_ref()
                .map(|of_bias| add(of_bias, &self.score_parts(at), &sum_to(of_scores, of_bias))),
        }
    }
}
