//! [`ProgressBar`]: a live bar on a terminal, and plain lines elsewhere. It uses standard error, so
//! standard output can be piped.

use std::io::IsTerminal;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fulmen_durable::messages::{amount, duration, quantity};
use fulmen_loggers::number;
use indicatif::{ProgressBar as Bar, ProgressDrawTarget, ProgressStyle};

use crate::callbacks::callback::Callback;
use crate::callbacks::throughput::{Rates, Throughput};
use crate::console::{log_line, print_line, set_bar};
use crate::hooks::{EvaluationProgress, FitStart, Progress};
use crate::plan::NO_LIMIT;
use crate::{Actions, Error, FitSummary, LogPoint, Plan, Predicted, Sink, TrainStart};

/// Time between two step lines in the log of the run.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// The minimum time between two questions of steps whether there is a terminal again.
const ASK_INTERVAL: Duration = Duration::from_millis(100);

/// Shows the progress of training. Its numbers come from log points that have arrived; it reads
/// nothing from the device.
///
/// It shows samples and tokens per second, FLOP/s on each device, their share of the device's peak
/// (MFU), and the time left. They appear on the bar, at the end of each epoch, and from time to
/// time in the run's `run.log`.
pub struct ProgressBar {
    bar: Option<Bar>,
    /// The progress of the running epoch, if any.
    training: Option<Progress>,
    max_epochs: u64,
    epoch_start: Instant,
    message: String,
    throughput: Throughput,
    /// The latest rates of this fit.
    rates: Option<Rates>,
    /// When the last step line was written to the log of the run.
    logged: Option<Instant>,
    /// When a step without a bar last asked whether there is a terminal.
    asked: Option<Instant>,
    compiling: Option<CompileNotice>,
}

/// Prints a line if compiling a program takes long. Dropped when the program is compiled.
struct CompileNotice {
    done: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl CompileNotice {
    /// The time after which the line is printed.
    const DELAY: Duration = Duration::from_secs(3);

    fn new(program: &str) -> CompileNotice {
        let (done, wait) = mpsc::channel();
        let line = format!("Compiling the {program} ...");
        let thread = std::thread::Builder::new().name("fulmen-compiling".into()).spawn(move || {
            if wait.recv_timeout(CompileNotice::DELAY) == Err(RecvTimeoutError::Timeout) {
                print_line(&line);
            }
        });
        // If the thread doesn't start, only this line is missing.
        CompileNotice { done: Some(done), thread: thread.ok() }
    }
}

impl Drop for CompileNotice {
    fn drop(&mut self) {
        self.done = None;
        // Wait, so that its line comes before the next one.
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Default for ProgressBar {
    fn default() -> ProgressBar {
        ProgressBar {
            bar: None,
            training: None,
            max_epochs: 0,
            epoch_start: Instant::now(),
            message: String::new(),
            throughput: Throughput::default(),
            rates: None,
            logged: None,
            asked: None,
            compiling: None,
        }
    }
}

impl ProgressBar {
    /// Creates a bar if standard error is a terminal; otherwise it prints a line per epoch.
    pub fn new() -> ProgressBar {
        ProgressBar::default()
    }

    /// Whether a step without a bar should try to show one. Most steps need not ask the system.
    fn may_show(&mut self) -> bool {
        if self.asked.is_some_and(|asked| asked.elapsed() < ASK_INTERVAL) {
            return false;
        }
        self.asked = Some(Instant::now());
        is_terminal()
    }

    /// The title of the epoch with this index: `Epoch 3/10`.
    fn epoch_title(&self, epoch: u64) -> String {
        match self.max_epochs {
            NO_LIMIT => format!("Epoch {}", epoch + 1),
            max => format!("Epoch {}/{max}", epoch + 1),
        }
    }

    /// The latest rates and the time left after this step. `None` before the second log point.
    fn speed(&self, global_step: u64) -> Option<String> {
        let rates = self.rates.as_ref()?;
        Some(step_line(rates, self.throughput.time_left(rates, global_step)))
    }

    /// Shows how many of the batches are done, if there is a terminal.
    fn show(&mut self, title: String, batch: u64, batches: u64) {
        if self.bar.is_none() && !is_terminal() {
            return;
        }
        let is_new = self.bar.is_none();
        let bar = self.bar.get_or_insert_with(|| {
            let bar = Bar::hidden();
            // `wide_msg` cuts the message at the end of the line: a bar of two lines cannot be
            // drawn over.
            let style = "{prefix} {bar:20} {pos}/{len} {per_sec} eta {eta} {wide_msg}";
            if let Ok(style) = ProgressStyle::with_template(style) {
                bar.set_style(style);
            }
            bar
        });
        bar.set_prefix(title);
        // An endless epoch has no length to show.
        if batches < u64::from(u32::MAX) {
            bar.set_length(batches);
        } else {
            bar.unset_length();
        }
        bar.set_position(batch);
        bar.set_message(self.message.clone());
        if is_new {
            // Ignore earlier batches in the estimate: a validation or a full-screen display may
            // have come between.
            bar.reset_eta();
            bar.set_draw_target(ProgressDrawTarget::stderr_with_hz(10));
            bar.tick();
            set_bar(self.bar.clone());
        }
    }

    fn show_evaluation(&mut self, action: &str, progress: &EvaluationProgress) {
        match &self.bar {
            Some(bar) if progress.batch > 0 => bar.set_position(progress.batch),
            _ => self.show(
                format!("{action} {}", progress.dataset).trim_end().into(),
                progress.batch,
                progress.batches,
            ),
        }
    }

    /// Shows training again, if an epoch runs.
    fn end_evaluation(&mut self) {
        match self.training {
            Some(Progress { epoch, batch, batches, .. }) => {
                self.show(self.epoch_title(epoch), batch, batches)
            }
            None => self.clear(),
        }
    }

    fn clear(&mut self) {
        if let Some(bar) = self.bar.take() {
            set_bar(None);
            bar.finish_and_clear();
        }
    }
}

/// Called before each new bar: a full-screen display may take over standard error, and return it
/// later.
fn is_terminal() -> bool {
    std::io::stderr().is_terminal()
}

/// Formats metrics as one line.
pub fn format_metrics(metrics: &[(String, f64)]) -> String {
    metrics
        .iter()
        .map(|(name, value)| format!("{name}={}", number(*value)))
        .collect::<Vec<_>>()
        .join(" ")
}

/// Formats the rates as one line.
fn step_line(rates: &Rates, left: Option<Duration>) -> String {
    let per_second = |rate: f64, unit: &str| {
        if rate < 100.0 { format!("{rate:.1} {unit}/s") } else { format!("{rate:.0} {unit}/s") }
    };
    let mut parts = vec![per_second(rates.samples_per_second, "samples")];
    parts.extend(rates.tokens_per_second.map(|rate| per_second(rate, "tokens")));
    parts.extend(rates.flops_per_device.map(|flops| amount(flops, "FLOP/s a device")));
    parts.extend(rates.mfu.map(|mfu| format!("MFU {:.1} %", 100.0 * mfu)));
    parts.extend(left.map(|left| match left.as_secs_f64() {
        seconds if seconds < 120.0 => format!("{:.0} s left", seconds.ceil()),
        seconds => format!("{} left", duration(seconds)),
    }));
    parts.join(", ")
}

/// The metrics of a log point that the bar shows.
fn metrics_line(point: &LogPoint) -> String {
    format_metrics(&point.shown_by(Sink::ProgressBar).metrics)
}

impl Callback for ProgressBar {
    fn name(&self) -> &'static str {
        "ProgressBar"
    }

    fn on_fit_start(&mut self, start: &FitStart) {
        self.max_epochs = start.plan.max_epochs;
        self.epoch_start = Instant::now();
        self.throughput.on_fit_start(start);
        (self.rates, self.logged) = (None, None);
        let mut devices = match &start.devices[..] {
            [0] => format!("1 device, batch {}", start.batch_size),
            [id] => format!("1 device, number {id}, batch {}", start.batch_size),
            ids => {
                let count = ids.len();
                let per_device = start.per_device_batch_size;
                let batch = start.batch_size;
                let is_first = (0..count as i32).eq(ids.iter().copied());
                let numbers = if is_first { String::new() } else { format!(", numbers {ids:?}") };
                let mesh = &start.mesh;
                let strategy = start.strategy;
                format!(
                    "{count} devices{numbers}, mesh {mesh}, {strategy}, batch {batch} = {per_device} a device"
                )
            }
        };
        if start.processes > 1 {
            devices.push_str(&format!(", {} processes", start.processes));
        }
        if start.learning_rate_factor != 1.0 {
            devices.push_str(&format!(", learning rate × {}", start.learning_rate_factor));
        }
        let Plan { steps_per_epoch, max_epochs, total_steps } = start.plan;
        let length = match max_epochs {
            NO_LIMIT => "any number of epochs".to_owned(),
            _ if total_steps < steps_per_epoch.saturating_mul(max_epochs) => {
                quantity(total_steps, "step")
            }
            _ => {
                format!(
                    "{} of {}",
                    quantity(max_epochs, "epoch"),
                    quantity(steps_per_epoch, "step")
                )
            }
        };
        print_line(&format!(
            "Training {} in {}, matmul precision {}, on {} ({devices}): {length}, {}",
            quantity(start.num_parameters, "parameter"),
            start.precision,
            start.matmul_precision,
            start.platform,
            start
                .run_dir
                .as_ref()
                .map_or("no files".to_owned(), |folder| format!("files in {}", folder.display()))
        ));
        match start.epoch {
            0 => {}
            epoch if epoch < start.plan.max_epochs => {
                print_line(&format!("Resuming after epoch {epoch}"))
            }
            epoch => print_line(&format!(
                "Resuming after epoch {epoch}: there is nothing left to train; raise max_epochs"
            )),
        }
    }

    fn on_compile_start(&mut self, program: &str) {
        self.compiling = Some(CompileNotice::new(program));
    }

    fn on_compile_end(&mut self, program: &str, time: Option<Duration>) {
        self.compiling = None;
        if let Some(time) = time {
            print_line(&format!("Compiled the {program} in {}", duration(time.as_secs_f64())));
        }
    }

    fn on_train_start(&mut self, start: &TrainStart<'_>) {
        self.throughput.on_train_start(start);
    }

    fn on_train_batch_start(&mut self, _: &Progress) {
        self.throughput.on_train_batch_start();
    }

    fn on_train_epoch_start(&mut self, progress: &Progress, _: &mut Actions) {
        self.epoch_start = Instant::now();
        self.training = Some(*progress);
    }

    fn on_train_batch_end(&mut self, progress: &Progress, _: &mut Actions) {
        self.throughput.on_train_batch_end(progress);
        self.training = Some(*progress);
        if let Some(bar) = &self.bar {
            bar.set_position(progress.batch);
        } else if self.may_show() {
            self.show(self.epoch_title(progress.epoch), progress.batch, progress.batches);
        }
    }

    fn on_log(&mut self, point: &LogPoint, _: &mut Actions) {
        self.message = metrics_line(point);
        if let Some(rates) = self.throughput.rates(point) {
            self.rates = Some(rates);
            self.message =
                format!("{} | {}", self.message, self.speed(point.global_step).unwrap_or_default());
            if self.logged.is_none_or(|time| time.elapsed() > LOG_INTERVAL) {
                self.logged = Some(Instant::now());
                log_line(&format!(
                    "{}, step {}: {}",
                    self.epoch_title(point.epoch),
                    point.global_step,
                    self.message
                ));
            }
        }
        if let Some(bar) = &self.bar {
            bar.set_message(self.message.clone());
        }
    }

    fn on_validation_start(&mut self, progress: &EvaluationProgress) {
        self.throughput.pause();
        self.show_evaluation("Validating", progress);
    }

    fn on_validation_batch_end(&mut self, progress: &EvaluationProgress) {
        self.show_evaluation("Validating", progress);
    }

    fn on_validation_end(&mut self, point: &LogPoint, actions: &mut Actions) {
        self.end_evaluation();
        // At the end of an epoch one line shows both. For a validation outside a fit, the program
        // reports the result.
        let within_epoch = self.training.is_some_and(|training| training.batch < training.batches);
        if actions.is_fitting() && within_epoch {
            print_line(&format!(
                "{}, step {}: {}",
                self.epoch_title(point.epoch),
                point.global_step,
                metrics_line(point)
            ));
        }
    }

    fn on_test_start(&mut self, progress: &EvaluationProgress) {
        self.show_evaluation("Testing", progress);
    }

    fn on_test_batch_end(&mut self, progress: &EvaluationProgress) {
        self.show_evaluation("Testing", progress);
    }

    fn on_test_end(&mut self, _: &LogPoint) {
        self.end_evaluation();
    }

    fn on_predict_start(&mut self, progress: &EvaluationProgress) {
        self.show_evaluation("Predicting", progress);
    }

    fn on_predict_batch_end(&mut self, progress: &EvaluationProgress, _: &Predicted) {
        self.show_evaluation("Predicting", progress);
    }

    fn on_predict_end(&mut self) {
        self.end_evaluation();
    }

    fn on_train_epoch_end(&mut self, point: &LogPoint, _: &mut Actions) {
        self.throughput.pause();
        self.training = None;
        self.clear();
        let seconds = Duration::as_secs_f64(&self.epoch_start.elapsed());
        let speed =
            self.speed(point.global_step).map_or_else(String::new, |speed| format!(", {speed}"));
        print_line(&format!(
            "{}: {} ({}{speed})",
            self.epoch_title(point.epoch),
            metrics_line(point),
            duration(seconds)
        ));
    }

    fn on_fit_end(&mut self, summary: &FitSummary) {
        self.training = None;
        self.clear();
        // A limit ended the last epoch early: print its line.
        if let Some(point) =
            summary.last_epoch.as_ref().filter(|point| point.epoch >= summary.epochs)
        {
            let epoch = self.epoch_title(point.epoch);
            let step = point.global_step;
            print_line(&format!("{epoch}, ended at step {step}: {}", metrics_line(point)));
        }
        if let Some(reason) = &summary.stopped {
            print_line(&format!("Stopped: {reason}"));
        }
        print_line(&summary.goodput.to_string());
    }

    fn on_exception(&mut self, _: &Error, _: &mut Actions) {
        self.training = None;
        if let Some(bar) = self.bar.take() {
            bar.abandon();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_line_shows_only_known_values() {
        let mut rates = Rates {
            batches_per_second: 2.0,
            samples_per_second: 64.0,
            tokens_per_second: Some(65_536.0),
            flops_per_device: Some(1.234e13),
            mfu: Some(0.0626),
            step_s: 0.5,
        };
        assert_eq!(
            step_line(&rates, Some(Duration::from_secs(130))),
            "64.0 samples/s, 65536 tokens/s, 12.34 TFLOP/s a device, MFU 6.3 %, 2 min 10 s left"
        );
        (rates.tokens_per_second, rates.flops_per_device, rates.mfu) = (None, None, None);
        assert_eq!(
            step_line(&rates, Some(Duration::from_millis(2100))),
            "64.0 samples/s, 3 s left"
        );
        assert_eq!(step_line(&rates, None), "64.0 samples/s");
    }
}
