//! Random orthogonal matrices: the orthogonal factor of the polar decomposition of a matrix of
//! normal numbers. It is distributed as uniformly as the Q of a QR decomposition and needs only
//! matrix products.

use fulmen_tensor::{DType, Refusal, Shape, Tensor, fori_loop, random};

/// The coefficients of `a·x + b·x³ + c·x⁵`, which raises small singular values fastest and keeps
/// all of them below 1.2 (those of the Muon optimizer). After 14 steps, every singular value above
/// 1e-7 is close to 1.
const LIFT: [f64; 3] = [3.4445, -4.7750, 2.0315];

/// A random matrix `[out, rest]` with orthonormal rows or, if there are fewer, columns; in f32,
/// reshaped to `shape`.
pub(super) fn orthogonal(key: &Tensor, shape: &Shape) -> Result<Tensor, Refusal> {
    let dims = shape.dims();
    if dims.len() < 2 {
        return Err(format!("Orthogonal needs a weight with at least 2 axes, not {shape}").into());
    }
    let rows = dims[0];
    let columns = dims[1..].iter().fold(1usize, |n, &d| n.saturating_mul(d));
    let short = rows.min(columns);
    let long = rows.max(columns);
    if short == 0 {
        return Ok(Tensor::zeros(DType::F32, shape));
    }
    // The largest singular value of such a matrix is about √short + √long, and exceeds it by 6 with
    // a probability of 1e-8. `lift` accepts values below 1.2.
    let largest = (short as f64).sqrt() + (long as f64).sqrt() + 6.0;
    let x = random::normal(key, DType::F32, [short, long]) / largest;
    let x = fori_loop(0, 14, x, |_, x| lift(&x));
    // Each Newton step squares the distance from 1. The last steps use exact products, since a TPU
    // rounds products to bf16.
    let x = fori_loop(0, 3, x, |_, x| newton(&x, |a, b| a.matmul(b)));
    let x = fori_loop(0, 3, x, |_, x| newton(&x, exact_product));
    let matrix = if rows > columns { x.t() } else { x };
    Ok(matrix.reshape(shape))
}

fn lift(x: &Tensor) -> Tensor {
    let [a, b, c] = LIFT;
    let gram = x.matmul(&x.t());
    x * a + (&gram * b + gram.matmul(&gram) * c).matmul(x)
}

/// `x·3/2 − x³/2` of the singular values.
fn newton(x: &Tensor, product: fn(&Tensor, &Tensor) -> Tensor) -> Tensor {
    let gram = product(x, &x.t());
    x * 1.5 - product(&gram, x) * 0.5
}

/// The product of two f32 matrices as products of their parts. Each part is a bf16 number, so no
/// precision setting rounds them.
fn exact_product(a: &Tensor, b: &Tensor) -> Tensor {
    let [a1, a2, a3] = parts(a);
    let [b1, b2, b3] = parts(b);
    let small = a1.matmul(&b3) + a2.matmul(&b2) + a3.matmul(&b1);
    small + (a1.matmul(&b2) + a2.matmul(&b1)) + a1.matmul(&b1)
}

/// Splits an f32 number into three numbers of 8 bits each.
fn parts(x: &Tensor) -> [Tensor; 3] {
    let first = upper_half(x);
    let rest = x - &first;
    let second = upper_half(&rest);
    let third = rest - &second;
    [first, second, third]
}

/// Masks the bits, because a compiler may remove a conversion to bf16 and back.
fn upper_half(x: &Tensor) -> Tensor {
    x.bitcast(DType::U32).and(f64::from(0xFFFF_0000u32)).bitcast(DType::F32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_of_parts_are_exact() {
        let a = random::normal(&random::key(0), DType::F32, [5, 7]);
        let b = random::normal(&random::key(1), DType::F32, [7, 3]);
        let exact = a.to_dtype(DType::F64).matmul(&b.to_dtype(DType::F64));
        let error = (exact_product(&a, &b).to_dtype(DType::F64) - exact).abs().max([0, 1]);
        assert!(error.eval().unwrap().to_f64()[0] < 2e-6);
        // Each part is a bf16 number.
        for part in parts(&a) {
            let error = (part.to_dtype(DType::Bf16).to_dtype(DType::F32) - &part).abs().max([0, 1]);
            assert_eq!(error.eval().unwrap().to_f64(), [0.0]);
        }
    }
}
