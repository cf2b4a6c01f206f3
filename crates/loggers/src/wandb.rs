//! [`WandbLogger`]: Weights & Biases, through the HTTP interface that its own client uses.

mod api;
mod credentials;

use std::collections::{BTreeMap, VecDeque};
use std::hash::{BuildHasher as _, RandomState};
use std::io::{self, ErrorKind, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use fulmen_durable::messages::quantity;
use serde_json::{Map, Value as Json, json};

use crate::jsonl::unix_seconds;
use crate::{LogPoint, Logger, Status};
use api::{Api, Failure, ServerRun};
use credentials::{Labels, Settings};

/// The pause between two requests, as in the client of W&B, and after a failed one.
const INTERVAL: Duration = Duration::from_secs(15);
const RETRY_INTERVAL: Duration = Duration::from_secs(30);
/// How often the end of a run tries to send what is left, and the pause between two tries.
const LAST_TRIES: u32 = 3;
const LAST_PAUSE: Duration = Duration::from_secs(2);
/// The longest pause that a server can ask for.
const MAX_PAUSE: Duration = Duration::from_secs(300);
/// The maximum number of rows of one request.
const MAX_ROWS: usize = 1000;
/// The maximum number of rows kept while the server does not answer.
const MAX_UNSENT: usize = 100_000;
/// The horizontal axis of charts, under Lightning's name.
const GLOBAL_STEP: &str = "trainer/global_step";

/// What to do with a run that exists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Resume {
    #[default]
    Allow,
    Must,
    Never,
}

/// Sends numbers and hyperparameters to Weights & Biases. Images, texts, histograms and matrices
/// stay in the run's folder.
///
/// A log point becomes a row of the run's history. As in Lightning, the horizontal axis of charts
/// is `trainer/global_step`. The run's name is that of its folder, where `wandb.json` has its id and
/// its address.
///
/// The logger sends rows at most every 15 seconds. Each request says where in the history its rows
/// belong, so a row that is sent again after a lost answer is not doubled. Rows that the server does
/// not accept are kept and sent later. If some remain at the end, the user gets a warning.
///
/// ```
/// use fulmen_loggers::WandbLogger;
/// let logger = WandbLogger::new("digits", "0123456789abcdef").entity("my-team");
/// ```
#[must_use]
pub struct WandbLogger {
    api: Api,
    project: String,
    entity: Option<String>,
    /// The id of the run to create or to continue; by default, each run gets a new id.
    run_id: Option<String>,
    name: Option<String>,
    resume: Resume,
    labels: Labels,
    interval: Duration,
    retry_interval: Duration,
    last_pause: Duration,
    run: Run,
}

/// The run of a logger.
#[derive(Default)]
struct Run {
    dir: PathBuf,
    id: String,
    name: String,
    config: Map<String, Json>,
    started: f64,
    /// The run on the server; `None` until it has answered.
    on_server: Option<ServerRun>,
    /// What the run had on the server before this process; `None` until it has answered.
    before: Option<Before>,
    /// The number of rows that the server has accepted from this process.
    sent: u64,
    unsent: VecDeque<Row>,
    /// The latest value of each metric, as a JSON text.
    summary: BTreeMap<String, String>,
    /// The time of the last row.
    last_time: f64,
    /// No request is sent before this time; `None` before the first request.
    next_request: Option<Instant>,
    /// Whether the run has ended on the server.
    is_complete: bool,
}

/// A row of the history: its time, and its values as the members of a JSON object.
struct Row {
    time: f64,
    values: String,
}

/// What a run had on the server before this process continued it.
#[derive(Clone, Debug, Default)]
struct Before {
    /// The server's own id of the run, if it exists.
    id: Json,
    lines: u64,
    next_step: u64,
    seconds: f64,
}

impl WandbLogger {
    /// Creates a logger for a project, with an API key. The project is created if it does not exist.
    pub fn new(project: impl Into<String>, api_key: impl Into<String>) -> WandbLogger {
        let settings = Settings {
            server: "https://api.wandb.ai".to_owned(),
            project: project.into(),
            entity: None,
            run_id: None,
            name: None,
            resume: Resume::Allow,
            labels: Labels::default(),
        };
        WandbLogger::with_settings(settings, api_key.into())
    }

    /// Creates a logger configured by the environment variables of W&B: `WANDB_PROJECT` (by
    /// default, `uncategorized`), `WANDB_ENTITY`, `WANDB_NAME`, `WANDB_TAGS`, `WANDB_NOTES`,
    /// `WANDB_RUN_GROUP`, `WANDB_JOB_TYPE`, `WANDB_RUN_ID`, `WANDB_RESUME` (`allow`, `must` or
    /// `never`) and `WANDB_BASE_URL`. The key is that of `WANDB_API_KEY`, or of
    /// `~/.netrc`, where `wandb login` writes it.
    ///
    /// # Errors
    /// There is no key; `WANDB_MODE` is not `online`; a variable is invalid.
    pub fn from_env() -> io::Result<WandbLogger> {
        let variable = |name: &str| std::env::var(name).ok();
        let settings = Settings::read(variable)?;
        let key = credentials::api_key(&settings.server, variable)?;
        Ok(WandbLogger::with_settings(settings, key))
    }

    fn with_settings(settings: Settings, key: String) -> WandbLogger {
        let Settings { server, project, entity, run_id, name, resume, labels } = settings;
        WandbLogger {
            api: Api::new(&server, key),
            project,
            entity,
            run_id,
            name,
            resume,
            labels,
            interval: INTERVAL,
            retry_interval: RETRY_INTERVAL,
            last_pause: LAST_PAUSE,
            run: Run::default(),
        }
    }

    /// The API key, for a caller that keeps secrets out of what it writes.
    #[doc(hidden)]
    pub fn api_key(&self) -> &str {
        &self.api.key
    }

    /// Sets the user or team that owns the project; by default, the owner of the key.
    pub fn entity(mut self, entity: impl Into<String>) -> WandbLogger {
        self.entity = Some(entity.into());
        self
    }

    /// Sets the id of the run. If the server has a run with this id, its history continues.
    pub fn run_id(mut self, id: impl Into<String>) -> WandbLogger {
        self.run_id = Some(id.into());
        self
    }

    /// Sets the address of a server of your own; by default, `https://api.wandb.ai`.
    pub fn base_url(mut self, server: impl AsRef<str>) -> WandbLogger {
        self.api.server = server.as_ref().trim_end_matches('/').to_owned();
        self
    }

    /// Creates the run on the server, or continues it.
    fn connect(&mut self) -> Result<(), Failure> {
        // A test after a fit opens the run again.
        if self.run.is_open() {
            return Ok(());
        }
        if self.run.before.is_none() {
            self.run.before = Some(self.before()?);
        }
        let config: Map<String, Json> = self
            .run
            .config
            .iter()
            .map(|(name, value)| (name.clone(), json!({ "value": value })))
            .collect();
        let config = config_with_axis(config);
        let variables = json!({
            "id": self.run.before.as_ref().map(|before| &before.id),
            "name": self.run.id,
            "project": self.project,
            "entity": self.entity,
            "displayName": self.run.name,
            "config": Json::from(config).to_string(),
            "groupName": self.labels.group,
            "jobType": self.labels.job_type,
            "notes": self.labels.notes,
            "tags": self.labels.tags,
        });
        let run = self.api.upsert_bucket(variables)?;
        let address = self.api.run_address(&run, &self.run.id);
        self.run.on_server = Some(run);
        self.run.is_complete = false;
        // A failure is told once, and does not keep rows from being sent.
        self.run.write_address(&address).map_err(|error| Failure {
            error,
            retry_after: None,
            is_transient: true,
        })
    }

    /// What the run already has on the server. Only a run whose id was given can exist.
    fn before(&mut self) -> Result<Before, Failure> {
        let Some(id) = &self.run_id else { return Ok(Before::default()) };
        let history = self.api.history(&self.project, self.entity.as_deref(), id)?;
        let refuse = |message: String| {
            Err(Failure {
                error: io::Error::new(ErrorKind::InvalidInput, message),
                retry_after: None,
                is_transient: false,
            })
        };
        let Some(history) = history else {
            return match self.resume {
                Resume::Must => refuse(format!("WANDB_RESUME is must, but there is no run {id}")),
                _ => Ok(Before::default()),
            };
        };
        if self.resume == Resume::Never {
            return refuse(format!("WANDB_RESUME is never, but there is a run {id}"));
        }
        if let Json::Object(summary) = history.summary {
            for (name, value) in summary {
                if !name.starts_with('_') {
                    self.run.summary.entry(name).or_insert_with(|| value.to_string());
                }
            }
        }
        let last_step = history.last["_step"].as_u64();
        Ok(Before {
            id: history.id,
            lines: history.lines,
            next_step: last_step.map_or(history.lines, |step| step + 1),
            seconds: history.last["_runtime"].as_f64().unwrap_or(0.0),
        })
    }

    /// Sends the rows that were kept.
    fn send(&mut self) -> Result<(), Failure> {
        self.connect()?;
        while !self.run.unsent.is_empty() {
            let rows = self.run.unsent.len().min(MAX_ROWS);
            let lines: Vec<String> = self.run.lines(rows);
            let history = json!({ "offset": self.run.offset(), "content": lines });
            let files =
                json!({ "wandb-history.jsonl": history, "wandb-summary.json": self.run.summary() });
            self.post(&json!({ "files": files }))?;
            self.run.unsent.drain(..rows);
            self.run.sent += rows as u64;
        }
        Ok(())
    }

    /// Posts to the run's file stream.
    fn post(&self, body: &Json) -> Result<(), Failure> {
        match &self.run.on_server {
            Some(run) => self.api.file_stream(run, &self.run.id, body.to_string()),
            None => Ok(()),
        }
    }

    /// Notes when the next request may be sent, and turns a failure into an error.
    fn after_request(&mut self, outcome: Result<(), Failure>) -> io::Result<()> {
        let pause = match &outcome {
            Ok(()) => self.interval,
            Err(failure) => {
                failure.retry_after.map_or(self.retry_interval, |pause| pause.min(MAX_PAUSE))
            }
        };
        self.run.next_request = Some(Instant::now() + pause);
        outcome.map_err(|failure| io::Error::new(ErrorKind::WouldBlock, failure.error))
    }

    fn may_send(&self) -> bool {
        self.run.next_request.is_none_or(|time| Instant::now() >= time)
    }
}

impl Run {
    /// Whether the server expects more of the run.
    fn is_open(&self) -> bool {
        self.on_server.is_some() && !self.is_complete
    }

    /// Writes the run's id and its address to `wandb.json` in its folder.
    fn write_address(&self, address: &str) -> io::Result<()> {
        let text = format!("{:#}\n", json!({ "run_id": self.id, "url": address }));
        let path = self.dir.join("wandb.json");
        fulmen_durable::write(&path, None, |file| file.write_all(text.as_bytes()))
            .map_err(|e| io::Error::new(e.kind(), format!("cannot write {}: {e}", path.display())))
    }

    /// The index of the first unsent row in the history.
    fn offset(&self) -> u64 {
        self.before.as_ref().map_or(0, |before| before.lines) + self.sent
    }

    /// The first unsent rows, as lines of the history.
    fn lines(&self, rows: usize) -> Vec<String> {
        let before = self.before.clone().unwrap_or_default();
        let line = |(i, row): (usize, &Row)| {
            let step = before.next_step + self.sent + i as u64;
            let runtime = before.seconds + (row.time - self.started);
            format!(
                "{{\"_step\":{step},\"_timestamp\":{},\"_runtime\":{runtime},{}}}",
                row.time, row.values
            )
        };
        self.unsent.iter().take(rows).enumerate().map(line).collect()
    }

    /// The summary: the latest value of each metric.
    fn summary(&self) -> Json {
        let before = self.before.clone().unwrap_or_default();
        let runtime = before.seconds + (self.last_time - self.started);
        let mut summary = self.summary.clone();
        let rows = self.sent + self.unsent.len() as u64;
        if rows > 0 {
            let last_step = before.next_step + rows - 1;
            summary.insert("_step".to_owned(), last_step.to_string());
            summary.insert("_timestamp".to_owned(), number(self.last_time));
        }
        summary.insert("_runtime".to_owned(), number(runtime));
        summary.insert("_wandb".to_owned(), json!({ "runtime": runtime as u64 }).to_string());
        let members = summary.iter().map(|(name, value)| format!("{}:{value}", json!(name)));
        let text = format!("{{{}}}", members.collect::<Vec<_>>().join(","));
        json!({ "offset": 0, "content": [text] })
    }
}

impl Logger for WandbLogger {
    fn start(&mut self, run_dir: &Path) -> io::Result<()> {
        let folder = run_dir.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let started = unix_seconds();
        self.run = Run {
            dir: run_dir.to_owned(),
            id: self.run_id.clone().unwrap_or_else(new_id),
            name: self.name.clone().unwrap_or(folder),
            started,
            last_time: started,
            ..Run::default()
        };
        Ok(())
    }

    fn log_hyperparams(&mut self, hyperparameters: &Map<String, Json>) -> io::Result<()> {
        self.run.config.extend(hyperparameters.clone());
        Ok(())
    }

    fn log(&mut self, point: &LogPoint) -> io::Result<()> {
        if self.run.unsent.len() >= MAX_UNSENT {
            return Err(io::Error::other(format!("{} accepts no values", self.api.server)));
        }
        let mut columns = point.columns();
        for (name, x) in [("epoch", point.epoch), (GLOBAL_STEP, point.global_step)] {
            if columns.iter().all(|column| column.0 != name) {
                columns.push((name.to_owned(), x as f64));
            }
        }
        let mut values = Vec::with_capacity(columns.len());
        for (name, x) in columns {
            let number = number(x);
            values.push(format!("{}:{number}", Json::from(name.as_str())));
            self.run.summary.insert(name, number);
        }
        self.run.last_time = unix_seconds();
        self.run.unsent.push_back(Row { time: self.run.last_time, values: values.join(",") });
        if !self.may_send() {
            return Ok(());
        }
        let sent = self.send();
        self.after_request(sent)
    }

    fn idle(&mut self) -> io::Result<()> {
        let has_rows = !self.run.unsent.is_empty();
        if !self.may_send() || (!has_rows && !self.run.is_open()) {
            return Ok(());
        }
        // Without a request for some minutes, the server would call the run crashed.
        let sent = if has_rows { self.send() } else { self.post(&json!({})) };
        self.after_request(sent)
    }

    fn finalize(&mut self, status: Status) -> io::Result<()> {
        let exit_code = match status {
            Status::Finished => 0,
            Status::Failed => 1,
            // The client's code for Ctrl-C.
            Status::Interrupted => 255,
        };
        if self.run.is_complete && self.run.unsent.is_empty() {
            return Ok(());
        }
        let mut tries = 1;
        loop {
            let ended = self.send().and_then(|()| {
                let files = json!({ "wandb-summary.json": self.run.summary() });
                self.post(&json!({ "files": files, "complete": true, "exitcode": exit_code }))
            });
            let failure = match ended {
                Ok(()) => {
                    self.run.is_complete = true;
                    return Ok(());
                }
                Err(failure) => failure,
            };
            if tries == LAST_TRIES || !failure.is_transient {
                let unsent = quantity(self.run.unsent.len(), "log point");
                return Err(io::Error::other(format!(
                    "{unsent} did not reach the server: {}",
                    failure.error
                )));
            }
            tries += 1;
            std::thread::sleep(
                failure.retry_after.map_or(self.last_pause, |pause| pause.min(2 * self.last_pause)),
            );
        }
    }
}

/// The configuration, with the choice of `trainer/global_step` as the horizontal axis: what the
/// client sends for `define_metric("*", step_metric="trainer/global_step", step_sync=True)`.
fn config_with_axis(mut config: Map<String, Json>) -> Map<String, Json> {
    // The keys are numbers of fields: 1 is a name, 2 a pattern, 5 the index of the step's metric
    // counted from 1, 6 the options (1 for step_sync, 3 for a defined name).
    let metrics = json!([
        { "1": GLOBAL_STEP, "6": [3], "7": [] },
        { "2": "*", "5": 1, "6": [1], "7": [] },
    ]);
    // Without `t`, which has facts on Python, the client would not continue the run.
    config.insert("_wandb".to_owned(), json!({ "value": { "m": metrics, "t": {} } }));
    config
}

/// A number as in the lines of the client, which writes NaN and infinities as JavaScript does.
fn number(x: f64) -> String {
    match x {
        _ if x.is_nan() => "NaN".to_owned(),
        f64::INFINITY => "Infinity".to_owned(),
        f64::NEG_INFINITY => "-Infinity".to_owned(),
        _ if x.fract() == 0.0 && x.abs() < 1e15 => (x as i64).to_string(),
        _ => Json::from(x).to_string(),
    }
}

/// A new id of a run: eight letters and digits, as those of the client.
fn new_id() -> String {
    const DIGITS: &[u8] = b"abcdefghijklmnopqrstuvwxyz0123456789";
    let mut rest = RandomState::new().hash_one(std::process::id());
    let mut id = String::new();
    for _ in 0..8 {
        id.push(char::from(DIGITS[(rest % DIGITS.len() as u64) as usize]));
        rest /= DIGITS.len() as u64;
    }
    id
}

#[cfg(test)]
mod tests;
