//! A hub on the loopback interface: its API, redirects of large files to a second server, and faults.

use std::collections::{BTreeMap, VecDeque};
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

use ring::digest;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// The files of a commit.
pub(crate) type Files = BTreeMap<String, Vec<u8>>;

/// The files on a page of the listing. The pages of a hub have a thousand.
const PAGE: usize = 2;

/// What happens to the next request for the content of a file.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Fault {
    /// The connection ends after this number of bytes.
    Cut(usize),
    /// No more bytes come after this number.
    Hang(usize),
    /// One byte is wrong.
    Corrupt,
    /// The request for a part is answered with everything.
    Whole,
    /// A status, a header and a message instead of the content.
    Refuse(u16, &'static str, &'static str),
}

/// A request as a server has seen it.
#[derive(Debug, Clone, Default)]
pub(crate) struct Request {
    pub(crate) target: String,
    pub(crate) range: Option<String>,
    pub(crate) token: Option<String>,
}

/// What both servers serve.
#[derive(Default)]
pub(crate) struct State {
    /// The files of each commit.
    pub(crate) commits: BTreeMap<String, Files>,
    /// The commit of each branch.
    pub(crate) branches: BTreeMap<String, String>,
    pub(crate) faults: VecDeque<Fault>,
    /// The token without which nothing is served.
    pub(crate) token: Option<String>,
    /// The status, the code and the message that all of the API answers.
    pub(crate) refusal: Option<(u16, &'static str, &'static str)>,
    /// Names that are listed, too.
    pub(crate) more_names: Vec<String>,
    pub(crate) hub_requests: Vec<Request>,
    pub(crate) store_requests: Vec<Request>,
    store: String,
}

/// The hub and the server with its large files.
pub(crate) struct Hub {
    state: Arc<Mutex<State>>,
    pub(crate) address: String,
}

impl Hub {
    /// A hub whose repositories `OWNER/NAME` have these files in the branch `main`.
    pub(crate) fn start(files: Files) -> Hub {
        let mut state = State::default();
        state.commits.insert(commit('a'), files);
        state.branches.insert("main".to_owned(), commit('a'));
        let state = Arc::new(Mutex::new(state));
        let store = listen(state.clone(), serve_object);
        state.lock().unwrap().store = store;
        let address = listen(state.clone(), serve);
        Hub { state, address }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// The ranges that were requested of large files since the last call.
    pub(crate) fn ranges(&self) -> Vec<Option<String>> {
        self.state().store_requests.drain(..).map(|request| request.range).collect()
    }
}

/// A commit's hash.
pub(crate) fn commit(digit: char) -> String {
    digit.to_string().repeat(40)
}

struct Answer {
    status: u16,
    headers: Vec<(&'static str, String)>,
    body: Vec<u8>,
    fault: Option<Fault>,
}

impl Answer {
    fn new(status: u16, body: impl Into<Vec<u8>>) -> Answer {
        Answer { status, headers: Vec::new(), body: body.into(), fault: None }
    }

    fn header(mut self, name: &'static str, value: impl Into<String>) -> Answer {
        self.headers.push((name, value.into()));
        self
    }
}

type Serve = fn(&mut State, &Request) -> Answer;

fn listen(state: Arc<Mutex<State>>, serve: Serve) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    thread::spawn(move || {
        for stream in listener.incoming() {
            let state = state.clone();
            thread::spawn(move || connection(stream.unwrap(), &state, serve));
        }
    });
    address
}

/// Answers one request.
fn connection(mut stream: TcpStream, state: &Mutex<State>, serve: Serve) {
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines().map_while(Result::ok);
    let Some(first) = lines.next() else { return };
    let mut request =
        Request { target: first.split(' ').nth(1).unwrap().to_owned(), ..Request::default() };
    for line in lines.take_while(|line| !line.is_empty()) {
        let (name, value) = line.split_once(": ").unwrap();
        match name.to_lowercase().as_str() {
            "range" => request.range = Some(value.to_owned()),
            "authorization" => request.token = Some(value.to_owned()),
            _ => {}
        }
    }
    let answer = serve(&mut state.lock().unwrap(), &request);
    let mut head = format!("HTTP/1.1 {} Status\r\nConnection: close\r\n", answer.status);
    for (name, value) in &answer.headers {
        head += &format!("{name}: {value}\r\n");
    }
    head += &format!("Content-Length: {}\r\n\r\n", answer.body.len());
    let sent = match answer.fault {
        Some(Fault::Cut(bytes) | Fault::Hang(bytes)) => bytes,
        _ => answer.body.len(),
    };
    // The client may have ended.
    let _ = stream.write_all(head.as_bytes());
    let _ = stream.write_all(&answer.body[..sent]);
    if matches!(answer.fault, Some(Fault::Hang(_))) {
        thread::sleep(Duration::from_secs(600));
    }
}

fn refuse(status: u16, code: &str, message: &str) -> Answer {
    let body = json!({ "error": message }).to_string();
    Answer::new(status, body).header("X-Error-Code", code)
}

/// The hub.
fn serve(state: &mut State, request: &Request) -> Answer {
    state.hub_requests.push(request.clone());
    if state.token.is_some() && request.token != state.token {
        return refuse(401, "RepoNotFound", "Invalid username or password.");
    }
    let (path, query) = request.target.split_once('?').unwrap_or((&request.target, ""));
    let parts: Vec<&str> = path.trim_start_matches('/').split('/').collect();
    match parts[..] {
        ["api", "models" | "datasets", ..] if state.refusal.is_some() => {
            let (status, code, message) = state.refusal.unwrap();
            refuse(status, code, message)
        }
        ["api", kind, "old", name, ..] => {
            let to = request.target.replacen(
                &format!("{kind}/old/{name}"),
                &format!("{kind}/new/{name}"),
                1,
            );
            Answer::new(307, "").header("Location", to)
        }
        ["api", "models" | "datasets", _, _, "revision", revision] => {
            let revision = revision.replace("%2F", "/");
            let is_commit = state.commits.contains_key(&revision).then_some(&revision);
            match state.branches.get(&revision).or(is_commit) {
                Some(commit) => {
                    Answer::new(200, json!({ "sha": commit, "private": false }).to_string())
                }
                None => refuse(404, "RevisionNotFound", &format!("Invalid rev id: {revision}")),
            }
        }
        ["api", "models" | "datasets", _, _, "tree", commit] => tree(state, commit, path, query),
        ["datasets", _, _, "resolve", commit, ref file @ ..]
        | [_, _, "resolve", commit, ref file @ ..] => {
            resolve(state, commit, &decode(&file.join("/")), request)
        }
        _ => refuse(404, "RepoNotFound", "Repository not found"),
    }
}

/// A page of the listing.
fn tree(state: &State, commit: &str, path: &str, query: &str) -> Answer {
    assert!(query.contains("recursive=true"), "{query}");
    let mut entries = vec![json!({ "type": "directory", "oid": "0", "size": 0, "path": "folder" })];
    entries.extend(state.commits[commit].iter().map(|(name, bytes)| entry(name, bytes)));
    entries.extend(state.more_names.iter().map(|name| entry(name, b"more")));
    let cursor = query.split_once("cursor=").map_or(0, |(_, cursor)| cursor.parse().unwrap());
    let page: Vec<Value> = entries.iter().skip(cursor).take(PAGE).cloned().collect();
    let answer = Answer::new(200, Value::from(page).to_string());
    if cursor + PAGE >= entries.len() {
        return answer;
    }
    // A hub behind a mirror names its own address.
    let next = format!("https://hub.invalid{path}?recursive=true&cursor={}", cursor + PAGE);
    answer.header("Link", format!("<{next}>; rel=\"next\""))
}

fn is_large(name: &str) -> bool {
    name.ends_with(".safetensors") || name.ends_with(".parquet")
}

fn entry(name: &str, bytes: &[u8]) -> Value {
    if is_large(name) {
        let lfs = json!({ "oid": sha256(bytes), "size": bytes.len(), "pointerSize": 134 });
        return json!({ "type": "file", "oid": commit('f'), "size": bytes.len(), "path": name, "lfs": lfs });
    }
    json!({ "type": "file", "oid": git_sha1(bytes), "size": bytes.len(), "path": name })
}

pub(crate) fn sha256(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

fn git_sha1(bytes: &[u8]) -> String {
    let blob = [format!("blob {}\0", bytes.len()).as_bytes(), bytes].concat();
    let hash = digest::digest(&digest::SHA1_FOR_LEGACY_USE_ONLY, &blob);
    hash.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn decode(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        rest = after;
        if *first == b'%' {
            let digits = std::str::from_utf8(&after[..2]).unwrap();
            bytes.push(u8::from_str_radix(digits, 16).unwrap());
            rest = &after[2..];
        } else {
            bytes.push(*first);
        }
    }
    String::from_utf8(bytes).unwrap()
}

/// The content of a small file, or a redirect to that of a large one.
fn resolve(state: &mut State, commit: &str, name: &str, request: &Request) -> Answer {
    let Some(bytes) = state.commits.get(commit).and_then(|files| files.get(name)) else {
        return refuse(404, "EntryNotFound", "Entry not found");
    };
    if is_large(name) {
        let to = format!("{}/{}?signature=secret", state.store, sha256(bytes));
        return Answer::new(302, "")
            .header("X-Linked-Etag", format!("\"{}\"", sha256(bytes)))
            .header("X-Repo-Commit", commit)
            .header("Location", to);
    }
    let bytes = bytes.clone();
    content(state, &bytes, request)
        .header("ETag", format!("\"{}\"", git_sha1(&bytes)))
        .header("X-Repo-Commit", commit)
}

/// The server with the large files.
fn serve_object(state: &mut State, request: &Request) -> Answer {
    state.store_requests.push(request.clone());
    let hash = request.target.trim_start_matches('/').split('?').next().unwrap();
    let all = state.commits.values().flat_map(Files::values);
    let bytes = all.clone().find(|bytes| sha256(bytes) == hash).unwrap().clone();
    content(state, &bytes, request)
}

fn content(state: &mut State, bytes: &[u8], request: &Request) -> Answer {
    let fault = state.faults.pop_front();
    let mut bytes = bytes.to_vec();
    match fault {
        Some(Fault::Corrupt) => bytes[0] ^= 1,
        Some(Fault::Refuse(status, header, message)) => {
            let (name, value) = header.split_once(": ").unwrap();
            let body = json!({ "error": message }).to_string();
            return Answer::new(status, body).header(name, value);
        }
        _ => {}
    }
    let range = request.range.as_ref().filter(|_| fault != Some(Fault::Whole));
    let answer = match range {
        None => Answer::new(200, bytes),
        Some(range) => {
            let from: usize =
                range.strip_prefix("bytes=").unwrap().strip_suffix('-').unwrap().parse().unwrap();
            let sent = format!("bytes {from}-{}/{}", bytes.len() - 1, bytes.len());
            Answer::new(206, &bytes[from..]).header("Content-Range", sent)
        }
    };
    Answer { fault, ..answer }
}
