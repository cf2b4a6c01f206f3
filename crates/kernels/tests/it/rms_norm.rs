//! The RMS norm with a residual and its gradients against the formula in f64.

use fulmen_kernels::rms_norm_residual;
use fulmen_tensor::{DType, Tensor, grad};

use crate::random_case::{Draw, difference, values};

fn exact(x: &Tensor, residual: &Tensor, weight: &Tensor, eps: f64) -> [Tensor; 2] {
    let sum = x + residual;
    let scale = ((&sum * &sum).mean_keepdim(-1) + eps).rsqrt();
    [&sum * scale * weight, sum]
}

#[test]
fn random_norms_have_the_formulas_values_and_gradients() {
    for number in 0..3 {
        let mut draw = Draw::new(number);
        let dtype = draw.one_of(&[DType::F32, DType::Bf16, DType::F64]);
        let weight_dtype = draw.one_of(&[dtype, DType::F32]);
        let shape = [1 + draw.below(3), 1 + draw.below(300), 1 + draw.below(20)];
        let x = draw.uniform(dtype, &shape);
        let residual = draw.uniform(dtype, &shape);
        let weight = draw.uniform(weight_dtype, &shape[2..]);
        let seeds = [0, 1].map(|_| draw.uniform(DType::F64, &shape));
        let loss = |results: &[Tensor; 2]| {
            let [norm, sum] = results.each_ref().map(|x| x.to_dtype(DType::F64));
            (norm * &seeds[0] + sum * &seeds[1]).sum_all()
        };
        let ours = rms_norm_residual(&x, &residual, &weight, 1e-3);
        let mut all = ours.to_vec();
        all.extend(grad(&loss(&ours), &[&x, &residual, &weight]));
        let wide = [&x, &residual, &weight].map(|x| x.to_dtype(DType::F64));
        let exact = exact(&wide[0], &wide[1], &wide[2], 1e-3);
        all.extend(exact.clone());
        all.extend(grad(&loss(&exact), &[&wide[0], &wide[1], &wide[2]]));
        let values = values(&all);
        let (ours, exact) = values.split_at(5);
        let tolerance = match dtype {
            DType::F64 => 1e-6,
            DType::F32 => 2e-5,
            _ => 4e-2,
        };
        for (ours, exact) in ours.iter().zip(exact) {
            let difference = difference(ours, exact);
            assert!(difference < tolerance, "case {number}: {dtype:?} {shape:?}: {difference}");
        }
    }
}

#[test]
fn what_does_not_fit_is_refused() {
    let x = Tensor::ones(DType::F32, [4, 8]);
    let weight = Tensor::ones(DType::F32, [7]);
    let [norm, _] = rms_norm_residual(&x, &x, &weight, 1e-6);
    let message = norm.fault().unwrap().to_string();
    assert!(message.contains("got f32[4, 8], f32[4, 8] and f32[7]"), "{message}");
}
