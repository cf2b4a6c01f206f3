//! Reads libtpu's metrics of devices while a program runs on them: how busy the devices are, and
//! how full their memory is.
//!
//! Every process with libtpu serves them over gRPC on a local port. The messages are those of the
//! package `tpu-info`, reduced to the fields needed here.

use std::fmt;
use std::time::Duration;

use http::uri::PathAndQuery;
use prost::Message;
use tokio::runtime::{Builder, Runtime};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;

/// libtpu's default address for its metrics.
pub const METRICS_ADDRESS: &str = "127.0.0.1:8431";

/// The time-out of a request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);

const METHOD: &str = "/tpu.monitoring.runtime.RuntimeMetricService/GetRuntimeMetric";

/// Which metrics to request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Duty cycle and memory.
    Basic,
    /// All metrics that this crate knows.
    Detailed,
}

/// The metrics of one device. Those that libtpu did not report are `None`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DeviceMetrics {
    /// The device's number.
    pub id: i64,
    /// The percentage of the time in which its TensorCores were busy.
    pub duty_cycle: Option<f64>,
    /// Bytes of its memory (HBM) in use.
    pub memory_used: Option<u64>,
    /// The size of its memory in bytes.
    pub memory_total: Option<u64>,
    /// The percentage of its memory bandwidth in use. Only at [`Level::Detailed`], like all fields
    /// below.
    pub bandwidth: Option<f64>,
    /// How long its TensorCores have been idle, in seconds.
    pub idle_seconds: Option<f64>,
    /// The number of programs in its queue.
    pub queued: Option<i64>,
    /// The mean time of its programs, in microseconds.
    pub program_mean: Option<f64>,
    /// The 90th percentile of the time of its programs, in microseconds.
    pub program_p90: Option<f64>,
}

/// Why there are no metrics.
#[derive(Clone, Debug)]
pub struct MetricsError(pub(crate) String);

impl fmt::Display for MetricsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for MetricsError {}

/// A connection to the metrics of one process.
///
/// ```no_run
/// use fulmen_machine::{Level, METRICS_ADDRESS, MetricsClient};
///
/// let client = MetricsClient::new(METRICS_ADDRESS)?;
/// for device in client.read(Level::Basic)? {
///     println!("device {}: {:?} % busy", device.id, device.duty_cycle);
/// }
/// # Ok::<(), fulmen_machine::MetricsError>(())
/// ```
pub struct MetricsClient {
    runtime: Runtime,
    channel: Channel,
    address: String,
}

impl MetricsClient {
    /// Connects on the first request.
    ///
    /// # Errors
    /// The address is not of the form `host:port`.
    pub fn new(address: &str) -> Result<MetricsClient, MetricsError> {
        let wrong = |error: &dyn fmt::Display| {
            MetricsError(format!("{address}: {error}; expected HOST:PORT"))
        };
        let runtime =
            Builder::new_current_thread().enable_all().build().map_err(|error| wrong(&error))?;
        let endpoint =
            Endpoint::from_shared(format!("http://{address}")).map_err(|error| wrong(&error))?;
        let channel = {
            let _guard = runtime.enter();
            endpoint.connect_timeout(REQUEST_TIMEOUT).timeout(REQUEST_TIMEOUT).connect_lazy()
        };
        Ok(Self { channel, address: address.to_owned(), runtime })
    }

    /// The metrics of each device, by device number.
    ///
    /// # Errors
    /// No process serves metrics there, or the server knows none of these metrics.
    pub fn read(&self, level: Level) -> Result<Vec<DeviceMetrics>, MetricsError> {
        self.runtime.block_on(self.read_all(level)).map_err(|status| {
            let reason = match status.code() {
                Code::Unavailable | Code::Unknown => {
                    "no process with libtpu serves metrics there".to_owned()
                }
                Code::DeadlineExceeded | Code::Cancelled => {
                    format!("no answer within {} s", REQUEST_TIMEOUT.as_secs())
                }
                code => format!("{code:?}: {}", status.message()),
            };
            MetricsError(format!("{}: {reason}", self.address))
        })
    }

    async fn read_all(&self, level: Level) -> Result<Vec<DeviceMetrics>, Status> {
        let used = self.metric("tpu.runtime.hbm.memory.usage.bytes").await;
        let total = self.metric("tpu.runtime.hbm.memory.total.bytes").await;
        let duty = self.metric("tpu.runtime.tensorcore.dutycycle.percent").await;
        if let (Err(error), Err(_), Err(_)) = (&used, &total, &duty) {
            return Err(error.clone());
        }
        let mut devices: Vec<DeviceMetrics> = Vec::new();
        fill(&mut devices, used, |device, metric| {
            device.memory_used = metric.integer().and_then(|it| it.try_into().ok())
        });
        fill(&mut devices, total, |device, metric| {
            device.memory_total = metric.integer().and_then(|it| it.try_into().ok())
        });
        // Memory is reported per core, activity per chip. A chip has up to two cores.
        let mut duty = duty.unwrap_or_default();
        duty.sort_by_key(Metric::device);
        let chips = duty.len().max(1);
        let cores = if devices.len() > chips { devices.len() / chips } else { 1 };
        let each = duty.iter().flat_map(|metric| std::iter::repeat_n(metric.number(), cores));
        if devices.is_empty() {
            devices = duty.iter().filter_map(Metric::device).map(DeviceMetrics::new).collect();
        }
        devices.iter_mut().zip(each).for_each(|(device, duty)| device.duty_cycle = duty);
        if level == Level::Detailed {
            let bandwidth = self.metric("tpu.runtime.hbm.utilization.percent").await;
            fill(&mut devices, bandwidth, |device, metric| device.bandwidth = metric.number());
            let idle = self.metric("tpu.runtime.tensorcore.idle_duration.seconds").await;
            fill(&mut devices, idle, |device, metric| device.idle_seconds = metric.number());
            let queued = self.metric("hlo.queue.size.gauge").await;
            fill(&mut devices, queued, |device, metric| device.queued = metric.integer());
            let programs = self.metric("hlo.execution.timing.distribution.microseconds").await;
            fill(&mut devices, programs, |device, metric| {
                let times = metric.distribution.as_ref().filter(|times| times.count > 0);
                device.program_mean = times.map(|times| times.mean);
                device.program_p90 = times.and_then(|times| times.quantile(0.9));
            });
        }
        Ok(devices)
    }

    /// One metric for all devices.
    async fn metric(&self, name: &str) -> Result<Vec<Metric>, Status> {
        let mut grpc = tonic::client::Grpc::new(self.channel.clone());
        grpc.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
        let codec = ProstCodec::<MetricRequest, MetricResponse>::default();
        let request = Request::new(MetricRequest { metric_name: name.to_owned() });
        let answer = grpc.unary(request, PathAndQuery::from_static(METHOD), codec).await?;
        Ok(answer.into_inner().metric.unwrap_or_default().metrics)
    }
}

impl DeviceMetrics {
    /// A device without any other metric.
    pub fn new(id: i64) -> DeviceMetrics {
        Self { id, ..Self::default() }
    }
}

/// Stores a metric in the devices that it belongs to. An older libtpu does not report all metrics.
fn fill(
    devices: &mut Vec<DeviceMetrics>,
    metrics: Result<Vec<Metric>, Status>,
    set: impl Fn(&mut DeviceMetrics, &Metric),
) {
    for metric in metrics.unwrap_or_default() {
        let Some(id) = metric.device() else { continue };
        let index = devices.binary_search_by_key(&id, |device| device.id).unwrap_or_else(|index| {
            devices.insert(index, DeviceMetrics::new(id));
            index
        });
        set(&mut devices[index], &metric);
    }
}

#[derive(Clone, PartialEq, Message)]
struct MetricRequest {
    #[prost(string, tag = "1")]
    metric_name: String,
}

#[derive(Clone, PartialEq, Message)]
struct MetricResponse {
    #[prost(message, optional, tag = "1")]
    metric: Option<TpuMetric>,
}

#[derive(Clone, PartialEq, Message)]
struct TpuMetric {
    #[prost(message, repeated, tag = "3")]
    metrics: Vec<Metric>,
}

#[derive(Clone, PartialEq, Message)]
struct Metric {
    #[prost(message, optional, tag = "1")]
    attribute: Option<Attribute>,
    #[prost(message, optional, tag = "3")]
    gauge: Option<Gauge>,
    #[prost(message, optional, tag = "5")]
    distribution: Option<Distribution>,
}

#[derive(Clone, PartialEq, Message)]
struct Attribute {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(message, optional, tag = "2")]
    value: Option<AttributeValue>,
}

#[derive(Clone, PartialEq, Message)]
struct AttributeValue {
    #[prost(string, optional, tag = "1")]
    string: Option<String>,
    #[prost(int64, optional, tag = "3")]
    int: Option<i64>,
    #[prost(message, optional, tag = "6")]
    list: Option<Attributes>,
}

#[derive(Clone, PartialEq, Message)]
struct Attributes {
    #[prost(message, repeated, tag = "1")]
    attributes: Vec<Attribute>,
}

#[derive(Clone, PartialEq, Message)]
struct Gauge {
    #[prost(double, optional, tag = "1")]
    double: Option<f64>,
    #[prost(int64, optional, tag = "2")]
    int: Option<i64>,
}

#[derive(Clone, PartialEq, Message)]
struct Distribution {
    #[prost(int64, tag = "1")]
    count: i64,
    #[prost(double, tag = "2")]
    mean: f64,
    #[prost(message, optional, tag = "6")]
    buckets: Option<Buckets>,
    #[prost(int64, repeated, tag = "7")]
    counts: Vec<i64>,
}

#[derive(Clone, PartialEq, Message)]
struct Buckets {
    #[prost(message, optional, tag = "2")]
    exponential: Option<Exponential>,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct Exponential {
    #[prost(double, tag = "2")]
    growth: f64,
    #[prost(double, tag = "3")]
    scale: f64,
}

impl Metric {
    /// The number of the device: the attribute itself or, in newer versions, text among other
    /// attributes.
    fn device(&self) -> Option<i64> {
        let value = self.attribute.as_ref()?.value.as_ref()?;
        match &value.list {
            Some(list) => {
                let ordinal =
                    list.attributes.iter().find(|attribute| attribute.key == "device_ordinal")?;
                let number = ordinal.value.as_ref()?;
                number.int.or_else(|| number.string.as_ref()?.parse().ok())
            }
            // protobuf omits zeros.
            None => value.int.or_else(|| value.string.is_none().then_some(0)),
        }
    }

    fn number(&self) -> Option<f64> {
        let gauge = self.gauge.as_ref()?;
        gauge.double.or_else(|| gauge.int.map(|int| int as f64))
    }

    fn integer(&self) -> Option<i64> {
        self.gauge.as_ref()?.int
    }
}

impl Distribution {
    /// A quantile of a histogram. `None` unless the buckets grow exponentially.
    fn quantile(&self, fraction: f64) -> Option<f64> {
        let Exponential { growth, scale } = self.buckets.as_ref()?.exponential?;
        let rank = (self.count as f64 * fraction).floor();
        let mut below = 0.0;
        for (bucket, &count) in self.counts.iter().enumerate() {
            let count = count as f64;
            if below + count > rank {
                // The first bucket holds all values below the other buckets.
                let lower = if bucket == 0 { 0.0 } else { scale * growth.powi(bucket as i32 - 1) };
                let upper = scale * growth.powi(bucket as i32);
                return Some(lower + (upper - lower) * (rank - below) / count);
            }
            below += count;
        }
        None
    }
}

#[cfg(test)]
mod tests {
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

    use tonic::body::Body;
    use tonic::server::{Grpc, UnaryService};
    use tonic::transport::{Server, server::TcpIncoming};
    use tonic::{Request, Response};

    use super::*;

    /// `tpu-info`'s messages as bytes, by metric.
    fn recorded() -> HashMap<String, Vec<u8>> {
        let lines = include_str!("../reference/libtpu_metrics.txt")
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

    impl UnaryService<String> for Recorded {
        type Response = Vec<u8>;
        type Future = Ready<Result<Response<Vec<u8>>, Status>>;

        fn call(&mut self, name: Request<String>) -> Self::Future {
            let answer = self.0.get(name.get_ref()).cloned();
            ready(answer.map(Response::new).ok_or_else(|| Status::not_found("no such metric")))
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
                assert_eq!(request.uri().path(), METHOD);
                Ok(Grpc::new(ProstCodec::<Vec<u8>, String>::default())
                    .unary(service, request)
                    .await)
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
                let incoming =
                    TcpIncoming::from(tokio::net::TcpListener::from_std(listener).unwrap());
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
        let column = |value: fn(&DeviceMetrics) -> Option<f64>| {
            devices.iter().map(value).collect::<Vec<_>>()
        };
        assert_eq!(devices.iter().map(|device| device.id).collect::<Vec<_>>(), [0, 1, 2, 3]);
        let gib = 1 << 30;
        let used = [12 * gib, 13 * gib + 7, 0, gib / 2];
        assert!(devices.iter().map(|device| device.memory_used).eq(used.map(Some)), "{devices:?}");
        assert!(devices.iter().all(|device| device.memory_total == Some(16 * gib)), "{devices:?}");
        // A chip has two cores.
        assert_eq!(column(|it| it.duty_cycle), [87.5, 87.5, 3.25, 3.25].map(Some));
        assert_eq!(column(|it| it.bandwidth), [55.5, 44.0, 0.0, 1.0].map(Some));
        assert_eq!(column(|it| it.idle_seconds), [0.0, 0.25, 120.0, 7.5].map(Some));
        assert_eq!(
            column(|it| it.queued.map(|queued| queued as f64)),
            [2.0, 0.0, 0.0, 31.0].map(Some)
        );
        assert_eq!(column(|it| it.program_mean), [Some(310.0), Some(25.5), None, Some(9000.0)]);
        // The values that tpu-info shows, from the reference file.
        let quantiles = column(|it| it.program_p90);
        let expected = [320.0 * (1.0 + 8.0 / 15.0), 35.0, 0.0, 5120.0];
        let close = |(actual, expected): (&Option<f64>, &f64)| {
            (actual.unwrap_or(0.0) - expected).abs() < 1e-9 * expected.max(1.0)
        };
        assert!(quantiles.iter().zip(&expected).all(close), "{quantiles:?}");
        // The basic level requests fewer metrics.
        assert_eq!(client.read(Level::Basic).unwrap()[0].bandwidth, None);
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
        let error = serve(HashMap::new()).read(Level::Basic).unwrap_err().to_string();
        assert!(error.contains("NotFound: no such metric"), "{error}");
    }

    #[test]
    fn an_address_without_a_server_is_named() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        drop(listener);
        let error =
            MetricsClient::new(&address).unwrap().read(Level::Basic).unwrap_err().to_string();
        assert_eq!(error, format!("{address}: no process with libtpu serves metrics there"));
        let error = MetricsClient::new("a b").err().unwrap().to_string();
        assert!(error.starts_with("a b: ") && error.ends_with("; expected HOST:PORT"), "{error}");
    }
}
