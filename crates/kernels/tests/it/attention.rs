//! Flash attention and its gradients against the formula in f64, for random shapes, masks and dtypes.

use fulmen_kernels::FlashAttention;
use fulmen_tensor::{DType, Tensor, grad};

use crate::random_case::{Draw, RandomCase, compare, difference, values};

/// One attention: what the kernels are asked for.
#[derive(Debug)]
struct Case {
    batch: usize,
    key_heads: usize,
    group: usize,
    queries: usize,
    keys: usize,
    width: usize,
    value_width: usize,
    block: usize,
    causal: bool,
    window: Option<usize>,
    softcap: Option<f64>,
    /// The number of rows of segment ids.
    segments: Option<usize>,
    dtype: DType,
}

impl Case {
    /// The formula, in f64.
    fn exact(&self, q: &Tensor, k: &Tensor, v: &Tensor, ids: Option<&Tensor>) -> Tensor {
        let repeated = |x: &Tensor| x.repeat_interleave(self.group, 1);
        let mut scores = q.matmul(&repeated(k).transpose(-1, -2)) * 0.5;
        if let Some(cap) = self.softcap {
            scores = (scores / cap).tanh() * cap;
        }
        let query = Tensor::arange(DType::I32, self.queries).unsqueeze(-1);
        let key = Tensor::arange(DType::I32, self.keys);
        let mut visible = Tensor::ones(DType::Bool, [self.queries, self.keys]);
        if self.causal {
            visible = visible.and(key.le(&query));
        }
        if let Some(window) = self.window {
            visible = visible.and(key.gt(&query - window as f64));
        }
        if let Some(ids) = ids {
            let same = ids.unsqueeze(-1).eq(ids.unsqueeze(-2)).unsqueeze(1);
            visible = visible.and(same);
        }
        // Hidden scores have no weight, and a query without keys has no means.
        let weights = visible.select(&scores.exp(), 0.0);
        let sums = weights.sum_keepdim(-1);
        (weights / sums.eq(0.0).select(1.0, &sums)).matmul(&repeated(v))
    }
}

impl RandomCase for Case {
    fn random(draw: &mut Draw) -> Case {
        let batch = 1 + draw.below(2);
        let queries = 1 + draw.below(40);
        let segments = draw.one_of(&[None, Some(1), Some(batch)]);
        Case {
            batch,
            key_heads: 1 + draw.below(2),
            group: 1 + draw.below(3),
            queries,
            keys: if segments.is_some() { queries } else { 1 + draw.below(40) },
            width: 1 + draw.below(8),
            value_width: 1 + draw.below(8),
            block: draw.one_of(&[3, 8, 16]),
            causal: draw.below(2) == 0,
            window: draw.one_of(&[None, None, Some(1), Some(7), Some(100)]),
            softcap: draw.one_of(&[None, Some(2.0)]),
            segments,
            dtype: draw.one_of(&[DType::F32, DType::Bf16, DType::F64]),
        }
    }

    fn dtype(&self) -> DType {
        self.dtype
    }

    fn differences(&self, draw: &mut Draw) -> Vec<f64> {
        let dtype = self.dtype;
        let heads = self.key_heads * self.group;
        let q = draw.uniform(dtype, &[self.batch, heads, self.queries, self.width]);
        let k = draw.uniform(dtype, &[self.batch, self.key_heads, self.keys, self.width]);
        let v = draw.uniform(dtype, &[self.batch, self.key_heads, self.keys, self.value_width]);
        let of_means = draw.uniform(dtype, &[self.batch, heads, self.queries, self.value_width]);
        let ids = self.segments.map(|rows| {
            let ids: Vec<i32> = (0..rows * self.queries).map(|i| (i / 7 % 3) as i32).collect();
            Tensor::from_slice(&ids, [rows, self.queries])
        });
        let how = FlashAttention::new(0.5)
            .causal(self.causal)
            .window(self.window)
            .softcap(self.softcap)
            .block_size(self.block);
        let means = how.forward(&q, &k, &v, ids.as_ref());
        let mut all = vec![means.clone()];
        all.extend(grad(&(&means * &of_means).to_dtype(DType::F64).sum_all(), &[&q, &k, &v]));
        let wide = [&q, &k, &v].map(|x| x.to_dtype(DType::F64));
        let exact = self.exact(&wide[0], &wide[1], &wide[2], ids.as_ref());
        let loss = (&exact * of_means.to_dtype(DType::F64)).sum_all();
        all.push(exact);
        all.extend(grad(&loss, &[&wide[0], &wide[1], &wide[2]]));
        let values = values(&all);
        let (ours, exact) = values.split_at(4);
        ours.iter().zip(exact).map(|(ours, exact)| difference(ours, exact)).collect()
    }
}

#[test]
fn random_attentions_have_the_formulas_values_and_gradients() {
    compare::<Case>(0..4);
}

#[test]
#[ignore = "minutes: cargo test -p fulmen-kernels --test it 500_random -- --ignored"]
fn the_values_and_gradients_of_500_random_attentions_are_the_formulas() {
    compare::<Case>(1000..1500);
}

#[test]
fn what_does_not_fit_is_refused() {
    let q = Tensor::ones(DType::F32, [2, 4, 8, 16]);
    let k = Tensor::ones(DType::F32, [2, 3, 8, 16]);
    let how = FlashAttention::new(1.0);
    let message = |y: &Tensor| y.fault().map(ToString::to_string).unwrap_or_default();
    let heads = message(&how.forward(&q, &k, &k, None));
    assert!(heads.contains("the key heads must divide the heads; got f32[2, 4, 8, 16]"), "{heads}");
    assert!(heads.contains("attention.rs"), "{heads}");
    let ids = Tensor::zeros(DType::I32, [2, 7]);
    let ids = message(&how.forward(&q, &q, &q, Some(&ids)));
    assert!(ids.contains("the segment ids i32[2, 7] must be integers [batch, length]"), "{ids}");
    let blocks = message(&how.block_size(0).forward(&q, &q, &q, None));
    assert!(blocks.contains("the block size and the window must be at least 1"), "{blocks}");
}
