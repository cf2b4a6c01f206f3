//! [`compare`]: how far a value is from the expected one.

use fulmen_tensor::{DType, Element, Literal};

/// The largest allowed error of a number: a part of the number, and a part of the largest number of
/// its tensor. Zero for dtypes other than floats.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tolerance {
    /// Relative to the number.
    pub relative: f64,
    /// Relative to the largest number of the tensor.
    pub of_largest: f64,
}

impl Tolerance {
    /// The tolerance between two compilers that both compute in this dtype on a CPU.
    pub fn of(dtype: DType) -> Tolerance {
        let (relative, of_largest) = match dtype.name() {
            "f32" | "c64" => (1e-5, 1e-6),
            "f64" | "c128" => (1e-11, 1e-12),
            "bf16" => (1e-2, 4e-3),
            "f16" => (2e-3, 5e-4),
            _ => (0.0, 0.0),
        };
        Tolerance { relative, of_largest }
    }
}

/// The result of [`compare`].
#[derive(Clone, Debug, PartialEq)]
pub struct Comparison {
    /// The largest error of a number in units of its last place. Infinite if only one of the two
    /// numbers is finite.
    pub ulps: f64,
    /// A description of the difference, if there is one above the tolerance.
    pub difference: Option<String>,
}

/// The numbers of a value, two for a complex one.
fn numbers(literal: &Literal) -> Vec<f64> {
    match literal.ty().dtype {
        DType::C64 => f32::from_bytes(literal.bytes()).into_iter().map(f64::from).collect(),
        DType::C128 => f64::from_bytes(literal.bytes()),
        _ => literal.to_f64(),
    }
}

/// The distance between a number and the next larger one.
fn unit_in_the_last_place(number: f64, dtype: DType) -> f64 {
    let (digits, smallest_exponent) = match dtype.real() {
        DType::F64 => (52, -1022),
        DType::F32 => (23, -126),
        DType::Bf16 => (7, -126),
        DType::F16 => (10, -14),
        _ => return 1.0,
    };
    let exponent = number.abs().log2().floor().max(f64::from(smallest_exponent));
    (exponent - f64::from(digits)).exp2()
}

/// Compares a value with the expected one.
pub fn compare(actual: &Literal, expected: &Literal, tolerance: Tolerance) -> Comparison {
    compare_within(actual, expected, tolerance, |_, _| 0.0)
}

/// Compares a value with the expected one. Each number may also differ by as much as the number of
/// `nearby`, which was computed from inputs that are almost the same.
pub fn compare_with_nearby(
    actual: &Literal,
    expected: &Literal,
    nearby: &Literal,
    tolerance: Tolerance,
) -> Comparison {
    let nearby = numbers(nearby);
    let distance = |i: usize, expected: f64| match nearby.get(i) {
        Some(nearby) if nearby.is_finite() => (nearby - expected).abs(),
        _ => 0.0,
    };
    compare_within(actual, expected, tolerance, distance)
}

/// Compares a value with the expected one. `further` is the error that a number may have in addition
/// to `tolerance`, from its position and its expected value.
fn compare_within(
    actual: &Literal,
    expected: &Literal,
    tolerance: Tolerance,
    further: impl Fn(usize, f64) -> f64,
) -> Comparison {
    let dtype = expected.ty().dtype;
    if actual.ty() != expected.ty() {
        let difference = format!("the type is {}, expected {}", actual.ty(), expected.ty());
        return Comparison { ulps: f64::INFINITY, difference: Some(difference) };
    }
    if actual.bytes() == expected.bytes() {
        return Comparison { ulps: 0.0, difference: None };
    }
    let actual = numbers(actual);
    let expected = numbers(expected);
    let largest = expected.iter().filter(|v| v.is_finite()).fold(0.0f64, |m, v| m.max(v.abs()));
    let mut ulps = 0.0f64;
    let mut wrong = 0;
    let mut worst = 0.0f64;
    let mut first = None;
    for (i, (&a, &b)) in actual.iter().zip(&expected).enumerate() {
        if a == b || (a.is_nan() && b.is_nan()) {
            continue;
        }
        let error = if a.is_finite() && b.is_finite() { (a - b).abs() } else { f64::INFINITY };
        ulps = ulps.max(error / unit_in_the_last_place(b, dtype));
        let allowed = tolerance.relative * b.abs() + tolerance.of_largest * largest;
        let excess = error / (allowed + further(i, b));
        if excess > 1.0 {
            wrong += 1;
            if excess > worst {
                worst = excess;
                first = Some(format!("number {i} is {a}, expected {b}"));
            }
        }
    }
    let difference = first.map(|text| format!("{text}; {wrong} of {} differ", actual.len()));
    // Integers beyond a float's digits, or a zero with another sign.
    let hidden = !dtype.is_inexact() && difference.is_none();
    let difference = difference
        .or_else(|| hidden.then(|| "integers differ in bits that a float does not show".into()));
    Comparison { ulps, difference }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn compared(actual: &[f32], expected: &[f32]) -> Comparison {
        let literal = |values: &[f32]| Literal::from_slice(values, [values.len()]).unwrap();
        compare(&literal(actual), &literal(expected), Tolerance::of(DType::F32))
    }

    #[test]
    fn the_worst_number_is_named_with_its_error_in_units_of_the_last_place() {
        let next = f32::from_bits(1.5f32.to_bits() + 3);
        let near = compared(&[next, -2.0], &[1.5, -2.0]);
        assert_eq!(near, Comparison { ulps: 3.0, difference: None });
        let far = compared(&[1.001, 1.1, -2.0], &[1.0, 1.0, -2.0]);
        let text = far.difference.unwrap();
        assert!(text.starts_with("number 1 is 1.1") && text.ends_with("2 of 3 differ"), "{text}");
        assert_eq!(compared(&[f32::NAN], &[f32::NAN]).difference, None);
        assert!(compared(&[f32::NAN], &[1.0]).difference.is_some());
        assert!(compared(&[f32::INFINITY], &[1.0]).ulps.is_infinite());
    }

    #[test]
    fn a_number_may_be_as_far_as_that_of_inputs_that_are_almost_the_same() {
        let literal = |values: [f32; 3]| Literal::from_slice(&values, [3]).unwrap();
        let expected = literal([1.0, 0.001, 2.0]);
        let nearby = literal([1.0, 0.003, f32::NAN]);
        let compared = |actual: [f32; 3]| {
            let tolerance = Tolerance::of(DType::F32);
            compare_with_nearby(&literal(actual), &expected, &nearby, tolerance).difference
        };
        assert_eq!(compared([1.0, 0.0025, 2.0]), None);
        assert!(compared([1.0, 0.0035, 2.0]).unwrap().starts_with("number 1 is 0.0035"));
        assert!(compared([1.001, 0.001, 2.0]).unwrap().starts_with("number 0"));
        assert!(compared([1.0, 0.001, 2.001]).unwrap().starts_with("number 2"));
    }

    #[test]
    fn integers_are_equal_or_different() {
        let large = i64::MAX;
        let literal = |value: i64| Literal::from_slice(&[value], [1]).unwrap();
        let other = compare(&literal(large), &literal(large - 1), Tolerance::of(DType::I64));
        assert!(other.difference.unwrap().contains("bits"));
    }
}
