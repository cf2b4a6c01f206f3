//! Integer powers of a number.

use fulmen_tensor::{DType, Tensor};

/// `baseᵏ` in f32 for an i32 tensor `k ≥ 0`, as a product over the bits of `k`. Via a logarithm it
/// would lose one digit for each order of magnitude below 1.
pub(super) fn power(base: f64, k: &Tensor) -> Tensor {
    let number = |value: f64| Tensor::full(DType::F32, k.shape(), value);
    let mut product = number(1.0);
    for bit in 0..31 {
        let factor = base.powi(1 << bit);
        let vanishes = (factor as f32) == 0.0 || !(factor as f32).is_finite();
        let set = if vanishes {
            // All higher powers are 0 or infinite as well.
            k.ge(2f64.powi(bit))
        } else {
            k.shift_right_logical(f64::from(bit)).and(1.0).eq(1.0)
        };
        product = product * set.select(&number(factor), &number(1.0));
        if vanishes {
            break;
        }
    }
    product
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn powers_keep_their_digits() {
        let exponents = [0i32, 1, 2, 7, 100, 1000, 65_535, 1_000_000, 10_000_000];
        let k = Tensor::from_slice(&exponents, [exponents.len()]);
        for base in [1.0, 0.1, 0.5, 0.9, 0.99, 0.999, 0.999_99, 0.999_999_9, 1.0001] {
            let actual = power(base, &k).eval().unwrap().to_f64();
            for (&k, actual) in exponents.iter().zip(actual) {
                let expected = base.powi(k);
                if expected < 1e-36 {
                    assert!(actual < 1e-35, "{base}^{k}: {actual:e}");
                } else if expected > 1e38 {
                    assert_eq!(actual, f64::INFINITY);
                } else {
                    assert!(
                        (actual / expected - 1.0).abs() < 1.5e-6,
                        "{base}^{k}: {actual:e}, not {expected:e}"
                    );
                }
            }
        }
    }
}
