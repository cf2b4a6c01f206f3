//! [`Metrics`]: how often and how long the runtime compiled, ran and moved data, as counters and samples.
//!
//! The report has the grammar of PyTorch/XLA's `metrics_report`, so tools that read the one read the other.

use std::collections::{BTreeMap, VecDeque};
use std::fmt::Write as _;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How many of the latest samples the percentiles are taken from.
const KEPT: usize = 1024;
const PERCENTILES: [usize; 9] = [1, 5, 10, 20, 50, 80, 90, 95, 99];

/// What the samples of a metric measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Nanoseconds, printed as `01s234ms567.890us`.
    Nanoseconds,
    /// Bytes, printed as `1.50MB`.
    Bytes,
}

#[derive(Debug)]
struct Metric {
    unit: Unit,
    count: u64,
    sum: f64,
    latest: VecDeque<(Instant, f64)>,
}

/// Counters and sampled metrics of one [`Runtime`](crate::Runtime).
///
/// ```
/// use fulmen_tensor::Metrics;
/// let metrics = Metrics::default();
/// metrics.count("CachedCompile", 2);
/// metrics.record_time("CompileTime", std::time::Duration::from_millis(1500));
/// assert!(metrics.report().contains("Counter: CachedCompile\n  Value: 2\n"));
/// assert!(metrics.report().contains("Accumulator: 01s500ms000.000us"));
/// ```
#[derive(Debug, Default)]
pub struct Metrics(Mutex<Inner>);

#[derive(Debug, Default)]
struct Inner {
    counters: BTreeMap<&'static str, u64>,
    metrics: BTreeMap<&'static str, Metric>,
}

impl Metrics {
    fn with<T>(&self, f: impl FnOnce(&mut Inner) -> T) -> T {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Adds `by` to a counter.
    pub fn count(&self, counter: &'static str, by: u64) {
        self.with(|inner| *inner.counters.entry(counter).or_default() += by);
    }

    /// Adds a sample to a metric.
    pub fn record(&self, metric: &'static str, unit: Unit, sample: f64) {
        self.with(|inner| {
            let metric = inner.metrics.entry(metric).or_insert_with(|| Metric {
                unit,
                count: 0,
                sum: 0.0,
                latest: VecDeque::with_capacity(KEPT),
            });
            metric.count += 1;
            metric.sum += sample;
            if metric.latest.len() == KEPT {
                metric.latest.pop_front();
            }
            metric.latest.push_back((Instant::now(), sample));
        });
    }

    /// Adds a duration to a metric of time.
    pub fn record_time(&self, metric: &'static str, time: Duration) {
        self.record(metric, Unit::Nanoseconds, time.as_nanos() as f64);
    }

    /// Adds a size to a metric of bytes.
    pub fn record_bytes(&self, metric: &'static str, bytes: usize) {
        self.record(metric, Unit::Bytes, bytes as f64);
    }

    /// The value of a counter, or how many samples a metric has had; 0 for an unknown name.
    pub fn value(&self, name: &str) -> u64 {
        self.with(|inner| {
            inner.counters.get(name).copied().or_else(|| inner.metrics.get(name).map(|m| m.count)).unwrap_or(0)
        })
    }

    /// All metrics, then all counters, as text.
    pub fn report(&self) -> String {
        self.with(|inner| {
            let mut text = String::new();
            for (name, metric) in &inner.metrics {
                metric.report(name, &mut text);
            }
            for (name, value) in &inner.counters {
                let _ = writeln!(text, "Counter: {name}\n  Value: {value}");
            }
            text
        })
    }
}

impl Metric {
    fn report(&self, name: &str, text: &mut String) {
        let mut sorted: Vec<f64> = self.latest.iter().map(|s| s.1).collect();
        sorted.sort_by(f64::total_cmp);
        let seconds = match (self.latest.front(), self.latest.back()) {
            (Some(first), Some(last)) => last.0.duration_since(first.0).as_secs_f64(),
            _ => 0.0,
        };
        let _ = writeln!(text, "Metric: {name}\n  TotalSamples: {}", self.count);
        let _ = writeln!(text, "  Accumulator: {}", self.unit.spell(self.sum));
        if seconds > 0.0 {
            let _ = writeln!(text, "  ValueRate: {} / second", self.unit.spell(sorted.iter().sum::<f64>() / seconds));
            let _ = writeln!(text, "  Rate: {} / second", significant(sorted.len() as f64 / seconds));
        }
        let percentiles: Vec<_> = PERCENTILES
            .iter()
            .filter_map(|p| Some(format!("{p}%={}", self.unit.spell(*sorted.get(sorted.len() * p / 100)?))))
            .collect();
        let _ = writeln!(text, "  Percentiles: {}", percentiles.join("; "));
    }
}

impl Unit {
    fn spell(self, value: f64) -> String {
        match self {
            Unit::Nanoseconds => spell_time(value),
            Unit::Bytes => {
                let (mut scaled, mut unit) = (value, "B");
                for larger in ["KB", "MB", "GB", "TB"] {
                    if scaled < 1024.0 {
                        break;
                    }
                    (scaled, unit) = (scaled / 1024.0, larger);
                }
                format!("{scaled:.2}{unit}")
            }
        }
    }
}

/// Nanoseconds as days, hours, minutes and seconds with two digits, milliseconds with three, and microseconds; what
/// would only lead with zeros is left out.
fn spell_time(nanoseconds: f64) -> String {
    let mut rest = nanoseconds;
    let mut text = String::new();
    for (name, size, digits) in [("d", 86_400e9, 1), ("h", 3_600e9, 2), ("m", 60e9, 2), ("s", 1e9, 2), ("ms", 1e6, 3)] {
        let count = (rest / size).floor();
        rest -= count * size;
        if count > 0.0 || !text.is_empty() {
            let _ = write!(text, "{count:0digits$.0}{name}");
        }
    }
    let _ = write!(text, "{:07.3}us", rest / 1e3);
    text
}

/// Six significant digits, as C++ streams print numbers.
fn significant(value: f64) -> String {
    let before = if value.abs() >= 1.0 { value.abs().log10().floor() as usize + 1 } else { 1 };
    let text = format!("{value:.*}", 6usize.saturating_sub(before));
    if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_spelled_as_pytorch_xla_spells_them() {
        assert_eq!(spell_time(2_237_155_430.0), "02s237ms155.430us");
        assert_eq!(spell_time(593_428_550.0), "593ms428.550us");
        assert_eq!(spell_time(4_030.0), "004.030us");
        assert_eq!(spell_time(60e9), "01m00s000ms000.000us");
    }

    #[test]
    fn bytes_and_rates_are_readable() {
        assert_eq!(Unit::Bytes.spell(1536.0), "1.50KB");
        assert_eq!(significant(1.95357), "1.95357");
        assert_eq!(significant(1234.5), "1234.5");
    }

    #[test]
    fn percentiles_come_from_the_latest_samples_and_sums_from_all() {
        let metrics = Metrics::default();
        (0..2000).for_each(|i| metrics.record_bytes("InboundData", i));
        assert_eq!(metrics.value("InboundData"), 2000);
        assert!(metrics.report().contains("TotalSamples: 2000"), "{}", metrics.report());
        assert!(metrics.report().contains("50%=1.45KB"), "{}", metrics.report());
    }
}
