//! A small Google Cloud: a server on loopback that answers as the HTTP interfaces of Cloud TPU,
//! Compute Engine and Cloud Quotas do, for Google's own gcloud.

use std::collections::BTreeMap;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use fulmen_signals::Signal;
use serde_json::{Value, json};

const CREATED: &str = "2026-11-22T10:00:00.123456789Z";

/// What goes wrong with a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The request does nothing and is denied.
    Denied,
    /// The request takes effect, and the answer is an error.
    FailsAfter,
    /// The request takes effect, and the answer is a page of a proxy.
    Garbage,
    /// The request takes effect, and the connection is cut.
    Cut,
    /// The request takes effect, and Ctrl-C arrives before the answer.
    Interrupted,
}

pub(super) const FAULTS: [Fault; 5] =
    [Fault::Denied, Fault::FailsAfter, Fault::Garbage, Fault::Cut, Fault::Interrupted];

/// Why the server does not do what a request asks for.
#[derive(Debug)]
enum Refusal {
    NotFound(String),
    Exists,
}

impl From<&str> for Refusal {
    fn from(path: &str) -> Refusal {
        Refusal::NotFound(path.to_owned())
    }
}

/// A request that the server has seen.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Request {
    pub(super) method: String,
    /// Without the version and without the parameters of every request.
    pub(super) path: String,
    pub(super) body: Value,
}

#[derive(Debug, Default)]
struct State {
    /// The address of the server, with which Compute Engine's names begin.
    address: String,
    /// The resources by path, such as `projects/p/locations/z/nodes/train`.
    resources: BTreeMap<String, Value>,
    requests: Vec<Request>,
    /// What goes wrong, by the number of the request.
    faults: BTreeMap<usize, Fault>,
    /// Where Ctrl-C arrives.
    signals: Option<Sender<Signal>>,
    /// The operations of Cloud TPU by name, as they are reported.
    operations: BTreeMap<String, Value>,
    compute_operations: usize,
}

#[derive(Clone)]
pub(super) struct ApiServer {
    pub(super) address: String,
    state: Arc<Mutex<State>>,
}

impl ApiServer {
    pub(super) fn start() -> ApiServer {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let server = ApiServer { address, state: Arc::default() };
        server.reset();
        let of_thread = server.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (Ok(stream), server) = (stream, of_thread.clone()) else { return };
                let _ = stream.set_nodelay(true);
                // A client that is killed cuts its connection.
                thread::spawn(move || server.connection(&stream));
            }
        });
        server
    }

    /// Forgets everything.
    pub(super) fn reset(&self) {
        let address = self.address.clone();
        *self.state.lock().unwrap() = State { address, ..State::default() };
    }

    /// Lets a request go wrong.
    pub(super) fn fail(&self, request: usize, fault: Fault, signals: Sender<Signal>) {
        let mut state = self.state.lock().unwrap();
        state.faults.insert(request, fault);
        state.signals = Some(signals);
    }

    pub(super) fn add(&self, path: &str, resource: Value) {
        self.state.lock().unwrap().resources.insert(path.to_owned(), resource);
    }

    pub(super) fn requests(&self) -> Vec<Request> {
        self.state.lock().unwrap().requests.clone()
    }

    /// Whether anything exists that costs money, or will cost money.
    pub(super) fn has_costs(&self) -> bool {
        !self.state.lock().unwrap().resources.is_empty()
    }

    fn connection(&self, mut stream: &TcpStream) -> io::Result<()> {
        let mut reader = BufReader::new(stream);
        while let Some(request) = read_request(&mut reader)? {
            let mut state = self.state.lock().unwrap();
            let fault = state.faults.get(&state.requests.len()).copied();
            state.requests.push(request.clone());
            let answer = match fault {
                Some(Fault::Denied) => None,
                _ => Some(state.answer(&request)),
            };
            if let (Some(Fault::Interrupted), Some(signals)) = (fault, &state.signals) {
                signals.send(Signal::Interrupt).map_err(io::Error::other)?;
            }
            drop(state);
            let error = |code: u16, status: &str| {
                let text = json!({"error": {"code": code, "status": status, "message": status}});
                (code, text.to_string())
            };
            let (code, text) = match (fault, answer) {
                (None, Some(Ok(value))) => (200, value.to_string()),
                (None, Some(Err(Refusal::NotFound(path)))) => {
                    error(404, &format!("NOT_FOUND: {path}"))
                }
                (None, Some(Err(Refusal::Exists))) => error(409, "ALREADY_EXISTS"),
                (Some(Fault::Garbage), _) => (200, "<html>502 Bad Gateway</html>".to_owned()),
                (Some(Fault::Cut), _) => return Ok(()),
                (Some(Fault::Interrupted), Some(Ok(value))) => {
                    thread::sleep(Duration::from_millis(300));
                    (200, value.to_string())
                }
                _ => error(403, "PERMISSION_DENIED"),
            };
            write!(
                stream,
                "HTTP/1.1 {code} x\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{text}",
                text.len()
            )?;
        }
        Ok(())
    }
}

fn read_request(reader: &mut BufReader<&TcpStream>) -> io::Result<Option<Request>> {
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    let mut words = line.split(' ').map(str::to_owned);
    let method = words.next().unwrap_or_default();
    let target = words.next().unwrap_or_default();
    let mut length = 0;
    while line.trim() != "" {
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse().map_err(io::Error::other)?;
        }
        line.clear();
        reader.read_line(&mut line)?;
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    Ok(Some(Request {
        method,
        path: path(&target),
        body: serde_json::from_slice(&body).unwrap_or_default(),
    }))
}

/// The path from `projects/` on, and the parameters that say something.
fn path(target: &str) -> String {
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let start = path.find("projects/").unwrap_or(0);
    let parameters: Vec<&str> = query
        .split('&')
        .filter(|parameter| {
            !["alt", "pageSize", "maxResults", "includeAllScopes", "returnPartialSuccess"]
                .contains(&parameter.split('=').next().unwrap_or_default())
        })
        .filter(|parameter| !parameter.is_empty())
        .collect();
    let mark = if parameters.is_empty() { "" } else { "?" };
    format!("{}{mark}{}", &path[start..], parameters.join("&"))
}

impl State {
    /// An operation that is done, as Cloud TPU reports it.
    fn tpu_operation(&mut self, location: &str, response: &Value) -> Value {
        let name = format!("{location}/operations/operation-{}", self.operations.len());
        let operation = json!({"name": name, "done": true, "response": response});
        self.operations.insert(name, operation.clone());
        operation
    }

    /// An operation that is done, as Compute Engine reports it. `scope` is a zone or all.
    fn compute_operation(&mut self, kind: &str, scope: &str, target: &str) -> Value {
        self.compute_operations += 1;
        let name = format!("operation-{}", self.compute_operations);
        let url = |path: &str| format!("{}/{path}", self.address);
        let mut operation = json!({
            "kind": "compute#operation", "operationType": kind, "name": name, "status": "DONE", "progress": 100,
            "selfLink": url(&format!("{scope}/operations/{name}")), "targetLink": url(target),
        });
        if scope.contains("/zones/") {
            operation["zone"] = json!(url(scope));
        }
        operation
    }

    fn answer(&mut self, request: &Request) -> Result<Value, Refusal> {
        let (path, query) = request.path.split_once('?').unwrap_or((&request.path, ""));
        let parent = path.rsplit_once('/').map_or("", |(parent, _)| parent);
        let collection = path.rsplit('/').next().unwrap_or_default();
        match (request.method.as_str(), collection) {
            (_, _) if path.contains("/operations/") => {
                let scope = path.split("/operations/").next().unwrap_or_default().to_owned();
                if scope.contains("/locations/") {
                    return self.operations.get(path).cloned().ok_or_else(|| path.into());
                }
                Ok(self.compute_operation("delete", &scope, &scope))
            }
            ("POST", "nodes") => {
                let path = format!("{path}/{}", query.split('=').nth(1).unwrap_or_default());
                if self.resources.contains_key(&path) {
                    return Err(Refusal::Exists);
                }
                let node = self.add_node(&path, &request.body);
                Ok(self.tpu_operation(parent, &node))
            }
            ("POST", "queuedResources") => {
                let path = format!("{path}/{}", query.split('=').nth(1).unwrap_or_default());
                let mut queued = request.body.clone();
                queued["name"] = json!(path);
                queued["createTime"] = json!(CREATED);
                queued["state"] = json!({"state": "ACTIVE"});
                for spec in queued["tpu"]["nodeSpec"].as_array().into_iter().flatten() {
                    let name = spec["nodeId"].as_str().unwrap_or_default();
                    self.add_node(&format!("{parent}/nodes/{name}"), &spec["node"]);
                }
                self.resources.insert(path, queued.clone());
                Ok(self.tpu_operation(parent, &queued))
            }
            ("POST", "disks" | "instances") => {
                let path = format!("{path}/{}", request.body["name"].as_str().unwrap_or_default());
                let mut resource = request.body.clone();
                resource["zone"] = json!(format!("{}/{parent}", self.address));
                resource["selfLink"] = json!(format!("{}/{path}", self.address));
                resource["creationTimestamp"] = json!("2026-11-20T12:00:00.000-08:00");
                let status = if collection == "disks" { "READY" } else { "RUNNING" };
                resource["status"] = json!(status);
                if collection == "instances" {
                    resource["networkInterfaces"] = json!([{
                        "networkIP": "10.0.0.3", "accessConfigs": [{"natIP": "34.1.2.9"}]}]);
                    resource["id"] = json!("7");
                }
                self.resources.insert(path.clone(), resource);
                Ok(self.compute_operation("insert", parent, &path))
            }
            ("POST", "setCommonInstanceMetadata") => {
                Ok(self.compute_operation("setMetadata", &format!("{parent}/global"), parent))
            }
            ("POST", name) if name.ends_with(":getGuestAttributes") => Ok(json!({})),
            ("PATCH", _) => {
                let node = self.resources.get_mut(path).ok_or(path)?;
                let field = match query.split('=').nth(1) {
                    Some("data_disks") => "dataDisks",
                    Some(field) => field,
                    None => return Err(path.into()),
                };
                node[field] = request.body[field].clone();
                let node = node.clone();
                let location = parent.strip_suffix("/nodes").unwrap_or_default();
                Ok(self.tpu_operation(location, &node))
            }
            ("DELETE", _) => {
                self.resources.remove(path).ok_or(path)?;
                let scope = parent.rsplit_once('/').map_or("", |(scope, _)| scope);
                if let Some((location, name)) = path.split_once("/queuedResources/") {
                    self.resources.remove(&format!("{location}/nodes/{name}"));
                }
                if path.contains("/locations/") {
                    return Ok(self.tpu_operation(scope, &json!({})));
                }
                Ok(self.compute_operation("delete", scope, path))
            }
            ("GET", _) => self.get(path),
            (method, _) => Err(Refusal::NotFound(format!("{method} {path}"))),
        }
    }

    fn add_node(&mut self, path: &str, request: &Value) -> Value {
        let mut node = request.clone();
        node["name"] = json!(path);
        node["createTime"] = json!(CREATED);
        node["state"] = json!("READY");
        node["health"] = json!("HEALTHY");
        node["networkEndpoints"] = json!([
            {"accessConfig": {"externalIp": "34.1.2.3"}, "ipAddress": "10.0.0.2", "port": 8470}]);
        self.resources.insert(path.to_owned(), node.clone());
        node
    }

    fn get(&self, path: &str) -> Result<Value, Refusal> {
        if let Some(resource) = self.resources.get(path) {
            return Ok(resource.clone());
        }
        if path.ends_with("/storage/v1/b") {
            return Ok(json!({"items": self.list("b/", "")}));
        }
        let (parent, collection) = path.rsplit_once('/').ok_or(path)?;
        match collection {
            "nodes" | "queuedResources" | "quotaInfos" => {
                let parent = parent.strip_suffix("/-").unwrap_or(parent);
                Ok(json!({ collection: self.list(parent, collection) }))
            }
            "disks" | "instances" | "addresses" if parent.ends_with("/aggregated") => {
                let project = parent.strip_suffix("/aggregated").unwrap_or_default();
                let found = self.list(project, collection);
                Ok(json!({"items": {"zones/us-west4-a": {collection: found}}}))
            }
            "disks" | "instances" | "snapshots" => {
                Ok(json!({"items": self.list(parent, collection)}))
            }
            _ if parent == "projects" => {
                let metadata = json!({"fingerprint": "Zm9v", "items": []});
                Ok(json!({"name": collection, "commonInstanceMetadata": metadata}))
            }
            _ if parent.ends_with("/zones") => Ok(json!({"name": collection, "status": "UP"})),
            _ => Err(path.into()),
        }
    }

    fn list(&self, parent: &str, collection: &str) -> Vec<Value> {
        let is_listed =
            |path: &str| path.starts_with(parent) && path.contains(&format!("/{collection}"));
        let resources = self.resources.iter().filter(|(path, _)| is_listed(path));
        resources.map(|(_, resource)| resource.clone()).collect()
    }
}
