//! Tests with a server on the loopback interface that records requests and sends the test's
//! responses, and with MLflow's server.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::thread;

use super::*;

type Requests = Arc<Mutex<Vec<(String, Json)>>>;

/// Starts a server that responds with `answer`. Returns its address and the requests that it
/// receives.
fn server(answer: impl Fn(&str) -> (u16, Json) + Send + 'static) -> (String, Requests) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = format!("http://{}", listener.local_addr().unwrap());
    let requests = Requests::default();
    let recorded = requests.clone();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let stream = stream.unwrap();
            stream.set_nodelay(true).unwrap();
            let _ = serve(&stream, &answer, &recorded);
        }
    });
    (address, requests)
}

fn serve(
    mut stream: &TcpStream,
    answer: &impl Fn(&str) -> (u16, Json),
    requests: &Requests,
) -> io::Result<()> {
    let mut reader = BufReader::new(stream);
    let mut line = String::new();
    let mut length = 0;
    reader.read_line(&mut line)?;
    let url_path = line.split(' ').nth(1).unwrap();
    let path = url_path.strip_prefix("/api/2.0/mlflow/").unwrap().to_owned();
    while line.trim() != "" {
        if let Some(value) = line.to_lowercase().strip_prefix("content-length:") {
            length = value.trim().parse().unwrap();
        }
        line.clear();
        reader.read_line(&mut line)?;
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    requests
        .lock()
        .unwrap()
        .push((path.clone(), serde_json::from_slice(&body).unwrap_or_default()));
    let (status, json) = answer(&path);
    let text = json.to_string();
    write!(
        stream,
        "HTTP/1.1 {status} x\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{text}",
        text.len()
    )
}

fn as_mlflow(path: &str) -> (u16, Json) {
    match path {
        "experiments/create" => {
            (400, json!({ "error_code": "RESOURCE_ALREADY_EXISTS", "message": "exists" }))
        }
        "experiments/get-by-name?experiment_name=my%20digits" => {
            (200, json!({ "experiment": { "experiment_id": "7" } }))
        }
        "runs/create" => (200, json!({ "run": { "info": { "run_id": "abc" } } })),
        _ => (200, json!({})),
    }
}

fn point(step: u64, count: usize) -> LogPoint {
    let metrics =
        (0..count).map(|i| (format!("m[{i}]"), if i == 0 { f64::NAN } else { i as f64 })).collect();
    LogPoint { global_step: step, metrics, ..LogPoint::default() }
}

#[test]
fn values_hyperparameters_and_the_end_arrive_in_one_run() {
    let (address, requests) = server(as_mlflow);
    let mut logger = MlflowLogger::new(address, "my digits");
    logger.start(Path::new("runs/version_3")).unwrap();
    logger.log_hyperparams(json!({ "lr": 0.5, "name": "wide" }).as_object().unwrap()).unwrap();
    logger.log(&point(1, 2)).unwrap();
    (2..5).for_each(|step| logger.log(&point(step, 600)).unwrap());
    logger.finalize(Status::Finished).unwrap();
    let requests = requests.lock().unwrap();
    let batches =
        requests.iter().filter(|(path, _)| path == "runs/log-batch").map(|(_, body)| body);
    assert!(batches.clone().all(|body| body["run_id"] == "abc"));
    let params: Vec<_> =
        batches.clone().filter_map(|body| body["params"].as_array()).flatten().collect();
    assert_eq!(
        params,
        [&json!({ "key": "lr", "value": "0.5" }), &json!({ "key": "name", "value": "wide" })]
    );
    let metric_batches: Vec<_> = batches.filter_map(|body| body["metrics"].as_array()).collect();
    assert!(metric_batches.iter().all(|batch| batch.len() <= MAX_METRICS));
    let metrics: Vec<&Json> = metric_batches.into_iter().flatten().collect();
    assert_eq!(
        (metrics.len(), &metrics[0]["key"], &metrics[0]["value"]),
        (1802, &json!("m_0_"), &json!("NaN"))
    );
    assert_eq!((&metrics[1801]["step"], &metrics[1801]["value"]), (&json!(4), &json!(599.0)));
    let run = &requests.iter().find(|(path, _)| path == "runs/create").unwrap().1;
    assert_eq!((&run["experiment_id"], &run["run_name"]), (&json!("7"), &json!("version_3")));
    let (path, end) = requests.last().unwrap();
    assert_eq!((path.as_str(), &end["status"]), ("runs/update", &json!("FINISHED")));
}

#[test]
fn a_server_that_answers_500_gets_few_requests_and_unsent_values_are_kept_and_counted() {
    let (address, requests) = server(|_| (500, json!({ "message": "no database" })));
    let mut logger = MlflowLogger::new(address, "digits");
    logger.start(Path::new("version_0")).unwrap();
    let error = logger.log(&point(0, 1)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::WouldBlock);
    assert!(
        error.to_string().contains("500") && error.to_string().contains("no database"),
        "{error}"
    );
    (1..20).for_each(|step| logger.log(&point(step, 1)).unwrap());
    assert_eq!(requests.lock().unwrap().len(), 1);
    let error = logger.finalize(Status::Failed).unwrap_err().to_string();
    assert!(error.starts_with("20 log points did not reach the server"), "{error}");
}

#[test]
fn a_request_to_a_server_that_hangs_times_out() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut logger =
        MlflowLogger::new(format!("http://{}", listener.local_addr().unwrap()), "digits");
    logger.agent = agent(Duration::from_millis(50));
    logger.start(Path::new("version_0")).unwrap();
    assert_eq!(logger.log(&point(0, 1)).unwrap_err().kind(), ErrorKind::WouldBlock);
    assert!(
        logger.finalize(Status::Finished).unwrap_err().to_string().starts_with("1 log point did")
    );
}

/// Needs an MLflow server at the address in `FULMEN_TEST_MLFLOW`.
#[test]
#[ignore = "needs MLflow: mlflow server --port 5000; FULMEN_TEST_MLFLOW=http://127.0.0.1:5000 cargo test -p fulmen-loggers --features mlflow -- --ignored mlflows_own"]
fn mlflows_own_server_accepts_the_values() {
    let address =
        std::env::var("FULMEN_TEST_MLFLOW").expect("FULMEN_TEST_MLFLOW: the address of a server");
    let mut logger = MlflowLogger::new(&address, "Fulmen's test");
    // The second run finds the experiment.
    for _ in 0..2 {
        logger.start(Path::new("runs/version_3")).unwrap();
        logger.log_hyperparams(json!({ "lr": 0.5, "name": "wide" }).as_object().unwrap()).unwrap();
        (1..4).for_each(|step| logger.log(&point(step, 600)).unwrap());
        logger.finalize(Status::Finished).unwrap();
    }
    let id = logger.run_id.clone().unwrap();
    let url = format!("{address}/api/2.0/mlflow/runs/get?run_id={id}");
    let text = logger.agent.get(&url).call().unwrap().body_mut().read_to_string().unwrap();
    let run = &serde_json::from_str::<Json>(&text).unwrap()["run"];
    assert_eq!(
        (&run["info"]["status"], &run["info"]["run_name"]),
        (&json!("FINISHED"), &json!("version_3"))
    );
    let metrics = run["data"]["metrics"].as_array().unwrap();
    let last = metrics.iter().find(|metric| metric["key"] == "m_599_").unwrap();
    assert_eq!(
        (metrics.len(), last["value"].as_f64(), last["step"].as_u64()),
        (600, Some(599.0), Some(3)),
        "{last}"
    );
    assert_eq!(run["data"]["params"].as_array().unwrap().len(), 2);
}
