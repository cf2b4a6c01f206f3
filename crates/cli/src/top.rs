//! The screen of `fulmen top`: the TPU, the utilization of its devices, and what runs on them.
//!
//! Out of scope: collecting the numbers, and the terminal.

use std::collections::VecDeque;

use fulmen_durable::messages::quantity;
use fulmen_machine::{
    DeviceMetrics, Inventory, Latency, Level, ProcessActivity, RunMetrics, RuntimeState,
};
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
    /// The chips and the libtpu of this machine; `None` if the metrics are those of another machine.
    pub inventory: Option<Inventory>,
    /// What libtpu reports of its program as a whole; `None` unless it was requested.
    pub state: Option<RuntimeState>,
}

/// The screen of `fulmen top`.
///
/// ```
/// use fulmen_cli::top::{Snapshot, Screen};
/// use fulmen_machine::Level;
/// use ratatui::{Terminal, backend::TestBackend};
///
/// let mut screen = Screen::new("127.0.0.1:8431".into(), Level::Basic);
/// screen.update(Snapshot {
///     metrics: Err("no server for metrics".into()),
///     run: None,
///     processes: Vec::new(),
///     unseen: 0,
///     inventory: None,
///     state: None,
/// });
/// let mut terminal = Terminal::new(TestBackend::new(60, 20))?;
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
        if let Some(busy) = snapshot.duty_cycle() {
            self.history.push_back(busy.round() as u64);
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
        let whole = self.snapshot.as_ref().map(Snapshot::whole).unwrap_or_default();
        let heights = [
            Constraint::Length(1),
            Constraint::Length(whole.len().max(1) as u16 + 2),
            Constraint::Length(devices as u16 + 3),
            Constraint::Length(5),
            Constraint::Length(if run.is_some() { 3 } else { 0 }),
            Constraint::Min(4),
            Constraint::Length(1),
        ];
        let [title, summary, table, past, training, processes, keys] =
            Layout::vertical(heights).areas(frame.area());
        frame.render_widget(
            Line::from(vec!["fulmen top".bold(), format!("  {}", self.source).dim()]),
            title,
        );
        let whole: Vec<Line<'_>> = whole.into_iter().map(Line::from).collect();
        frame.render_widget(Paragraph::new(whole).block(panel("TPU")), summary);
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
            let duty = device.duty_cycle;
            let memory = part(device.memory_used, device.memory_total);
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
    /// The mean duty cycle of all devices in percent.
    pub fn duty_cycle(&self) -> Option<f64> {
        let devices = self.metrics.iter().flatten();
        let busy: Vec<f64> = devices.filter_map(|device| device.duty_cycle).collect();
        (!busy.is_empty()).then(|| busy.iter().sum::<f64>() / busy.len() as f64)
    }

    /// The mean share of the time in which the devices were idle, in percent.
    pub fn idle(&self) -> Option<f64> {
        Some(100.0 - self.duty_cycle()?)
    }

    /// The TPU as a whole, a line for each fact. What nobody reports is said to be not reported.
    fn whole(&self) -> Vec<String> {
        let machine = match &self.inventory {
            Some(inventory) => inventory.to_string(),
            None => "kind, chips and libtpu not reported: another machine's libtpu does not send \
                     them; run `fulmen top` there"
                .to_owned(),
        };
        let mut lines = vec![machine];
        if let Some(state) = &self.state {
            lines.push(format!("step time: {}", self.steps()));
            lines.push(match self.idle() {
                Some(idle) => format!("idle: {idle:.1} % of the time, the mean of all devices"),
                None => "idle: not reported".to_owned(),
            });
            lines.push(match state.cores {
                Some(cores) => {
                    format!("cores in use: {} of {} TensorCores", cores.used, cores.all)
                }
                None => "cores in use: not reported by this libtpu".to_owned(),
            });
            lines.push(format!("matrix units: {}", self.matrix_units()));
            lines.extend(latency_lines(&state.latencies));
        }
        lines
    }

    /// The times of the steps. libtpu knows programs, and no steps.
    fn steps(&self) -> String {
        match &self.run {
            None => "not reported: libtpu does not know steps; `--run` reads a training's".into(),
            Some(Err(_)) => "not reported: the training does not answer".into(),
            Some(Ok(run)) => match run.steps {
                Some(steps) => format!("{steps}, as the training reports"),
                None => "not reported: the training ended no step in this time".into(),
            },
        }
    }

    /// How much of the matrix units is used, which only the training knows.
    fn matrix_units(&self) -> String {
        let mfu = self.run.iter().flatten().find_map(|run| run.mfu);
        match mfu {
            Some(mfu) => {
                format!("{:.1} % of the peak (throughput/mfu of the training)", 100.0 * mfu)
            }
            None => "not reported: libtpu does not send it; a training with the callback \
                     ThroughputMonitor does, read with `--run`"
                .into(),
        }
    }

    /// The screen as text: the TPU as a whole, then a line for each device, for the training run,
    /// and for each process.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = self.whole();
        match &self.metrics {
            Ok(devices) => lines.extend(devices.iter().map(device_line)),
            Err(error) => lines.push(error.clone()),
        }
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

/// A line for each distribution and buffer size, and one for those that are not reported.
fn latency_lines(latencies: &[Latency]) -> Vec<String> {
    let mut lines = Vec::new();
    for latency in latencies {
        let name = latency.name.replace('_', " ");
        for (group, times) in &latency.groups {
            let of = if group.is_empty() { String::new() } else { format!(" of {group}") };
            let value = |number: f64| format!("{number:.1} {}", latency.unit);
            lines.push(format!(
                "{name}{of}: 50 % under {}, 90 % under {}, 95 % under {}, 99.9 % under {}",
                value(times.p50),
                value(times.p90),
                value(times.p95),
                value(times.p999)
            ));
        }
    }
    if lines.is_empty() {
        return vec![
            "latencies: not reported; libtpu reports them for programs on several slices".into(),
        ];
    }
    let missing = latencies.iter().filter(|latency| latency.groups.is_empty());
    let missing: Vec<String> = missing.map(|latency| latency.name.replace('_', " ")).collect();
    if !missing.is_empty() {
        lines.push(format!("not reported: {}", missing.join(", ")));
    }
    lines
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
    Some(match device.program_times {
        Some(times) => format!("{mean}, 90 % under {:.1} ms", times.p90 / 1e3),
        None => mean,
    })
}

fn or_dash(text: Option<String>) -> String {
    text.unwrap_or_else(|| "–".into())
}
