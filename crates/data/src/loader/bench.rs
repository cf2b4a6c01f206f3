//! The speed of a loader on its own, without training.
//!
//! Out of scope: other loaders, and the waiting time of a real training loop (`report`).

use std::fmt;
use std::time::{Duration, Instant};

use fulmen_durable::messages::{amount, quantity};

use super::{
    data_loader::DataLoader, host_batches::HostBatches, report::LoaderReport, report::time,
};
use crate::Result;

/// The measurements of [`bench_loader`].
#[derive(Clone, Debug)]
pub struct LoaderBench {
    /// The time from the start to the end of the epoch.
    pub elapsed: Duration,
    /// The time from the start to the first batch.
    pub first_batch: Duration,
    /// The samples of the first batch.
    pub first_samples: usize,
    /// The number of batches.
    pub batches: usize,
    /// The number of samples, without padding.
    pub samples: usize,
    /// The size of all batches in bytes, with padding and masks.
    pub bytes: u64,
    /// The number of samples that could not be read.
    pub bad_samples: u64,
    /// Where the threads spent their time, and how full the queue was.
    pub report: LoaderReport,
}

/// Reads epoch 0 of a loader without a device and drops the batches.
///
/// ```
/// use fulmen_data::{DataLoader, TensorDataset, bench_loader};
///
/// let data = TensorDataset::builder().array("x", [1000, 8], vec![0.5f32; 8000]).build()?;
/// let bench = bench_loader(&DataLoader::builder(data).batch_size(100).num_workers(2).build()?)?;
/// assert_eq!((bench.batches, bench.samples), (10, 1000));
/// assert!(bench.samples_per_second() > 0.0);
/// println!("{bench}");
/// # Ok::<(), fulmen_data::Error>(())
/// ```
///
/// # Errors
/// The error of the first batch that cannot be read.
pub fn bench_loader(loader: &DataLoader) -> Result<LoaderBench> {
    measure(loader, |loader| loader.epoch(0), None)
}

/// Reads a loader without a device for about this time, epoch after epoch, and drops the batches. At
/// least one batch is read.
///
/// ```
/// use std::time::Duration;
///
/// use fulmen_data::{DataLoader, TensorDataset, bench_loader_for};
///
/// let data = TensorDataset::builder().array("x", [1000, 8], vec![0.5f32; 8000]).build()?;
/// let loader = DataLoader::builder(data).batch_size(100).build()?;
/// let bench = bench_loader_for(&loader, Duration::from_millis(20))?;
/// assert!(bench.batches >= 1 && bench.steady_samples_per_second() > 0.0);
/// # Ok::<(), fulmen_data::Error>(())
/// ```
///
/// # Errors
/// The error of the first batch that cannot be read.
pub fn bench_loader_for(loader: &DataLoader, time: Duration) -> Result<LoaderBench> {
    measure(loader, |loader| loader.epochs(0..u64::MAX, 0), Some(time))
}

/// Reads batches until there are no more, or this time has passed.
fn measure(
    loader: &DataLoader,
    read: impl FnOnce(&DataLoader) -> HostBatches,
    time: Option<Duration>,
) -> Result<LoaderBench> {
    let loader = loader.with_own_report()?;
    let start = Instant::now();
    let mut batches = 0;
    let mut samples = 0;
    let mut bytes = 0;
    let mut first_batch = Duration::ZERO;
    let mut first_samples = 0;
    for batch in read(&loader) {
        let batch = batch?;
        if batches == 0 {
            first_batch = start.elapsed();
            first_samples = batch.valid();
        }
        batches += 1;
        samples += batch.valid();
        bytes += batch.layout().size() as u64;
        if time.is_some_and(|time| start.elapsed() >= time) {
            break;
        }
    }
    let elapsed = start.elapsed();
    let bad_samples = loader.bad_samples().count;
    let report = loader.report();
    Ok(LoaderBench {
        elapsed,
        first_batch,
        first_samples,
        batches,
        samples,
        bytes,
        bad_samples,
        report,
    })
}

impl LoaderBench {
    /// Samples per second over the whole epoch, including the time to the first batch.
    pub fn samples_per_second(&self) -> f64 {
        self.samples as f64 / self.elapsed.as_secs_f64()
    }

    /// Samples per second after the first batch; over all of the time if there was only one batch.
    pub fn steady_samples_per_second(&self) -> f64 {
        let time = self.elapsed.saturating_sub(self.first_batch).as_secs_f64();
        let samples = self.samples - self.first_samples;
        if samples > 0 && time > 0.0 { samples as f64 / time } else { self.samples_per_second() }
    }

    /// Batches per second over the whole epoch.
    pub fn batches_per_second(&self) -> f64 {
        self.batches as f64 / self.elapsed.as_secs_f64()
    }
}

impl fmt::Display for LoaderBench {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{:.0} samples/s, {:.1} batches/s, {}: {} in {}, the first batch after {}",
            self.samples_per_second(),
            self.batches_per_second(),
            amount(self.bytes as f64 / self.elapsed.as_secs_f64(), "B/s"),
            quantity(self.samples, "sample"),
            time(self.elapsed),
            time(self.first_batch)
        )?;
        let LoaderReport { num_workers, cores, .. } = &self.report;
        for (name, spent) in self.report.parts() {
            let a_sample = time(spent.div_f64(self.samples.max(1) as f64));
            let share = 100.0 * spent.as_secs_f64()
                / self.report.work().as_secs_f64().max(f64::MIN_POSITIVE);
            writeln!(f, "{name:<10} {a_sample:>9} a sample  {share:>3.0} %")?;
        }
        if *num_workers > 0 {
            writeln!(f, "batches: {}", self.report.host_queue)?;
        }
        if self.bad_samples > 0 {
            writeln!(f, "{} could not be read", quantity(self.bad_samples, "sample"))?;
        }
        write!(f, "{} on {}", quantity(num_workers, "worker"), quantity(cores, "core"))
    }
}
