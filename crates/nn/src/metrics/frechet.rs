//! [`FrechetDistance`] between generated and real samples.

use fulmen_tensor::{DType, Tensor};

use super::labels::count_all;
use super::regression::halves;
use super::{Metric, Value};

/// The Fréchet distance between real and generated samples, each described by features from some
/// network: `|μ₁ − μ₂|² + tr(C₁ + C₂ − 2·(C₁·C₂)^½)` of their means and covariances. It is 0 if
/// these are equal. With the features of an Inception network it is the FID.
///
/// The inputs of its [`MetricState`](super::MetricState) are the features of the real and of the
/// generated samples, both `[samples, features]`. The state has `4·features²` numbers, and the host
/// computes eigenvalues of matrices with `features²` numbers. Use it with hundreds of features, and with more
/// samples than features.
///
/// ```
/// use fulmen_nn::metrics::{FrechetDistance, MetricState};
/// use fulmen_tensor::Tensor;
/// let real = Tensor::from_slice(&[0.0f32, 2.0, 4.0], [3, 1]); // mean 2, variance 4
/// let generated = Tensor::from_slice(&[2.0f32, 3.0, 4.0], [3, 1]); // mean 3, variance 1
/// let distance = MetricState::new(FrechetDistance, &[&real, &generated], &[3]).eval()?.compute();
/// assert!((distance.scalar().unwrap_or(f64::NAN) - (1.0 + (2.0f64 - 1.0).powi(2))).abs() < 1e-6);
/// # Ok::<(), fulmen_nn::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FrechetDistance;

impl Metric for FrechetDistance {
    fn statistics(&self, inputs: &[Tensor], mask: &Tensor) -> Vec<Tensor> {
        let types: Vec<_> = inputs.iter().map(Tensor::ty).collect();
        let types_match = types
            .iter()
            .all(|ty| ty.dtype.is_float() && ty.shape.rank() == 2 && ty.shape == types[0].shape);
        if types.len() != 2 || !types_match {
            let types: Vec<String> = types.iter().map(ToString::to_string).collect();
            let message = format!(
                "needs the features of real and of generated samples, floating-point numbers [samples, features], got {}",
                types.join(", ")
            );
            return vec![Tensor::poison("FrechetDistance", message)];
        }
        let mut sums = vec![count_all(mask)];
        for features in inputs {
            // A covariance is the difference of two sums, which are large if the mean is.
            let x = features.to_dtype(DType::F64);
            let x = mask.unsqueeze(1).broadcast_to(x.shape()).select(&x, &x.zeros_like());
            // Not a matrix product, which a TPU would round to bf16.
            sums.extend(halves(&x.sum(0)));
            sums.extend(halves(&(x.unsqueeze(2) * x.unsqueeze(1)).sum(0)));
        }
        sums
    }

    fn compute(&self, sums: &[Vec<f64>]) -> Value {
        let [count, features @ ..] = sums else { return Value::Scalar(f64::NAN) };
        let Some((real, generated)) = features.split_at_checked(4) else {
            return Value::Scalar(f64::NAN);
        };
        let n = count.first().copied().unwrap_or(0.0);
        let (mean_1, covariance_1) = moments(n, real);
        let (mean_2, covariance_2) = moments(n, generated);
        let mean_distance: f64 = mean_1.iter().zip(&mean_2).map(|(a, b)| (a - b) * (a - b)).sum();
        let trace =
            |matrix: &[Vec<f64>]| matrix.iter().enumerate().map(|(i, row)| row[i]).sum::<f64>();
        let traces = trace(&covariance_1) + trace(&covariance_2);
        // The roots of the eigenvalues of C₁·C₂ are those of C₁^½·C₂·C₁^½, which is symmetric.
        let (values, vectors) = eigen(covariance_1);
        let roots = values.iter().map(|value| value.max(0.0).sqrt());
        let rows: Vec<Vec<f64>> = roots
            .zip(vectors)
            .map(|(root, row)| row.into_iter().map(|x| x * root).collect())
            .collect();
        let dot = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>();
        let product = rows.iter().map(|row| {
            let product_row: Vec<f64> =
                covariance_2.iter().map(|column| dot(column, row)).collect();
            rows.iter().map(|other| dot(other, &product_row)).collect()
        });
        let shared: f64 =
            eigen(product.collect()).0.iter().map(|value| value.max(0.0).sqrt()).sum();
        Value::Scalar(mean_distance + traces - 2.0 * shared)
    }
}

/// The mean and the covariance of `n` samples; NaN for fewer than two. `sums` has the two halves of
/// the sum, and those of the sum of products.
fn moments(n: f64, sums: &[Vec<f64>]) -> (Vec<f64>, Vec<Vec<f64>>) {
    let [high, low, high_squares, low_squares] = sums else { return (Vec::new(), Vec::new()) };
    let join = |high: &[f64], low: &[f64]| -> Vec<f64> {
        high.iter().zip(low).map(|(high, low)| high + low).collect()
    };
    let (sum, squares) = (join(high, low), join(high_squares, low_squares));
    let mean: Vec<f64> = sum.iter().map(|sum| sum / n).collect();
    let freedom = if n > 1.0 { n - 1.0 } else { f64::NAN };
    let rows = squares.chunks(mean.len().max(1)).zip(&mean);
    let covariance = rows
        .map(|(row, a)| row.iter().zip(&mean).map(|(ab, b)| (ab - n * a * b) / freedom).collect());
    (mean.clone(), covariance.collect())
}

/// The eigenvalues of a symmetric matrix with their eigenvectors, by Jacobi rotations.
fn eigen(mut a: Vec<Vec<f64>>) -> (Vec<f64>, Vec<Vec<f64>>) {
    let n = a.len();
    let mut vectors: Vec<Vec<f64>> =
        (0..n).map(|i| (0..n).map(|j| if i == j { 1.0 } else { 0.0 }).collect()).collect();
    // Each sweep roughly squares the off-diagonal remainder: ten are enough, and they also end for
    // NaN.
    for _ in 0..30 {
        let other_axes = |i: usize| (0..n).filter(move |&j| j != i);
        let off_diagonal: f64 = (0..n)
            .flat_map(|i| other_axes(i).map(move |j| (i, j)))
            .map(|(i, j)| a[i][j] * a[i][j])
            .sum();
        let all: f64 = a.iter().flatten().map(|x| x * x).sum();
        if off_diagonal <= 1e-28 * all {
            break;
        }
        for p in 0..n {
            for q in p + 1..n {
                if a[p][q] == 0.0 {
                    continue;
                }
                let theta = (a[q][q] - a[p][p]) / (2.0 * a[p][q]);
                let tan = theta.signum() / (theta.abs() + (theta * theta + 1.0).sqrt());
                let cos = 1.0 / (tan * tan + 1.0).sqrt();
                let turned = |x: f64, y: f64| (cos * x - cos * tan * y, cos * tan * x + cos * y);
                for row in &mut a {
                    (row[p], row[q]) = turned(row[p], row[q]);
                }
                for matrix in [&mut a, &mut vectors] {
                    let (before, from_q) = matrix.split_at_mut(q);
                    for (x, y) in before[p].iter_mut().zip(&mut from_q[0]) {
                        (*x, *y) = turned(*x, *y);
                    }
                }
            }
        }
    }
    ((0..n).map(|i| a[i][i]).collect(), vectors)
}
