//! The requests of a [`WandbLogger`](super::WandbLogger): GraphQL at `/graphql` to create or find a
//! run, and the run's file stream at `/files/ENTITY/PROJECT/RUN/file_stream`.

use std::fmt::Write as _;
use std::io;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value as Json, json};
use ureq::http::Response;
use ureq::{Agent, Body};

use crate::http::agent;

/// The timeout of a request.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The longest part of a server's answer in an error.
const MAX_MESSAGE: usize = 300;

/// A server, and the key for it.
pub(super) struct Api {
    agent: Agent,
    pub(super) server: String,
    pub(super) key: String,
}

/// A run as the server knows it.
#[derive(Debug, PartialEq)]
pub(super) struct ServerRun {
    pub(super) entity: String,
    pub(super) project: String,
}

/// What a run already has on the server.
#[derive(Debug, Default, PartialEq)]
pub(super) struct History {
    /// The server's own id of the run.
    pub(super) id: Json,
    pub(super) lines: u64,
    /// The values of the last line.
    pub(super) last: Json,
    pub(super) summary: Json,
}

/// A request that failed.
pub(super) struct Failure {
    pub(super) error: io::Error,
    /// How long the server asks to wait.
    pub(super) retry_after: Option<Duration>,
    /// Whether the same request can succeed later.
    pub(super) is_transient: bool,
}

/// Creates a run, or finds the run with this name and opens it again.
const UPSERT_BUCKET: &str = "\
mutation UpsertBucket($id: String, $name: String, $project: String, $entity: String, $displayName: String, \
$config: JSONString, $groupName: String, $jobType: String, $notes: String, $tags: [String!]) {
  upsertBucket(input: {id: $id, name: $name, modelName: $project, entityName: $entity, displayName: $displayName, \
config: $config, groupName: $groupName, jobType: $jobType, notes: $notes, tags: $tags}) {
    bucket { id name displayName project { id name entity { id name } } }
    inserted
  }
}";

const RUN_RESUME_STATUS: &str = "\
query RunResumeStatus($project: String, $entity: String, $name: String!) {
  model(name: $project, entityName: $entity) {
    bucket(name: $name, missingOk: true) { id name historyLineCount historyTail summaryMetrics }
  }
}";

impl Api {
    pub(super) fn new(server: &str, key: String) -> Api {
        Api { agent: agent(TIMEOUT), server: server.trim_end_matches('/').to_owned(), key }
    }

    #[cfg(test)]
    pub(super) fn set_timeout(&mut self, timeout: Duration) {
        self.agent = agent(timeout);
    }

    /// What the run with this name has; `None` if there is no such run.
    pub(super) fn history(
        &self,
        project: &str,
        entity: Option<&str>,
        run: &str,
    ) -> Result<Option<History>, Failure> {
        let variables = json!({ "project": project, "entity": entity, "name": run });
        let data = self.graphql("RunResumeStatus", RUN_RESUME_STATUS, variables)?;
        let bucket = &data["model"]["bucket"];
        if bucket.is_null() {
            return Ok(None);
        }
        // Texts that hold JSON. A number that is not finite makes them invalid.
        let parsed = |text: &Json| -> Json {
            text.as_str().and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
        };
        let tail = parsed(&bucket["historyTail"]);
        let last = tail.as_array().and_then(|lines| lines.last()).map(parsed).unwrap_or_default();
        let lines = bucket["historyLineCount"].as_u64().unwrap_or(0);
        Ok(Some(History {
            id: bucket["id"].clone(),
            lines,
            last,
            summary: parsed(&bucket["summaryMetrics"]),
        }))
    }

    /// Creates the run, or opens it again. Repeating this changes nothing.
    pub(super) fn upsert_bucket(&self, variables: Json) -> Result<ServerRun, Failure> {
        let data = self.graphql("UpsertBucket", UPSERT_BUCKET, variables)?;
        let project = &data["upsertBucket"]["bucket"]["project"];
        let text = |value: &Json| value.as_str().map(str::to_owned);
        let (Some(entity), Some(project)) =
            (text(&project["entity"]["name"]), text(&project["name"]))
        else {
            return Err(self.failed("graphql", "the answer names no project".to_owned(), false));
        };
        Ok(ServerRun { entity, project })
    }

    fn graphql(&self, name: &str, query: &str, variables: Json) -> Result<Json, Failure> {
        let body = json!({ "operationName": name, "query": query, "variables": variables });
        let answer = self.post("graphql", body.to_string())?;
        if let Some(error) = answer["errors"].as_array().and_then(|errors| errors.first()) {
            let message = error["message"].as_str().unwrap_or("an error without a message");
            return Err(self.failed("graphql", format!("{name}: {message}"), false));
        }
        Ok(answer["data"].clone())
    }

    /// Posts to a run's file stream.
    pub(super) fn file_stream(
        &self,
        run: &ServerRun,
        id: &str,
        body: String,
    ) -> Result<(), Failure> {
        let [entity, project] = [&run.entity, &run.project].map(|name| path_segment(name));
        self.post(&format!("files/{entity}/{project}/{id}/file_stream"), body).map(drop)
    }

    /// The address of a run for a browser.
    pub(super) fn run_address(&self, run: &ServerRun, id: &str) -> String {
        let [entity, project] = [&run.entity, &run.project].map(|name| path_segment(name));
        let server = self.server.replace("https://api.wandb.ai", "https://wandb.ai");
        format!("{server}/{entity}/{project}/runs/{id}")
    }

    fn post(&self, path: &str, body: String) -> Result<Json, Failure> {
        let authorization = BASE64_STANDARD.encode(format!("api:{}", self.key));
        let request = self
            .agent
            .post(format!("{}/{path}", self.server))
            .content_type("application/json")
            .header("Authorization", format!("Basic {authorization}"));
        let mut response: Response<Body> =
            request.send(body).map_err(|e| self.failed(path, e.to_string(), true))?;
        let status = response.status();
        let header = response.headers().get("retry-after");
        let retry_after = header.and_then(|value| value.to_str().ok()?.parse().ok());
        let text = response
            .body_mut()
            .read_to_string()
            .map_err(|e| self.failed(path, e.to_string(), true))?;
        if status.is_success() {
            return Ok(serde_json::from_str(&text).unwrap_or_default());
        }
        let is_transient = status.is_server_error() || [408, 409, 429].contains(&status.as_u16());
        let excerpt: String = text.chars().take(MAX_MESSAGE).collect();
        let failure = self.failed(path, format!("{status} {}", excerpt.trim()), is_transient);
        Err(Failure { retry_after: retry_after.map(Duration::from_secs), ..failure })
    }

    /// A failure whose message has no key, even if the server repeats it.
    fn failed(&self, path: &str, why: String, is_transient: bool) -> Failure {
        let encoded = BASE64_STANDARD.encode(format!("api:{}", self.key));
        let why = why.replace(&encoded, "***").replace(&self.key, "***");
        let error = io::Error::other(format!("{}/{path}: {why}", self.server));
        Failure { error, retry_after: None, is_transient }
    }
}

/// A name as a segment of a URL's path.
fn path_segment(name: &str) -> String {
    let mut segment = String::new();
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            segment.push(char::from(byte));
        } else {
            let _ = write!(segment, "%{byte:02X}");
        }
    }
    segment
}
