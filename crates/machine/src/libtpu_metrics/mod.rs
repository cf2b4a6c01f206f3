//! Reads libtpu's metrics of devices while a program runs on them: how busy the devices are, and
//! how full their memory is.
//!
//! Every process with libtpu serves them over gRPC on a local port. The names and the arithmetic are
//! those of the package `tpu-info`. Three things that it shows are not in this service: the kind of
//! the chips and the version of libtpu (`inventory.rs`), and the utilization of the matrix units,
//! which only libtpu's Python module has.

mod messages;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::fmt;
use std::thread;
use std::time::{Duration, Instant};

use http::uri::PathAndQuery;
use tokio::runtime::{Builder, Runtime};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Request, Status};
use tonic_prost::ProstCodec;

use messages::{
    CoreState, Distribution, Metric, MetricRequest, MetricResponse, StatusRequest, StatusResponse,
};

/// libtpu's default address for its metrics.
pub const METRICS_ADDRESS: &str = "127.0.0.1:8431";

/// The time-out of a request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(2);

/// The time between two readings of a measurement. libtpu updates its gauges about once a second.
const READING_INTERVAL: Duration = Duration::from_millis(250);

const METHOD: &str = "/tpu.monitoring.runtime.RuntimeMetricService/GetRuntimeMetric";
const STATUS_METHOD: &str = "/tpu.monitoring.runtime.RuntimeMetricService/GetTpuRuntimeStatus";

/// The distributions that `tpu-info` shows: its name, libtpu's name, and the unit. libtpu reports
/// them for programs that run on several slices.
const LATENCIES: [(&str, &str, &str); 8] = [
    (
        "buffer_transfer_latency",
        "megascale.dcn_transfer_latencies.microsecond.cumulative.distribution",
        "us",
    ),
    (
        "inbound_buffer_transfer_latency",
        "megascale.dcn_inbound_transfer_latencies.microsecond.cumulative.distribution",
        "us",
    ),
    (
        "host_to_device_transfer_latency",
        "megascale.host_to_device_transfer_latencies.microsecond.cumulative.distribution",
        "us",
    ),
    (
        "device_to_host_transfer_latency",
        "megascale.device_to_host_transfer_latencies.microsecond.cumulative.distribution",
        "us",
    ),
    (
        "collective_e2e_latency",
        "megascale.collective_end_to_end_latencies.microsecond.cumulative.distribution",
        "us",
    ),
    (
        "host_compute_latency",
        "megascale.mxla_compute_latencies.microsecond.cumulative.distribution",
        "us",
    ),
    ("grpc_tcp_min_rtt", "megascale.grpc_tcp_min_rtt.microsecond.cumulative.distribution", "us"),
    (
        "grpc_tcp_delivery_rate",
        "megascale.grpc_tcp_delivery_rate.Mbps.cumulative.distribution",
        "Mbps",
    ),
];

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
    /// The percentiles of the time of its programs, in microseconds.
    pub program_times: Option<Percentiles>,
}

/// Percentiles of a distribution, interpolated within the buckets of libtpu's histogram.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Percentiles {
    /// The median.
    pub p50: f64,
    /// The 90th percentile.
    pub p90: f64,
    /// The 95th percentile.
    pub p95: f64,
    /// The 99.9th percentile.
    pub p999: f64,
}

/// What libtpu reports of a program as a whole.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RuntimeState {
    /// `None` if this libtpu does not report the state of its cores.
    pub cores: Option<CoresInUse>,
    /// The distributions between slices, in the order of `tpu-info`.
    pub latencies: Vec<Latency>,
}

/// How many TensorCores have a program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CoresInUse {
    /// The TensorCores that run a program, or have one in their queue.
    pub used: usize,
    /// All TensorCores that libtpu reports.
    pub all: usize,
}

/// A distribution of the traffic between slices.
#[derive(Clone, Debug, PartialEq)]
pub struct Latency {
    /// The name that `tpu-info` has for it, such as `buffer_transfer_latency`.
    pub name: &'static str,
    /// The unit: `us` or `Mbps`.
    pub unit: &'static str,
    /// The percentiles by the size of the buffers (`8MB+`) or, without sizes, by libtpu's first
    /// attribute. Empty if libtpu does not report it.
    pub groups: Vec<(String, Percentiles)>,
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

    /// The metrics of each device over this time: duty cycle and bandwidth are the means of several
    /// readings, and everything else is the last reading. At least one reading is taken.
    ///
    /// # Errors
    /// Those of [`read`](Self::read).
    pub fn measure(
        &self,
        level: Level,
        time: Duration,
    ) -> Result<Vec<DeviceMetrics>, MetricsError> {
        let start = Instant::now();
        let mut readings = vec![self.read(level)?];
        while start.elapsed() < time {
            thread::sleep(READING_INTERVAL.min(time.saturating_sub(start.elapsed())));
            readings.push(self.read(level)?);
        }
        Ok(mean_of_readings(&readings))
    }

    /// The state of the cores, and the latencies between slices. What libtpu does not report is
    /// empty.
    pub fn state(&self) -> RuntimeState {
        self.runtime.block_on(async {
            let cores = self.status().await.ok();
            let mut latencies = Vec::with_capacity(LATENCIES.len());
            for (name, metric, unit) in LATENCIES {
                let groups = self.metric(metric).await.map(|it| by_group(&it)).unwrap_or_default();
                latencies.push(Latency { name, unit, groups });
            }
            RuntimeState { cores: cores.and_then(CoresInUse::new), latencies }
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
                device.program_times = times.and_then(Distribution::percentiles);
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

impl MetricsClient {
    /// The state of each core.
    async fn status(&self) -> Result<Vec<CoreState>, Status> {
        let mut grpc = tonic::client::Grpc::new(self.channel.clone());
        grpc.ready().await.map_err(|error| Status::unavailable(error.to_string()))?;
        let codec = ProstCodec::<StatusRequest, StatusResponse>::default();
        let path = PathAndQuery::from_static(STATUS_METHOD);
        let answer = grpc.unary(Request::new(StatusRequest {}), path, codec).await?;
        Ok(answer.into_inner().cores.into_values().collect())
    }
}

impl CoresInUse {
    /// `None` if no core is a TensorCore.
    fn new(cores: Vec<CoreState>) -> Option<CoresInUse> {
        let cores: Vec<CoreState> = cores.into_iter().filter(CoreState::is_tensor_core).collect();
        let used = cores.iter().filter(|core| core.is_in_use()).count();
        (!cores.is_empty()).then_some(CoresInUse { used, all: cores.len() })
    }
}

/// The last reading, with the means of the gauges that change.
fn mean_of_readings(readings: &[Vec<DeviceMetrics>]) -> Vec<DeviceMetrics> {
    let mut devices = readings.last().cloned().unwrap_or_default();
    for device in &mut devices {
        let mean = |value: fn(&DeviceMetrics) -> Option<f64>| {
            let same = readings.iter().flatten().filter(|other| other.id == device.id);
            let values: Vec<f64> = same.filter_map(value).collect();
            (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
        };
        let duty_cycle = mean(|it| it.duty_cycle);
        let bandwidth = mean(|it| it.bandwidth);
        device.duty_cycle = duty_cycle;
        device.bandwidth = bandwidth;
    }
    devices
}

/// The percentiles of each group. As in `tpu-info`, the histograms of a group are added first.
fn by_group(metrics: &[Metric]) -> Vec<(String, Percentiles)> {
    let mut groups: BTreeMap<String, Distribution> = BTreeMap::new();
    for metric in metrics {
        let Some(distribution) = &metric.distribution else { continue };
        let group = metric.group().unwrap_or_default().to_owned();
        match groups.get_mut(&group) {
            Some(sum) => sum.add(distribution),
            None => drop(groups.insert(group, distribution.clone())),
        }
    }
    groups.into_iter().filter_map(|(group, sum)| Some((group, sum.percentiles()?))).collect()
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
