//! `fulmen top`: shows how busy the TPU is.

use std::io::{IsTerminal, stdout};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use fulmen_cli::top::{Screen, Snapshot};
use fulmen_data::{Error, Result};
use fulmen_machine::{
    DeviceMetrics, Inventory, Latency, Level, METRICS_ADDRESS, MetricsClient, Percentiles,
    RunMetrics, RunMetricsClient, RuntimeState, StepRange, Tpu, Watch,
};
use ratatui::crossterm::event::{self, Event, KeyCode, KeyModifiers};
use serde_json::{Value, json};

use super::ps::{seconds, watched_json};

/// The time for which a training's steps are read, if `--duration-ms` names no other.
const STEPS_OF: Duration = Duration::from_secs(60);

/// Shows how busy the TPU is, how full its memory is, and what runs on it
#[derive(Debug, Args)]
#[command(
    long_about = "Shows how busy the TPU is, how full its memory is, and what runs on it, and updates the display \
                  continuously. The numbers come from libtpu, which serves them while a program runs, and from Fulmen \
                  training runs that write FULMEN_PROGRESS_FILE. With --run, a run also reports its step time and \
                  the fraction spent waiting for input. If standard output is not a terminal, it prints lines"
)]
pub(crate) struct Arguments {
    /// The address of libtpu's metrics
    #[arg(long, value_name = "HOST:PORT", default_value = METRICS_ADDRESS)]
    address: String,
    /// The metrics of a training run: the port, the HOST:PORT or the URL of its option metrics_port
    #[arg(long, value_name = "ADDRESS")]
    run: Option<String>,
    /// 1 shows the TPU's kind, chips and libtpu, duty cycle and memory; 2 adds step times, idle
    /// share, cores in use, latencies, bandwidth, the queue and program durations
    #[arg(long, default_value = "1", value_parser = ["1", "2"])]
    level: String,
    /// The time between two updates
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    interval: Duration,
    /// How long each update measures: the means of the readings, and the steps, of this time
    /// [default: one reading, and the steps of the last minute]
    #[arg(long, value_name = "MILLISECONDS", value_parser = clap::value_parser!(u64).range(1..=3_600_000))]
    duration_ms: Option<u64>,
    /// The number of updates [default: until q is pressed]
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Print JSON, one object per line and update
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let level = if arguments.level == "1" { Level::Basic } else { Level::Detailed };
    let client =
        MetricsClient::new(&arguments.address).map_err(|error| Error::usage(error.to_string()))?;
    let training = arguments
        .run
        .as_deref()
        .map(RunMetricsClient::new)
        .transpose()
        .map_err(|error| Error::usage(error.to_string()))?;
    let source = Source {
        client,
        training,
        level,
        duration: arguments.duration_ms.map(Duration::from_millis),
        is_local: is_of_this_machine(&arguments.address),
    };
    let count = arguments.count.unwrap_or(u64::MAX);
    let snapshots = take_snapshots(source, arguments.interval, count);
    if !arguments.json && stdout().is_terminal() {
        let screen = Screen::new(
            format!("{}, every {} s", arguments.address, arguments.interval.as_secs_f64()),
            level,
        );
        let result = show(screen, &snapshots);
        ratatui::restore();
        return result.map_err(|error| Error::new(format!("the terminal: {error}")));
    }
    let mut last = None;
    for snapshot in snapshots {
        if arguments.json {
            outln!("{}", snapshot_json(&snapshot));
        } else {
            snapshot.lines().iter().for_each(|line| outln!("{line}"));
        }
        last = Some(snapshot);
    }
    match last.map(|snapshot| (snapshot.metrics, snapshot.run)) {
        // The error of only one source is not fatal, because the other source is useful alone.
        Some((Err(error), None) | (Err(_), Some(Err(error)))) => Err(Error::new(error)),
        _ => Ok(()),
    }
}

/// Whether an address of the form `HOST:PORT` is one of this machine.
fn is_of_this_machine(address: &str) -> bool {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || host.parse().is_ok_and(|ip: std::net::IpAddr| ip.is_loopback())
}

/// Where the numbers come from.
struct Source {
    client: MetricsClient,
    training: Option<RunMetricsClient>,
    level: Level,
    /// How long each snapshot measures; a single reading if it is not given.
    duration: Option<Duration>,
    /// Whether the metrics are those of this machine.
    is_local: bool,
}

impl Source {
    fn measure(&mut self, watch: &mut Watch) -> Snapshot {
        if self.duration.is_some() {
            // What these two say is compared with their previous answer. The time between is then
            // the measured one. An error is repeated by the second reading.
            let _ = self.training.as_mut().map(RunMetricsClient::read);
            watch.refresh();
        }
        let metrics = self.client.measure(self.level, self.duration.unwrap_or_default());
        if let (Err(_), Some(duration)) = (&metrics, self.duration) {
            // Without libtpu, the training is measured all the same.
            thread::sleep(duration);
        }
        let window = self.duration.unwrap_or(STEPS_OF);
        let run = self
            .training
            .as_mut()
            .map(|training| training.read_window(window).map_err(|error| error.to_string()));
        let state = (self.level == Level::Detailed).then(|| match metrics {
            Ok(_) => self.client.state(),
            Err(_) => RuntimeState::default(),
        });
        let (processes, holders) = watch.refresh();
        Snapshot {
            metrics: metrics.map_err(|error| error.to_string()),
            run,
            processes,
            unseen: holders.unseen,
            inventory: self.is_local.then(|| Tpu::local().inventory(&holders)),
            state,
        }
    }
}

/// Takes snapshots in a separate thread, so that a slow response does not block the keyboard.
fn take_snapshots(mut source: Source, interval: Duration, count: u64) -> Receiver<Snapshot> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut watch = Tpu::local().watch();
        for turn in 0..count {
            if turn > 0 {
                thread::sleep(interval);
            }
            if sender.send(source.measure(&mut watch)).is_err() {
                return;
            }
        }
    });
    receiver
}

/// Shows snapshots until q is pressed or there are no more.
fn show(mut screen: Screen, snapshots: &Receiver<Snapshot>) -> std::io::Result<()> {
    let mut terminal = ratatui::try_init()?;
    loop {
        terminal.draw(|frame| screen.draw(frame))?;
        let drawn = Instant::now();
        while event::poll(Duration::from_millis(20))? {
            if let Event::Key(key) = event::read()? {
                let ends =
                    key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL);
                if ends || matches!(key.code, KeyCode::Char('q') | KeyCode::Esc) {
                    return Ok(());
                }
            }
        }
        match snapshots.recv_timeout(Duration::from_millis(80).saturating_sub(drawn.elapsed())) {
            Ok(snapshot) => screen.update(snapshot),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
        }
    }
}

fn snapshot_json(snapshot: &Snapshot) -> Value {
    let device = |it: &DeviceMetrics| {
        json!({
            "id": it.id,
            "duty_cycle_percent": it.duty_cycle,
            "memory_used_bytes": it.memory_used,
            "memory_total_bytes": it.memory_total,
            "bandwidth_percent": it.bandwidth,
            "idle_seconds": it.idle_seconds,
            "queued_programs": it.queued,
            "program_mean_us": it.program_mean,
            "program_p50_us": it.program_times.map(|times| times.p50),
            "program_p90_us": it.program_times.map(|times| times.p90),
            "program_p95_us": it.program_times.map(|times| times.p95),
            "program_p999_us": it.program_times.map(|times| times.p999),
        })
    };
    let run = |it: &RunMetrics| {
        json!({
            "epoch": it.epoch,
            "global_step": it.global_step,
            "step_seconds": it.step_time.map(|time| time.as_secs_f64()),
            "input_wait": it.input_wait,
            "latest_steps": it.steps.as_ref().map(steps_json),
            "mfu": it.mfu,
        })
    };
    json!({
        "tpu": snapshot.inventory.as_ref().map(inventory_json),
        "idle_percent": snapshot.idle().filter(|_| snapshot.state.is_some()),
        "cores_in_use": snapshot
            .state
            .as_ref()
            .and_then(|state| state.cores)
            .map(|cores| json!({ "used": cores.used, "all": cores.all })),
        "latencies": snapshot.state.as_ref().map(latencies_json),
        "devices": snapshot.metrics.iter().flatten().map(device).collect::<Vec<_>>(),
        "error": snapshot.metrics.as_ref().err(),
        "run": snapshot.run.as_ref().and_then(|it| it.as_ref().ok()).map(run),
        "run_error": snapshot.run.as_ref().and_then(|it| it.as_ref().err()),
        "processes": snapshot.processes.iter().map(watched_json).collect::<Vec<_>>(),
        "unseen": snapshot.unseen,
    })
}

fn inventory_json(inventory: &Inventory) -> Value {
    let libtpu = inventory.libtpu.as_ref().map(
        |libtpu| json!({ "version": libtpu.version, "path": libtpu.path, "used": libtpu.is_used }),
    );
    json!({ "kind": inventory.kind, "chips": inventory.chips, "libtpu": libtpu })
}

fn steps_json(steps: &StepRange) -> Value {
    json!({
        "count": steps.count,
        "min_s": steps.min.as_secs_f64(),
        "mean_s": steps.mean.as_secs_f64(),
        "max_s": steps.max.as_secs_f64(),
    })
}

/// The distributions by `tpu-info`'s names; `null` is one that libtpu does not report.
fn latencies_json(state: &RuntimeState) -> Value {
    let group = |(name, times): &(String, Percentiles)| json!({ "group": name, "p50": times.p50, "p90": times.p90, "p95": times.p95, "p999": times.p999 });
    let value = |latency: &Latency| {
        if latency.groups.is_empty() {
            return Value::Null;
        }
        let groups: Vec<Value> = latency.groups.iter().map(group).collect();
        json!({ "unit": latency.unit, "groups": groups })
    };
    let named = state.latencies.iter().map(|latency| (latency.name.to_owned(), value(latency)));
    Value::Object(named.collect())
}

#[cfg(test)]
mod tests {
    use fulmen_machine::{CoresInUse, Libtpu};

    use super::*;

    #[test]
    fn only_loopback_addresses_are_of_this_machine() {
        for local in ["127.0.0.1:8431", "localhost:8431", "[::1]:8431", "127.0.0.9:1"] {
            assert!(is_of_this_machine(local), "{local}");
        }
        for remote in ["10.0.0.2:8431", "t1v-n-0:8431", "localhost.example:8431"] {
            assert!(!is_of_this_machine(remote), "{remote}");
        }
    }

    #[test]
    fn the_json_has_the_values_of_the_screen() {
        let times = Percentiles { p50: 24.0, p90: 72.0, p95: 80.0, p999: 80.5 };
        let latency = |name, groups| Latency { name, unit: "us", groups };
        let steps = StepRange {
            count: 7,
            min: Duration::from_millis(250),
            mean: Duration::from_millis(500),
            max: Duration::from_secs(1),
        };
        let run = RunMetrics {
            epoch: 1,
            global_step: 9,
            step_time: None,
            input_wait: None,
            steps: Some(steps),
            mfu: Some(0.5),
        };
        let device = DeviceMetrics { duty_cycle: Some(80.0), ..DeviceMetrics::new(0) };
        let device = DeviceMetrics { program_times: Some(times), ..device };
        let libtpu =
            Libtpu { path: "/opt/libtpu.so".into(), version: Some("0.0.51".into()), is_used: true };
        let state = RuntimeState {
            cores: Some(CoresInUse { used: 3, all: 4 }),
            latencies: vec![
                latency("buffer_transfer_latency", vec![("8MB+".to_owned(), times)]),
                latency("host_compute_latency", Vec::new()),
            ],
        };
        let json = snapshot_json(&Snapshot {
            metrics: Ok(vec![device]),
            run: Some(Ok(run)),
            processes: Vec::new(),
            unseen: 0,
            inventory: Some(Inventory { kind: Some("v5e"), chips: 4, libtpu: Some(libtpu) }),
            state: Some(state),
        });
        let at = |pointer: &str| json.pointer(pointer).cloned().unwrap_or_default();
        assert_eq!(at("/tpu/kind"), "v5e");
        assert_eq!(at("/tpu/chips"), 4);
        assert_eq!(at("/tpu/libtpu/version"), "0.0.51");
        assert_eq!(at("/idle_percent"), 20.0);
        assert_eq!(at("/cores_in_use"), json!({ "used": 3, "all": 4 }));
        assert_eq!(at("/latencies/buffer_transfer_latency/unit"), "us");
        let group = json!({ "group": "8MB+", "p50": 24.0, "p90": 72.0, "p95": 80.0, "p999": 80.5 });
        assert_eq!(at("/latencies/buffer_transfer_latency/groups/0"), group);
        assert_eq!(json["latencies"].get("host_compute_latency"), Some(&Value::Null));
        assert_eq!(at("/devices/0/program_p999_us"), 80.5);
        let steps = json!({ "count": 7, "min_s": 0.25, "mean_s": 0.5, "max_s": 1.0 });
        assert_eq!(at("/run/latest_steps"), steps);
        assert_eq!(at("/run/mfu"), 0.5);
    }
}
