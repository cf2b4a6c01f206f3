//! [`MlflowLogger`]: an MLflow tracking server, through its REST API (`api/2.0/mlflow`).

use std::io::{self, ErrorKind};
use std::path::Path;
use std::time::{Duration, Instant};

use fulmen_durable::messages::quantity;
use serde_json::{Map, Value as Json, json};
use ureq::http::Response;
use ureq::{Agent, Body, RequestBuilder};

use crate::http::agent;
use crate::jsonl::{json_number, unix_seconds};
use crate::{LogPoint, Logger, Status};

/// The timeout of a request.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The pause between two requests, and after a failed one.
const REQUEST_INTERVAL: Duration = Duration::from_secs(1);
const RETRY_INTERVAL: Duration = Duration::from_secs(30);
/// MLflow's limits for one request, and for the length of a parameter.
const MAX_METRICS: usize = 1000;
const MAX_PARAMS: usize = 100;
const MAX_PARAM_LENGTH: usize = 6000;
/// The maximum number of log points kept while the server does not answer.
const MAX_UNSENT: usize = 100_000;

/// Sends numbers and hyperparameters to an MLflow tracking server. Images, texts, histograms and
/// matrices stay in the run's folder.
///
/// The logger sends values at most once a second. Values that the server does not accept are kept
/// and sent later. If some remain at the end, the user gets a warning.
///
/// ```
/// use fulmen_loggers::MlflowLogger;
/// let logger = MlflowLogger::new("http://localhost:5000", "digits").token("secret");
/// ```
#[must_use]
pub struct MlflowLogger {
    agent: Agent,
    server: String,
    experiment: String,
    token: Option<String>,
    /// The name of the run.
    run_name: String,
    run_id: Option<String>,
    params: Vec<Json>,
    /// Log points that the server has not accepted yet, as MLflow metrics.
    unsent: Vec<Vec<Json>>,
    /// `log` sends no request before this time; `None` before the first request.
    next_request: Option<Instant>,
}

impl MlflowLogger {
    /// Creates a logger for an experiment on a server such as `http://localhost:5000`. The
    /// experiment is created if it does not exist.
    pub fn new(
        tracking_uri: impl Into<String>,
        experiment_name: impl Into<String>,
    ) -> MlflowLogger {
        MlflowLogger {
            agent: agent(TIMEOUT),
            server: tracking_uri.into().trim_end_matches('/').to_owned(),
            experiment: experiment_name.into(),
            token: None,
            run_name: String::new(),
            run_id: None,
            params: Vec::new(),
            unsent: Vec::new(),
            next_request: None,
        }
    }

    /// Creates a logger configured by MLflow's environment variables: `MLFLOW_TRACKING_URI` and, if
    /// they are set, `MLFLOW_EXPERIMENT_NAME` and `MLFLOW_TRACKING_TOKEN`.
    ///
    /// # Errors
    /// `MLFLOW_TRACKING_URI` is not set.
    pub fn from_env() -> io::Result<MlflowLogger> {
        let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let server = variable("MLFLOW_TRACKING_URI").filter(|uri| uri.starts_with("http")).ok_or_else(|| {
            let why = "set MLFLOW_TRACKING_URI to the address of a tracking server, for example http://localhost:5000";
            io::Error::new(ErrorKind::InvalidInput, why)
        })?;
        let experiment = variable("MLFLOW_EXPERIMENT_NAME").unwrap_or_else(|| "Default".to_owned());
        let logger = MlflowLogger::new(server, experiment);
        Ok(MlflowLogger { token: variable("MLFLOW_TRACKING_TOKEN"), ..logger })
    }

    /// Sends this token with every request.
    pub fn token(mut self, token: impl Into<String>) -> MlflowLogger {
        self.token = Some(token.into());
        self
    }

    fn url(&self, endpoint: &str) -> String {
        format!("{}/api/2.0/mlflow/{endpoint}", self.server)
    }

    fn authorized<B>(&self, request: RequestBuilder<B>) -> RequestBuilder<B> {
        match &self.token {
            Some(token) => request.header("Authorization", format!("Bearer {token}")),
            None => request,
        }
    }

    /// Posts a message to the server.
    fn post(&self, endpoint: &str, body: &Json) -> io::Result<Json> {
        let request = self.agent.post(self.url(endpoint)).content_type("application/json");
        self.read(endpoint, self.authorized(request).send(body.to_string()))
    }

    /// Reads a response. An error status becomes an error with the server's message.
    fn read(
        &self,
        endpoint: &str,
        response: Result<Response<Body>, ureq::Error>,
    ) -> io::Result<Json> {
        let failed = |why: String| io::Error::other(format!("{}: {why}", self.url(endpoint)));
        let mut response = response.map_err(|e| failed(e.to_string()))?;
        let text = response.body_mut().read_to_string().map_err(|e| failed(e.to_string()))?;
        let answer: Json = serde_json::from_str(&text).unwrap_or_default();
        if response.status().is_success() {
            return Ok(answer);
        }
        let exists = answer["error_code"] == "RESOURCE_ALREADY_EXISTS";
        let kind = if exists { ErrorKind::AlreadyExists } else { ErrorKind::Other };
        let message = answer["message"].as_str().unwrap_or_default();
        Err(io::Error::new(kind, failed(format!("{} {message}", response.status())).to_string()))
    }

    /// The id of the run. Creates the run if it does not exist.
    fn run_id(&mut self) -> io::Result<String> {
        if let Some(id) = &self.run_id {
            return Ok(id.clone());
        }
        let text = |answer: &Json| answer.as_str().map(str::to_owned);
        let missing =
            |key: &str| io::Error::other(format!("{}: its answer has no {key}", self.server));
        let name = &self.experiment;
        let created = match self.post("experiments/create", &json!({ "name": name })) {
            Ok(answer) => text(&answer["experiment_id"]),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                let endpoint = "experiments/get-by-name";
                let request = self.agent.get(self.url(endpoint)).query("experiment_name", name);
                text(
                    &self.read(endpoint, self.authorized(request).call())?["experiment"]["experiment_id"],
                )
            }
            Err(error) => return Err(error),
        };
        let experiment_id = created.ok_or_else(|| missing("experiment_id"))?;
        let run = json!({ "experiment_id": experiment_id, "run_name": self.run_name, "start_time": milliseconds() });
        let created = self.post("runs/create", &run)?;
        let id = text(&created["run"]["info"]["run_id"]).ok_or_else(|| missing("run_id"))?;
        self.run_id = Some(id.clone());
        Ok(id)
    }

    /// Sends the values that were kept.
    fn send(&mut self) -> io::Result<()> {
        let run_id = self.run_id()?;
        while !self.params.is_empty() {
            let count = self.params.len().min(MAX_PARAMS);
            self.post(
                "runs/log-batch",
                &json!({ "run_id": run_id, "params": self.params[..count] }),
            )?;
            self.params.drain(..count);
        }
        while !self.unsent.is_empty() {
            let mut metrics = 0;
            let fitting_points = self.unsent.iter().take_while(|point| {
                metrics += point.len();
                metrics <= MAX_METRICS
            });
            // A log point with more metrics than the server's limit is split.
            let points = fitting_points.count().max(1);
            for metrics in self.unsent[..points].concat().chunks(MAX_METRICS) {
                self.post("runs/log-batch", &json!({ "run_id": run_id, "metrics": metrics }))?;
            }
            self.unsent.drain(..points);
        }
        Ok(())
    }
}

impl Logger for MlflowLogger {
    fn start(&mut self, run_dir: &Path) -> io::Result<()> {
        self.run_name = run_dir.file_name().unwrap_or_default().to_string_lossy().into_owned();
        (self.run_id, self.next_request) = (None, None);
        self.params.clear();
        self.unsent.clear();
        Ok(())
    }

    fn log_hyperparams(&mut self, hyperparameters: &Map<String, Json>) -> io::Result<()> {
        self.params.extend(hyperparameters.iter().map(|(name, value)| {
            let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
            json!({ "key": key(name), "value": value.chars().take(MAX_PARAM_LENGTH).collect::<String>() })
        }));
        Ok(())
    }

    fn log(&mut self, point: &LogPoint) -> io::Result<()> {
        if self.unsent.len() >= MAX_UNSENT {
            return Err(io::Error::other(format!("{} accepts no values", self.server)));
        }
        let timestamp = milliseconds();
        let step = point.global_step;
        let metric = |(name, x): (String, f64)| json!({ "key": key(&name), "value": json_number(x), "timestamp": timestamp, "step": step });
        self.unsent.push(point.columns().into_iter().map(metric).collect());
        if self.next_request.is_some_and(|time| Instant::now() < time) {
            return Ok(());
        }
        let sent = self.send();
        self.next_request =
            Some(Instant::now() + if sent.is_ok() { REQUEST_INTERVAL } else { RETRY_INTERVAL });
        sent.map_err(|error| io::Error::new(ErrorKind::WouldBlock, error))
    }

    fn finalize(&mut self, status: Status) -> io::Result<()> {
        let status = match status {
            Status::Finished => "FINISHED",
            Status::Failed => "FAILED",
            Status::Interrupted => "KILLED",
        };
        let sent = self.send().and_then(|()| {
            let end =
                json!({ "run_id": self.run_id, "status": status, "end_time": milliseconds() });
            self.post("runs/update", &end)
        });
        sent.map(drop).map_err(|error| {
            let unsent = quantity(self.unsent.len(), "log point");
            io::Error::other(format!("{unsent} did not reach the server: {error}"))
        })
    }
}

/// Replaces the characters of a name that MLflow does not accept.
fn key(name: &str) -> String {
    name.chars()
        .map(|c| if c.is_alphanumeric() || "_-. :/".contains(c) { c } else { '_' })
        .collect()
}

fn milliseconds() -> u64 {
    (unix_seconds() * 1e3) as u64
}

#[cfg(test)]
mod tests;
