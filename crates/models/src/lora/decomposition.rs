//! The parts of a weight that PiSSA and OLoRA train instead of freezing them.

/// A matrix of `rows` rows, one after another.
#[derive(Clone)]
pub(super) struct Matrix {
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) values: Vec<f64>,
}

/// Orthonormal vectors of the same length.
type Basis = Vec<Vec<f64>>;

/// What a vector may lose to rounding before it counts as a combination of others.
const DEPENDENT: f64 = 1e-10;

/// The error of a singular vector, relative to the square of the largest singular value, at which
/// the search ends. Values of f32 have a rounding error of 6e-8.
const TOLERANCE: f64 = 1e-9;

/// The number of vectors at which the search for singular vectors gives up.
const MAX_VECTORS: usize = 600;

impl Matrix {
    fn row(&self, i: usize) -> &[f64] {
        &self.values[i * self.columns..(i + 1) * self.columns]
    }

    fn column(&self, j: usize) -> Vec<f64> {
        self.values.iter().skip(j).step_by(self.columns.max(1)).copied().collect()
    }

    /// `WᵀW·x`.
    fn gram(&self, x: &[f64]) -> Vec<f64> {
        let mut result = vec![0.0; self.columns];
        for i in 0..self.rows {
            let row = self.row(i);
            let product = dot(row, x);
            add(&mut result, row, product);
        }
        result
    }

    /// Projects the rows onto vectors: `W·V·Vᵀ`.
    fn rows_within(&self, basis: &Basis) -> Matrix {
        let mut values = Vec::with_capacity(self.values.len());
        for i in 0..self.rows {
            let mut row = vec![0.0; self.columns];
            for v in basis {
                add(&mut row, v, dot(self.row(i), v));
            }
            values.extend(row);
        }
        Matrix { values, ..*self }
    }

    /// The sum of the `r` parts with the largest singular values, `U·S·Vᵀ`; `None` if the search for
    /// them does not converge.
    pub(super) fn leading_part(&self, r: usize) -> Option<Matrix> {
        let vectors = self.leading_vectors(r.min(self.rows).min(self.columns))?;
        Some(self.rows_within(&vectors))
    }

    /// The part in the span of the first `r` columns: the product of the first `r` columns of `Q`
    /// and the first `r` rows of `R` in `W = Q·R`.
    pub(super) fn first_part(&self, r: usize) -> Matrix {
        let mut basis = Basis::new();
        for j in 0..r.min(self.columns) {
            extend(&mut basis, self.column(j));
        }
        let mut values = vec![0.0; self.values.len()];
        for q in &basis {
            let mut product = vec![0.0; self.columns];
            for (i, factor) in q.iter().enumerate() {
                add(&mut product, self.row(i), *factor);
            }
            for (row, factor) in values.chunks_mut(self.columns.max(1)).zip(q) {
                add(row, &product, *factor);
            }
        }
        Matrix { values, ..*self }
    }

    /// The right singular vectors of the `r` largest singular values, by a block Krylov method: the
    /// eigenvectors of `WᵀW` within the span of `X, WᵀW·X, (WᵀW)²·X, …`.
    fn leading_vectors(&self, r: usize) -> Option<Basis> {
        let mut basis = Basis::new();
        let mut images = Basis::new();
        let mut block: Basis = (0..r + 2).map(|i| start_vector(i, self.columns)).collect();
        loop {
            let known = basis.len();
            for vector in block {
                extend(&mut basis, vector);
            }
            images.extend(basis[known..].iter().map(|vector| self.gram(vector)));
            let is_complete = basis.len() == known || basis.len() >= self.columns;
            let eigen = symmetric_eigen(&basis, &images);
            let combined = |vectors: &Basis, coefficients: &[f64]| {
                let mut sum = vec![0.0; self.columns];
                for (vector, factor) in vectors.iter().zip(coefficients) {
                    add(&mut sum, vector, *factor);
                }
                sum
            };
            let error = eigen.iter().take(r).fold(0.0, |error: f64, Eigen { value, vector }| {
                let mut residual = combined(&images, vector);
                add(&mut residual, &combined(&basis, vector), -value);
                error.max(dot(&residual, &residual).sqrt())
            });
            let largest = eigen.first().map_or(0.0, |eigen| eigen.value);
            if is_complete || error <= TOLERANCE * largest {
                return Some(
                    eigen.iter().take(r).map(|eigen| combined(&basis, &eigen.vector)).collect(),
                );
            }
            if basis.len() >= MAX_VECTORS {
                return None;
            }
            block = images[known..].to_vec();
        }
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// `sum += factor·vector`.
fn add(sum: &mut [f64], vector: &[f64], factor: f64) {
    for (sum, value) in sum.iter_mut().zip(vector) {
        *sum += factor * value;
    }
}

/// Adds the part of a vector that is orthogonal to all others, unless nothing is left of it.
fn extend(basis: &mut Basis, mut vector: Vec<f64>) {
    let length = dot(&vector, &vector).sqrt();
    // Twice, because of rounding errors.
    for _ in 0..2 {
        for other in &*basis {
            let product = dot(&vector, other);
            add(&mut vector, other, -product);
        }
    }
    let rest = dot(&vector, &vector).sqrt();
    if rest > DEPENDENT * length {
        vector.iter_mut().for_each(|value| *value /= rest);
        basis.push(vector);
    }
}

/// A vector of numbers that look random, the same each time.
fn start_vector(number: usize, length: usize) -> Vec<f64> {
    let mut state = (number as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mut next = || {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        (mixed >> 11) as f64 / (1u64 << 53) as f64 - 0.5
    };
    (0..length).map(|_| next()).collect()
}

/// An eigenvalue and its eigenvector.
struct Eigen {
    value: f64,
    vector: Vec<f64>,
}

/// The eigenvalues, the largest first, and eigenvectors of the matrix `basis·images`, which is
/// symmetric, by Jacobi's rotations.
fn symmetric_eigen(basis: &Basis, images: &Basis) -> Vec<Eigen> {
    let n = basis.len();
    let mut a: Basis =
        basis.iter().map(|v| images.iter().map(|image| dot(v, image)).collect()).collect();
    // Row `i` becomes the eigenvector of `a[i][i]`.
    let mut vectors: Basis =
        (0..n).map(|i| (0..n).map(|j| f64::from(u8::from(i == j))).collect()).collect();
    for _ in 0..60 {
        let diagonal: f64 = (0..n).map(|i| a[i][i] * a[i][i]).sum();
        let rest: f64 =
            (0..n).flat_map(|i| (0..i).map(move |j| (i, j))).map(|(i, j)| a[i][j] * a[i][j]).sum();
        if rest <= 1e-30 * diagonal {
            break;
        }
        for p in 0..n {
            for q in p + 1..n {
                rotate(&mut a, &mut vectors, p, q);
            }
        }
    }
    let values: Vec<f64> = (0..n).map(|i| a[i][i]).collect();
    let mut eigen: Vec<Eigen> =
        values.into_iter().zip(vectors).map(|(value, vector)| Eigen { value, vector }).collect();
    eigen.sort_by(|x, y| y.value.total_cmp(&x.value));
    eigen
}

/// The rotation after which `a[p][q]` is 0.
fn rotate(a: &mut Basis, vectors: &mut Basis, p: usize, q: usize) {
    if a[p][q] == 0.0 {
        return;
    }
    let theta = (a[q][q] - a[p][p]) / (2.0 * a[p][q]);
    let tangent = theta.signum() / (theta.abs() + theta.hypot(1.0));
    let cos = 1.0 / tangent.hypot(1.0);
    let sin = tangent * cos;
    for row in a.iter_mut() {
        let x = row[p];
        let y = row[q];
        row[p] = cos * x - sin * y;
        row[q] = sin * x + cos * y;
    }
    for matrix in [a, vectors] {
        for k in 0..matrix[p].len() {
            let x = matrix[p][k];
            let y = matrix[q][k];
            matrix[p][k] = cos * x - sin * y;
            matrix[q][k] = sin * x + cos * y;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::f64::consts::PI;

    use super::*;

    /// Vector `i` of an orthonormal basis: a cosine.
    fn cosine(i: usize, length: usize) -> Vec<f64> {
        let scale = if i == 0 { 1.0 } else { 2.0f64 } / length as f64;
        let angle = |k: usize| PI * i as f64 * (k as f64 + 0.5) / length as f64;
        (0..length).map(|k| scale.sqrt() * angle(k).cos()).collect()
    }

    /// `sum of values[i]·u_i·v_iᵀ`.
    fn matrix(values: &[f64]) -> Matrix {
        let mut sum = Matrix { rows: 120, columns: 90, values: vec![0.0; 120 * 90] };
        for (i, value) in values.iter().enumerate() {
            let v = cosine(i, sum.columns);
            for (row, u) in sum.values.chunks_mut(90).zip(cosine(i, 120)) {
                add(row, &v, value * u);
            }
        }
        sum
    }

    fn largest_difference(a: &Matrix, b: &Matrix) -> f64 {
        a.values.iter().zip(&b.values).fold(0.0, |largest, (a, b)| largest.max((a - b).abs()))
    }

    #[test]
    fn the_leading_part_has_the_largest_singular_values() {
        let values: Vec<f64> = (0..90).map(|i| 0.97f64.powi(i)).collect();
        let part = matrix(&values).leading_part(4);
        let off = part.map(|part| largest_difference(&part, &matrix(&values[..4])));
        assert!(off.is_some_and(|off| off < 1e-7), "{off:?}");
        // A matrix of rank 2 has no other parts.
        let two = matrix(&values[..2]);
        let off = two.leading_part(4).map(|part| largest_difference(&part, &two));
        assert!(off.is_some_and(|off| off < 1e-12), "{off:?}");
    }

    #[test]
    fn the_first_part_has_the_first_columns() {
        let values: Vec<f64> = (0..90).map(|i| 0.97f64.powi(i)).collect();
        let all = matrix(&values);
        let part = all.first_part(3);
        for i in 0..3 {
            let off = all
                .column(i)
                .iter()
                .zip(part.column(i))
                .fold(0.0, |off: f64, (a, b)| off.max((a - b).abs()));
            assert!(off < 1e-12, "column {i} is {off} off");
        }
        // What is left is orthogonal to these columns.
        let rest: Vec<f64> = all.values.iter().zip(&part.values).map(|(a, b)| a - b).collect();
        let rest = Matrix { values: rest, ..all.clone() };
        assert!((3..90).all(|j| dot(&rest.column(j), &all.column(0)).abs() < 1e-12));
    }
}
