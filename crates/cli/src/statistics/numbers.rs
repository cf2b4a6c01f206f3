//! The statistics of numbers, in one pass and constant memory.

use serde::Serialize;

/// The statistics of a list of numbers.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct NumberStatistics {
    /// How many finite numbers there are. The other statistics are about these.
    pub count: u64,
    /// How many numbers are infinite.
    pub infinite: u64,
    /// The smallest one.
    pub minimum: f64,
    /// The largest one.
    pub maximum: f64,
    /// The mean.
    pub mean: f64,
    /// The standard deviation of exactly these numbers, as NumPy's `std` computes it. pandas divides
    /// by one less.
    pub standard_deviation: f64,
}

/// The sums of numbers that have been seen, by Welford's method: it subtracts no large sums.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Numbers {
    count: u64,
    infinite: u64,
    minimum: f64,
    maximum: f64,
    mean: f64,
    /// The sum of the squared distances from the mean.
    squares: f64,
}

impl Numbers {
    pub(super) fn add(&mut self, value: f64) {
        if !value.is_finite() {
            self.infinite += 1;
            return;
        }
        if self.count == 0 {
            self.minimum = value;
            self.maximum = value;
        }
        self.count += 1;
        self.minimum = self.minimum.min(value);
        self.maximum = self.maximum.max(value);
        let distance = value - self.mean;
        self.mean += distance / self.count as f64;
        self.squares += distance * (value - self.mean);
    }

    /// Adds the numbers that another one has seen.
    pub(super) fn merge(&mut self, other: Numbers) {
        self.infinite += other.infinite;
        if other.count == 0 {
            return;
        }
        if self.count == 0 {
            *self = Numbers { infinite: self.infinite, ..other };
            return;
        }
        let count = self.count + other.count;
        let share = other.count as f64 / count as f64;
        let distance = other.mean - self.mean;
        self.squares += other.squares + distance * distance * self.count as f64 * share;
        self.mean += distance * share;
        self.minimum = self.minimum.min(other.minimum);
        self.maximum = self.maximum.max(other.maximum);
        self.count = count;
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count + self.infinite == 0
    }

    /// `None` if there are no finite numbers.
    pub(super) fn statistics(&self) -> Option<NumberStatistics> {
        (self.count > 0).then(|| NumberStatistics {
            count: self.count,
            infinite: self.infinite,
            minimum: self.minimum,
            maximum: self.maximum,
            mean: self.mean,
            standard_deviation: (self.squares / self.count as f64).sqrt(),
        })
    }
}

/// A number with six significant digits.
pub(super) fn digits(value: f64) -> String {
    if value == value.trunc() && value.abs() < 1e15 {
        return format!("{value:.0}");
    }
    let exponent = value.abs().log10().floor() as i32;
    if !(-5..15).contains(&exponent) {
        return format!("{value:.5e}");
    }
    let decimals = (5 - exponent).max(0) as usize;
    let text = format!("{value:.decimals$}");
    if !text.contains('.') {
        return text;
    }
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_numbers_keep_their_deviation() {
        let mut numbers = Numbers::default();
        for value in [1e9 + 4.0, 1e9 + 7.0, 1e9 + 13.0, 1e9 + 16.0, f64::INFINITY] {
            numbers.add(value);
        }
        let found = numbers.statistics().unwrap();
        assert_eq!((found.count, found.infinite), (4, 1));
        assert_eq!((found.minimum, found.maximum, found.mean), (1e9 + 4.0, 1e9 + 16.0, 1e9 + 10.0));
        assert!((found.standard_deviation - 22.5_f64.sqrt()).abs() < 1e-9, "{found:?}");
        assert_eq!(Numbers::default().statistics(), None);
    }

    #[test]
    fn numbers_are_printed_with_six_digits() {
        let texts = [3.0, -0.5, 0.130_660_8, 33.318_421, 1e15, 1.0 / 3e6, 123_456.789, 0.0];
        let expected =
            ["3", "-0.5", "0.130661", "33.3184", "1.00000e15", "3.33333e-7", "123457", "0"];
        assert_eq!(texts.map(digits), expected);
    }
}
