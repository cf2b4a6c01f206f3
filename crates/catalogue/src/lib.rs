#![doc = include_str!("../README.md")]
#![allow(clippy::unwrap_used, reason = "a mistake in a case or a row is one of this crate")]

/// Calls a macro with the names of all families.
#[macro_export]
macro_rules! with_families {
    ($callback:ident) => {
        $callback! {
            elementwise, arithmetic, transcendental, bitwise, complex_numbers, fft, linalg, reduce,
            shape, arrange, gather, scatter, dot, convolution, pooling, interpolation, softmax,
            cumulative, sort, einsum, sequence, random_numbers,
        }
    };
}

mod attrs;
mod case;
mod compare;
mod families;
mod row;

use fulmen_tensor::DType;

pub use attrs::Attrs;
pub use case::{Array, Case};
pub use compare::{Comparison, Tolerance, compare, compare_with_nearby};
pub use families::{Family, families, family};
pub use row::Row;

/// Whether a TPU supports the dtype. For 64-bit numbers it emulates some operations, lacks others
/// (products of integers, Fourier transforms, the scatter of a maximum's gradient), and takes
/// minutes to report that.
pub fn tpu_supports(dtype: DType) -> bool {
    !["f64", "i64", "u64", "c128"].contains(&dtype.name())
}
