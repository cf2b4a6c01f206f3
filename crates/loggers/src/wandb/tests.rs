//! Tests with a server on the loopback interface. It keeps a run's history as W&B does: the lines of
//! a request are written at its offset. The requests are compared with those of the client of W&B,
//! which `tests/reference/wandb_requests.py` recorded.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use super::*;
use crate::Loggers;

const KEY: &str = "0123456789abcdef0123456789abcdef01234567";

/// What the server does with a request.
#[derive(Clone, Copy, Debug)]
enum Fault {
    /// Answers with this status, without doing anything.
    Status(u16),
    /// Reads the request, and never answers.
    Silence,
    /// Closes the connection before it does anything.
    Close,
    /// Does what is asked, and closes the connection instead of answering.
    LostAnswer,
}

/// A request: its path, its authorization and its body.
struct Request {
    path: String,
    authorization: String,
    body: Json,
}

#[derive(Default)]
struct State {
    requests: Vec<Request>,
    /// The lines of the run's history.
    history: Vec<String>,
    /// The run's history before this process; `None` if the run does not exist.
    earlier: Option<Vec<String>>,
    exit_code: Option<u64>,
    /// What happens to the next requests.
    faults: VecDeque<Fault>,
    /// Connections that never get an answer.
    silent: Vec<TcpStream>,
}

#[derive(Clone)]
struct Server {
    address: String,
    state: Arc<Mutex<State>>,
}

impl Server {
    fn start(state: State) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let state = Arc::new(Mutex::new(state));
        let server = Server { address, state };
        let of_thread = server.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let stream = stream.unwrap();
                stream.set_nodelay(true).unwrap();
                if let Ok(true) = of_thread.serve(&stream) {
                    of_thread.state.lock().unwrap().silent.push(stream);
                }
            }
        });
        server
    }

    fn with_faults(faults: &[Fault]) -> Server {
        Server::start(State { faults: faults.iter().copied().collect(), ..State::default() })
    }

    /// A logger for a run of this server, without pauses.
    fn logger(&self) -> WandbLogger {
        let mut logger = WandbLogger::new("digits", KEY).base_url(&self.address);
        logger.api.set_timeout(Duration::from_millis(300));
        logger.interval = Duration::ZERO;
        logger.retry_interval = Duration::ZERO;
        logger.last_pause = Duration::from_millis(1);
        logger
    }

    /// Serves a connection. Returns whether it must stay open without an answer.
    fn serve(&self, mut stream: &TcpStream) -> io::Result<bool> {
        let mut reader = BufReader::new(stream);
        let mut line = String::new();
        let mut length = 0;
        let mut authorization = String::new();
        reader.read_line(&mut line)?;
        let path = line.split(' ').nth(1).unwrap_or_default().to_owned();
        while line.trim() != "" {
            if let Some((name, value)) = line.split_once(':') {
                match name.to_lowercase().as_str() {
                    "content-length" => length = value.trim().parse().unwrap(),
                    "authorization" => authorization = value.trim().to_owned(),
                    _ => {}
                }
            }
            line.clear();
            reader.read_line(&mut line)?;
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body)?;
        let body: Json = serde_json::from_slice(&body).unwrap();
        let mut state = self.state.lock().unwrap();
        let fault = state.faults.pop_front();
        let request = Request { path, authorization, body };
        let answer = match fault {
            None | Some(Fault::LostAnswer) => state.answer(&request),
            Some(_) => json!({}),
        };
        state.requests.push(request);
        let status = match fault {
            None => 200,
            Some(Fault::Status(status)) => status,
            Some(Fault::Silence) => return Ok(true),
            Some(Fault::Close | Fault::LostAnswer) => return Ok(false),
        };
        // A careless server repeats the key.
        let text = if status == 200 { answer.to_string() } else { format!("no, {KEY}") };
        write!(
            stream,
            "HTTP/1.1 {status} x\r\ncontent-length: {}\r\nretry-after: 0\r\nconnection: close\r\n\r\n{text}",
            text.len()
        )?;
        Ok(false)
    }

    fn values(&self, name: &str) -> Vec<Json> {
        self.state.lock().unwrap().history.iter().map(|line| parsed(line)[name].clone()).collect()
    }
}

impl State {
    fn answer(&mut self, request: &Request) -> Json {
        let project = json!({ "id": "p", "name": "digits", "entity": { "id": "e", "name": "me" } });
        match request.body["operationName"].as_str() {
            Some("UpsertBucket") => {
                let name = &request.body["variables"]["name"];
                let bucket = json!({ "id": "b", "name": name, "project": project });
                json!({ "data": { "upsertBucket": { "bucket": bucket, "inserted": true } } })
            }
            Some("RunResumeStatus") => {
                let bucket = self.earlier.as_ref().map(|lines| {
                    self.history = lines.clone();
                    let last = lines.last().unwrap();
                    let tail = json!([last]).to_string();
                    json!({ "id": "b", "historyLineCount": lines.len(), "historyTail": tail, "summaryMetrics": last })
                });
                json!({ "data": { "model": { "bucket": bucket } } })
            }
            _ => {
                let file = &request.body["files"]["wandb-history.jsonl"];
                if let Some(lines) = file["content"].as_array() {
                    let offset = file["offset"].as_u64().unwrap() as usize;
                    assert!(offset <= self.history.len(), "a gap in the history");
                    let lines = lines.iter().map(|line| line.as_str().unwrap().to_owned());
                    let end = (offset + lines.len()).min(self.history.len());
                    self.history.splice(offset..end, lines);
                }
                self.exit_code = request.body["exitcode"].as_u64().or(self.exit_code);
                json!({ "limits": {} })
            }
        }
    }
}

/// A line of the history. Numbers that are not finite become texts.
fn parsed(line: &str) -> Json {
    let quoted = line
        .replace(":NaN", ":\"NaN\"")
        .replace(":-Infinity", ":\"-Infinity\"")
        .replace(":Infinity", ":\"Infinity\"");
    serde_json::from_str(&quoted).unwrap()
}

fn point(step: u64) -> LogPoint {
    let metrics =
        [("train_loss", 1.0 / step as f64), ("nan", f64::NAN), ("inf", f64::NEG_INFINITY)];
    let metrics = metrics.map(|(name, x)| (name.to_owned(), x)).to_vec();
    LogPoint { epoch: 1, global_step: step, metrics, ..LogPoint::default() }
}

/// A recorded or received request without times, with the texts of JSON parsed.
fn comparable(body: &Json) -> Json {
    let mut body = body.clone();
    for name in ["wandb-history.jsonl", "wandb-summary.json"] {
        if let Some(lines) = body["files"][name]["content"].as_array_mut() {
            for line in lines {
                let mut values = parsed(line.as_str().unwrap());
                for time in ["_timestamp", "_runtime"] {
                    assert!(values[time].is_number(), "{values}");
                    values[time] = 0.into();
                }
                *line = values;
            }
        }
    }
    if body["files"].is_null() {
        body.as_object_mut().unwrap().remove("files");
    }
    body.as_object_mut().unwrap().remove("query");
    if let Some(variables) = body["variables"].as_object_mut() {
        // The client also sends what is empty.
        variables.retain(|_, value| !value.is_null());
        if let Some(Json::String(config)) = variables.get("config") {
            variables["config"] = serde_json::from_str(config).unwrap();
        }
        // The client sends this in the first of two requests.
        variables.remove("tags");
    } else {
        body.as_object_mut().unwrap().remove("variables");
    }
    body
}

#[test]
fn the_requests_have_what_the_client_of_wandb_sends() {
    let recorded: Json =
        serde_json::from_str(include_str!("../../tests/reference/wandb_requests.json")).unwrap();
    let recorded = recorded["requests"].as_array().unwrap();
    for (run, status, id) in
        [("first", Status::Finished, None), ("again", Status::Interrupted, Some("again"))]
    {
        let last = r#"{"_step":20,"_runtime":7.5,"train_loss":0.1,"trainer/global_step":40}"#;
        let server = Server::start(State {
            earlier: id.map(|_| vec![last.to_owned(); 21]),
            ..State::default()
        });
        let mut logger = server.logger();
        // All rows leave in one request, as those of the client.
        logger.interval = Duration::from_secs(600);
        logger.run_id = id.map(str::to_owned);
        let parent = tempfile::tempdir().unwrap();
        let folder = parent.path().join("version_3");
        std::fs::create_dir(&folder).unwrap();
        logger.start(&folder).unwrap();
        if id.is_none() {
            logger.run.id = run.to_owned();
        }
        logger.run.next_request = Some(Instant::now() + Duration::from_secs(600));
        let config = json!({ "lr": 0.5, "name": "wide", "sizes": [1, 2] });
        logger.log_hyperparams(config.as_object().unwrap()).unwrap();
        [10, 20, 30].into_iter().for_each(|step| logger.log(&point(step)).unwrap());
        logger.finalize(status).unwrap();

        let address: Json =
            serde_json::from_slice(&std::fs::read(folder.join("wandb.json")).unwrap()).unwrap();
        let url = format!("{}/me/digits/runs/{run}", server.address);
        assert_eq!(address, json!({ "run_id": run, "url": url }));
        let state = server.state.lock().unwrap();
        let path = format!("/files/me/digits/{run}/file_stream");
        let of_run = |request: &&Json| {
            request["path"] == *path || request["body"]["variables"]["name"] == run
        };
        let theirs: Vec<&Json> = recorded.iter().filter(of_run).collect();
        for request in &state.requests {
            assert_eq!(*request.authorization, theirs[0]["headers"]["Authorization"]);
        }
        let named = |name: &str| {
            let theirs = theirs.iter().filter(|request| request["body"]["operationName"] == name);
            let theirs: Vec<Json> = theirs.map(|request| comparable(&request["body"])).collect();
            let ours =
                state.requests.iter().filter(|request| request.body["operationName"] == name);
            (ours.map(|request| comparable(&request.body)).collect::<Vec<_>>(), theirs)
        };
        let (ours, theirs_of) = named("RunResumeStatus");
        assert_eq!(ours, theirs_of);
        // The client needs two requests to say what ours says in one: it learns of the axis later.
        let (ours, theirs_of) = named("UpsertBucket");
        let mut expected = theirs_of[0].clone();
        expected["variables"]["config"] = theirs_of.last().unwrap()["variables"]["config"].clone();
        assert_eq!(ours, [expected]);
        // Ours ends the run in a request of its own.
        let stream: Vec<&Request> = state.requests.iter().filter(|r| r.path == path).collect();
        let [rows, end] = stream[..] else { panic!("{} requests", stream.len()) };
        let mut ours = comparable(&rows.body);
        ours["complete"] = end.body["complete"].clone();
        ours["exitcode"] = end.body["exitcode"].clone();
        assert_eq!(ours, comparable(&theirs.last().unwrap()["body"]));
    }
}

#[test]
fn tags_notes_group_and_job_type_are_those_of_the_environment() {
    let variables = [
        ("WANDB_TAGS", "wide, first,,"),
        ("WANDB_NOTES", "with a lower rate"),
        ("WANDB_RUN_GROUP", "sweep-3"),
        ("WANDB_JOB_TYPE", "train"),
    ];
    let variable = |name: &str| {
        variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
    };
    let server = Server::start(State::default());
    let mut logger = server.logger();
    logger.labels = Settings::read(variable).unwrap().labels;
    let folder = tempfile::tempdir().unwrap();
    logger.start(folder.path()).unwrap();
    logger.log(&point(10)).unwrap();
    logger.finalize(Status::Finished).unwrap();
    let state = server.state.lock().unwrap();
    let created = |request: &&Request| request.body["operationName"] == "UpsertBucket";
    let body = &state.requests.iter().find(created).unwrap().body;
    let recorded: Json =
        serde_json::from_str(include_str!("../../tests/reference/wandb_requests.json")).unwrap();
    let theirs = recorded["requests"].as_array().unwrap();
    let theirs = theirs.iter().find(|r| r["body"]["operationName"] == "UpsertBucket").unwrap();
    for (name, value) in [
        ("tags", json!(["wide", "first"])),
        ("notes", json!("with a lower rate")),
        ("groupName", json!("sweep-3")),
        ("jobType", json!("train")),
    ] {
        assert_eq!(body["variables"][name], value);
        let query = body["query"].as_str().unwrap();
        assert!(query.contains(&format!("{name}: ${name}")), "{query}");
        // The client of wandb uses the same name.
        assert!(theirs["body"]["variables"].as_object().unwrap().contains_key(name), "{name}");
    }
}

#[test]
fn faults_of_the_server_neither_lose_nor_double_a_row() {
    let folder = tempfile::tempdir().unwrap();
    use Fault::{Close, LostAnswer, Silence, Status as Answer};
    let rows = 40;
    for faults in [
        &[Answer(429), Answer(500), Answer(503)][..],
        &[LostAnswer, LostAnswer, LostAnswer, Close],
        &[Silence, LostAnswer, Answer(500), Silence, LostAnswer],
        // The server does not know the run when the fault comes, or knows it.
        &[Close],
        &[LostAnswer],
    ] {
        // Some faults come while the run begins, and some later.
        for healthy in [0, 1, 5] {
            let server = Server::with_faults(&[]);
            let mut logger = server.logger();
            logger.start(folder.path()).unwrap();
            for step in 0..rows {
                if step == healthy {
                    server.state.lock().unwrap().faults = faults.iter().copied().collect();
                }
                if let Err(error) = logger.log(&point(step + 1)) {
                    assert_eq!(error.kind(), ErrorKind::WouldBlock, "{error}");
                    assert!(!error.to_string().contains(KEY), "{error}");
                }
            }
            logger.finalize(Status::Finished).unwrap();
            let expected: Vec<Json> = (0..rows).map(|step| step.into()).collect();
            assert_eq!(server.values("_step"), expected, "{faults:?} after {healthy}");
            let steps: Vec<Json> = (0..rows).map(|step| (step + 1).into()).collect();
            assert_eq!(server.values(GLOBAL_STEP), steps);
            assert_eq!(server.state.lock().unwrap().exit_code, Some(0));
        }
    }
}

#[test]
fn a_server_that_never_recovers_gets_few_requests_and_the_rows_are_counted() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::with_faults(&[Fault::Status(500); 100]);
    let mut logger = server.logger();
    logger.retry_interval = Duration::from_secs(600);
    logger.start(folder.path()).unwrap();
    let error = logger.log(&point(1)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    assert!(error.to_string().contains("500") && !error.to_string().contains(KEY), "{error}");
    logger.run.next_request = Some(Instant::now() + Duration::from_secs(600));
    (2..20).for_each(|step| logger.log(&point(step)).unwrap());
    assert_eq!(server.state.lock().unwrap().requests.len(), 1);
    let error = logger.finalize(Status::Failed).unwrap_err().to_string();
    assert!(error.starts_with("19 log points did not reach the server"), "{error}");
    assert!(!error.contains(KEY), "{error}");
    assert_eq!(server.state.lock().unwrap().requests.len(), 1 + LAST_TRIES as usize);

    // The server will never accept this key.
    let server = Server::with_faults(&[Fault::Status(401); 100]);
    let mut logger = server.logger();
    logger.start(folder.path()).unwrap();
    assert!(logger.log(&point(1)).unwrap_err().to_string().contains("401"));
    logger.finalize(Status::Failed).unwrap_err();
    assert_eq!(server.state.lock().unwrap().requests.len(), 2);
}

#[test]
fn a_silent_server_does_not_hold_up_training() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::with_faults(&[Fault::Silence; 100]);
    let mut logger = server.logger();
    logger.api.set_timeout(Duration::from_secs(600));
    let loggers = Loggers::new(vec![Box::new(logger)], Duration::from_secs(60), |_| {}).unwrap();
    loggers.start(folder.path(), Map::new()).unwrap();
    // The first request gets no answer, and none of these calls waits for it.
    (1..500).for_each(|step| loggers.log(point(step)));
    loop {
        let mut state = server.state.lock().unwrap();
        if !state.silent.is_empty() {
            state.faults.clear();
            state.silent.clear();
            break;
        }
        drop(state);
        thread::sleep(Duration::from_millis(1));
    }
    loggers.finish(Status::Finished);
    assert_eq!(server.values("_step").len(), 499);
}

#[test]
fn an_idle_logger_sends_what_is_left_and_says_that_the_run_is_alive() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::with_faults(&[Fault::Status(500)]);
    let logger = Box::new(server.logger());
    let loggers = Loggers::new(vec![logger], Duration::from_secs(5), |_| {}).unwrap();
    loggers.start(folder.path(), Map::new()).unwrap();
    loggers.log(point(1));
    let is_empty = |request: &Request| request.body == json!({});
    let wait_for = |what: &dyn Fn(&State) -> bool| {
        let deadline = Instant::now() + Duration::from_secs(20);
        while !what(&server.state.lock().unwrap()) {
            assert!(Instant::now() < deadline);
            thread::sleep(Duration::from_millis(5));
        }
    };
    wait_for(&|state| state.history.len() == 1);
    wait_for(&|state| state.requests.iter().filter(|request| is_empty(request)).count() > 2);
    loggers.finish(Status::Finished);
    let count = || server.state.lock().unwrap().requests.len();
    let ended = count();
    thread::sleep(Duration::from_millis(100));
    assert_eq!(count(), ended, "a run that has ended is not alive");
}

#[test]
fn a_test_after_a_fit_continues_the_history() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::with_faults(&[]);
    let mut logger = server.logger();
    logger.start(folder.path()).unwrap();
    logger.log(&point(1)).unwrap();
    logger.finalize(Status::Finished).unwrap();
    logger.log(&point(1)).unwrap();
    logger.finalize(Status::Failed).unwrap();
    assert_eq!(server.values("_step"), [json!(0), json!(1)]);
    let state = server.state.lock().unwrap();
    assert_eq!(state.exit_code, Some(1));
    let opened = state.requests.iter().filter(|r| r.body["operationName"] == "UpsertBucket");
    assert_eq!(opened.count(), 2);
}

#[test]
fn a_run_that_must_or_must_not_exist_is_checked() {
    let folder = tempfile::tempdir().unwrap();
    for (resume, exists, expected) in [
        (Resume::Must, false, Some("WANDB_RESUME is must, but there is no run again")),
        (Resume::Must, true, None),
        (Resume::Never, true, Some("WANDB_RESUME is never, but there is a run again")),
        (Resume::Never, false, None),
    ] {
        let earlier = exists.then(|| vec![r#"{"_step":3}"#.to_owned()]);
        let server = Server::start(State { earlier, ..State::default() });
        let mut logger = server.logger().run_id("again");
        logger.resume = resume;
        logger.start(folder.path()).unwrap();
        let logged = logger.log(&point(1)).err().map(|error| error.to_string());
        assert_eq!(logged.as_deref(), expected);
        assert_eq!(logger.finalize(Status::Finished).is_err(), expected.is_some());
    }
}

#[test]
fn a_folder_that_cannot_be_written_costs_no_row() {
    let server = Server::with_faults(&[]);
    let mut logger = server.logger();
    logger.start(Path::new("/dev/null/version_0")).unwrap();
    let error = logger.log(&point(1)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    assert!(error.to_string().contains("cannot write /dev/null/version_0/wandb.json"), "{error}");
    logger.log(&point(2)).unwrap();
    logger.finalize(Status::Finished).unwrap();
    assert_eq!(server.values("_step"), [json!(0), json!(1)]);
}
