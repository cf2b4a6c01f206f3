//! `fulmen runs`: the runs of a Trainer in folders: their values, time, cost and differences.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use clap::{Args, Subcommand};
use fulmen_data::{Error, Result};
use fulmen_durable::messages::{duration, money};
use fulmen_tpu::{Generation, Prices};
use serde_json::{Map, Value, json};

/// Lists runs, shows one, or compares some
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Without a command, the runs in the folder runs are listed
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Lists runs: their state, length, time and cost, and the best validation values
    #[command(visible_alias = "ls")]
    List(Folders),
    /// Shows one run: all its metrics, where its time went, and its configuration
    Show {
        /// The run's folder
        run: PathBuf,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Compares runs: the differences of their configurations, their best values, time and cost
    Compare(Folders),
}

#[derive(Debug, Args)]
struct Folders {
    /// Folders of runs, or of single runs
    #[arg(default_value = "runs")]
    folders: Vec<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// The values of a metric over a run.
#[derive(Clone, Debug, PartialEq)]
struct Metric {
    last: f64,
    best: f64,
    /// The step of the best value.
    step: u64,
}

/// The content of a run's folder.
struct Run {
    name: String,
    folder: PathBuf,
    /// The numbers of started epochs and finished steps, according to the logged values.
    epochs: u64,
    steps: u64,
    /// The metrics in the order in which they were first logged.
    metrics: Vec<(String, Metric)>,
    /// The seconds that this run spent on each activity, and their sum.
    seconds: Map<String, Value>,
    environment: Value,
    /// The record of the fit.
    fit: Value,
    /// The configuration. Names have the form `section.key`.
    config: BTreeMap<String, String>,
}

impl Default for Folders {
    fn default() -> Folders {
        Folders { folders: vec!["runs".into()], json: false }
    }
}

pub(crate) fn run(arguments: Arguments) -> Result<()> {
    match arguments.command.unwrap_or_else(|| Command::List(Folders::default())) {
        Command::List(Folders { folders, json }) => {
            let runs = read_all(&folders)?;
            if json {
                outln!("{}", runs.iter().map(Run::as_json).collect::<Value>());
            } else {
                list(&runs);
            }
        }
        Command::Show { run, json } => {
            let run = Run::read(&run)?.ok_or_else(|| {
                Error::usage(format!("{} is not the folder of a run", run.display()))
            })?;
            if json {
                outln!("{}", run.as_json());
            } else {
                show(&run);
            }
        }
        Command::Compare(Folders { folders, json }) => {
            let runs = read_all(&folders)?;
            if runs.len() < 2 {
                return Err(Error::usage(
                    "there is only one run; pass the folders of two or more to compare",
                ));
            }
            let rows = differences(&runs);
            if json {
                let rows: Map<_, _> =
                    rows.into_iter().map(|(key, values)| (key, json!(values))).collect();
                outln!(
                    "{}",
                    json!({ "runs": runs.iter().map(Run::as_json).collect::<Value>(), "differences": rows })
                );
            } else {
                compare(&runs, rows);
            }
        }
    }
    Ok(())
}

/// Reads the runs in these folders. A folder is a run, or contains runs.
fn read_all(folders: &[PathBuf]) -> Result<Vec<Run>> {
    let mut runs = Vec::new();
    for folder in folders {
        if let Some(run) = Run::read(folder)? {
            runs.push(run);
            continue;
        }
        let entries = std::fs::read_dir(folder)
            .map_err(|e| Error::io(folder, "cannot read the folder", e))?;
        let mut paths: Vec<PathBuf> =
            entries.flatten().map(|entry| entry.path()).filter(|path| path.is_dir()).collect();
        // Sorts version_10 after version_9.
        let number = |path: &Path| path.to_str()?.rsplit('_').next()?.parse::<u64>().ok();
        paths.sort_by_key(|path| (number(path), path.clone()));
        for path in paths {
            runs.extend(Run::read(&path)?);
        }
    }
    if runs.is_empty() {
        let names: Vec<String> =
            folders.iter().map(|folder| folder.display().to_string()).collect();
        return Err(Error::usage(format!(
            "there is no run in {}; a run's folder has a config.toml",
            names.join(", ")
        )));
    }
    Ok(runs)
}

impl Run {
    /// Reads the folder of a run; `None` for other folders. Information from missing files is left
    /// out.
    fn read(folder: &Path) -> Result<Option<Run>> {
        if !folder.join("config.toml").is_file() && !folder.join("metrics.csv").is_file() {
            return Ok(None);
        }
        let mut run = Run {
            name: folder.file_name().unwrap_or(folder.as_os_str()).to_string_lossy().into_owned(),
            folder: folder.to_owned(),
            epochs: 0,
            steps: 0,
            metrics: Vec::new(),
            seconds: Map::new(),
            environment: read_json(&folder.join("environment.json"))?,
            fit: read_json(&folder.join(fulmen_report::SUMMARY))?,
            config: read_config(&folder.join("config.toml"))?,
        };
        // The last entry belongs to this run. Earlier entries belong to the runs that it resumes.
        let goodput = read_json(&folder.join("goodput.json"))?;
        if let Some(own) = goodput["runs"].as_array().and_then(|runs| runs.last()) {
            run.seconds = own["seconds"].as_object().cloned().unwrap_or_default();
            run.steps = own["last_step"].as_u64().unwrap_or(0);
        }
        run.read_metrics(&folder.join("metrics.csv"))?;
        Ok(Some(run))
    }

    fn read_metrics(&mut self, path: &Path) -> Result<()> {
        if !path.is_file() {
            return Ok(());
        }
        let damaged = |e: csv::Error| Error::file(path, e.to_string());
        // If the run was killed, the file may end within a row.
        let mut reader =
            csv::ReaderBuilder::new().flexible(true).from_path(path).map_err(damaged)?;
        let names: Vec<String> =
            reader.headers().map_err(damaged)?.iter().map(str::to_owned).collect();
        for row in reader.records() {
            let row = row.map_err(damaged)?;
            let mut epoch = 0;
            let mut step = 0;
            for (name, text) in names.iter().zip(&row) {
                match (name.as_str(), text.parse::<f64>()) {
                    ("epoch", Ok(x)) => epoch = x as u64,
                    ("step", Ok(x)) => step = x as u64,
                    (_, Ok(x)) => self.add(name, x, step),
                    (_, Err(_)) => {}
                }
            }
            self.epochs = self.epochs.max(epoch + 1);
            self.steps = self.steps.max(step);
        }
        Ok(())
    }

    fn add(&mut self, name: &str, value: f64, step: u64) {
        let Some((_, metric)) = self.metrics.iter_mut().find(|(known, _)| known == name) else {
            return self.metrics.push((name.to_owned(), Metric { last: value, best: value, step }));
        };
        metric.last = value;
        let is_better =
            if larger_is_better(name) { value > metric.best } else { value < metric.best };
        if is_better || metric.best.is_nan() {
            (metric.best, metric.step) = (value, step);
        }
    }

    /// The total time in seconds.
    fn time(&self) -> f64 {
        self.seconds.values().filter_map(Value::as_f64).sum()
    }

    /// The fraction of the time spent on steps.
    fn goodput(&self) -> Option<f64> {
        Some(self.seconds.get("steps")?.as_f64()? / self.time()).filter(|share| share.is_finite())
    }

    /// How the fit ended. A run that was killed is `unfinished`, like one that still trains.
    fn state(&self) -> &str {
        match self.fit["state"].as_str() {
            Some("running") => "unfinished",
            Some("finished") if self.fit["reason"].is_string() => "stopped",
            Some(state) => state,
            None => "-",
        }
    }

    fn started(&self) -> Option<f64> {
        self.environment["started"].as_f64()
    }

    /// The hardware, such as `8 × TPU v5 lite`.
    fn devices(&self) -> Option<String> {
        let count = self.environment["devices"].as_array()?.len();
        Some(format!("{count} × {}", self.environment["device_kind"].as_str()?))
    }

    /// The cost in US dollars, by the list price of the chips; `None` for hardware that is not a
    /// TPU.
    fn cost(&self) -> Option<f64> {
        let generation = Generation::of_kind(self.environment["device_kind"].as_str()?)?;
        let chips = self.environment["devices"].as_array()?.len().div_ceil(generation.devices);
        let prices = Prices::built_in().ok()?;
        let price = prices.for_generation(generation)?.usd_per_chip_hour;
        (self.environment["platform"] == "tpu").then(|| price * chips as f64 * self.time() / 3600.0)
    }

    fn as_json(&self) -> Value {
        let metric = |metric: &Metric| json!({ "last": metric.last, "best": metric.best, "step": metric.step });
        let metrics: Map<_, _> =
            self.metrics.iter().map(|(name, it)| (name.clone(), metric(it))).collect();
        json!({
            "name": self.name,
            "folder": self.folder.to_string_lossy(),
            "started": self.started(),
            "state": self.state(),
            "epochs": self.epochs,
            "steps": self.steps,
            "seconds": self.seconds,
            "goodput": self.goodput(),
            "cost_usd": self.cost(),
            "metrics": metrics,
            "config": self.config,
            "environment": self.environment,
        })
    }

    /// The state, length, time and cost of the run, for a table.
    fn summary(&self) -> [(&'static str, String); 7] {
        let dash = || "-".to_owned();
        [
            ("started", self.started().map_or_else(dash, ago)),
            ("state", self.state().to_owned()),
            ("epochs", self.epochs.to_string()),
            ("steps", self.steps.to_string()),
            ("time", if self.seconds.is_empty() { dash() } else { duration(self.time()) }),
            (
                "goodput",
                self.goodput().map_or_else(dash, |share| format!("{:.0} %", 100.0 * share)),
            ),
            ("cost", self.cost().map_or_else(dash, money)),
        ]
    }
}

/// Whether larger values of this metric are better. They are for metrics that count correct
/// results; other metrics are losses and errors.
fn larger_is_better(name: &str) -> bool {
    const LARGER_IS_BETTER: [&str; 14] = [
        "acc",
        "auc",
        "auroc",
        "bleu",
        "dice",
        "f1",
        "iou",
        "map",
        "per_second",
        "precision",
        "psnr",
        "r2",
        "recall",
        "ssim",
    ];
    let name = name.to_lowercase();
    let mut words = name.split(['_', '/', '-', ' ', '.']);
    words.any(|word| LARGER_IS_BETTER.contains(&word) || word == "accuracy" || word == "mfu")
        || name.contains("per_second")
}

/// The size limit of a run's files about itself.
const MAX_BYTES: u64 = 64 << 20;

fn read_json(path: &Path) -> Result<Value> {
    match fulmen_durable::read_regular(path, MAX_BYTES) {
        Ok(bytes) => {
            serde_json::from_slice(&bytes).map_err(|e| Error::file(path, format!("not JSON: {e}")))
        }
        Err(_) => Ok(Value::Null),
    }
}

fn read_config(path: &Path) -> Result<BTreeMap<String, String>> {
    let Ok(bytes) = fulmen_durable::read_regular(path, MAX_BYTES) else {
        return Ok(BTreeMap::new());
    };
    let text = String::from_utf8_lossy(&bytes).into_owned();
    let document = toml_edit::Document::parse(text)
        .map_err(|e| Error::file(path, e.to_string().trim_end().to_owned()))?;
    let mut config = BTreeMap::new();
    let show = |item: &toml_edit::Item| {
        // This removes the comment about the value's origin.
        item.as_value().map(|value| value.clone().decorated("", "").to_string())
    };
    for (name, item) in document.iter() {
        match item.as_table_like() {
            Some(table) => {
                config.extend(
                    table
                        .iter()
                        .filter_map(|(key, item)| Some((format!("{name}.{key}"), show(item)?))),
                );
            }
            None => config.extend(show(item).map(|value| (name.to_owned(), value))),
        }
    }
    Ok(config)
}

fn ago(started: f64) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO).as_secs_f64();
    format!("{} ago", duration((now - started).max(0.0)))
}

/// Formats a number with four digits.
fn show_number(x: f64) -> String {
    match x.abs() {
        0.0 => "0".to_owned(),
        1e-3..1e5 => format!("{x:.4}"),
        _ => format!("{x:.3e}"),
    }
}

/// Prints a table, whose first row is the header.
fn table(rows: &[Vec<String>]) {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max()
    };
    let widths: Vec<usize> = (0..columns).map(|column| width(column).unwrap_or(0)).collect();
    for row in rows {
        let cells: Vec<String> =
            row.iter().zip(&widths).map(|(cell, &width)| format!("{cell:width$}")).collect();
        outln!("{}", cells.join("  ").trim_end());
    }
}

/// The metrics to show in a list: up to three validation metrics or, if there are none, losses.
fn listed_metrics(runs: &[Run]) -> Vec<String> {
    let mut names: Vec<String> = Vec::new();
    for (name, _) in runs.iter().flat_map(|run| &run.metrics) {
        if !names.contains(name) {
            names.push(name.clone());
        }
    }
    let containing = |part: &str| {
        names
            .iter()
            .filter(|name| name.contains(part) && !name.contains('/'))
            .cloned()
            .collect::<Vec<_>>()
    };
    let mut metrics = containing("val");
    if metrics.is_empty() {
        metrics = containing("loss");
    }
    metrics.truncate(3);
    metrics
}

fn best(run: &Run, name: &str) -> String {
    run.metrics
        .iter()
        .find(|(known, _)| known == name)
        .map_or("-".to_owned(), |(_, metric)| show_number(metric.best))
}

fn list(runs: &[Run]) {
    let metrics = listed_metrics(runs);
    let head = ["run"]
        .into_iter()
        .chain(["started", "state", "epochs", "steps", "time", "goodput", "cost"])
        .map(str::to_owned);
    let mut rows: Vec<Vec<String>> =
        vec![head.chain(metrics.iter().map(|name| format!("best {name}"))).collect()];
    for run in runs {
        let summary = run.summary().map(|(_, value)| value);
        let values = metrics.iter().map(|name| best(run, name));
        rows.push([run.name.clone()].into_iter().chain(summary).chain(values).collect());
    }
    table(&rows);
}

fn show(run: &Run) {
    outln!("{}", run.folder.display());
    run.summary().iter().for_each(|(name, value)| outln!("{name}: {value}"));
    run.devices().iter().for_each(|devices| outln!("devices: {devices}"));
    for (name, seconds) in
        run.seconds.iter().filter_map(|(name, value)| Some((name, value.as_f64()?)))
    {
        outln!("time.{name}: {}", duration(seconds));
    }
    for key in ["git_commit", "host", "fulmen"] {
        run.environment[key].as_str().into_iter().for_each(|value| outln!("{key}: {value}"));
    }
    outln!("");
    let mut rows = vec![["metric", "last", "best", "at step"].map(str::to_owned).to_vec()];
    rows.extend(run.metrics.iter().map(|(name, Metric { last, best, step })| {
        vec![name.clone(), show_number(*last), show_number(*best), step.to_string()]
    }));
    table(&rows);
    outln!("");
    run.config.iter().for_each(|(name, value)| outln!("{name} = {value}"));
}

/// The configuration keys whose values differ between runs, with the value of each run.
fn differences(runs: &[Run]) -> Vec<(String, Vec<Option<String>>)> {
    let keys: BTreeSet<&String> = runs.iter().flat_map(|run| run.config.keys()).collect();
    let rows = keys
        .into_iter()
        .map(|key| (key.clone(), runs.iter().map(|run| run.config.get(key).cloned()).collect()));
    rows.filter(|(_, values): &(_, Vec<Option<String>>)| {
        values.windows(2).any(|pair| pair[0] != pair[1])
    })
    .collect()
}

fn compare(runs: &[Run], differences: Vec<(String, Vec<Option<String>>)>) {
    let row = |name: &str, values: Vec<String>| {
        [name.to_owned()].into_iter().chain(values).collect::<Vec<_>>()
    };
    let mut rows = vec![row("", runs.iter().map(|run| run.name.clone()).collect())];
    for (key, values) in differences {
        rows.push(row(
            &key,
            values.into_iter().map(|value| value.unwrap_or_else(|| "-".to_owned())).collect(),
        ));
    }
    for name in listed_metrics(runs) {
        rows.push(row(&format!("best {name}"), runs.iter().map(|run| best(run, &name)).collect()));
    }
    let summary: Vec<_> = runs.iter().map(Run::summary).collect();
    for index in 1..summary.first().map_or(0, |summary| summary.len()) {
        rows.push(row(
            summary[0][index].0,
            summary.iter().map(|summary| summary[index].1.clone()).collect(),
        ));
    }
    table(&rows);
}
