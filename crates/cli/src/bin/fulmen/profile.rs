//! `fulmen profile`: asks a running training program for a trace.
//!
//! Out of scope: writing the trace. The training program writes it (`session/profiler.rs` of
//! `fulmen-trainer`) when it finds a request in its run's folder.

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use clap::Args;
use fulmen_data::{Error, Result};
use fulmen_durable::messages::{self, quantity};
use serde_json::{Value, json};

use super::ps::seconds;

/// Asks a training run for a trace of its next steps, and prints the location of the trace
#[derive(Debug, Args)]
#[command(
    long_about = "Asks a training run for a trace of its next steps or seconds, and prints the location of the trace. The \
                  run continues and needs no special option, but this command must have access to its \
                  folder. trace.json shows the activity of each thread of the process; open it with ui.perfetto.dev. \
                  If the PJRT plugin has a profiler, as libtpu does, its recording of the devices is included, for \
                  TensorBoard's profile plugin"
)]
pub(crate) struct Arguments {
    /// How many steps to record [default: 10, unless --duration is given]
    #[arg(long, value_name = "NUMBER", conflicts_with = "duration", value_parser = clap::value_parser!(u64).range(1..))]
    steps: Option<u64>,
    /// How long to record, regardless of steps, such as 2s
    #[arg(long, value_name = "SECONDS", value_parser = duration)]
    duration: Option<Duration>,
    /// The folder of the run, or a folder of runs, whose newest run is used
    #[arg(long, value_name = "FOLDER", default_value = "runs")]
    run: PathBuf,
    /// How long to wait for the steps; then the trace ends with the steps so far
    #[arg(long, value_name = "SECONDS", default_value = "60s", value_parser = duration)]
    timeout: Duration,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The maximum time that a training program records.
const MAX_DURATION: Duration = Duration::from_secs(3600);
/// How long to wait for a training program to accept a request; it checks for requests twice a
/// second.
const ACCEPT_TIME: Duration = Duration::from_secs(20);
/// How long to wait for the trace to be written.
const WRITE_TIME: Duration = Duration::from_secs(300);

/// Parses a number of seconds, such as `0.5s` or `2`.
fn duration(text: &str) -> std::result::Result<Duration, String> {
    seconds(text.strip_suffix('s').unwrap_or(text))
        .ok()
        .filter(|time| *time <= MAX_DURATION)
        .ok_or_else(|| {
            format!("expected seconds, at most {} of them, such as 2s", MAX_DURATION.as_secs())
        })
}

pub(crate) fn run(arguments: &Arguments) -> Result<()> {
    let run = newest_run(&arguments.run)?;
    let (steps, time) = match (arguments.steps, arguments.duration) {
        (None, Some(time)) => (None, time),
        (steps, _) => (Some(steps.unwrap_or(10)), arguments.timeout),
    };
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let id = format!("{}-{}", since_1970.as_millis(), std::process::id());
    request_profile(&run, &json!({ "id": id, "steps": steps, "seconds": time.as_secs_f64() }))?;
    let folder = run.join("plugins/profile").join(&id);
    let answer = read_answer(&folder, time + WRITE_TIME)?;
    if let Some(error) = answer["error"].as_str() {
        return Err(Error::new(format!(
            "the training could not write a trace into {}: {error}",
            folder.display()
        )));
    }
    print_answer(&run, &folder, answer, arguments.json);
    Ok(())
}

/// The folder of the run: `folder` itself or, if it contains runs, the newest of them.
fn newest_run(folder: &Path) -> Result<PathBuf> {
    let is_run = |folder: &Path| folder.join("config.toml").is_file();
    if is_run(folder) {
        return Ok(folder.to_owned());
    }
    let entries =
        fs::read_dir(folder).map_err(|e| Error::io(folder, "cannot read the folder", e))?;
    let number = |path: &PathBuf| path.to_str()?.rsplit('_').next()?.parse::<u64>().ok();
    let runs = entries.flatten().map(|entry| entry.path()).filter(|path| is_run(path));
    runs.max_by_key(number).ok_or_else(|| {
        Error::usage(format!(
            "there is no run in {}; pass the folder of a run with --run",
            folder.display()
        ))
    })
}

/// Writes a request into the run's folder, and waits until the training program has accepted it.
fn request_profile(run: &Path, request: &Value) -> Result<()> {
    let path = run.join("profile.request");
    let text = request.to_string();
    if path.exists() {
        return Err(Error::usage(format!(
            "another trace has been requested: {} exists. If no command is waiting for it, remove the file",
            path.display()
        )));
    }
    fulmen_durable::write_unsynced(&path, Some(text.len() as u64), |file| {
        file.write_all(text.as_bytes())
    })
    .map_err(|e| Error::io(&path, "cannot write the request", e))?;
    if wait_until(ACCEPT_TIME, || !path.exists()) {
        return Ok(());
    }
    // The training program may have just removed the request.
    let _ = fs::remove_file(&path);
    Err(Error::new(format!(
        "no training run answers in {}: it has ended or hangs outside of the Trainer, it is recording another trace, or \
         it was built with an older version of Fulmen. `fulmen runs list` shows the runs, `fulmen ps` what holds the TPU",
        run.display()
    )))
}

/// Reads the training program's answer when it is complete.
fn read_answer(folder: &Path, within: Duration) -> Result<Value> {
    let path = folder.join("profile.json");
    if !wait_until(within, || path.exists()) {
        return Err(Error::new(format!(
            "the training run accepted the request, but {} did not appear",
            path.display()
        )));
    }
    let text =
        fulmen_durable::read_text(&path).map_err(|e| Error::io(&path, "cannot read it", e))?;
    serde_json::from_str(&text)
        .map_err(|e| Error::file(&path, format!("it is not the answer of a training run: {e}")))
}

fn wait_until(within: Duration, mut is_there: impl FnMut() -> bool) -> bool {
    let began = Instant::now();
    while !is_there() {
        if began.elapsed() > within {
            return false;
        }
        sleep(Duration::from_millis(50));
    }
    true
}

fn print_answer(run: &Path, folder: &Path, mut answer: Value, as_json: bool) {
    let files: Vec<String> = answer["files"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .map(|name| folder.join(name).display().to_string())
        .collect();
    if as_json {
        answer["files"] = json!(files);
        outln!("{answer}");
        return;
    }
    outln!(
        "{} in {}",
        quantity(&answer["steps"], "step"),
        messages::duration(answer["seconds"].as_f64().unwrap_or_default())
    );
    for file in &files {
        if file.ends_with(".pb") {
            outln!(
                "{file}: tensorboard --logdir {} shows it with the package xprof",
                run.display()
            );
        } else {
            outln!("{file}: open it in ui.perfetto.dev");
        }
    }
    if let Some(lost) = answer["lost_events"].as_u64().filter(|lost| *lost > 0) {
        outln!("The trace lacks its first {}: record fewer steps.", quantity(lost, "event"));
    }
    if let Some(error) = answer["plugin_error"].as_str() {
        outln!("There is no profile of the devices: {error}");
    }
}
