//! A small object store on loopback that can simulate failures. It has as much of S3's and Google's
//! XML interface as reading, listing and uploading need.

use std::collections::{BTreeMap, HashMap};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

/// How the store responds to a request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Answer {
    /// Normally.
    Serve,
    /// With this status only.
    Status(u16),
    /// The response is cut after this many bytes of its body.
    Cut(usize),
    /// The request is executed, but the connection is cut before the response.
    Lose,
    /// Normally, after this delay.
    Late(Duration),
    /// After this delay, the connection is cut; the request is not executed.
    LoseLate(Duration),
    /// Never, as long as the client waits.
    Never,
}

/// A request: method, path with query, headers in lower case.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) method: String,
    pub(crate) path: String,
    query: HashMap<String, String>,
    headers: HashMap<String, String>,
    body: Vec<u8>,
}

type Behave = dyn FnMut(&Request) -> Answer + Send;

struct State {
    objects: BTreeMap<String, Vec<u8>>,
    uploads: BTreeMap<String, BTreeMap<u32, Vec<u8>>>,
    requests: Vec<Request>,
    behave: Box<Behave>,
}

pub(crate) struct S3 {
    address: SocketAddr,
    state: Arc<Mutex<State>>,
}

/// The size of a list page; small, so that lists have several.
const PAGE: usize = 2;

impl S3 {
    pub(crate) fn start(behave: impl FnMut(&Request) -> Answer + Send + 'static) -> S3 {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let objects = BTreeMap::new();
        let uploads = BTreeMap::new();
        let state = State { objects, uploads, requests: Vec::new(), behave: Box::new(behave) };
        let state = Arc::new(Mutex::new(state));
        let shared = state.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (Ok(stream), shared) = (stream, shared.clone()) else { return };
                thread::spawn(move || connection(stream, &shared));
            }
        });
        S3 { address, state }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    pub(crate) fn put(&self, name: &str, bytes: Vec<u8>) {
        self.state.lock().unwrap().objects.insert(name.to_owned(), bytes);
    }

    pub(crate) fn get(&self, name: &str) -> Option<Vec<u8>> {
        self.state.lock().unwrap().objects.get(name).cloned()
    }

    /// The number of uploads that are neither complete nor aborted.
    pub(crate) fn uploads(&self) -> usize {
        self.state.lock().unwrap().uploads.len()
    }

    /// The requests so far, as method and path with query.
    pub(crate) fn seen(&self) -> Vec<Request> {
        self.state.lock().unwrap().requests.clone()
    }
}

impl Request {
    pub(crate) fn body_is_empty(&self) -> bool {
        self.body.is_empty()
    }

    /// Whether the request is signed with a key for this region.
    pub(crate) fn signed_for(&self, region: &str) -> bool {
        self.headers.get("authorization").is_some_and(|value| value.contains(region))
    }

    pub(crate) fn query(&self, name: &str) -> Option<String> {
        self.query.get(name).cloned()
    }

    pub(crate) fn range(&self) -> Option<(usize, usize)> {
        let (first, last) = self.headers.get("range")?.strip_prefix("bytes=")?.split_once('-')?;
        Some((first.parse().ok()?, last.parse::<usize>().ok()? + 1))
    }
}

fn connection(stream: TcpStream, state: &Mutex<State>) {
    // An answer is written in parts. The second part of one would otherwise wait for 40 ms.
    stream.set_nodelay(true).unwrap();
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut stream = stream;
    while let Some(request) = read_request(&mut reader) {
        let mut state = state.lock().unwrap();
        state.requests.push(request.clone());
        let answer = (state.behave)(&request);
        let response = match answer {
            Answer::LoseLate(_) => Response::new(500, Vec::new()),
            Answer::Status(status) => {
                Response::new(status, b"<Error><Code>Busy</Code></Error>".to_vec())
            }
            _ => serve(&mut state, &request),
        };
        drop(state);
        if let Answer::Late(time) | Answer::LoseLate(time) = answer {
            thread::sleep(time);
        }
        let sent = match answer {
            Answer::Lose | Answer::LoseLate(_) => return,
            Answer::Never => {
                let _ = reader.read(&mut [0]);
                return;
            }
            Answer::Cut(bytes) => {
                let _ = response.send(&mut stream, &request.method, bytes);
                return;
            }
            _ => response.send(&mut stream, &request.method, usize::MAX),
        };
        if sent.is_err() {
            return;
        }
    }
}

fn read_request(reader: &mut BufReader<TcpStream>) -> Option<Request> {
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let mut parts = line.split_whitespace();
    let method = parts.next()?.to_owned();
    let target = parts.next()?.to_owned();
    let mut headers = HashMap::new();
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        let Some((name, value)) = line.trim_end().split_once(':') else { break };
        headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    let length = headers.get("content-length").and_then(|n| n.parse().ok()).unwrap_or(0);
    let mut body = vec![0; length];
    reader.read_exact(&mut body).ok()?;
    let (path, query) = target.split_once('?').unwrap_or((&target, ""));
    let pair = |pair: &str| {
        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
        (decoded(name), decoded(value))
    };
    let query = query.split('&').filter(|text| !text.is_empty()).map(pair).collect();
    Some(Request {
        method,
        path: decoded(path).trim_start_matches('/').to_owned(),
        query,
        headers,
        body,
    })
}

fn decoded(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        rest = after;
        match first {
            b'%' => {
                bytes.push(
                    u8::from_str_radix(std::str::from_utf8(&rest[..2]).unwrap(), 16).unwrap(),
                );
                rest = &rest[2..];
            }
            b'+' => bytes.push(b' '),
            byte => bytes.push(byte),
        }
    }
    String::from_utf8(bytes).unwrap()
}

struct Response {
    status: u16,
    headers: Vec<(&'static str, String)>,
    body: Vec<u8>,
}

impl Response {
    fn new(status: u16, body: impl Into<Vec<u8>>) -> Response {
        Response { status, headers: Vec::new(), body: body.into() }
    }

    fn header(mut self, name: &'static str, value: String) -> Response {
        self.headers.push((name, value));
        self
    }

    fn send(&self, stream: &mut TcpStream, method: &str, limit: usize) -> std::io::Result<()> {
        let mut head =
            format!("HTTP/1.1 {} Status\r\nContent-Length: {}\r\n", self.status, self.body.len());
        self.headers
            .iter()
            .for_each(|(name, value)| head.push_str(&format!("{name}: {value}\r\n")));
        stream.write_all(head.as_bytes())?;
        stream.write_all(b"\r\n")?;
        match method {
            "HEAD" => Ok(()),
            _ => stream.write_all(&self.body[..self.body.len().min(limit)]),
        }
    }
}

/// A tag that differs for different bytes. Unoptimized code takes a while for each step, so a step
/// takes eight bytes.
fn tag(bytes: &[u8]) -> String {
    let (words, rest) = bytes.as_chunks();
    let mut sum = 7u64;
    for word in words {
        sum = sum.wrapping_mul(31).wrapping_add(u64::from_le_bytes(*word));
    }
    for byte in rest {
        sum = sum.wrapping_mul(31).wrapping_add(u64::from(*byte));
    }
    format!("\"{sum:x}-{}\"", bytes.len())
}

fn serve(state: &mut State, request: &Request) -> Response {
    let Request { method, path, query, body, .. } = request;
    match (method.as_str(), query.get("uploadId")) {
        ("GET", _) if query.contains_key("list-type") => list(state, request),
        ("GET" | "HEAD", _) => object(state, request),
        ("POST", None) if query.contains_key("delete") => {
            let text = String::from_utf8_lossy(body);
            let mut done = String::new();
            for key in text.split("<Key>").skip(1).filter_map(|rest| rest.split("</Key>").next()) {
                state.objects.remove(&format!("{}/{key}", path.trim_end_matches('/')));
                done.push_str(&format!("<Deleted><Key>{key}</Key></Deleted>"));
            }
            Response::new(200, format!("<DeleteResult>{done}</DeleteResult>"))
        }
        ("DELETE", None) => {
            let status = if state.objects.remove(path).is_some() { 204 } else { 404 };
            Response::new(status, "")
        }
        ("POST", None) => {
            let id = format!("upload-{}", state.requests.len());
            state.uploads.insert(id.clone(), BTreeMap::new());
            let text = format!(
                "<InitiateMultipartUploadResult><Bucket>b</Bucket><Key>k</Key><UploadId>{id}</UploadId>\
                 </InitiateMultipartUploadResult>"
            );
            Response::new(200, text)
        }
        ("PUT", None) => {
            state.objects.insert(path.clone(), body.clone());
            Response::new(200, "").header("ETag", tag(body))
        }
        (_, Some(id)) if !state.uploads.contains_key(id) => {
            Response::new(404, "<Error><Code>NoSuchUpload</Code></Error>")
        }
        ("PUT", Some(id)) => {
            let number = query["partNumber"].parse().unwrap();
            state.uploads.get_mut(id).unwrap().insert(number, body.clone());
            Response::new(200, "").header("ETag", tag(body))
        }
        ("POST", Some(id)) => {
            let parts = state.uploads.remove(id).unwrap();
            let parts: Vec<Vec<u8>> = parts.into_values().collect();
            let whole = parts.concat();
            let text = format!(
                "<CompleteMultipartUploadResult><Location>l</Location><Bucket>b</Bucket><Key>k</Key><ETag>{}</ETag>\
                 </CompleteMultipartUploadResult>",
                tag(&whole)
            );
            state.objects.insert(path.clone(), whole);
            Response::new(200, text)
        }
        ("DELETE", Some(id)) => {
            state.uploads.remove(id);
            Response::new(204, "")
        }
        _ => Response::new(400, "<Error><Code>NotPlayed</Code></Error>"),
    }
}

fn object(state: &State, request: &Request) -> Response {
    let Some(bytes) = state.objects.get(&request.path) else {
        return Response::new(404, "<Error><Code>NoSuchKey</Code></Error>");
    };
    if request.headers.get("if-match").is_some_and(|expected| *expected != tag(bytes)) {
        return Response::new(412, "<Error><Code>PreconditionFailed</Code></Error>");
    }
    let response = match request.range() {
        Some((first, _)) if first >= bytes.len() => {
            return Response::new(416, "<Error><Code>InvalidRange</Code></Error>");
        }
        Some((first, end)) => {
            let end = end.min(bytes.len());
            let range = format!("bytes {first}-{}/{}", end - 1, bytes.len());
            Response::new(206, &bytes[first..end]).header("Content-Range", range)
        }
        None => Response::new(200, bytes.clone()),
    };
    response
        .header("ETag", tag(bytes))
        .header("Last-Modified", "Wed, 21 Oct 2026 07:28:00 GMT".to_owned())
}

fn list(state: &State, request: &Request) -> Response {
    let bucket = format!("{}/", request.path.trim_end_matches('/'));
    let prefix = request.query.get("prefix").cloned().unwrap_or_default();
    let after =
        ["continuation-token", "start-after"].iter().find_map(|name| request.query.get(*name));
    let keys =
        state.objects.iter().filter_map(|(name, bytes)| Some((name.strip_prefix(&bucket)?, bytes)));
    // With a delimiter, the common prefixes of keys are listed once, without a size.
    let delimiter = request.query.get("delimiter");
    let entry = |key: &str, bytes: &Vec<u8>| {
        let end = delimiter.and_then(|delimiter| key[prefix.len()..].find(delimiter.as_str()));
        match end {
            Some(end) => (key[..prefix.len() + end + 1].to_owned(), None),
            None => (key.to_owned(), Some((bytes.len(), tag(bytes)))),
        }
    };
    let entries: BTreeMap<_, _> = keys
        .filter(|(key, _)| key.starts_with(&prefix))
        .map(|(key, bytes)| entry(key, bytes))
        .collect();
    let mut entries =
        entries.into_iter().filter(|(name, _)| after.is_none_or(|after| name > after));
    let page: Vec<_> = entries.by_ref().take(PAGE).collect();
    let mut text = "<ListBucketResult>".to_owned();
    if entries.next().is_some() {
        let last = &page.last().unwrap().0;
        text.push_str(&format!(
            "<IsTruncated>true</IsTruncated><NextContinuationToken>{last}</NextContinuationToken>"
        ));
    }
    for (name, object) in page {
        text.push_str(&match object {
            None => format!("<CommonPrefixes><Prefix>{name}</Prefix></CommonPrefixes>"),
            Some((bytes, tag)) => format!(
                "<Contents><Key>{name}</Key><LastModified>2026-10-21T07:28:00.000Z</LastModified><ETag>{tag}</ETag>\
                 <Size>{bytes}</Size></Contents>"
            ),
        });
    }
    text.push_str("</ListBucketResult>");
    Response::new(200, text)
}
