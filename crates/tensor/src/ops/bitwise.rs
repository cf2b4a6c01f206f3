//! Elementwise operations on bits: of integers, and the logical ones of booleans. No gradient flows through integers.

use super::binary::binary;
use super::unary::unary;

unary! {
    /// Bitwise complement of integers, logical complement of booleans.
    not, Not, "stablehlo.not", IntegersAndBooleans, |x, y, g| None;

    /// How many bits are set, elementwise, in the dtype of the integer.
    population_count, PopulationCount, "stablehlo.popcnt", Integers, |x, y, g| None;

    /// How many bits above the highest one that is set are not, elementwise, in the dtype of the integer.
    count_leading_zeros, CountLeadingZeros, "stablehlo.count_leading_zeros", Integers, |x, y, g| None;
}

binary! {
    /// Bitwise and of integers, logical and of booleans.
    and, And, "stablehlo.and", IntegersAndBooleans, |a, b, y, g| [None, None];

    /// Bitwise or of integers, logical or of booleans.
    or, Or, "stablehlo.or", IntegersAndBooleans, |a, b, y, g| [None, None];

    /// Bitwise exclusive or of integers, logical exclusive or of booleans.
    xor, Xor, "stablehlo.xor", IntegersAndBooleans, |a, b, y, g| [None, None];

    /// The bits of `a` moved up by `b` places, zeros coming in; 0 where `b` is the number of bits or more.
    shift_left, ShiftLeft, "stablehlo.shift_left", Integers, |a, b, y, g| [None, None];

    /// The bits of `a` moved down by `b` places, zeros coming in; 0 where `b` is the number of bits or more.
    shift_right_logical, ShiftRightLogical, "stablehlo.shift_right_logical", Integers, |a, b, y, g| [None, None];

    /// The bits of `a` moved down by `b` places, copies of the highest bit coming in: `a/2ᵇ` rounded down, of signed
    /// integers. All bits are that bit where `b` is the number of bits or more.
    shift_right_arithmetic, ShiftRightArithmetic, "stablehlo.shift_right_arithmetic", Integers,
        |a, b, y, g| [None, None];
}
