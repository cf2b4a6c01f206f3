//! Elementwise bitwise operations of integers and logical operations of booleans. They have no
//! gradient.

use super::binary::binary;
use super::unary::unary;

unary! {
    /// Bitwise NOT of integers, logical NOT of booleans, elementwise.
    not, Not, "stablehlo.not", IntegersAndBooleans, |x, y, g| None;

    /// The number of bits that are set, elementwise, in the dtype of the operand.
    population_count, PopulationCount, "stablehlo.popcnt", Integers, |x, y, g| None;

    /// The number of leading zero bits, elementwise, in the dtype of the operand.
    count_leading_zeros, CountLeadingZeros, "stablehlo.count_leading_zeros", Integers, |x, y, g| None;
}

binary! {
    /// Bitwise AND of integers, logical AND of booleans, elementwise.
    and, And, "stablehlo.and", IntegersAndBooleans, |a, b, y, g| [None, None];

    /// Bitwise OR of integers, logical OR of booleans, elementwise.
    or, Or, "stablehlo.or", IntegersAndBooleans, |a, b, y, g| [None, None];

    /// Bitwise XOR of integers, logical XOR of booleans, elementwise.
    xor, Xor, "stablehlo.xor", IntegersAndBooleans, |a, b, y, g| [None, None];

    /// Shifts `a` left by `b` bits, filling with zeros, elementwise. The result is 0 where `b` is
    /// at least the number of bits.
    shift_left, ShiftLeft, "stablehlo.shift_left", Integers, |a, b, y, g| [None, None];

    /// Shifts `a` right by `b` bits, filling with zeros, elementwise. The result is 0 where `b` is
    /// at least the number of bits.
    shift_right_logical, ShiftRightLogical, "stablehlo.shift_right_logical", Integers, |a, b, y, g| [None, None];

    /// Shifts `a` right by `b` bits, filling with copies of the highest bit, elementwise. For
    /// signed integers this is `a/2ᵇ` rounded down. Where `b` is at least the number of bits, every
    /// bit equals the highest one.
    shift_right_arithmetic, ShiftRightArithmetic, "stablehlo.shift_right_arithmetic", Integers,
        |a, b, y, g| [None, None];
}
