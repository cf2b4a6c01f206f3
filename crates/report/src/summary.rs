//! [`Summary`]: what a fit knows of itself besides what it logs, as `summary.json` in the run's folder.

use serde::{Deserialize, Serialize};

/// The file of a run's folder that has it.
pub const SUMMARY: &str = "summary.json";

/// How a fit stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// It trains, or was killed.
    #[default]
    Running,
    /// It reached its last epoch or step, or a callback stopped it.
    Finished,
    /// A signal ended it.
    Interrupted,
    /// It ended with an error.
    Failed,
}

/// What a fit knows of itself. Times are in seconds, sizes in bytes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Summary {
    /// How it stands.
    pub state: State,
    /// The error that ended it, or why it stopped before its last epoch.
    pub reason: Option<String>,
    /// Finished epochs.
    pub epochs: u64,
    /// Finished optimizer steps.
    pub global_step: u64,
    /// From the call of `fit` to the end of its first step.
    pub time_to_first_step: f64,
    /// The median time of a step.
    pub step_time_p50: f64,
    /// Samples trained on each second.
    pub samples_per_second: f64,
    /// The share of the steps' time, from 0 to 1, in which the device had no batch.
    pub data_wait_share: f64,
    /// What the training loader says is slow.
    pub loader: Option<String>,
    /// The programs that were compiled, with how long it took, where that is known.
    pub compilations: Vec<(String, Option<f64>)>,
    /// Arithmetic operations a second on each device.
    pub flops_per_second: Option<f64>,
    /// The most that a device of this kind can do.
    pub peak_flops: Option<f64>,
    /// How long the steps took.
    pub step_times: StepTimes,
    /// The devices of the process that writes.
    pub memory: Vec<DeviceMemory>,
    /// Memory of the process that writes.
    pub host_memory: Option<u64>,
    /// The parts of the model: name, type, parameters, shapes.
    pub model: Vec<[String; 4]>,
    /// What stands below the table of the model.
    pub model_total: String,
    /// The most expensive lines of the user's code in the compiled step, with operations and bytes of a step on each device.
    pub lines: Vec<(String, f64, f64)>,
    /// What would make the training faster.
    pub advice: Vec<String>,
    /// What else there is to say: mesh, precision, batch size.
    pub setting: Vec<(String, String)>,
}

/// The memory of a device.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DeviceMemory {
    /// Which device.
    pub device: String,
    /// The training state.
    pub state: u64,
    /// What the training step needs besides its arguments, by the compiler's count.
    pub temporaries: Option<u64>,
    /// The most that was ever in use, as the device says.
    pub peak: Option<u64>,
    /// How much there is.
    pub limit: Option<u64>,
}

/// How the times of steps are distributed, in bounded memory.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct StepTimes {
    /// How many steps took from `2^(i/8)` to `2^((i+1)/8)` microseconds, for each `i` that occurs.
    pub counts: std::collections::BTreeMap<i32, u64>,
    /// The slowest steps with their times, the slowest first.
    pub slowest: Vec<(u64, f64)>,
}

impl StepTimes {
    /// How many of the slowest are kept.
    const SLOWEST: usize = 10;
    /// Parts that a doubling of the time is divided into.
    const PARTS: f64 = 8.0;

    /// Counts a step.
    pub fn push(&mut self, step: u64, seconds: f64) {
        if seconds <= 0.0 || !seconds.is_finite() {
            return;
        }
        *self.counts.entry(((seconds * 1e6).log2() * Self::PARTS).floor() as i32).or_default() += 1;
        if self.slowest.len() < Self::SLOWEST || self.slowest.last().is_some_and(|last| last.1 < seconds) {
            let place = self.slowest.partition_point(|slow| slow.1 >= seconds);
            self.slowest.insert(place, (step, seconds));
            self.slowest.truncate(Self::SLOWEST);
        }
    }

    /// Where each part of the histogram begins, in seconds, and how many steps it has, those in between included.
    pub(crate) fn histogram(&self) -> Vec<(f64, u64)> {
        let (Some((&first, _)), Some((&last, _))) = (self.counts.first_key_value(), self.counts.last_key_value())
        else {
            return vec![];
        };
        let begins = |i: i32| (f64::from(i) / Self::PARTS).exp2() / 1e6;
        (first..=last).map(|i| (begins(i), self.counts.get(&i).copied().unwrap_or(0))).collect()
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
        assert!(histogram.windows(2).all(|pair| (pair[1].0 / pair[0].0 - 2f64.powf(0.125)).abs() < 1e-9));
        assert!(histogram[0].0 <= 1e-3 && histogram.len() < 100);
        let text = serde_json::to_string(&times).unwrap();
        assert_eq!(serde_json::from_str::<StepTimes>(&text).unwrap(), times);
    }
}
