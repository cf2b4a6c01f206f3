//! [`Summary`]: information about a fit in addition to logged values, stored as `summary.json` in
//! the run's folder.

use serde::{Deserialize, Serialize};

use crate::LearningRates;

/// The name of the summary's file in a run's folder.
pub const SUMMARY: &str = "summary.json";

/// The state of a fit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// The fit is running, or was killed.
    #[default]
    Running,
    /// The fit reached its last epoch or step, or a callback stopped it.
    Finished,
    /// A signal ended the fit.
    Interrupted,
    /// An error ended the fit.
    Failed,
}

/// Information about a fit. Times are in seconds, sizes in bytes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Summary {
    /// The state of the fit.
    pub state: State,
    /// The error that ended the fit, or why it stopped before its last epoch.
    pub reason: Option<String>,
    /// The number of finished epochs.
    pub epochs: u64,
    /// The number of finished optimizer steps.
    pub global_step: u64,
    /// The time from the call of `fit` to the end of its first step.
    pub time_to_first_step: f64,
    /// The median time of a step.
    pub step_time_p50: f64,
    /// The number of training samples per second.
    pub samples_per_second: f64,
    /// The fraction of step time, from 0 to 1, in which the device had no batch.
    pub data_wait_share: f64,
    /// The training loader's report of its bottleneck.
    pub loader: Option<String>,
    /// The compiled programs, with their compile times if they are known.
    pub compilations: Vec<(String, Option<f64>)>,
    /// The FLOP/s of each device.
    pub flops_per_second: Option<f64>,
    /// The peak FLOP/s of one device.
    pub peak_flops: Option<f64>,
    /// The distribution of step times.
    pub step_times: StepTimes,
    /// The memory of each device of the process that writes the file.
    pub memory: Vec<DeviceMemory>,
    /// The memory of the process that writes the file.
    pub host_memory: Option<u64>,
    /// The measurements of each process, in order, if the run had several and its fit has ended.
    pub hosts: Vec<HostSummary>,
    /// The parts of the model: name, type, parameters, shapes.
    pub model: Vec<[String; 4]>,
    /// The line under the table of the model.
    pub model_total: String,
    /// The most expensive lines of the user's code in the compiled step, with the FLOPs and bytes
    /// of a step on each device.
    pub lines: Vec<(String, f64, f64)>,
    /// Advice for faster training.
    pub advice: Vec<String>,
    /// The last search for a learning rate before the fit.
    pub learning_rates: Option<LearningRates>,
    /// Further settings: mesh, precision, batch size.
    pub setting: Vec<(String, String)>,
}

/// The measurements of one of several processes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct HostSummary {
    /// The name of its machine.
    pub host: Option<String>,
    /// The memory of each of its devices.
    pub memory: Vec<DeviceMemory>,
    /// The memory of the process.
    pub host_memory: Option<u64>,
    /// The fraction of step time, from 0 to 1, in which its devices had no batch.
    pub data_wait_share: f64,
    /// Its training loader's report of the bottleneck.
    pub loader: Option<String>,
}

/// The memory of a device, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DeviceMemory {
    /// The name of the device.
    pub device: String,
    /// The size of the training state.
    pub state: u64,
    /// The size of the training step's temporary memory, as the compiler reports it.
    pub temporaries: Option<u64>,
    /// The peak memory use, as the device reports it.
    pub peak: Option<u64>,
    /// The size of the memory.
    pub limit: Option<u64>,
}

/// The distribution of step times, in bounded memory.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct StepTimes {
    /// For each `i` that occurs, the number of steps that took from `2^(i/8)` to `2^((i+1)/8)`
    /// microseconds.
    pub counts: std::collections::BTreeMap<i32, u64>,
    /// The slowest steps and their times, the slowest step first.
    pub slowest: Vec<(u64, f64)>,
}

impl StepTimes {
    /// How many of the slowest steps are kept.
    const SLOWEST: usize = 10;
    /// The number of bins for each doubling of the time.
    const BINS_PER_DOUBLING: f64 = 8.0;

    /// Counts a step.
    pub fn push(&mut self, step: u64, seconds: f64) {
        if seconds <= 0.0 || !seconds.is_finite() {
            return;
        }
        *self
            .counts
            .entry(((seconds * 1e6).log2() * Self::BINS_PER_DOUBLING).floor() as i32)
            .or_default() += 1;
        if self.slowest.len() < Self::SLOWEST
            || self.slowest.last().is_some_and(|last| last.1 < seconds)
        {
            let index = self.slowest.partition_point(|slow| slow.1 >= seconds);
            self.slowest.insert(index, (step, seconds));
            self.slowest.truncate(Self::SLOWEST);
        }
    }

    /// The lower edge of each bin in seconds and its number of steps. Empty bins between others are
    /// included.
    pub(crate) fn histogram(&self) -> Vec<(f64, u64)> {
        let (Some((&first, _)), Some((&last, _))) =
            (self.counts.first_key_value(), self.counts.last_key_value())
        else {
            return Vec::new();
        };
        let start = |i: i32| (f64::from(i) / Self::BINS_PER_DOUBLING).exp2() / 1e6;
        (first..=last).map(|i| (start(i), self.counts.get(&i).copied().unwrap_or(0))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn step_times_are_counted_and_the_slowest_kept() {
        let mut times = StepTimes::default();
        (1..=1000u64).for_each(|step| times.push(step, step as f64 * 1e-3));
        times.push(1001, 0.0);
        let steps: Vec<u64> = times.slowest.iter().map(|slow| slow.0).collect();
        assert_eq!(steps, (991..=1000).rev().collect::<Vec<_>>());
        let histogram = times.histogram();
        assert_eq!(histogram.iter().map(|part| part.1).sum::<u64>(), 1000);
        assert!(
            histogram
                .windows(2)
                .all(|pair| (pair[1].0 / pair[0].0 - 2f64.powf(0.125)).abs() < 1e-9)
        );
        assert!(histogram[0].0 <= 1e-3 && histogram.len() < 100);
        let text = serde_json::to_string(&times).unwrap();
        assert_eq!(serde_json::from_str::<StepTimes>(&text).unwrap(), times);
    }
}
