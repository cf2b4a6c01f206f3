//! [`ProgressBar`]: a live bar on a terminal, plain lines elsewhere; on standard error, so that output can be piped.

use std::io::IsTerminal;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fulmen_loggers::number;
use fulmen_report::units::{amount, duration};
use indicatif::{ProgressBar as Bar, ProgressDrawTarget, ProgressStyle};

use crate::callbacks::callback::Callback;
use crate::callbacks::throughput::{Rates, Throughput};
use crate::console::{log_line, print_line};
use crate::hooks::{EvaluationProgress, FitStart, Progress};
use crate::plan::NO_LIMIT;
use crate::{Actions, Error, FitSummary, LogPoint, Plan, Predicted, Sink, TrainStart};

/// Time between two step lines in the log of the run.
const BETWEEN: Duration = Duration::from_secs(10);

/// Shows how training goes. Its numbers are those of log points that have arrived; it asks the device for nothing. With
/// them it tells samples and tokens a second, FLOP/s on each device, what share of the device's peak that is (MFU), and how
/// long the rest takes: on the bar, at the end of each epoch, and now and then in the run's `run.log`.
pub struct ProgressBar {
    bar: Option<Bar>,
    /// What it shows of training, while an epoch runs.
    training: Option<Progress>,
    max_epochs: u64,
    epoch_start: Instant,
    shown: String,
    throughput: Throughput,
    /// The latest ones of this fit.
    rates: Option<Rates>,
    /// When a step line went into the log of the run.
    kept: Option<Instant>,
    compiling: Option<Compiling>,
}

/// Tells that a program is being compiled, once that takes long. Dropped when it is compiled.
struct Compiling {
    done: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Compiling {
    /// What is compiled sooner has its line soon enough.
    const LONG: Duration = Duration::from_secs(3);

    fn new(program: &str) -> Compiling {
        let (done, wait) = mpsc::channel();
        let line = format!("Compiling the {program} ...");
        let thread = std::thread::Builder::new().name("fulmen-compiling".into()).spawn(move || {
            if wait.recv_timeout(Compiling::LONG) == Err(RecvTimeoutError::Timeout) {
                print_line(&line);
            }
        });
        // Without a thread there is one line less.
        Compiling { done: Some(done), thread: thread.ok() }
    }
}

impl Drop for Compiling {
    fn drop(&mut self) {
        self.done = None;
        // Its line comes before the next one.
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
            shown: String::new(),
            throughput: Throughput::default(),
            rates: None,
            kept: None,
            compiling: None,
        }
    }
}

impl ProgressBar {
    /// A bar if standard error is a terminal, else a line an epoch.
    pub fn new() -> ProgressBar {
        ProgressBar::default()
    }

    fn line(&self, text: &str) {
        match &self.bar {
            Some(bar) => bar.suspend(|| print_line(text)),
            None => print_line(text),
        }
    }

    /// The epoch of this index, and of how many.
    fn epoch(&self, epoch: u64) -> String {
        match self.max_epochs {
            NO_LIMIT => format!("Epoch {}", epoch + 1),
            max => format!("Epoch {}/{max}", epoch + 1),
        }
    }

    /// How fast training went last, and how long the rest takes after this step; none before the second log point.
    fn speed(&self, global_step: u64) -> Option<String> {
        let rates = self.rates.as_ref()?;
        Some(step_line(rates, self.throughput.left(rates, global_step)))
    }

    /// Shows how many of the batches are done; nothing without a terminal.
    fn show(&mut self, title: String, batch: u64, batches: u64) {
        if self.bar.is_none() && !is_terminal() {
            return;
        }
        let begins = self.bar.is_none();
        let bar = self.bar.get_or_insert_with(|| {
            let bar = Bar::hidden();
            // The message is cut where the line ends: a bar of two lines cannot be drawn over.
            let style = "{prefix} {bar:20} {pos}/{len} {per_sec} eta {eta} {wide_msg}";
            if let Ok(style) = ProgressStyle::with_template(style) {
                bar.set_style(style);
            }
            bar
        });
        bar.set_prefix(title);
        // An endless epoch has no length to show.
        match batches < u64::from(u32::MAX) {
            true => bar.set_length(batches),
            false => bar.unset_length(),
        }
        bar.set_position(batch);
        bar.set_message(self.shown.clone());
        if begins {
            // Batches from before say nothing about the speed: a validation may have been in between, or a full screen.
            bar.reset_eta();
            bar.set_draw_target(ProgressDrawTarget::stderr_with_hz(10));
            bar.tick();
        }
    }

    fn show_evaluation(&mut self, doing: &str, progress: &EvaluationProgress) {
        match &self.bar {
            Some(bar) if progress.batch > 0 => bar.set_position(progress.batch),
            _ => self.show(format!("{doing} {}", progress.dataset).trim_end().into(), progress.batch, progress.batches),
        }
    }

    /// Shows training again, if an epoch runs.
    fn end_evaluation(&mut self) {
        match self.training {
            Some(Progress { epoch, batch, batches, .. }) => self.show(self.epoch(epoch), batch, batches),
            None => self.clear(),
        }
    }

    fn clear(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

/// Asked when a bar is wanted: a full screen takes standard error, and may give it back.
fn is_terminal() -> bool {
    std::io::stderr().is_terminal()
}

/// Metrics in one line.
pub fn spell(metrics: &[(String, f64)]) -> String {
    metrics.iter().map(|(name, value)| format!("{name}={}", number(*value))).collect::<Vec<_>>().join(" ")
}

/// How fast training goes, in one line.
fn step_line(rates: &Rates, left: Option<Duration>) -> String {
    let per_second = |rate: f64, what: &str| {
        if rate < 100.0 { format!("{rate:.1} {what}/s") } else { format!("{rate:.0} {what}/s") }
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

/// What the bar shows of a log point.
fn shown(point: &LogPoint) -> String {
    spell(&point.shown_by(Sink::ProgressBar).metrics)
}

impl Callback for ProgressBar {
    fn name(&self) -> &'static str {
        "ProgressBar"
    }

    fn on_fit_start(&mut self, start: &FitStart) {
        self.max_epochs = start.plan.max_epochs;
        self.epoch_start = Instant::now();
        self.throughput.on_fit_start(start);
        (self.rates, self.kept) = (None, None);
        let mut devices = match &start.devices[..] {
            [0] => format!("1 device, batch {}", start.batch_size),
            [id] => format!("1 device, number {id}, batch {}", start.batch_size),
            ids => {
                let (each, batch, first) = (start.per_device_batch_size, start.batch_size, 0..ids.len() as i32);
                let which = if first.eq(ids.iter().copied()) { String::new() } else { format!(", numbers {ids:?}") };
                let (mesh, strategy) = (&start.mesh, start.strategy);
                format!("{} devices{which}, mesh {mesh}, {strategy}, batch {batch} = {each} a device", ids.len())
            }
        };
        if start.processes > 1 {
            devices.push_str(&format!(", {} processes", start.processes));
        }
        if start.learning_rate_factor != 1.0 {
            devices.push_str(&format!(", learning rate × {}", start.learning_rate_factor));
        }
        let counted = |count: u64, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
        let Plan { steps_per_epoch, max_epochs, total_steps } = start.plan;
        let length = match max_epochs {
            NO_LIMIT => "epochs until max_time".to_owned(),
            _ if total_steps < steps_per_epoch.saturating_mul(max_epochs) => counted(total_steps, "step"),
            _ => format!("{} of {}", counted(max_epochs, "epoch"), counted(steps_per_epoch, "step")),
        };
        self.line(&format!(
            "Training {} parameters in {}, matmul precision {}, on {} ({devices}): {length}, {}",
            start.num_parameters,
            start.precision,
            start.matmul_precision,
            start.platform,
            start.run_dir.as_ref().map_or("no files".to_owned(), |folder| format!("files in {}", folder.display()))
        ));
        match start.epoch {
            0 => {}
            epoch if epoch < start.plan.max_epochs => self.line(&format!("Resuming after epoch {epoch}")),
            epoch => {
                self.line(&format!("Resuming after epoch {epoch}: there is nothing left to train; raise max_epochs"))
            }
        }
    }

    fn on_compile_start(&mut self, program: &str) {
        self.compiling = Some(Compiling::new(program));
    }

    fn on_compile_end(&mut self, program: &str, time: Option<Duration>) {
        self.compiling = None;
        if let Some(time) = time {
            self.line(&format!("Compiled the {program} in {:.1} s", time.as_secs_f64()));
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
        match &self.bar {
            Some(bar) => bar.set_position(progress.batch),
            None if !is_terminal() => {}
            None => self.show(self.epoch(progress.epoch), progress.batch, progress.batches),
        }
    }

    fn on_log(&mut self, point: &LogPoint, _: &mut Actions) {
        self.shown = shown(point);
        if let Some(rates) = self.throughput.rates(point) {
            self.rates = Some(rates);
            self.shown = format!("{} | {}", self.shown, self.speed(point.global_step).unwrap_or_default());
            if self.kept.is_none_or(|kept| kept.elapsed() > BETWEEN) {
                self.kept = Some(Instant::now());
                log_line(&format!("{}, step {}: {}", self.epoch(point.epoch), point.global_step, self.shown));
            }
        }
        if let Some(bar) = &self.bar {
            bar.set_message(self.shown.clone());
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
        // The end of an epoch has a line for both, and a validation of its own is the program's to tell.
        let within_epoch = self.training.is_some_and(|training| training.batch < training.batches);
        if actions.is_fitting() && within_epoch {
            self.line(&format!("{}, step {}: {}", self.epoch(point.epoch), point.global_step, shown(point)));
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
        let speed = self.speed(point.global_step).map_or_else(String::new, |speed| format!(", {speed}"));
        self.line(&format!("{}: {} ({seconds:.1} s{speed})", self.epoch(point.epoch), shown(point)));
    }

    fn on_fit_end(&mut self, summary: &FitSummary) {
        self.training = None;
        self.clear();
        // Of an epoch that a limit has ended.
        if let Some(point) = summary.last_epoch.as_ref().filter(|point| point.epoch >= summary.epochs) {
            let (epoch, step) = (self.epoch(point.epoch), point.global_step);
            self.line(&format!("{epoch}, ended at step {step}: {}", shown(point)));
        }
        if let Some(reason) = &summary.stopped {
            self.line(&format!("Stopped: {reason}"));
        }
        self.line(&summary.goodput.to_string());
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
    fn a_step_line_has_what_is_known() {
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
            "64.0 samples/s, 65536 tokens/s, 12.34 TFLOP/s a device, MFU 6.3 %, 2.2 min left"
        );
        (rates.tokens_per_second, rates.flops_per_device, rates.mfu) = (None, None, None);
        assert_eq!(step_line(&rates, Some(Duration::from_millis(2100))), "64.0 samples/s, 3 s left");
        assert_eq!(step_line(&rates, None), "64.0 samples/s");
    }
}
