//! libtpu's metrics as the package `tpu-info` reads them, from a server of recorded answers.
#![allow(clippy::unwrap_used, reason = "a test that cannot continue fails")]

use std::collections::HashMap;
use std::convert::Infallible;
use std::future::{Ready, ready};
use std::io::BufRead as _;
use std::net::TcpListener;
use std::panic::AssertUnwindSafe;
use std::pin::Pin;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::thread;

use prost::Message as _;
use tonic::body::Body;
use tonic::server::{Grpc, UnaryService};
use tonic::transport::{Server, server::TcpIncoming};
use tonic::{Request, Response};

use super::*;

/// `tpu-info`'s messages as bytes, by metric.
fn recorded() -> HashMap<String, Vec<u8>> {
    let lines = include_str!("../../reference/libtpu_metrics.txt")
        .lines()
        .filter(|line| !line.starts_with('#'));
    let byte = |hex: &[u8]| u8::from_str_radix(std::str::from_utf8(hex).unwrap(), 16).unwrap();
    let metric = |line: &str| {
        let (name, hex) = line.split_once(' ').unwrap();
        (name.to_owned(), hex.as_bytes().chunks(2).map(byte).collect())
    };
    lines.map(metric).collect()
}

/// Replays recorded answers. A response has a single field, number 1, like the `BytesValue`
/// that prost uses for bytes. A request is like a `StringValue` in the same way. The test
/// therefore does not depend on the messages under test.
#[derive(Clone)]
struct Recorded(Arc<HashMap<String, Vec<u8>>>);

struct RecordedStates(Arc<HashMap<String, Vec<u8>>>);

impl UnaryService<String> for Recorded {
    type Response = Vec<u8>;
    type Future = Ready<Result<Response<Vec<u8>>, Status>>;

    fn call(&mut self, name: Request<String>) -> Self::Future {
        let answer = self.0.get(name.get_ref()).cloned();
        ready(answer.map(Response::new).ok_or_else(|| Status::not_found("no such metric")))
    }
}

/// The recorded state of the cores: its field 2 has an entry for each core.
#[derive(Clone, PartialEq, prost::Message)]
struct RecordedStatus {
    #[prost(bytes = "vec", repeated, tag = "2")]
    cores: Vec<Vec<u8>>,
}

/// Answers requests for the state of the cores. The request has no field that is set, so it is an
/// empty string.
impl UnaryService<String> for RecordedStates {
    type Response = RecordedStatus;
    type Future = Ready<Result<Response<RecordedStatus>, Status>>;

    fn call(&mut self, request: Request<String>) -> Self::Future {
        assert_eq!(request.get_ref(), "");
        let answer = self.0.get("GetTpuRuntimeStatus");
        let answer = answer.map(|bytes| Response::new(RecordedStatus::decode(&**bytes).unwrap()));
        ready(answer.ok_or_else(|| Status::unimplemented("an older libtpu")))
    }
}

impl tower_service::Service<http::Request<Body>> for Recorded {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let service = self.clone();
        Box::pin(async move {
            if request.uri().path() == STATUS_METHOD {
                let codec = ProstCodec::<RecordedStatus, String>::default();
                return Ok(Grpc::new(codec).unary(RecordedStates(service.0), request).await);
            }
            assert_eq!(request.uri().path(), METHOD);
            Ok(Grpc::new(ProstCodec::<Vec<u8>, String>::default()).unary(service, request).await)
        })
    }
}

/// Serves until this process ends.
fn serve(metrics: HashMap<String, Vec<u8>>) -> MetricsClient {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    listener.set_nonblocking(true).unwrap();
    thread::spawn(move || {
        Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
            let incoming = TcpIncoming::from(tokio::net::TcpListener::from_std(listener).unwrap());
            Server::builder()
                .serve_with_incoming(Recorded(Arc::new(metrics)), incoming)
                .await
                .unwrap();
        });
    });
    MetricsClient::new(&address).unwrap()
}

fn check(client: &MetricsClient) {
    let devices = client.read(Level::Detailed).unwrap();
    let column =
        |value: fn(&DeviceMetrics) -> Option<f64>| devices.iter().map(value).collect::<Vec<_>>();
    assert_eq!(devices.iter().map(|device| device.id).collect::<Vec<_>>(), [0, 1, 2, 3]);
    let gib = 1 << 30;
    let used = [12 * gib, 13 * gib + 7, 0, gib / 2];
    assert!(devices.iter().map(|device| device.memory_used).eq(used.map(Some)), "{devices:?}");
    assert!(devices.iter().all(|device| device.memory_total == Some(16 * gib)), "{devices:?}");
    // A chip has two cores.
    assert_eq!(column(|it| it.duty_cycle), [87.5, 87.5, 3.25, 3.25].map(Some));
    assert_eq!(column(|it| it.bandwidth), [55.5, 44.0, 0.0, 1.0].map(Some));
    assert_eq!(column(|it| it.idle_seconds), [0.0, 0.25, 120.0, 7.5].map(Some));
    assert_eq!(column(|it| it.queued.map(|queued| queued as f64)), [2.0, 0.0, 0.0, 31.0].map(Some));
    assert_eq!(column(|it| it.program_mean), [Some(310.0), Some(25.5), None, Some(9000.0)]);
    // The values that tpu-info shows, from the reference file.
    let quantiles = column(|it| it.program_times.map(|times| times.p90));
    let expected = [320.0 * (1.0 + 8.0 / 15.0), 35.0, 0.0, 5120.0];
    let close = |(actual, expected): (&Option<f64>, &f64)| {
        (actual.unwrap_or(0.0) - expected).abs() < 1e-9 * expected.max(1.0)
    };
    assert!(quantiles.iter().zip(&expected).all(close), "{quantiles:?}");
    check_state(client);
    // The basic level requests fewer metrics.
    assert_eq!(client.read(Level::Basic).unwrap()[0].bandwidth, None);
}

/// The values of `tpu-info`, from the reference file.
fn check_state(client: &MetricsClient) {
    let state = client.state();
    // The SparseCore does not count.
    assert_eq!(state.cores, Some(CoresInUse { used: 3, all: 4 }));
    let mut seen = 0;
    for line in include_str!("../../reference/libtpu_metrics.txt").lines() {
        let Some((name, values)) = line.split_once(" TransferLatencyDistribution(") else {
            continue;
        };
        let latency = state.latencies.iter().find(|it| format!("# {}", it.name) == name).unwrap();
        let value = |key: &str| values.split_once(&format!("{key}=")).unwrap().1;
        let number =
            |key: &str| value(key).split([',', ')']).next().unwrap().parse::<f64>().unwrap();
        let size = value("transfer_size").split('\'').nth(1).unwrap();
        let (_, actual) = latency.groups.iter().find(|(group, _)| group == size).unwrap();
        let pairs = [
            (actual.p50, number("p50")),
            (actual.p90, number("p90")),
            (actual.p95, number("p95")),
            (actual.p999, number("p999")),
        ];
        let is_close = |(actual, expected): (f64, f64)| (actual - expected).abs() < 1e-9 * expected;
        assert!(pairs.into_iter().all(is_close), "{line}: {actual:?}");
        seen += 1;
    }
    assert_eq!(seen, 4);
    let unreported = state.latencies.iter().filter(|latency| latency.groups.is_empty());
    assert_eq!(unreported.count(), 5);
}

#[test]
fn a_measurement_has_the_mean_of_its_readings() {
    let reading = |duty: f64, memory: u64, bandwidth: Option<f64>| {
        vec![DeviceMetrics {
            duty_cycle: Some(duty),
            memory_used: Some(memory),
            bandwidth,
            ..DeviceMetrics::new(3)
        }]
    };
    let readings = [reading(10.0, 7, None), reading(20.0, 5, Some(4.0)), reading(60.0, 6, None)];
    assert_eq!(mean_of_readings(&readings), reading(30.0, 6, Some(4.0)));
    // At least one reading is taken, and the errors are those of a reading.
    let client = serve(recorded());
    assert_eq!(client.measure(Level::Basic, Duration::ZERO).unwrap().len(), 4);
    assert!(serve(HashMap::new()).measure(Level::Basic, Duration::ZERO).is_err());
}

#[test]
fn libtpus_metrics_are_read_as_by_tpu_info() {
    check(&serve(recorded()));
}

/// The server runs in the package `tpu-info`. `FULMEN_TEST_TPU_INFO_PYTHON` names a Python that
/// has this package.
#[test]
#[ignore = "needs `pip install tpu-info`: FULMEN_TEST_TPU_INFO_PYTHON=python3 cargo test -p fulmen-machine tpu_info -- --ignored"]
fn a_server_of_tpu_infos_own_package_is_read() {
    let python = std::env::var("FULMEN_TEST_TPU_INFO_PYTHON").unwrap();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/reference/libtpu_metrics.py");
    let mut server =
        Command::new(python).args([script, "serve"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut port = String::new();
    std::io::BufReader::new(server.stdout.take().unwrap()).read_line(&mut port).unwrap();
    let client = MetricsClient::new(&format!("127.0.0.1:{}", port.trim())).unwrap();
    let checked = std::panic::catch_unwind(AssertUnwindSafe(|| check(&client)));
    server.kill().and_then(|()| server.wait()).unwrap();
    checked.unwrap();
}

#[test]
fn an_older_libtpu_reports_fewer_metrics() {
    let mut metrics = recorded();
    metrics.retain(|name, _| name.contains("dutycycle"));
    let devices = serve(metrics).read(Level::Detailed).unwrap();
    let expected = [(0, 87.5), (1, 3.25)]
        .map(|(id, duty)| DeviceMetrics { duty_cycle: Some(duty), ..DeviceMetrics::new(id) });
    assert_eq!(devices, expected);
    let state = serve(HashMap::new()).state();
    assert_eq!(state.cores, None);
    assert!(state.latencies.len() == 8 && state.latencies.iter().all(|it| it.groups.is_empty()));
    let error = serve(HashMap::new()).read(Level::Basic).unwrap_err().to_string();
    assert!(error.contains("NotFound: no such metric"), "{error}");
}

#[test]
fn an_address_without_a_server_is_named() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    drop(listener);
    let error = MetricsClient::new(&address).unwrap().read(Level::Basic).unwrap_err().to_string();
    assert_eq!(error, format!("{address}: no process with libtpu serves metrics there"));
    let error = MetricsClient::new("a b").err().unwrap().to_string();
    assert!(error.starts_with("a b: ") && error.ends_with("; expected HOST:PORT"), "{error}");
}
