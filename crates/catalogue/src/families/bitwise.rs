//! Bitwise operations of integers, logical operations of booleans, and bitcasts.

use super::{Row, row};

pub(super) fn rows() -> Vec<Row> {
    vec![
        row("and", &["and"], |x, _| x[0].and(&x[1])),
        row("or", &["or"], |x, _| x[0].or(&x[1])),
        row("xor", &["xor"], |x, _| x[0].xor(&x[1])),
        row("not", &["not"], |x, _| x[0].not()),
        row("shift_left", &["shift_left"], |x, _| x[0].shift_left(&x[1])),
        row("shift_right_logical", &["shift_right_logical"], |x, _| x[0].shift_right_logical(&x[1])),
        row("shift_right_arithmetic", &["shift_right_arithmetic"], |x, _| x[0].shift_right_arithmetic(&x[1])),
        row("population_count", &["population_count"], |x, _| x[0].population_count()),
        row("count_leading_zeros", &["count_leading_zeros"], |x, _| x[0].count_leading_zeros()),
        row("bitcast", &["bitcast"], |x, a| x[0].bitcast(a.dtype("to"))),
    ]
}
