//! [`Metrics`]: counters and timings of the runtime's compilations, runs and transfers.
//!
//! The report has the format of PyTorch/XLA's `metrics_report`, so the same tools can read it.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The number of latest samples of a metric that are kept for percentiles.
const KEPT: usize = 1024;
const PERCENTILES: [u8; 9] = [1, 5, 10, 20, 50, 80, 90, 95, 99];

/// The unit of a metric's samples.
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
pub struct Metrics {
    inner: Mutex<Inner>,
    /// Buffers on devices. Each step makes and drops many, so they are counted without the lock.
    created: AtomicU64,
    destroyed: AtomicU64,
}

#[derive(Debug, Default)]
struct Inner {
    counters: BTreeMap<&'static str, u64>,
    metrics: BTreeMap<&'static str, Metric>,
}

/// All metrics and counters at one time, sorted by name. Displays as the report.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct MetricsSnapshot {
    /// The sampled metrics.
    pub metrics: Vec<MetricSnapshot>,
    /// The counters with their values.
    pub counters: Vec<(&'static str, u64)>,
}

/// A sampled metric at one time. Values are in its unit.
#[derive(Clone, Debug, PartialEq)]
pub struct MetricSnapshot {
    /// The name, such as `ExecuteTime`.
    pub name: &'static str,
    /// The unit of the samples.
    pub unit: Unit,
    /// The number of all samples.
    pub count: u64,
    /// The sum of all samples.
    pub sum: f64,
    /// The rates of the latest samples. `None` if no time passed.
    pub rates: Option<Rates>,
    /// Percentiles of the latest samples, with their values.
    pub percentiles: Vec<(u8, f64)>,
}

/// The range of the samples of a stretch of time. Values are in the metric's unit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct SampleRange {
    /// The number of samples, which is at least 1.
    pub count: u64,
    /// The smallest sample.
    pub min: f64,
    /// The mean of the samples.
    pub mean: f64,
    /// The largest sample.
    pub max: f64,
}

/// The rates of samples per second, from the first to the last sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rates {
    /// The sum of the samples, per second.
    pub sum: f64,
    /// The number of samples per second.
    pub count: f64,
}

impl Metrics {
    fn with<T>(&self, f: impl FnOnce(&mut Inner) -> T) -> T {
        f(&mut self.inner.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Adds `amount` to a counter.
    pub fn count(&self, counter: &'static str, amount: u64) {
        self.with(|inner| *inner.counters.entry(counter).or_default() += amount);
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

    /// The range of a metric's samples within this time, up to now; `None` if there are none. Only
    /// the latest 1024 samples are known.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// let metrics = fulmen_tensor::Metrics::default();
    /// metrics.record_bytes("InboundData", 10);
    /// metrics.record_bytes("InboundData", 30);
    /// let range = metrics.range_within("InboundData", Duration::from_secs(60)).unwrap();
    /// assert_eq!((range.count, range.min, range.mean, range.max), (2, 10.0, 20.0, 30.0));
    /// ```
    pub fn range_within(&self, metric: &str, time: Duration) -> Option<SampleRange> {
        let now = Instant::now();
        self.with(|inner| inner.metrics.get(metric)?.range_within(now, time))
    }

    /// The value of a counter, or the number of samples of a metric; 0 for an unknown name.
    pub fn value(&self, name: &str) -> u64 {
        let snapshot = self.snapshot();
        let counter =
            snapshot.counters.iter().find(|counter| counter.0 == name).map(|counter| counter.1);
        let metric = || {
            snapshot.metrics.iter().find(|metric| metric.name == name).map(|metric| metric.count)
        };
        counter.or_else(metric).unwrap_or(0)
    }

    /// Counts new buffers on devices.
    pub(crate) fn count_created_handles(&self, count: usize) {
        self.created.fetch_add(count as u64, Ordering::Relaxed);
    }

    /// Counts buffers that were dropped or donated.
    pub(crate) fn count_destroyed_handles(&self, count: usize) {
        self.destroyed.fetch_add(count as u64, Ordering::Relaxed);
    }

    /// All metrics, then all counters, as text.
    pub fn report(&self) -> String {
        self.snapshot().to_string()
    }

    /// The current values of all metrics and counters.
    pub fn snapshot(&self) -> MetricsSnapshot {
        let (metrics, mut counters) = self.with(|inner| {
            let metrics =
                inner.metrics.iter().map(|(&name, metric)| metric.snapshot(name)).collect();
            (metrics, inner.counters.clone())
        });
        let handles =
            [("CreateDataHandles", &self.created), ("DestroyDataHandles", &self.destroyed)];
        counters.extend(handles.map(|(name, handles)| (name, handles.load(Ordering::Relaxed))));
        MetricsSnapshot {
            metrics,
            counters: counters.into_iter().filter(|counter| counter.1 > 0).collect(),
        }
    }
}

impl Metric {
    fn range_within(&self, now: Instant, time: Duration) -> Option<SampleRange> {
        let is_within = |recorded: Instant| now.saturating_duration_since(recorded) <= time;
        let samples =
            || self.latest.iter().filter(|sample| is_within(sample.0)).map(|sample| sample.1);
        let count = samples().count() as u64;
        (count > 0).then(|| SampleRange {
            count,
            min: samples().fold(f64::INFINITY, f64::min),
            mean: samples().sum::<f64>() / count as f64,
            max: samples().fold(f64::NEG_INFINITY, f64::max),
        })
    }

    fn snapshot(&self, name: &'static str) -> MetricSnapshot {
        let mut sorted: Vec<f64> = self.latest.iter().map(|s| s.1).collect();
        sorted.sort_by(f64::total_cmp);
        let seconds = match (self.latest.front(), self.latest.back()) {
            (Some(first), Some(last)) => last.0.duration_since(first.0).as_secs_f64(),
            _ => 0.0,
        };
        let rates = (seconds > 0.0).then(|| Rates {
            sum: sorted.iter().sum::<f64>() / seconds,
            count: sorted.len() as f64 / seconds,
        });
        let percentile = |&p: &u8| Some((p, *sorted.get(sorted.len() * usize::from(p) / 100)?));
        let percentiles = PERCENTILES.iter().filter_map(percentile).collect();
        MetricSnapshot {
            name,
            unit: self.unit,
            count: self.count,
            sum: self.sum,
            rates,
            percentiles,
        }
    }
}

impl fmt::Display for MetricsSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.metrics.iter().try_for_each(|metric| write!(f, "{metric}"))?;
        self.counters
            .iter()
            .try_for_each(|(name, value)| writeln!(f, "Counter: {name}\n  Value: {value}"))
    }
}

impl fmt::Display for MetricSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MetricSnapshot { name, unit, count, sum, rates, percentiles } = self;
        writeln!(
            f,
            "Metric: {name}\n  TotalSamples: {count}\n  Accumulator: {}",
            unit.format(*sum)
        )?;
        if let Some(rates) = rates {
            writeln!(
                f,
                "  ValueRate: {} / second\n  Rate: {} / second",
                unit.format(rates.sum),
                significant(rates.count)
            )?;
        }
        let percentiles: Vec<_> =
            percentiles.iter().map(|(p, value)| format!("{p}%={}", unit.format(*value))).collect();
        writeln!(f, "  Percentiles: {}", percentiles.join("; "))
    }
}

impl Unit {
    fn format(self, value: f64) -> String {
        match self {
            Unit::Nanoseconds => format_time(value),
            Unit::Bytes => {
                let mut scaled = value;
                let mut unit = "B";
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

/// Formats nanoseconds as days, hours, minutes, seconds, milliseconds and microseconds. Leading
/// units that are zero are left out.
fn format_time(nanoseconds: f64) -> String {
    use fmt::Write as _;
    let mut rest = nanoseconds;
    let mut text = String::new();
    for (name, size, digits) in
        [("d", 86_400e9, 1), ("h", 3_600e9, 2), ("m", 60e9, 2), ("s", 1e9, 2), ("ms", 1e6, 3)]
    {
        let count = (rest / size).floor();
        rest -= count * size;
        if count > 0.0 || !text.is_empty() {
            let _ = write!(text, "{count:0digits$.0}{name}");
        }
    }
    let _ = write!(text, "{:07.3}us", rest / 1e3);
    text
}

/// Formats a number with six significant digits, as C++ streams do.
fn significant(value: f64) -> String {
    let integer_digits =
        if value.abs() >= 1.0 { value.abs().log10().floor() as usize + 1 } else { 1 };
    let text = format!("{value:.*}", 6usize.saturating_sub(integer_digits));
    if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    } else {
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_formatted_as_by_pytorch_xla() {
        assert_eq!(format_time(2_237_155_430.0), "02s237ms155.430us");
        assert_eq!(format_time(593_428_550.0), "593ms428.550us");
        assert_eq!(format_time(4_030.0), "004.030us");
        assert_eq!(format_time(60e9), "01m00s000ms000.000us");
    }

    #[test]
    fn bytes_and_rates_are_readable() {
        assert_eq!(Unit::Bytes.format(1536.0), "1.50KB");
        assert_eq!(significant(1.95357), "1.95357");
        assert_eq!(significant(1234.5), "1234.5");
    }

    #[test]
    fn a_range_has_only_the_samples_of_its_time() {
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let metric = Metric {
            unit: Unit::Nanoseconds,
            count: 3,
            sum: 16.0,
            latest: [(at(0), 10.0), (at(5), 2.0), (at(9), 4.0)].into(),
        };
        let range = metric.range_within(at(10), Duration::from_secs(5)).unwrap();
        assert_eq!(range, SampleRange { count: 2, min: 2.0, mean: 3.0, max: 4.0 });
        assert_eq!(metric.range_within(at(30), Duration::from_secs(5)), None);
        assert_eq!(Metrics::default().range_within("StepTime", Duration::MAX), None);
    }

    #[test]
    fn created_and_destroyed_buffers_are_counted() {
        let metrics = Metrics::default();
        assert_eq!(metrics.report(), "", "a counter at 0 has no line");
        metrics.count_created_handles(3);
        metrics.count_created_handles(1);
        metrics.count_destroyed_handles(3);
        assert_eq!(metrics.value("CreateDataHandles"), 4);
        assert_eq!(
            metrics.report(),
            "Counter: CreateDataHandles\n  Value: 4\nCounter: DestroyDataHandles\n  Value: 3\n"
        );
        metrics.count_destroyed_handles(1);
        assert_eq!(metrics.value("DestroyDataHandles"), 4);
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
