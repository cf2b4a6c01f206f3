//! [`Screen`]: the content of the `--tui` screen. Other modules collect the values and own the
//! terminal.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use fulmen_trainer::internal::format_metrics;
use fulmen_trainer::{FitStart, Progress};
use fulmen_tui::widgets::{bar, bytes, chart, history, number, panel, percent};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect, Size};
use ratatui::style::Stylize as _;
use ratatui::text::{Line, Span};
use ratatui::widgets::Paragraph;

/// The maximum number of points of a curve. Beyond it, every second point is dropped.
const MAX_POINTS: usize = 2000;
/// The maximum number of lines in the log.
const MAX_LINES: usize = 500;
/// The maximum number of rates in the history.
const MAX_RATES: usize = 300;
/// The time over which a rate is measured.
const RATE_INTERVAL: Duration = Duration::from_secs(1);
/// The minimum width for a column next to the chart.
const MIN_WIDE: u16 = 90;

/// Queues and memory at one moment.
#[derive(Clone, Debug, Default)]
pub(super) struct Resources {
    /// The fraction of the steps' time spent waiting for data, from 0 to 1.
    pub(super) waiting: Option<f64>,
    pub(super) queues: Vec<Queue>,
    pub(super) memory: Vec<Memory>,
}

/// A queue of ready batches.
#[derive(Clone, Debug)]
pub(super) struct Queue {
    pub(super) name: &'static str,
    /// The number of ready batches, on average.
    pub(super) ready: f64,
    pub(super) capacity: usize,
}

/// Used memory, in bytes.
#[derive(Clone, Debug)]
pub(super) struct Memory {
    pub(super) name: String,
    pub(super) used: u64,
    pub(super) limit: Option<u64>,
}

/// The state of the screen.
pub(super) struct Screen {
    title: String,
    /// The devices and the folder of the fit.
    about: String,
    fitting: bool,
    activity: String,
    batch: u64,
    batches: u64,
    global_step: u64,
    max_epochs: u64,
    total_steps: u64,
    rate: Rate,
    curves: Vec<Curve>,
    /// The selected chart: the name that its curves share.
    chart: Option<String>,
    resources: Resources,
    log: VecDeque<String>,
    /// The effect of the latest key, or the latest checkpoint.
    notice: String,
}

/// The speed of training.
#[derive(Default)]
struct Rate {
    batch_size: usize,
    /// The start of the current measurement.
    start: Option<RateStart>,
    /// Samples per second, newest last.
    samples: VecDeque<f64>,
    /// Samples and steps per second, smoothed.
    smooth: Option<[f64; 2]>,
}

/// The counts when the measurement of a rate started.
#[derive(Clone, Copy)]
struct RateStart {
    time: Instant,
    batches: u64,
    global_step: u64,
}

impl Rate {
    fn step(&mut self, batches: u64, global_step: u64, now: Instant) {
        let new_start = RateStart { time: now, batches, global_step };
        let Some(start) = self.start else {
            self.start = Some(new_start);
            return;
        };
        let seconds = now.saturating_duration_since(start.time).as_secs_f64();
        if seconds < RATE_INTERVAL.as_secs_f64() {
            return;
        }
        if self.samples.len() == MAX_RATES {
            self.samples.pop_front();
        }
        let samples = (batches - start.batches) as f64 * self.batch_size as f64 / seconds;
        self.samples.push_back(samples);
        let now_smooth = [samples, (global_step - start.global_step) as f64 / seconds];
        let before = self.smooth.unwrap_or(now_smooth);
        self.smooth = Some([0, 1].map(|index| 0.8 * before[index] + 0.2 * now_smooth[index]));
        self.start = Some(new_start);
    }
}

/// The values with one name.
struct Curve {
    name: String,
    points: Vec<(f64, f64)>,
    /// Every `every`-th value becomes a point. `count` is the number of values so far.
    every: u64,
    count: u64,
    last: f64,
}

impl Curve {
    fn push(&mut self, step: u64, value: f64) {
        self.last = value;
        if !value.is_finite() {
            return;
        }
        let step = step as f64;
        if let Some(point) = self.points.last_mut().filter(|point| point.0 >= step) {
            point.1 = value;
            return;
        }
        if self.count.is_multiple_of(self.every) {
            self.points.push((step, value));
        }
        self.count += 1;
        if self.points.len() == MAX_POINTS {
            let mut index = 0;
            self.points.retain(|_| {
                index += 1;
                index % 2 == 1
            });
            self.every *= 2;
        }
    }

    /// The name shared by the curves of a chart, such as `train_loss`, `train_loss_epoch` and
    /// `val_loss`.
    fn shared_name(&self) -> &str {
        let name = self.name.strip_suffix("_epoch").unwrap_or(&self.name);
        ["train_", "val_", "test_"]
            .iter()
            .find_map(|prefix| name.strip_prefix(*prefix))
            .unwrap_or(name)
    }
}

impl Screen {
    pub(super) fn new(title: String) -> Screen {
        Screen {
            title,
            about: String::new(),
            fitting: false,
            activity: "Starting".into(),
            batch: 0,
            batches: 0,
            global_step: 0,
            max_epochs: u64::MAX,
            total_steps: u64::MAX,
            rate: Rate::default(),
            curves: Vec::new(),
            chart: None,
            resources: Resources::default(),
            log: VecDeque::new(),
            notice: String::new(),
        }
    }

    pub(super) fn is_fitting(&self) -> bool {
        self.fitting
    }

    pub(super) fn fit(&mut self, start: &FitStart) {
        let devices = start.devices.len();
        let folder = start
            .run_dir
            .as_ref()
            .map(|folder| format!(", {}", folder.display()))
            .unwrap_or_default();
        self.about = format!(
            "{devices} × {}, {}, batch {}{folder}",
            start.platform, start.precision, start.batch_size
        );
        (self.fitting, self.global_step) = (true, start.global_step);
        (self.max_epochs, self.total_steps) = (start.plan.max_epochs, start.plan.total_steps);
        self.rate = Rate { batch_size: start.batch_size, ..Rate::default() };
        self.curves.clear();
    }

    /// Shows an activity without progress to count.
    pub(super) fn set_activity(&mut self, activity: String) {
        (self.activity, self.batch, self.batches) = (activity, 0, 0);
        self.rate.start = None;
    }

    /// A batch was queued on the device. `batches` counts the batches of the fit.
    pub(super) fn step(&mut self, progress: Progress, batches: u64, now: Instant) {
        self.activity = match self.max_epochs {
            u64::MAX => format!("Epoch {}", progress.epoch + 1),
            max => format!("Epoch {}/{max}", progress.epoch + 1),
        };
        (self.batch, self.batches, self.global_step) =
            (progress.batch, progress.batches, progress.global_step);
        self.rate.step(batches, progress.global_step, now);
    }

    pub(super) fn evaluation(&mut self, activity: String, batch: u64, batches: u64) {
        self.set_activity(activity);
        (self.batch, self.batches) = (batch, batches);
    }

    pub(super) fn values(&mut self, step: u64, values: &[(String, f64)]) {
        for (name, value) in values {
            let known = self.curves.iter().position(|curve| curve.name == *name);
            let index = known.unwrap_or_else(|| {
                let name = name.clone();
                self.curves.push(Curve {
                    name,
                    points: Vec::new(),
                    every: 1,
                    count: 0,
                    last: f64::NAN,
                });
                self.curves.len() - 1
            });
            self.curves[index].push(step, *value);
        }
    }

    pub(super) fn set_resources(&mut self, resources: Resources) {
        self.resources = resources;
    }

    /// Adds a line that the program wrote to the log.
    pub(super) fn line(&mut self, line: String) {
        if self.log.len() == MAX_LINES {
            self.log.pop_front();
        }
        self.log.push_back(line);
    }

    /// Shows a notice until the next one.
    pub(super) fn notice(&mut self, notice: &str) {
        notice.clone_into(&mut self.notice);
    }

    /// The fit has ended.
    pub(super) fn end(&mut self, activity: &str) {
        self.set_activity(activity.to_owned());
        self.fitting = false;
    }

    pub(super) fn next_chart(&mut self) {
        self.turn(1);
    }

    pub(super) fn previous_chart(&mut self) {
        self.turn(self.charts().len().saturating_sub(1));
    }

    fn turn(&mut self, steps: usize) {
        let charts = self.charts();
        if !charts.is_empty() {
            let next = charts[(self.selected_index(&charts) + steps) % charts.len()].to_owned();
            self.chart = Some(next);
        }
    }

    /// The names that curves share, in order of appearance.
    fn charts(&self) -> Vec<&str> {
        let mut names = Vec::new();
        for curve in &self.curves {
            if !names.contains(&curve.shared_name()) {
                names.push(curve.shared_name());
            }
        }
        names
    }

    /// The index of the selected chart: the loss until a key selects another.
    fn selected_index(&self, charts: &[&str]) -> usize {
        let selected = self.chart.as_deref().unwrap_or("loss");
        charts.iter().position(|name| *name == selected).unwrap_or(0)
    }

    /// Draws the panels side by side, or stacked if the terminal is narrow.
    pub(super) fn draw(&self, frame: &mut Frame<'_>) {
        let area = frame.area();
        let wide = area.width >= MIN_WIDE;
        let rows = [
            Constraint::Length(1),
            Constraint::Length(1),
            Constraint::Fill(1),
            Constraint::Percentage(if wide { 40 } else { 25 }),
            Constraint::Length(u16::from(!self.notice.is_empty())),
            Constraint::Length(1),
        ];
        let [title, progress, middle, log, notice, keys] = Layout::vertical(rows).areas(area);
        frame.render_widget(
            Line::from(vec![self.title.as_str().bold(), format!("  {}", self.about).dim()]),
            title,
        );
        frame.render_widget(self.progress(area.width), progress);
        let resources = self.resource_lines();
        let high = resources.len() as u16 + 2;
        let (curves, rate, data) = if wide {
            let [curves, side] =
                Layout::horizontal([Constraint::Fill(1), Constraint::Length(40)]).areas(middle);
            let [rate, data] =
                Layout::vertical([Constraint::Min(4), Constraint::Length(high)]).areas(side);
            (curves, rate, data)
        } else {
            let rows = [Constraint::Min(6), Constraint::Length(4), Constraint::Length(high)];
            let [curves, rate, data] = Layout::vertical(rows).areas(middle);
            (curves, rate, data)
        };
        self.draw_curves(frame, curves);
        self.draw_rate(frame, rate);
        frame.render_widget(Paragraph::new(resources).block(panel("Data and memory")), data);
        frame.render_widget(Paragraph::new(self.log_lines(log.as_size())).block(panel("Log")), log);
        frame.render_widget(self.notice.as_str().yellow(), notice);
        let bindings = if wide {
            "s saves  x stops  ←→ chart  q closes this screen  Ctrl-C saves and ends"
        } else {
            "s save  x stop  ←→ chart  q hide  ^C end"
        };
        frame.render_widget(bindings.dim(), keys);
    }

    /// The last lines of the log that fit in a frame of this size. Long lines wrap.
    fn log_lines(&self, frame: Size) -> Vec<Line<'_>> {
        let [width, height] =
            [frame.width, frame.height].map(|cells| usize::from(cells.saturating_sub(2)));
        let mut lines: Vec<Line<'_>> = Vec::new();
        for line in self.log.iter().rev().take(height) {
            let chars: Vec<char> = line.chars().collect();
            let pieces = chars
                .chunks(width.max(1))
                .map(|piece| Line::from(piece.iter().collect::<String>()));
            lines.extend(pieces.rev());
            if line.is_empty() {
                lines.push(Line::default());
            }
        }
        lines.truncate(height);
        lines.reverse();
        lines
    }

    fn progress(&self, width: u16) -> Line<'_> {
        let mut parts = vec![self.activity.as_str().bold(), "  ".into()];
        // An endless epoch has no length to show.
        if (1..u64::from(u32::MAX)).contains(&self.batches) {
            parts.push(
                bar(self.batch as f64 / self.batches as f64, usize::from(width / 6).min(20)).cyan(),
            );
            parts.push(format!("  {}/{}", self.batch, self.batches).into());
        } else if self.batch > 0 {
            parts.push(format!("batch {}", self.batch).into());
        }
        if self.fitting {
            parts.push(format!("  step {}", self.global_step).into());
            parts.extend(self.time_left().map(|left| Span::from(format!("  {left} left"))));
        }
        Line::from(parts)
    }

    fn time_left(&self) -> Option<String> {
        let steps = self
            .total_steps
            .checked_sub(self.global_step)
            .filter(|_| self.total_steps < u64::MAX)?;
        let seconds =
            steps as f64 / self.rate.smooth.map(|[_, steps]| steps).filter(|steps| *steps > 0.0)?;
        let hours = (seconds / 3600.0) as u64;
        let minutes = (seconds / 60.0) as u64 % 60;
        let seconds = seconds as u64 % 60;
        Some(if hours > 0 {
            format!("{hours} h {minutes:02} min")
        } else {
            format!("{minutes} min {seconds:02} s")
        })
    }

    fn draw_curves(&self, frame: &mut Frame<'_>, area: Rect) {
        let charts = self.charts();
        let Some(name) = charts.get(self.selected_index(&charts)) else {
            return frame.render_widget(panel("Curves"), area);
        };
        let shown: Vec<&Curve> =
            self.curves.iter().filter(|curve| curve.shared_name() == *name).collect();
        let last: Vec<(String, f64)> =
            shown.iter().map(|curve| (curve.name.clone(), curve.last)).collect();
        let title = format!(
            "{name}, {} of {}: {}",
            self.selected_index(&charts) + 1,
            charts.len(),
            format_metrics(&last)
        );
        let curves: Vec<(&str, &[(f64, f64)])> =
            shown.iter().map(|curve| (curve.name.as_str(), curve.points.as_slice())).collect();
        chart(frame, area, &title, &curves);
    }

    fn draw_rate(&self, frame: &mut Frame<'_>, area: Rect) {
        let samples = &self.rate.samples;
        let title = match self.rate.smooth.map(|rates| rates.map(number)) {
            Some([samples, steps]) => format!("{samples} samples/s, {steps} steps/s"),
            None => "Throughput".to_owned(),
        };
        // Scale the values, so that slow rates keep their decimals.
        let values: Vec<u64> = samples.iter().map(|rate| (rate * 1000.0) as u64).collect();
        history(frame, area, &title, &values, values.iter().copied().max().unwrap_or(1).max(1));
    }

    fn resource_lines(&self) -> Vec<Line<'static>> {
        let Resources { waiting, queues, memory } = &self.resources;
        let line = |name: &str, part: Option<Span<'static>>, text: String| {
            Line::from(vec![
                format!("{name:<12} ").into(),
                part.unwrap_or_else(|| " ".repeat(8).into()),
                format!(" {text}").into(),
            ])
        };
        let queues = queues.iter().map(|queue| {
            let part = bar(queue.ready / queue.capacity as f64, 8);
            line(queue.name, Some(part), format!("{:.1} of {}", queue.ready, queue.capacity))
        });
        let waiting = waiting.iter().map(|share| {
            line("input wait", Some(bar(*share, 8).cyan()), percent(Some(100.0 * share)))
        });
        let memory = memory.iter().map(|memory| match memory.limit {
            Some(limit) if limit > 0 => {
                let [used, limit] =
                    [memory.used, limit].map(|bytes| bytes as f64 / f64::from(1 << 30));
                line(
                    &memory.name,
                    Some(bar(used / limit, 8).cyan()),
                    format!("{used:.1} of {limit:.1} GiB"),
                )
            }
            _ => line(&memory.name, None, bytes(memory.used)),
        });
        queues.chain(waiting).chain(memory).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_curve_keeps_points_from_all_of_it() {
        let mut curve =
            Curve { name: "loss".into(), points: Vec::new(), every: 1, count: 0, last: f64::NAN };
        for step in 1..=100_000u32 {
            curve.push(step.into(), step.into());
            assert!(curve.points.len() < MAX_POINTS);
        }
        let steps: Vec<f64> = curve.points.iter().map(|point| point.0).collect();
        assert!(
            steps.len() > MAX_POINTS / 3 && steps[0] == 1.0 && steps[steps.len() - 1] > 99_000.0
        );
        let distances: Vec<f64> = steps.windows(2).map(|pair| pair[1] - pair[0]).collect();
        assert!(distances.iter().all(|distance| *distance == distances[0]), "{distances:?}");
        // A later value at the same step replaces the earlier one. Values that are not finite are
        // left out.
        let points = curve.points.len();
        curve.points.push((200_000.0, 1.0));
        curve.push(200_000, 2.0);
        curve.push(200_001, f64::NAN);
        assert_eq!(
            (curve.points[points], curve.points.len(), curve.last.is_nan()),
            ((200_000.0, 2.0), points + 1, true)
        );
    }

    #[test]
    fn a_rate_counts_samples_and_steps_but_not_pauses() {
        let mut rate = Rate { batch_size: 128, ..Rate::default() };
        let mut now = Instant::now();
        // Two batches a step, twenty batches a second, with a validation of a minute after the
        // 200th.
        for batch in 1..=400u64 {
            now += Duration::from_millis(50);
            if batch == 201 {
                rate.start = None;
                now += Duration::from_secs(60);
            }
            rate.step(batch, batch / 2, now);
        }
        assert_eq!((rate.smooth, rate.samples.len()), (Some([2560.0, 10.0]), 18));
        assert!(rate.samples.iter().all(|samples| *samples == 2560.0));
    }

    #[test]
    fn values_of_the_same_thing_share_a_chart() {
        let mut screen = Screen::new(String::new());
        let names = [
            "train_loss",
            "lr",
            "val_loss",
            "train_loss_epoch",
            "accuracy_epoch",
            "val_accuracy",
            "test_loss",
        ];
        screen.values(1, &names.map(|name| (name.to_owned(), 1.0)));
        assert_eq!(screen.charts(), ["loss", "lr", "accuracy"]);
    }
}
