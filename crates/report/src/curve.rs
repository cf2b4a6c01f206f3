//! [`Curve`]: the values of a metric over the steps of a run. The memory is bounded for any number
//! of steps.

/// The maximum number of buckets. When it is exceeded, pairs of buckets are merged, so that at
/// least half this number is kept.
const MAX_BUCKETS: usize = 160;

/// The values of a metric: the smallest and the largest value in each bucket of steps, so that
/// peaks are preserved. If there are too many buckets, the number of steps in a bucket doubles.
#[derive(Clone, Debug)]
pub struct Curve {
    /// The number of steps in a bucket.
    width: u64,
    buckets: Vec<Bucket>,
    last: Option<(u64, f64)>,
    /// The step of the first value that was NaN or infinite, and the number of such values.
    non_finite: Option<(u64, u64)>,
}

/// The smallest and the largest value of a bucket, with their steps.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    low: (u64, f64),
    high: (u64, f64),
}

impl Default for Curve {
    fn default() -> Curve {
        Curve { width: 1, buckets: Vec::new(), last: None, non_finite: None }
    }
}

impl Curve {
    /// Adds the value of a step.
    pub(crate) fn push(&mut self, step: u64, value: f64) {
        self.last = Some((step, value));
        if !value.is_finite() {
            let (_, count) = self.non_finite.get_or_insert((step, 0));
            *count += 1;
            return;
        }
        self.add(Bucket { low: (step, value), high: (step, value) });
        if self.buckets.len() > MAX_BUCKETS {
            self.width *= 2;
            for bucket in std::mem::take(&mut self.buckets) {
                self.add(bucket);
            }
        }
    }

    fn add(&mut self, new: Bucket) {
        let width = self.width;
        let index = |bucket: &Bucket| bucket.low.0.min(bucket.high.0) / width;
        match self.buckets.last_mut() {
            Some(last) if index(last) == index(&new) => {
                if new.low.1 < last.low.1 {
                    last.low = new.low;
                }
                if new.high.1 > last.high.1 {
                    last.high = new.high;
                }
            }
            _ => self.buckets.push(new),
        }
    }

    /// The steps and values, in the order of the steps.
    pub fn points(&self) -> Vec<(f64, f64)> {
        let mut points = Vec::with_capacity(2 * self.buckets.len());
        for Bucket { low, high } in &self.buckets {
            let (first, second) = if low.0 <= high.0 { (low, high) } else { (high, low) };
            points.push((first.0 as f64, first.1));
            if second.0 != first.0 {
                points.push((second.0 as f64, second.1));
            }
        }
        points
    }

    /// The latest value with its step.
    pub fn last(&self) -> Option<(u64, f64)> {
        self.last
    }

    /// The smallest value with its step.
    pub fn min(&self) -> Option<(u64, f64)> {
        self.buckets.iter().map(|s| s.low).min_by(|a, b| a.1.total_cmp(&b.1))
    }

    /// The largest value with its step.
    pub fn max(&self) -> Option<(u64, f64)> {
        self.buckets.iter().map(|s| s.high).max_by(|a, b| a.1.total_cmp(&b.1).then(b.0.cmp(&a.0)))
    }

    /// The step of the first value that was NaN or infinite, and the number of such values.
    pub fn non_finite(&self) -> Option<(u64, u64)> {
        self.non_finite
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_values_keep_their_peaks() {
        let mut curve = Curve::default();
        for step in 0..200_000u64 {
            let value = match step {
                45_678 => 99.0,
                100_001 => -99.0,
                _ => (step as f64 / 2e4).sin(),
            };
            curve.push(step * 10, value);
        }
        let points = curve.points();
        assert!((MAX_BUCKETS..=2 * MAX_BUCKETS).contains(&points.len()), "{}", points.len());
        assert!(points.is_sorted_by(|a, b| a.0 < b.0));
        assert_eq!((curve.max(), curve.min()), (Some((456_780, 99.0)), Some((1_000_010, -99.0))));
        assert!(points.contains(&(456_780.0, 99.0)) && points.contains(&(1_000_010.0, -99.0)));
        let sine = |step: f64| (step / 2e5).sin();
        let others = points.iter().filter(|p| p.1.abs() <= 1.0);
        assert!(
            others.clone().count() > 150
                && others.into_iter().all(|p| (p.1 - sine(p.0)).abs() < 1e-9)
        );
    }

    #[test]
    fn values_that_are_not_finite_are_counted() {
        let mut curve = Curve::default();
        [(1, 1.0), (2, f64::NAN), (3, f64::INFINITY), (4, 2.0)]
            .into_iter()
            .for_each(|(step, v)| curve.push(step, v));
        assert_eq!(
            (curve.non_finite(), curve.last(), curve.points().len()),
            (Some((2, 2)), Some((4, 2.0)), 2)
        );
    }
}
