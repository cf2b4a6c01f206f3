//! The sums over the logits of a linear layer and their gradients against the formula in f64, for
//! random shapes and dtypes.

use fulmen_kernels::{LinearCrossEntropy, LogitSums};
use fulmen_tensor::{DType, Tensor, grad};

use crate::random_case::{Draw, RandomCase, compare, difference, values};

#[derive(Debug)]
struct Case {
    groups: usize,
    tokens: usize,
    classes: usize,
    width: usize,
    block: usize,
    softcap: Option<f64>,
    dtype: DType,
}

impl Case {
    /// Some targets are no classes.
    fn targets(&self, draw: &mut Draw) -> Tensor {
        let target = |draw: &mut Draw| match draw.below(8) {
            0 => -100,
            1 => self.classes as i32 + 3,
            _ => draw.below(self.classes) as i32,
        };
        let targets: Vec<i32> = (0..self.groups * self.tokens).map(|_| target(draw)).collect();
        Tensor::from_slice(&targets, [self.groups, self.tokens])
    }

    /// The formula.
    fn exact(&self, x: &Tensor, weight: &Tensor, targets: &Tensor) -> LogitSums {
        let mut logits = x.matmul(&weight.t());
        if let Some(cap) = self.softcap {
            logits = (logits / cap).tanh() * cap;
        }
        let classes = Tensor::arange(DType::I32, self.classes);
        let is_target = targets.unsqueeze(-1).eq(&classes);
        LogitSums {
            log_sum_exp: logits.logsumexp(-1),
            of_target: is_target.select(&logits, 0.0).sum(-1),
            sum: logits.sum(-1),
        }
    }
}

impl RandomCase for Case {
    fn random(draw: &mut Draw) -> Case {
        Case {
            groups: 1 + draw.below(3),
            tokens: 1 + draw.below(40),
            classes: 1 + draw.below(60),
            width: 1 + draw.below(8),
            block: draw.one_of(&[3, 8, 16, 512]),
            softcap: draw.one_of(&[None, Some(2.0)]),
            dtype: draw.one_of(&[DType::F32, DType::Bf16, DType::F64]),
        }
    }

    fn dtype(&self) -> DType {
        self.dtype
    }

    fn differences(&self, draw: &mut Draw) -> Vec<f64> {
        let x = draw.uniform(self.dtype, &[self.groups, self.tokens, self.width]);
        let weight = draw.uniform(self.dtype, &[self.classes, self.width]);
        let targets = self.targets(draw);
        let factors = [0; 3].map(|_| draw.uniform(DType::F64, &[self.groups, self.tokens]));
        let all = |sums: LogitSums, x: &Tensor, weight: &Tensor| {
            let sums = [sums.log_sum_exp, sums.of_target, sums.sum];
            let wide = sums.iter().map(|sum| sum.to_dtype(DType::F64));
            let terms = wide.zip(&factors).map(|(sum, factor)| (sum * factor).sum_all());
            let loss = terms.reduce(|loss, term| loss + term).unwrap();
            let mut all = grad(&loss, &[x, weight]);
            all.extend(sums);
            all
        };
        let how = LinearCrossEntropy::new().softcap(self.softcap).block_size(self.block);
        let ours = all(how.forward(&x, &weight, &targets), &x, &weight);
        let [wide_x, wide_weight] = [&x, &weight].map(|x| x.to_dtype(DType::F64));
        let exact = all(self.exact(&wide_x, &wide_weight, &targets), &wide_x, &wide_weight);
        let values = values(&[ours, exact].concat());
        let (ours, exact) = values.split_at(5);
        ours.iter().zip(exact).map(|(ours, exact)| difference(ours, exact)).collect()
    }
}

#[test]
fn random_heads_have_the_formulas_values_and_gradients() {
    compare::<Case>(0..6);
}

#[test]
#[ignore = "minutes: cargo test -p fulmen-kernels --test it 500_random -- --ignored"]
fn the_values_and_gradients_of_500_random_heads_are_the_formulas() {
    compare::<Case>(1000..1500);
}

#[test]
fn what_does_not_fit_is_refused() {
    let x = Tensor::ones(DType::F32, [2, 4, 8]);
    let weight = Tensor::ones(DType::Bf16, [16, 8]);
    let targets = Tensor::zeros(DType::I32, [2, 4]);
    let message = |sums: LogitSums| sums.sum.fault().unwrap().to_string();
    let how = LinearCrossEntropy::new();
    let dtypes = message(how.forward(&x, &weight, &targets));
    assert!(dtypes.contains("got f32[2, 4, 8], bf16[16, 8] and i32[2, 4]"), "{dtypes}");
    assert!(dtypes.contains("linear_cross_entropy.rs"), "{dtypes}");
    let weight = weight.to_dtype(DType::F32);
    let one_row = message(how.forward(&x, &weight, targets.narrow(0, 0, 1)));
    assert!(one_row.contains("the targets integers [groups, tokens]"), "{one_row}");
    let blocks = message(how.block_size(0).forward(&x, &weight, &targets));
    assert!(blocks.contains("the block size must be at least 1"), "{blocks}");
}
