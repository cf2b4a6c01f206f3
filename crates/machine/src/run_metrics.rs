//! Reads the metrics of a running training from its endpoint, the Trainer's option `metrics_port`.

use std::fmt;
use std::time::{Duration, Instant};

use fulmen_durable::messages::{duration, quantity};
use reqwest::blocking::Client;

use crate::{MetricsError, http_client};

/// The time-out of a request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);

/// The metrics of a training.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct RunMetrics {
    /// The current epoch, counted from 0.
    pub epoch: u64,
    /// Optimizer steps.
    pub global_step: u64,
    /// The mean step time since the previous read, if the training has made steps since then.
    pub step_time: Option<Duration>,
    /// The share of the time since the previous read in which the devices waited for a batch, from
    /// 0 to 1.
    pub input_wait: Option<f64>,
    /// The times of the latest steps. `None` if no step ended in that time, and from a training that
    /// was built with an older Fulmen.
    pub steps: Option<StepRange>,
    /// The share of the chips' peak that the model uses, from 0 to 1, if the training logs it as
    /// `throughput/mfu` (callback `ThroughputMonitor`).
    pub mfu: Option<f64>,
}

/// The times of the steps that ended within a stretch of time.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepRange {
    /// The number of steps.
    pub count: u64,
    /// The shortest step.
    pub min: Duration,
    /// The mean of the steps.
    pub mean: Duration,
    /// The longest step.
    pub max: Duration,
}

impl fmt::Display for StepRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |time: Duration| duration(time.as_secs_f64());
        write!(
            f,
            "{} (mean of {}), {} (min), {} (max)",
            text(self.mean),
            quantity(self.count, "step"),
            text(self.min),
            text(self.max)
        )
    }
}

impl fmt::Display for RunMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "epoch {}, step {}", self.epoch, self.global_step)?;
        if let Some(time) = self.step_time {
            write!(f, ", {} a step", duration(time.as_secs_f64()))?;
        }
        match self.input_wait {
            Some(share) => write!(f, ", waits for input {:.1} % of the time", share * 100.0),
            None => Ok(()),
        }
    }
}

/// Reads the metrics of a training repeatedly.
///
/// ```no_run
/// let mut client = fulmen_machine::RunMetricsClient::new("127.0.0.1:9090")?;
/// println!("{}", client.read()?); // epoch 0, step 1200
/// # Ok::<(), fulmen_machine::MetricsError>(())
/// ```
#[derive(Debug)]
pub struct RunMetricsClient {
    url: String,
    client: Client,
    previous: Option<Reading>,
}

/// The counters of a training at one time.
#[derive(Clone, Copy, Debug)]
struct Reading {
    time: Instant,
    global_step: u64,
    /// The seconds spent waiting for input up to this reading.
    input_wait: f64,
}

impl RunMetricsClient {
    /// Creates a client for `HOST:PORT`, a port of this machine, or the URL that the training
    /// printed.
    ///
    /// # Errors
    /// This machine's certificates cannot be read.
    pub fn new(address: &str) -> Result<RunMetricsClient, MetricsError> {
        let url = match address {
            url if url.contains("://") => url.to_owned(),
            port if port.parse::<u16>().is_ok() => format!("http://127.0.0.1:{port}/metrics"),
            address => format!("http://{address}/metrics"),
        };
        let client = http_client(REQUEST_TIMEOUT)
            .map_err(|error| MetricsError(format!("{url}: {error}")))?;
        Ok(RunMetricsClient { url, client, previous: None })
    }

    /// Reads the current metrics. The times of the steps are those of the last minute.
    ///
    /// # Errors
    /// No training answers at the address.
    pub fn read(&mut self) -> Result<RunMetrics, MetricsError> {
        self.read_window(Duration::from_secs(60))
    }

    /// Reads the current metrics, with the times of the steps that ended within `window`.
    ///
    /// # Errors
    /// No training answers at the address.
    pub fn read_window(&mut self, window: Duration) -> Result<RunMetrics, MetricsError> {
        let separator = if self.url.contains('?') { '&' } else { '?' };
        let url = format!("{}{separator}window_ms={}", self.url, window.as_millis());
        let answer = self.client.get(url).send();
        let text =
            answer.and_then(|answer| answer.error_for_status()?.text()).map_err(
                |error| match error.status() {
                    Some(status) => status.to_string(),
                    None if error.is_timeout() => {
                        format!("no answer within {} s", REQUEST_TIMEOUT.as_secs())
                    }
                    None => "no training answers there; its option `metrics_port` sets the port"
                        .to_owned(),
                },
            );
        let metrics = text.and_then(|text| {
            self.update(Instant::now(), &text)
                .ok_or_else(|| "the server's metrics are not those of a training".to_owned())
        });
        metrics.map_err(|reason| MetricsError(format!("{}: {reason}", self.url)))
    }

    /// Parses an answer and compares it with the previous one.
    fn update(&mut self, now: Instant, text: &str) -> Option<RunMetrics> {
        let value = |name: &str| {
            let mut lines =
                text.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            lines.next()?.parse::<f64>().ok()
        };
        let epoch = value("fulmen_epoch")? as u64;
        let global_step = value("fulmen_global_step")? as u64;
        let statistic = |name: &str| {
            let seconds = value(&format!("fulmen_latest_step_seconds{{statistic=\"{name}\"}}"))?;
            Duration::try_from_secs_f64(seconds).ok()
        };
        let range = || {
            Some(StepRange {
                count: value("fulmen_latest_steps")? as u64,
                min: statistic("min")?,
                mean: statistic("mean")?,
                max: statistic("max")?,
            })
        };
        let steps = range();
        let mfu = value("fulmen_logged{name=\"throughput/mfu\"}").filter(|mfu| mfu.is_finite());
        // The counter is absent before the first wait.
        let waited = value("fulmen_input_wait_seconds_total").unwrap_or(0.0);
        let reading = Reading { time: now, global_step, input_wait: waited };
        // A different training may use the port now, with counters that started from zero.
        let previous = self.previous.replace(reading).filter(|previous| {
            previous.global_step <= global_step && previous.input_wait <= waited
        });
        let Some(previous) = previous else {
            let metrics =
                RunMetrics { epoch, global_step, step_time: None, input_wait: None, steps, mfu };
            return Some(metrics);
        };
        let time = now - previous.time;
        let new_steps =
            u32::try_from(global_step - previous.global_step).ok().filter(|count| *count > 0);
        let step_time = new_steps.map(|count| time / count);
        let share = ((waited - previous.input_wait) / time.as_secs_f64()).clamp(0.0, 1.0);
        Some(RunMetrics { epoch, global_step, step_time, input_wait: Some(share), steps, mfu })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_and_waits_are_computed_from_consecutive_answers() {
        let text = |step: u64, waited: &str| {
            format!("# HELP a b\n{waited}fulmen_epoch 3\nfulmen_global_step {step}\n# EOF\n")
        };
        let mut client = RunMetricsClient::new("9090").unwrap();
        let start = Instant::now();
        assert_eq!(client.url, "http://127.0.0.1:9090/metrics");
        let after = |seconds| start + Duration::from_secs(seconds);
        let first = client.update(after(0), &text(10, "")).unwrap();
        assert_eq!(
            first,
            RunMetrics {
                epoch: 3,
                global_step: 10,
                step_time: None,
                input_wait: None,
                steps: None,
                mfu: None,
            }
        );
        let second =
            client.update(after(2), &text(14, "fulmen_input_wait_seconds_total 0.5\n")).unwrap();
        assert_eq!(
            second.to_string(),
            "epoch 3, step 14, 500 ms a step, waits for input 25.0 % of the time"
        );
        let idle =
            client.update(after(3), &text(14, "fulmen_input_wait_seconds_total 0.5\n")).unwrap();
        assert_eq!(idle.to_string(), "epoch 3, step 14, waits for input 0.0 % of the time");
        let restarted = client.update(after(4), &text(2, "")).unwrap();
        assert_eq!(restarted.to_string(), "epoch 3, step 2");
        assert_eq!(client.update(after(5), "<html>"), None);
    }

    #[test]
    fn a_training_reports_the_range_of_its_steps() {
        let mut client = RunMetricsClient::new("9090").unwrap();
        let steps = "fulmen_latest_step_seconds{statistic=\"min\"} 0.25\n\
                     fulmen_latest_step_seconds{statistic=\"mean\"} 0.5\n\
                     fulmen_latest_step_seconds{statistic=\"max\"} 1\nfulmen_latest_steps 7\n";
        let text = format!(
            "{steps}fulmen_epoch 0\nfulmen_global_step 9\nfulmen_logged{{name=\"throughput/mfu\"}} 0.375\n# EOF\n"
        );
        let metrics = client.update(Instant::now(), &text).unwrap();
        assert_eq!(metrics.mfu, Some(0.375));
        let range = metrics.steps.unwrap().to_string();
        assert_eq!(range, "500 ms (mean of 7 steps), 250 ms (min), 1.00 s (max)");
    }
}
