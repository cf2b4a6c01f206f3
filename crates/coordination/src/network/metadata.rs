//! Reads the metadata server of a Google Cloud machine: which process this is if no variable says
//! so, and whether the machine is about to be preempted. If `gcloud ... ssh --worker=all` starts a
//! program on all hosts of a slice, it thus becomes one run.
//!
//! Out of scope: retries. The metadata server runs on the machine's own host.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::worker::Worker;
use crate::{Process, Result, error};

/// How long to wait for an answer.
const QUERY_TIMEOUT: Duration = Duration::from_secs(1);
const MAX_ANSWER_BYTES: u64 = 1 << 20;

/// If one of these variables is set, the environment already describes the devices and processes.
const DECIDING_VARIABLES: [&str; 10] = [
    "FULMEN_NUM_PROCESSES",
    "TPU_WORKER_ID",
    "TPU_WORKER_HOSTNAMES",
    "CLOUD_TPU_TASK_ID",
    "TPU_PROCESS_ADDRESSES",
    "TPU_PROCESS_ADDRESSES_PATH",
    "TPU_PROCESS_BOUNDS",
    "TPU_VISIBLE_CHIPS",
    "TPU_VISIBLE_DEVICES",
    "TPU_SKIP_MDS_QUERY",
];

/// libtpu's variables by their names.
type Variables = BTreeMap<&'static str, String>;

impl Process {
    /// Like [`Process::from_env`]. If no variable says which process this is, the metadata server
    /// of a TPU VM is queried once, for at most a second. It is not queried on other machines or if
    /// `FULMEN_OFFLINE` is set. `GCE_METADATA_HOST` is the `host:port` of a different server.
    ///
    /// ```
    /// use fulmen_coordination::Process;
    ///
    /// let process = Process::detect(|name| std::env::var_os(name))?;
    /// assert!(process.index() < process.count());
    /// # Ok::<(), fulmen_coordination::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`Process::from_env`], or invalid values from the server.
    pub fn detect(env: impl Fn(&str) -> Option<OsString>) -> Result<Process> {
        Process::detect_within(QUERY_TIMEOUT, env)
    }

    /// Like [`Process::detect`], with a time limit for the metadata server.
    fn detect_within(timeout: Duration, env: impl Fn(&str) -> Option<OsString>) -> Result<Process> {
        let process = Process::from_env(&env)?;
        if DECIDING_VARIABLES.iter().any(|name| env(name).is_some_and(|value| !value.is_empty())) {
            return Ok(process);
        }
        let Some(MetadataServer(server)) = MetadataServer::find(&env, "/".as_ref()) else {
            return Ok(process);
        };
        let variables = query_variables(&server, timeout)?;
        let variable = |name: &str| env(name).or_else(|| variables.get(name).map(OsString::from));
        Process::from_env(variable).map_err(|error| {
            error::usage(format!(
                "the metadata server {server}, queried because no variable says which process this is, returned invalid \
                 values: {error}"
            ))
        })
    }
}

/// Calls `call` on a separate thread once the metadata server announces that this machine is being
/// preempted or is about to go down for maintenance. It is never called on machines where
/// [`Process::detect`] would not query the server.
///
/// ```
/// fulmen_coordination::on_preemption(|name| std::env::var_os(name), |why| eprintln!("{why}: saving"));
/// ```
pub fn on_preemption(
    env: impl Fn(&str) -> Option<OsString>,
    call: impl FnOnce(&str) + Send + 'static,
) {
    let Some(MetadataServer(server)) = MetadataServer::find(&env, "/".as_ref()) else { return };
    // If no thread can be started, the run gets no warning.
    let _ = std::thread::Builder::new().name("fulmen-preemption".into()).spawn(move || {
        if let Ok(notice) = Worker::start()
            .and_then(|worker| worker.run(async move { preemption_notice(&server).await }))
        {
            call(notice);
        }
    });
}

async fn preemption_notice(server: &str) -> &'static str {
    loop {
        let [preempted, event] =
            ["preempted", "maintenance-event"].map(|name| get(server, name, QUERY_TIMEOUT));
        let starts_with = |answer: Option<MetadataAnswer>, word: &str| {
            answer.is_some_and(|it| it.text.trim().starts_with(word))
        };
        if starts_with(preempted.await, "TRUE") {
            return "this machine is being preempted";
        }
        // The other event is a live migration, which a run survives.
        if starts_with(event.await, "TERMINATE") {
            return "this machine is about to go down for maintenance";
        }
        tokio::time::sleep(QUERY_TIMEOUT).await;
    }
}

/// The metadata server of a Google Cloud machine.
#[derive(Clone, Debug)]
pub struct MetadataServer(String);

/// The answer of a metadata server for one name.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct MetadataAnswer {
    /// The value.
    pub text: String,
    /// The server's clock, from the HTTP header `Date`.
    pub date: Option<String>,
}

impl MetadataServer {
    /// Finds the server of the machine whose files are under `root`, which is `/` except in tests.
    /// `None` if the machine is not on Google Cloud or `FULMEN_OFFLINE` is set. `GCE_METADATA_HOST`
    /// is the `host:port` of a different server.
    ///
    /// ```
    /// use fulmen_coordination::MetadataServer;
    /// assert!(MetadataServer::find(|_| None, "/no/such/folder".as_ref()).is_none());
    /// ```
    pub fn find(env: impl Fn(&str) -> Option<OsString>, root: &Path) -> Option<MetadataServer> {
        if env("FULMEN_OFFLINE").is_some_and(|value| !value.is_empty() && value != "0") {
            return None;
        }
        if let Some(host) = env("GCE_METADATA_HOST").filter(|host| !host.is_empty()) {
            return host.into_string().ok().map(Self);
        }
        let product = std::fs::read_to_string(root.join("sys/class/dmi/id/product_name")).ok()?;
        product.starts_with("Google").then(|| Self("169.254.169.254".to_owned()))
    }

    /// Its address: `169.254.169.254`, or the `host:port` of a different server.
    pub fn address(&self) -> &str {
        &self.0
    }

    /// Queries names such as `zone` and `attributes/accelerator-type`, all at once. The result is
    /// `None` for names that the server does not know or does not answer within `timeout`.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn ask(&self, names: &[&str], timeout: Duration) -> Result<Vec<Option<MetadataAnswer>>> {
        let server = self.0.clone();
        let names = names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
        Worker::start()?.run(async move {
            // All requests are sent before the first answer is awaited.
            let requests = names.into_iter().map(|name| {
                let server = server.clone();
                tokio::spawn(async move { get(&server, &name, timeout).await })
            });
            let mut answers = Vec::new();
            for answer in requests.collect::<Vec<_>>() {
                answers.push(answer.await.ok().flatten());
            }
            answers
        })
    }
}

/// The server's answer as libtpu's variables. It does not change while a process runs.
fn query_variables(server: &str, timeout: Duration) -> Result<Variables> {
    static ANSWERS: Mutex<BTreeMap<String, Variables>> = Mutex::new(BTreeMap::new());
    let mut answers = ANSWERS.lock();
    if let Some(variables) = answers.get(server) {
        return Ok(variables.clone());
    }
    let names = [
        "attributes/worker-network-endpoints",
        "attributes/agent-worker-number",
        "attributes/tpu-env",
    ];
    let mut texts = MetadataServer(server.to_owned())
        .ask(&names, timeout)?
        .into_iter()
        .map(|answer| Some(answer?.text));
    let [hosts, index, tpu] = std::array::from_fn(|_| texts.next().flatten());
    let variables = variables(hosts, index, tpu);
    answers.insert(server.to_owned(), variables.clone());
    Ok(variables)
}

/// The value of a name on this machine; `None` if there is no answer in time.
async fn get(server: &str, name: &str, timeout: Duration) -> Option<MetadataAnswer> {
    // The answer to a request of HTTP 1.0 is not cut into chunks.
    let request = format!(
        "GET /computeMetadata/v1/instance/{name} HTTP/1.0\r\nHost: {server}\r\nMetadata-Flavor: Google\r\nConnection: \
         close\r\n\r\n"
    );
    let address = match server.rsplit_once(':') {
        Some((_, port)) if port.parse::<u16>().is_ok() => server.to_owned(),
        _ => format!("{server}:80"),
    };
    let answer = async {
        let mut stream = TcpStream::connect(&address).await.ok()?;
        stream.write_all(request.as_bytes()).await.ok()?;
        let mut received = Vec::new();
        let mut limited = stream.take(MAX_ANSWER_BYTES);
        loop {
            let is_end = limited.read_buf(&mut received).await.ok()? == 0;
            match http_answer(&received, is_end) {
                HttpAnswer::Complete(answer) => return Some(answer),
                HttpAnswer::Incomplete if !is_end => {}
                HttpAnswer::Incomplete | HttpAnswer::Useless => return None,
            }
        }
    };
    tokio::time::timeout(timeout, answer).await.ok().flatten()
}

/// What has arrived of an answer in HTTP.
enum HttpAnswer {
    Complete(MetadataAnswer),
    Incomplete,
    /// Not a metadata server's, or it does not know the name.
    Useless,
}

/// Reads what has arrived. `is_end` says that nothing more comes, which also ends an answer that does
/// not give its length.
fn http_answer(received: &[u8], is_end: bool) -> HttpAnswer {
    const END_OF_HEADERS: &[u8] = b"\r\n\r\n";
    let end = received.windows(END_OF_HEADERS.len()).position(|bytes| bytes == END_OF_HEADERS);
    let Some(end) = end else { return HttpAnswer::Incomplete };
    let Ok(head) = std::str::from_utf8(&received[..end]) else { return HttpAnswer::Useless };
    let mut lines = head.lines();
    let status = lines.next().and_then(|line| line.strip_prefix("HTTP/1."));
    let is_success = status
        .and_then(|line| line.split(' ').nth(1))
        .is_some_and(|code| code.len() == 3 && code.starts_with('2'));
    let headers: Vec<(&str, &str)> = lines.filter_map(|line| line.split_once(':')).collect();
    let header = |name: &str| {
        let found = headers.iter().find(|(key, _)| key.eq_ignore_ascii_case(name));
        found.map(|(_, value)| value.trim())
    };
    // Other servers do not send this header.
    if !is_success || header("metadata-flavor") != Some("Google") {
        return HttpAnswer::Useless;
    }
    let body = &received[end + END_OF_HEADERS.len()..];
    let length = match header("content-length").map(str::parse::<usize>) {
        None if is_end => body.len(),
        Some(Ok(length)) if length <= body.len() => length,
        None | Some(Ok(_)) => return HttpAnswer::Incomplete,
        Some(Err(_)) => return HttpAnswer::Useless,
    };
    let Ok(text) = std::str::from_utf8(&body[..length]) else { return HttpAnswer::Useless };
    let date = header("date").map(str::to_owned);
    HttpAnswer::Complete(MetadataAnswer { text: text.to_owned(), date })
}

/// Converts the server's values to libtpu's variables. The hosts are
/// `unknown:unknown:10.0.0.2,...`; `tpu-env` has lines such as `MEGASCALE_NUM_SLICES: '2'`.
fn variables(hosts: Option<String>, index: Option<String>, tpu: Option<String>) -> Variables {
    let address =
        |endpoint: &str| endpoint.splitn(3, ':').last().unwrap_or_default().trim().to_owned();
    let hosts = hosts.map(|hosts| hosts.split(',').map(address).collect::<Vec<_>>().join(","));
    let tpu = tpu.unwrap_or_default();
    let setting = |name: &str| {
        let value = tpu
            .lines()
            .find_map(|line| line.trim().strip_prefix(name)?.trim_start().strip_prefix(':'))?;
        Some(value.trim().trim_matches(['\'', '"']).to_owned())
    };
    let slices = [
        "MEGASCALE_NUM_SLICES",
        "MEGASCALE_SLICE_ID",
        "MEGASCALE_COORDINATOR_ADDRESS",
        "MEGASCALE_PORT",
    ]
    .map(|name| (name, setting(name)));
    let worker = [("TPU_WORKER_HOSTNAMES", hosts), ("TPU_WORKER_ID", index)];
    worker.into_iter().chain(slices).filter_map(|(name, value)| Some((name, value?))).collect()
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader, Write as _};
    use std::net::TcpListener;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    /// A metadata server with these attributes. Returns its address and a counter of requests.
    fn metadata(attributes: &'static [(&'static str, &'static str)]) -> (String, Arc<AtomicUsize>) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let requests: Arc<AtomicUsize> = Arc::default();
        let count = requests.clone();
        std::thread::spawn(move || {
            for mut stream in listener.incoming().map_while(std::result::Result::ok) {
                let lines: Vec<String> = BufReader::new(&stream)
                    .lines()
                    .map_while(std::result::Result::ok)
                    .take_while(|l| !l.is_empty())
                    .collect();
                assert!(
                    lines.iter().any(|line| line.eq_ignore_ascii_case("metadata-flavor: google")),
                    "{lines:?}"
                );
                count.fetch_add(1, Ordering::SeqCst);
                let name = lines[0].split(' ').nth(1).unwrap().rsplit('/').next().unwrap();
                let (status, body) = match attributes.iter().find(|attribute| attribute.0 == name) {
                    Some((_, body)) => ("200 OK", *body),
                    None => ("404 Not Found", ""),
                };
                let _ = write!(
                    stream,
                    "HTTP/1.1 {status}\r\nMetadata-Flavor: Google\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
                    body.len()
                );
            }
        });
        (address, requests)
    }

    /// Longer than a thread waits for a processor on a busy machine.
    const LONG: Duration = Duration::from_secs(60);

    fn detect(server: &str, variables: &[(&str, &str)]) -> Result<Process> {
        detect_within(LONG, server, variables)
    }

    fn detect_within(
        timeout: Duration,
        server: &str,
        variables: &[(&str, &str)],
    ) -> Result<Process> {
        Process::detect_within(timeout, |name| {
            match variables.iter().find(|variable| variable.0 == name) {
                Some((_, value)) => Some(value.into()),
                None => (name == "GCE_METADATA_HOST").then(|| server.into()),
            }
        })
    }

    const HOSTS: (&str, &str) =
        ("worker-network-endpoints", "unknown:unknown:10.0.0.2,unknown:unknown:10.0.0.3");
    const TPU: (&str, &str) = ("tpu-env", "ACCELERATOR_TYPE: 'v5litepod-16'\nWORKER_ID: '1'\n");

    #[test]
    fn a_worker_of_a_slice_queries_its_index_once() {
        let (server, requests) = metadata(&[HOSTS, ("agent-worker-number", "1"), TPU]);
        for _ in 0..3 {
            let process = detect(&server, &[]).unwrap();
            assert_eq!(
                (process.index(), process.count(), process.coordinator()),
                (1, 2, "10.0.0.2:8482")
            );
        }
        assert_eq!(requests.load(Ordering::SeqCst), 3, "an attribute each");
    }

    #[test]
    fn a_preemption_is_reported() {
        let notices: [(&[_], _); 2] = [
            (&[("preempted", "TRUE")], "this machine is being preempted"),
            (
                &[("preempted", "FALSE"), ("maintenance-event", "TERMINATE_ON_HOST_MAINTENANCE\n")],
                "this machine is about to go down for maintenance",
            ),
        ];
        for (attributes, expected) in notices {
            let (server, _) = metadata(attributes);
            let (send, notices) = std::sync::mpsc::channel();
            on_preemption(
                move |name| (name == "GCE_METADATA_HOST").then(|| server.clone().into()),
                move |why| send.send(why.to_owned()).unwrap(),
            );
            assert_eq!(notices.recv().unwrap(), expected);
        }
    }

    #[test]
    fn a_machine_with_one_host_is_a_single_process() {
        let (server, _) = metadata(&[
            ("worker-network-endpoints", "unknown:unknown:10.0.0.2"),
            ("agent-worker-number", "0"),
        ]);
        assert_eq!(detect(&server, &[]).unwrap(), Process::single());
        // A VM without a TPU.
        let (server, _) = metadata(&[]);
        assert_eq!(detect(&server, &[]).unwrap(), Process::single());
    }

    #[test]
    fn endpoints_may_be_host_names_alone() {
        let (server, _) = metadata(&[
            ("worker-network-endpoints", "t1v-0,t1v-1, t1v-2"),
            ("agent-worker-number", "2"),
        ]);
        let process = detect(&server, &[]).unwrap();
        assert_eq!(
            (process.index(), process.hosts()),
            (2, &["t1v-0", "t1v-1", "t1v-2"].map(str::to_owned)[..])
        );
    }

    #[test]
    fn known_or_offline_processes_send_no_queries() {
        let (server, requests) = metadata(&[HOSTS, ("agent-worker-number", "1")]);
        for variable in [
            ("TPU_WORKER_HOSTNAMES", "localhost"),
            ("TPU_VISIBLE_CHIPS", "0"),
            ("FULMEN_OFFLINE", "1"),
        ] {
            assert_eq!(detect(&server, &[variable]).unwrap(), Process::single());
        }
        assert_eq!(requests.load(Ordering::SeqCst), 0);
        assert_eq!(detect(&server, &[("FULMEN_OFFLINE", "0")]).unwrap().count(), 2);
    }

    #[test]
    fn a_silent_metadata_server_is_given_up() {
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = silent.local_addr().unwrap().to_string();
        let detected = detect_within(Duration::from_millis(100), &address, &[]);
        assert_eq!(detected.unwrap(), Process::single());
        assert_eq!(detect("no such host", &[]).unwrap(), Process::single());
    }

    #[test]
    fn impossible_values_are_errors_with_their_source() {
        let (server, _) = metadata(&[HOSTS, ("agent-worker-number", "2"), TPU]);
        let error = detect(&server, &[]).unwrap_err().to_string();
        assert!(error.starts_with(&format!("the metadata server {server}, ")), "{error}");
        assert!(error.contains("TPU_WORKER_ID is `2`; expected 0 to 1"), "{error}");
        let (server, _) = metadata(&[
            HOSTS,
            ("agent-worker-number", "0"),
            ("tpu-env", "MEGASCALE_NUM_SLICES: '2'\n"),
        ]);
        let error = detect(&server, &[]).unwrap_err().to_string();
        assert!(error.contains("MEGASCALE_SLICE_ID is not set"), "{error}");
    }

    #[test]
    fn a_worker_of_several_slices_queries_its_slice() {
        const SLICES: &str = "MEGASCALE_NUM_SLICES: '3'\nMEGASCALE_SLICE_ID: '2'\n\
                   MEGASCALE_COORDINATOR_ADDRESS: '10.0.9.1'\nMEGASCALE_PORT: '8080'\n";
        let (server, _) = metadata(&[HOSTS, ("agent-worker-number", "1"), ("tpu-env", SLICES)]);
        let process = detect(&server, &[]).unwrap();
        assert_eq!(
            (process.index(), process.count(), process.coordinator()),
            (5, 6, "10.0.9.1:8482")
        );
    }

    #[test]
    fn an_answer_is_read_as_it_arrives() {
        let text = |received: &[u8], is_end| match http_answer(received, is_end) {
            HttpAnswer::Complete(MetadataAnswer { text, date }) => {
                format!("{text} at {}", date.unwrap_or_default())
            }
            HttpAnswer::Incomplete => "incomplete".to_owned(),
            HttpAnswer::Useless => "useless".to_owned(),
        };
        let head = "HTTP/1.0 200 OK\r\nmetadata-flavor:Google\r\nDate: now\r\n";
        let with_length = format!("{head}Content-Length: 3\r\n\r\n\u{e9}e");
        let without = format!("{head}\r\n\u{e9}e");
        for length in 0..with_length.len() {
            assert_eq!(text(&with_length.as_bytes()[..length], false), "incomplete");
        }
        assert_eq!(text(with_length.as_bytes(), false), "\u{e9}e at now");
        assert_eq!(text(format!("{with_length} more").as_bytes(), true), "\u{e9}e at now");
        for length in 0..=without.len() {
            assert_eq!(text(&without.as_bytes()[..length], false), "incomplete");
        }
        assert_eq!(text(without.as_bytes(), true), "\u{e9}e at now");
        for useless in [
            head.replace("200 OK", "404 Not Found"),
            head.replace("HTTP", "SSH"),
            head.replace("Google", "other"),
            head.replace("now", "now\r\nContent-Length: -1"),
        ] {
            assert_eq!(text(format!("{useless}\r\n").as_bytes(), true), "useless");
        }
        assert_eq!(text(&[head.as_bytes(), b"\r\n\xff"].concat(), true), "useless");
    }
}
