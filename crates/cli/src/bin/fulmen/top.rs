//! `fulmen top`: shows how busy the TPU is.

use std::io::{IsTerminal, stdout};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use fulmen_cli::top::{Screen, Snapshot};
use fulmen_data::{Error, Result};
use fulmen_machine::{
    DeviceMetrics, Level, METRICS_ADDRESS, MetricsClient, RunMetrics, RunMetricsClient, Tpu,
};
use ratatui::crossterm::event::{self, Event, KeyCode, KeyModifiers};
use serde_json::{Value, json};

use super::ps::{seconds, watched_json};

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
    /// 1 shows duty cycle and memory; 2 adds bandwidth, idle time, the queue and program durations
    #[arg(long, default_value = "1", value_parser = ["1", "2"])]
    level: String,
    /// The time between two updates
    #[arg(long, value_name = "SECONDS", default_value = "1", value_parser = seconds)]
    interval: Duration,
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
    let snapshots = take_snapshots(
        client,
        training,
        level,
        arguments.interval,
        arguments.count.unwrap_or(u64::MAX),
    );
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

/// Takes snapshots in a separate thread, so that a slow response does not block the keyboard.
fn take_snapshots(
    client: MetricsClient,
    mut training: Option<RunMetricsClient>,
    level: Level,
    interval: Duration,
    count: u64,
) -> Receiver<Snapshot> {
    let (sender, receiver) = mpsc::channel();
    thread::spawn(move || {
        let mut watch = Tpu::local().watch();
        for turn in 0..count {
            if turn > 0 {
                thread::sleep(interval);
            }
            let metrics = client.read(level).map_err(|error| error.to_string());
            let run = training
                .as_mut()
                .map(|training| training.read().map_err(|error| error.to_string()));
            let (processes, holders) = watch.refresh();
            if sender.send(Snapshot { metrics, run, processes, unseen: holders.unseen }).is_err() {
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
            "program_p90_us": it.program_p90,
        })
    };
    let run = |it: &RunMetrics| {
        json!({
            "epoch": it.epoch,
            "global_step": it.global_step,
            "step_seconds": it.step_time.map(|time| time.as_secs_f64()),
            "input_wait": it.input_wait,
        })
    };
    json!({
        "devices": snapshot.metrics.iter().flatten().map(device).collect::<Vec<_>>(),
        "error": snapshot.metrics.as_ref().err(),
        "run": snapshot.run.as_ref().and_then(|it| it.as_ref().ok()).map(run),
        "run_error": snapshot.run.as_ref().and_then(|it| it.as_ref().err()),
        "processes": snapshot.processes.iter().map(watched_json).collect::<Vec<_>>(),
        "unseen": snapshot.unseen,
    })
}
