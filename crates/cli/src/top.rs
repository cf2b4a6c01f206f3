//! The screen of `fulmen top`: the utilization of devices, and what runs on them.
//!
//! Out of scope: collecting the numbers, and the terminal.

use std::collections::VecDeque;

use fulmen_durable::messages::quantity;
use fulmen_machine::{DeviceMetrics, Level, ProcessActivity, RunMetrics};
use fulmen_tui::widgets::{bar, history, panel, percent};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::Stylize as _;
use ratatui::text::Line;
use ratatui::widgets::{Cell, Paragraph, Row, Table, Wrap};

/// The number of snapshots that are kept for the history.
const HISTORY: usize = 200;

/// The numbers at one time.
#[derive(Clone, Debug)]
pub struct Snapshot {
    /// libtpu's metrics of each device, or the error.
    pub metrics: Result<Vec<DeviceMetrics>, String>,
    /// A training run's metrics, or the error; `None` if they were not requested.
    pub run: Option<Result<RunMetrics, String>>,
    /// The processes that hold the TPU.
    pub processes: Vec<ProcessActivity>,
    /// The number of processes that could not be inspected.
    pub unseen: usize,
}

/// The screen of `fulmen top`.
///
/// ```
/// use fulmen_cli::top::{Snapshot, Screen};
/// use fulmen_machine::Level;
/// use ratatui::{Terminal, backend::TestBackend};
///
/// let mut screen = Screen::new("127.0.0.1:8431".into(), Level::Basic);
/// screen.update(Snapshot { metrics: Err("no server for metrics".into()), run: None, processes: Vec::new(), unseen: 0 });
/// let mut terminal = Terminal::new(TestBackend::new(60, 12))?;
/// terminal.draw(|frame| screen.draw(frame))?;
/// assert!(terminal.backend().to_string().contains("no server for metrics"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Screen {
    source: String,
    level: Level,
    /// The mean duty cycle of all devices in percent, the newest last.
    history: VecDeque<u64>,
    snapshot: Option<Snapshot>,
}

impl Screen {
    /// Creates an empty screen. `source` describes where the numbers come from.
    pub fn new(source: String, level: Level) -> Screen {
        Self { source, level, history: VecDeque::new(), snapshot: None }
    }

    /// Shows a new snapshot.
    pub fn update(&mut self, snapshot: Snapshot) {
        if self.history.len() == HISTORY {
            self.history.pop_front();
        }
        let busy = snapshot
            .metrics
            .iter()
            .flatten()
            .filter_map(|device| device.duty_cycle)
            .collect::<Vec<_>>();
        if !busy.is_empty() {
            self.history.push_back((busy.iter().sum::<f64>() / busy.len() as f64).round() as u64);
        }
        self.snapshot = Some(snapshot);
    }

    /// Draws the screen.
    pub fn draw(&self, frame: &mut Frame<'_>) {
        let devices = self
            .snapshot
            .as_ref()
            .and_then(|snapshot| snapshot.metrics.as_ref().ok())
            .map_or(1, Vec::len);
        let run = self.snapshot.as_ref().and_then(|snapshot| snapshot.run.as_ref());
        let heights = [
            Constraint::Length(1),
            Constraint::Length(devices as u16 + 3),
            Constraint::Length(5),
            Constraint::Length(if run.is_some() { 3 } else { 0 }),
            Constraint::Min(4),
            Constraint::Length(1),
        ];
        let [title, table, past, training, processes, keys] =
            Layout::vertical(heights).areas(frame.area());
        frame.render_widget(
            Line::from(vec!["fulmen top".bold(), format!("  {}", self.source).dim()]),
            title,
        );
        match &self.snapshot {
            None => frame.render_widget(Paragraph::new("Looking …").block(panel("Devices")), table),
            Some(snapshot) => {
                match &snapshot.metrics {
                    Ok(devices) => self.draw_devices(frame, table, devices),
                    Err(error) => {
                        let text =
                            Paragraph::new(error.as_str().yellow()).wrap(Wrap { trim: true });
                        frame.render_widget(text.block(panel("Devices")), table);
                    }
                }
                draw_processes(frame, processes, snapshot);
            }
        }
        if let Some(run) = run {
            let text = run.as_ref().map_or_else(
                |error| error.as_str().yellow().into(),
                |run| Line::from(run.to_string()),
            );
            frame.render_widget(Paragraph::new(text).block(panel("Training")), training);
        }
        let values: Vec<u64> = self.history.iter().copied().collect();
        history(frame, past, "Duty cycle, mean of all devices", &values, 100);
        frame.render_widget("q quits".dim(), keys);
    }

    fn draw_devices(&self, frame: &mut Frame<'_>, area: Rect, devices: &[DeviceMetrics]) {
        let is_detailed = self.level == Level::Detailed;
        let long = if is_detailed { 10 } else { 20 };
        let details: &[&str] =
            if is_detailed { &["bandwidth", "idle", "queued", "programs take"] } else { &[] };
        let header =
            ["device", "duty cycle", "", "HBM", ""].into_iter().chain(details.iter().copied());
        let rows = devices.iter().map(|device| {
            let (duty, memory) = (device.duty_cycle, part(device.memory_used, device.memory_total));
            let mut cells = vec![
                Cell::from(device.id.to_string()),
                bar(duty.unwrap_or(0.0) / 100.0, long.into()).into(),
                percent(duty).into(),
                bar(memory.unwrap_or(0.0), long.into()).into(),
                memory_text(device).into(),
            ];
            if is_detailed {
                cells.extend([
                    percent(device.bandwidth).into(),
                    or_dash(device.idle_seconds.map(|seconds| format!("{seconds:.1} s"))).into(),
                    or_dash(device.queued.map(|queued| queued.to_string())).into(),
                    or_dash(programs(device)).into(),
                ]);
            }
            Row::new(cells)
        });
        let widths = [6, long, 7, long, 17, 9, 8, 6, 26].map(Constraint::Length);
        let table = Table::new(rows, &widths[..5 + details.len()]).header(Row::new(header).dim());
        frame.render_widget(table.block(panel("Devices")), area);
    }
}

fn draw_processes(frame: &mut Frame<'_>, area: Rect, snapshot: &Snapshot) {
    let rows = snapshot.processes.iter().map(|it| {
        Row::new([
            it.process.pid.to_string(),
            it.process.user.clone(),
            it.progress(),
            it.process.command.clone(),
        ])
    });
    let title = match snapshot.unseen {
        0 => "Processes that hold the TPU".to_owned(),
        unseen => format!("Processes that hold the TPU; {unseen} could not be inspected"),
    };
    let widths =
        [Constraint::Length(8), Constraint::Length(10), Constraint::Fill(1), Constraint::Fill(1)];
    let table =
        Table::new(rows, widths).header(Row::new(["process", "user", "progress", "command"]).dim());
    frame.render_widget(table.block(panel(&title)), area);
}

impl Snapshot {
    /// The screen as text: a line for each device, for the training run, and for each process.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = match &self.metrics {
            Ok(devices) => devices.iter().map(device_line).collect(),
            Err(error) => vec![error.clone()],
        };
        lines.extend(self.run.iter().map(|run| match run {
            Ok(run) => format!("training: {run}"),
            Err(error) => error.clone(),
        }));
        lines.extend(self.processes.iter().map(|it| {
            format!(
                "process {} of {}: {}; {}",
                it.process.pid,
                it.process.user,
                it.progress(),
                it.process.command
            )
        }));
        lines
    }
}

fn device_line(device: &DeviceMetrics) -> String {
    let parts = [
        device.duty_cycle.map(|duty| format!("duty cycle {duty:.1} %")),
        device.memory_used.map(|_| format!("HBM {}", memory_text(device))),
        device.bandwidth.map(|bandwidth| format!("bandwidth {bandwidth:.1} %")),
        device.idle_seconds.map(|seconds| format!("idle for {seconds:.1} s")),
        device.queued.map(|queued| format!("{} queued", quantity(queued, "program"))),
        programs(device).map(|times| format!("programs take {times}")),
    ];
    format!("device {}: {}", device.id, parts.into_iter().flatten().collect::<Vec<_>>().join(", "))
}

fn part(used: Option<u64>, total: Option<u64>) -> Option<f64> {
    Some(used? as f64 / total.filter(|total| *total > 0)? as f64)
}

fn memory_text(device: &DeviceMetrics) -> String {
    let gib = |bytes: Option<u64>| {
        or_dash(bytes.map(|bytes| format!("{:.1}", bytes as f64 / f64::from(1 << 30))))
    };
    format!("{} of {} GiB", gib(device.memory_used), gib(device.memory_total))
}

fn programs(device: &DeviceMetrics) -> Option<String> {
    let mean = format!("{:.1} ms", device.program_mean? / 1e3);
    Some(match device.program_p90 {
        Some(p90) => format!("{mean}, 90 % under {:.1} ms", p90 / 1e3),
        None => mean,
    })
}

fn or_dash(text: Option<String>) -> String {
    text.unwrap_or_else(|| "–".into())
}
