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
/// computes eigenvalues of matrices with `features²` numbers: for Inception's 2048, 64 MiB and 20
/// seconds. Use more samples than features: with fewer, the covariances are not those of
/// the distributions, and the distance is larger. The paper (Heusel et al. 2017, "GANs Trained by a
/// Two Time-Scale Update Rule Converge to a Local Nash Equilibrium") uses 50,000.
///
/// Tests compare it with torch-fidelity's function of features, and with NumPy.
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
        // The eigenvalues of C₁·C₂ that are not 0 are those of Lᵀ·C₂·L, if C₁ = L·Lᵀ. It is
        // symmetric, and small for few samples.
        let columns = cholesky(&covariance_1);
        let product = columns.iter().map(|column| {
            let row: Vec<f64> = covariance_2.iter().map(|row| dot(row, column)).collect();
            columns.iter().map(|other| dot(other, &row)).collect()
        });
        let values = eigenvalues(product.collect());
        let shared: f64 = values.iter().map(|value| value.max(0.0).sqrt()).sum();
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
    let sum = join(high, low);
    let squares = join(high_squares, low_squares);
    let mean: Vec<f64> = sum.iter().map(|sum| sum / n).collect();
    let freedom = if n > 1.0 { n - 1.0 } else { f64::NAN };
    let rows = squares.chunks(mean.len().max(1)).zip(&mean);
    let covariance = rows
        .map(|(row, a)| row.iter().zip(&mean).map(|(ab, b)| (ab - n * a * b) / freedom).collect());
    (mean.clone(), covariance.collect())
}

/// The columns `l` of a matrix with `C = Σ l·lᵀ`, as many as the rank of the covariance `C`: the
/// Cholesky decomposition with pivoting (Higham 2002, "Accuracy and Stability of Numerical
/// Algorithms", 10.3).
fn cholesky(covariance: &[Vec<f64>]) -> Vec<Vec<f64>> {
    let n = covariance.len();
    let mut rest: Vec<f64> = (0..n).map(|i| covariance[i][i]).collect();
    let largest = rest.iter().copied().fold(0.0, f64::max);
    let mut columns: Vec<Vec<f64>> = Vec::new();
    while columns.len() < n {
        let pivot = (0..n).max_by(|&i, &j| rest[i].total_cmp(&rest[j])).unwrap_or(0);
        if rest[pivot] <= n as f64 * f64::EPSILON * largest {
            break;
        }
        let mut column = covariance[pivot].clone();
        for earlier in &columns {
            let factor = earlier[pivot];
            column.iter_mut().zip(earlier).for_each(|(x, y)| *x -= factor * y);
        }
        let root = rest[pivot].sqrt();
        for (x, rest) in column.iter_mut().zip(&mut rest) {
            *x /= root;
            *rest -= *x * *x;
        }
        rest[pivot] = f64::NEG_INFINITY;
        columns.push(column);
    }
    columns
}

/// The sum of products, in an order that compilers make vector instructions of.
fn dot(a: &[f64], b: &[f64]) -> f64 {
    let mut sums = [0.0; 8];
    for (a, b) in a.chunks(8).zip(b.chunks(8)) {
        for ((sum, a), b) in sums.iter_mut().zip(a).zip(b) {
            *sum += a * b;
        }
    }
    sums.iter().sum()
}

/// The eigenvalues of a symmetric matrix (Golub and Van Loan 2013, "Matrix Computations", 8.3).
fn eigenvalues(mut a: Vec<Vec<f64>>) -> Vec<f64> {
    let n = a.len();
    let mut off_diagonal = vec![0.0; n];
    // Householder reflections make it tridiagonal.
    for k in 0..n.saturating_sub(1) {
        let mut v: Vec<f64> = (k + 1..n).map(|i| a[i][k]).collect();
        let norm = dot(&v, &v).sqrt();
        let first = if v[0] > 0.0 { -norm } else { norm };
        off_diagonal[k] = first;
        if norm == 0.0 {
            continue;
        }
        v[0] -= first;
        let scale = 2.0 / dot(&v, &v);
        let mut w: Vec<f64> = a[k + 1..].iter().map(|row| scale * dot(&row[k + 1..], &v)).collect();
        let shared = scale / 2.0 * dot(&w, &v);
        w.iter_mut().zip(&v).for_each(|(w, v)| *w -= shared * v);
        for (i, row) in a[k + 1..].iter_mut().enumerate() {
            for ((x, v_j), w_j) in row[k + 1..].iter_mut().zip(&v).zip(&w) {
                *x -= v[i] * w_j + w[i] * v_j;
            }
        }
    }
    let diagonal = (0..n).map(|i| a[i][i]).collect();
    tridiagonal_eigenvalues(diagonal, off_diagonal)
}

/// The eigenvalues of a symmetric tridiagonal matrix, by QL steps with Wilkinson's shift.
/// `e[i]` is next to `d[i]` and `d[i + 1]`; the last is 0.
fn tridiagonal_eigenvalues(mut d: Vec<f64>, mut e: Vec<f64>) -> Vec<f64> {
    let n = d.len();
    let largest = d.iter().chain(&e).fold(0.0f64, |largest, x| largest.max(x.abs()));
    for l in 0..n {
        // Two or three steps are usual. A limit, for NaN.
        for _ in 0..60 {
            let is_small = |i: usize| {
                e[i].abs() <= f64::EPSILON * (d[i].abs() + d[i + 1].abs()).max(1e-8 * largest)
            };
            let end = (l..n - 1).find(|&i| is_small(i)).unwrap_or(n - 1);
            if end == l {
                break;
            }
            let half = (d[l + 1] - d[l]) / (2.0 * e[l]);
            let shift = d[l] - e[l] / (half + half.hypot(1.0).copysign(half));
            let mut g = d[end] - shift;
            let mut sin = 1.0;
            let mut cos = 1.0;
            let mut moved = 0.0;
            for i in (l..end).rev() {
                let f = sin * e[i];
                let b = cos * e[i];
                let r = f.hypot(g);
                e[i + 1] = r;
                sin = if r == 0.0 { 0.0 } else { f / r };
                cos = if r == 0.0 { 1.0 } else { g / r };
                g = d[i + 1] - moved;
                let turned = (d[i] - g) * sin + 2.0 * cos * b;
                moved = sin * turned;
                d[i + 1] = g + moved;
                g = cos * turned - b;
            }
            d[l] -= moved;
            e[l] = g;
            e[end] = 0.0;
        }
    }
    d
}
