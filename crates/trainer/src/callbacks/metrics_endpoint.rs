//! [`MetricsEndpoint`]: serves the counters and logged values of a run to Prometheus (option
//! `metrics_port`).
//!
//! A thread accepts connections, and each is answered on its own thread, from values that are
//! already on the host. Training never waits for them.

use std::collections::{BTreeMap, VecDeque};
use std::fmt;
use std::io::{self, Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use fulmen_tensor::{Metrics, Unit};
use parking_lot::Mutex;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric, text};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;
use prometheus_client::registry::{Registry, Unit as Suffix};

use crate::callbacks::callback::Callback;
use crate::console::inform;
use crate::goodput::STEP_TIME;
use crate::hooks::{FitStart, Progress};
use crate::{Actions, LogPoint, Result, error};

/// The time limit for reading a request, and for writing its answer.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The most bytes that are read of a request. Only the first line is used.
const MAX_REQUEST: usize = 8192;
/// How many connections may be open at once. Above the limit, the oldest is closed: a client that
/// sends its request at once is not waiting.
const MAX_CONNECTIONS: usize = 16;
/// The time for which the range of step times is reported, if a request names no other.
const DEFAULT_WINDOW: Duration = Duration::from_secs(60);

/// Serves the metrics of a run.
pub(crate) struct MetricsEndpoint {
    address: SocketAddr,
    latest: Arc<Mutex<LatestValues>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

/// The progress of training, and its last logged values.
#[derive(Debug, Default)]
struct LatestValues {
    epoch: u64,
    global_step: u64,
    values: BTreeMap<String, f64>,
}

impl MetricsEndpoint {
    /// Listens at this address.
    ///
    /// # Errors
    /// The port is in use, or this machine doesn't have the address.
    pub(crate) fn open(address: SocketAddr, metrics: &Arc<Metrics>) -> Result<MetricsEndpoint> {
        let failed =
            |e: io::Error| error::option(format!("metrics_port: cannot listen at {address}: {e}"));
        let listener = TcpListener::bind(address).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let latest = Arc::<Mutex<LatestValues>>::default();
        let stop = Arc::new(AtomicBool::new(false));
        let collector = MetricsCollector {
            metrics: metrics.clone(),
            latest: latest.clone(),
            window: DEFAULT_WINDOW,
        };
        let stopped = stop.clone();
        let serve = move || serve(&listener, &collector, &stopped);
        let thread = std::thread::Builder::new()
            .name("fulmen-metrics".into())
            .spawn(serve)
            .map_err(failed)?;
        inform!("metrics: http://{address}/metrics");
        Ok(MetricsEndpoint { address, latest, stop, thread: Some(thread) })
    }
}

/// Accepts connections until `stopped`, and answers each on its own thread.
fn serve(listener: &TcpListener, collector: &MetricsCollector, stopped: &AtomicBool) {
    let open = OpenConnections::default();
    std::thread::scope(|scope| {
        for connection in listener.incoming() {
            if stopped.load(Ordering::Acquire) {
                break;
            }
            let answered = connection.and_then(|connection| {
                let number = open.add(&connection)?;
                let open = &open;
                let answer = move || {
                    // If answering fails, the client has gone.
                    let _ = answer(connection, collector);
                    open.remove(number);
                };
                std::thread::Builder::new()
                    .name("fulmen-metrics".into())
                    .spawn_scoped(scope, answer)
                    .map(drop)
                    .inspect_err(|_| open.remove(number))
            });
            if answered.is_err() {
                // The process may be out of file handles: wait before the next try.
                std::thread::sleep(Duration::from_millis(100));
            }
        }
        open.close();
    });
}

/// The connections that are being answered, by number, the oldest first.
#[derive(Default)]
struct OpenConnections(Mutex<Connections>);

#[derive(Default)]
struct Connections {
    /// The number of the newest connection.
    newest: u64,
    open: VecDeque<(u64, TcpStream)>,
}

impl OpenConnections {
    /// Adds a connection, and closes the oldest if there are too many.
    fn add(&self, connection: &TcpStream) -> io::Result<u64> {
        let connection = connection.try_clone()?;
        let mut connections = self.0.lock();
        if connections.open.len() >= MAX_CONNECTIONS
            && let Some((_, oldest)) = connections.open.pop_front()
        {
            let _ = oldest.shutdown(Shutdown::Both);
        }
        connections.newest += 1;
        let number = connections.newest;
        connections.open.push_back((number, connection));
        Ok(number)
    }

    fn remove(&self, number: u64) {
        self.0.lock().open.retain(|(other, _)| *other != number);
    }

    /// Closes all connections, so that no thread waits for a client.
    fn close(&self) {
        for (_, connection) in self.0.lock().open.drain(..) {
            let _ = connection.shutdown(Shutdown::Both);
        }
    }
}

impl Drop for MetricsEndpoint {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        // A connection wakes the thread. If that fails, the thread ends with the process.
        let mut address = self.address;
        if address.ip().is_unspecified() {
            address.set_ip(match address {
                SocketAddr::V4(_) => std::net::Ipv4Addr::LOCALHOST.into(),
                SocketAddr::V6(_) => std::net::Ipv6Addr::LOCALHOST.into(),
            });
        }
        if let (Ok(_), Some(thread)) =
            (TcpStream::connect_timeout(&address, TIMEOUT), self.thread.take())
        {
            let _ = thread.join();
        }
    }
}

impl Callback for MetricsEndpoint {
    fn name(&self) -> &'static str {
        "MetricsEndpoint"
    }

    fn on_fit_start(&mut self, start: &FitStart) {
        *self.latest.lock() = LatestValues {
            epoch: start.epoch,
            global_step: start.global_step,
            ..LatestValues::default()
        };
    }

    fn on_train_batch_end(&mut self, progress: &Progress, _: &mut Actions) {
        let mut latest = self.latest.lock();
        (latest.epoch, latest.global_step) = (progress.epoch, progress.global_step);
    }

    fn on_log(&mut self, point: &LogPoint, _: &mut Actions) {
        self.latest.lock().values.extend(point.metrics.iter().cloned());
    }

    fn on_train_epoch_end(&mut self, point: &LogPoint, _: &mut Actions) {
        self.latest.lock().values.extend(point.metrics.iter().cloned());
    }
}

/// Answers a request.
fn answer(mut connection: TcpStream, collector: &MetricsCollector) -> io::Result<()> {
    let deadline = Instant::now() + TIMEOUT;
    connection.set_write_timeout(Some(TIMEOUT))?;
    // The body follows the head at once, rather than after the client has confirmed the head.
    connection.set_nodelay(true)?;
    let mut request = Vec::new();
    let mut part = [0; 1024];
    while !request.windows(4).any(|end| end == b"\r\n\r\n") {
        let remaining = deadline.saturating_duration_since(Instant::now());
        if remaining.is_zero() || request.len() > MAX_REQUEST {
            return Ok(());
        }
        connection.set_read_timeout(Some(remaining))?;
        match connection.read(&mut part)? {
            0 => return Ok(()),
            n => request.extend_from_slice(&part[..n]),
        }
    }
    let line = request.split(|&byte| byte == b'\r').next().unwrap_or_default();
    let mut words = line.split(|&byte| byte == b' ');
    let method = words.next().unwrap_or_default();
    let path = words.next().unwrap_or_default();
    let mut parts = path.splitn(2, |&byte| byte == b'?');
    let path = parts.next().unwrap_or_default();
    let window = parts.next().and_then(window).unwrap_or(DEFAULT_WINDOW);
    let plain = "text/plain; charset=utf-8";
    let (status, kind, body) = match (method, path) {
        (b"GET" | b"HEAD", b"/metrics") => {
            let mut body = String::new();
            let mut registry = Registry::with_prefix("fulmen");
            registry.register_collector(Box::new(MetricsCollector { window, ..collector.clone() }));
            text::encode(&mut body, &registry).map_err(io::Error::other)?;
            ("200 OK", "application/openmetrics-text; version=1.0.0; charset=utf-8", body)
        }
        (b"GET" | b"HEAD", _) => {
            ("404 Not Found", plain, "the metrics are at /metrics\n".to_owned())
        }
        _ => ("405 Method Not Allowed", plain, "give GET\n".to_owned()),
    };
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    connection.write_all(head.as_bytes())?;
    if method == b"HEAD" { Ok(()) } else { connection.write_all(body.as_bytes()) }
}

/// The time of `window_ms=5000` in the query of a request.
fn window(query: &[u8]) -> Option<Duration> {
    let query = std::str::from_utf8(query).ok()?;
    let value = query.split('&').find_map(|pair| pair.strip_prefix("window_ms="))?;
    value.parse().ok().map(Duration::from_millis)
}

/// Collects the values at each request.
#[derive(Clone, Debug)]
struct MetricsCollector {
    metrics: Arc<Metrics>,
    latest: Arc<Mutex<LatestValues>>,
    /// The time for which the range of step times is reported.
    window: Duration,
}

impl MetricsCollector {
    /// The smallest, mean and largest time of the latest steps, and their number.
    fn encode_step_times(&self, encoder: &mut DescriptorEncoder<'_>) -> fmt::Result {
        let Some(range) = self.metrics.range_within(STEP_TIME, self.window) else { return Ok(()) };
        let help = "The time of the training steps of the last minute, or of the query's window_ms";
        let unit = Some(&Suffix::Seconds);
        let mut family = encoder.encode_descriptor("latest_step", help, unit, MetricType::Gauge)?;
        for (name, nanoseconds) in [("min", range.min), ("mean", range.mean), ("max", range.max)] {
            ConstGauge::new(nanoseconds * 1e-9)
                .encode(family.encode_family(&[("statistic", name)])?)?;
        }
        let help = "The number of these steps, at most 1024";
        let count = ConstGauge::new(range.count);
        count.encode(encoder.encode_descriptor("latest_steps", help, None, MetricType::Gauge)?)
    }
}

impl Collector for MetricsCollector {
    fn encode(&self, mut encoder: DescriptorEncoder) -> fmt::Result {
        let snapshot = self.metrics.snapshot();
        for metric in &snapshot.metrics {
            let (suffix, scale) = match metric.unit {
                Unit::Nanoseconds => (Suffix::Seconds, 1e-9),
                Unit::Bytes => (Suffix::Bytes, 1.0),
            };
            let name = snake_case(metric.name);
            let help = format!("The sum of all samples of {}", metric.name);
            let sum = ConstCounter::new(metric.sum * scale);
            sum.encode(encoder.encode_descriptor(
                &name,
                &help,
                Some(&suffix),
                MetricType::Counter,
            )?)?;
            let name = format!("{name}_samples");
            let help = format!("The number of samples of {}", metric.name);
            let count = ConstCounter::new(metric.count);
            count.encode(encoder.encode_descriptor(&name, &help, None, MetricType::Counter)?)?;
        }
        for (name, value) in snapshot.counters {
            let value = ConstCounter::new(value);
            value.encode(encoder.encode_descriptor(
                &snake_case(name),
                name,
                None,
                MetricType::Counter,
            )?)?;
        }
        self.encode_step_times(&mut encoder)?;
        let latest = self.latest.lock();
        for (name, help, value) in [
            ("epoch", "The running epoch, counted from 0", latest.epoch),
            (
                "global_step",
                "The number of optimizer steps that were enqueued on the device",
                latest.global_step,
            ),
        ] {
            let value = ConstGauge::new(value);
            value.encode(encoder.encode_descriptor(name, help, None, MetricType::Gauge)?)?;
        }
        if !latest.values.is_empty() {
            let help = "The latest logged value of each name";
            let mut family = encoder.encode_descriptor("logged", help, None, MetricType::Gauge)?;
            for (name, value) in &latest.values {
                ConstGauge::new(*value)
                    .encode(family.encode_family(&[("name", name.as_str())])?)?;
            }
        }
        Ok(())
    }
}

/// Converts names such as `UncachedCompile` to `uncached_compile`.
fn snake_case(name: &str) -> String {
    let mut snake = String::new();
    for (i, letter) in name.chars().enumerate() {
        if letter.is_uppercase() && i > 0 {
            snake.push('_');
        }
        snake.extend(letter.to_lowercase());
    }
    snake
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sends the request over a new connection and returns the answer.
    fn send(endpoint: &MetricsEndpoint, request: &str) -> String {
        let mut connection = TcpStream::connect(endpoint.address).unwrap();
        connection.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        connection.read_to_string(&mut answer).unwrap();
        answer
    }

    #[test]
    fn prometheus_gets_counters_and_logged_values() {
        let metrics = Arc::<Metrics>::default();
        metrics.count("UncachedCompile", 2);
        metrics.record_time("ExecuteTime", Duration::from_millis(1500));
        metrics.record_bytes("InboundData", 64);
        metrics.record_time(STEP_TIME, Duration::from_millis(250));
        metrics.record_time(STEP_TIME, Duration::from_millis(750));
        let mut endpoint = MetricsEndpoint::open("127.0.0.1:0".parse().unwrap(), &metrics).unwrap();
        let progress = Progress { epoch: 1, global_step: 7, ..Progress::default() };
        endpoint.on_train_batch_end(&progress, &mut Actions::ignored());
        let values = vec![("train_loss".to_owned(), 0.25), ("a \"b\"".to_owned(), f64::NAN)];
        let point = LogPoint { metrics: values, ..LogPoint::default() };
        endpoint.on_log(&point, &mut Actions::ignored());
        let answer = send(&endpoint, "GET /metrics?x=1 HTTP/1.1\r\nHost: a\r\n\r\n");
        assert!(
            answer.starts_with("HTTP/1.1 200 OK\r\nContent-Type: application/openmetrics-text;"),
            "{answer}"
        );
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("Content-Length: {}", body.len())), "{answer}");
        for line in [
            "# TYPE fulmen_execute_time_seconds counter",
            "fulmen_execute_time_seconds_total 1.5",
            "fulmen_execute_time_samples_total 1",
            "fulmen_inbound_data_bytes_total 64.0",
            "fulmen_uncached_compile_total 2",
            "fulmen_latest_step_seconds{statistic=\"min\"} 0.25",
            "fulmen_latest_step_seconds{statistic=\"mean\"} 0.5",
            "fulmen_latest_step_seconds{statistic=\"max\"} 0.75",
            "fulmen_latest_steps 2",
            "fulmen_epoch 1",
            "fulmen_global_step 7",
            "fulmen_logged{name=\"train_loss\"} 0.25",
            "fulmen_logged{name=\"a \\\"b\\\"\"} NaN",
            "# EOF",
        ] {
            assert!(body.lines().any(|actual| actual == line), "{line}\n{body}");
        }
        let answer = send(&endpoint, "GET /metrics?window_ms=0 HTTP/1.1\r\n\r\n");
        assert!(answer.contains("fulmen_step_time_samples_total 2"), "{answer}");
        assert!(!answer.contains("fulmen_latest_step"), "no step ended just now: {answer}");
    }

    #[test]
    fn other_requests_are_rejected_and_the_endpoint_continues() {
        let endpoint =
            MetricsEndpoint::open("127.0.0.1:0".parse().unwrap(), &Arc::default()).unwrap();
        assert!(send(&endpoint, "GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404"));
        assert!(send(&endpoint, "POST /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405"));
        // A client that sends nothing and disconnects.
        drop(TcpStream::connect(endpoint.address).unwrap());
        assert!(send(&endpoint, "HEAD /metrics HTTP/1.1\r\n\r\n").ends_with("\r\n\r\n"));
        assert!(send(&endpoint, "GET /metrics HTTP/1.1\r\n\r\n").ends_with("# EOF\n"));
    }

    #[test]
    fn silent_clients_do_not_keep_others_from_the_metrics() {
        let metrics = Arc::<Metrics>::default();
        let endpoint = MetricsEndpoint::open("127.0.0.1:0".parse().unwrap(), &metrics).unwrap();
        let mut silent: Vec<TcpStream> = (0..2 * MAX_CONNECTIONS)
            .map(|_| TcpStream::connect(endpoint.address).unwrap())
            .collect();
        // The answer comes while they are still connected: the newest is not closed before its time.
        assert!(send(&endpoint, "GET /metrics HTTP/1.1\r\n\r\n").ends_with("# EOF\n"));
        let newest = silent.last_mut().unwrap();
        newest.set_nonblocking(true).unwrap();
        assert_eq!(newest.read(&mut [0]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        // The oldest was closed to make room, and not because it was silent for long.
        silent[0].set_nonblocking(true).unwrap();
        assert_eq!(silent[0].read(&mut [0]).unwrap(), 0);
        drop(endpoint);
        assert_eq!(Arc::strong_count(&metrics), 1, "no thread waits for a silent client");
    }

    #[test]
    fn a_port_in_use_is_an_error_and_a_dropped_endpoint_leaves_no_thread() {
        let metrics = Arc::<Metrics>::default();
        let endpoint = MetricsEndpoint::open("127.0.0.1:0".parse().unwrap(), &metrics).unwrap();
        let address = endpoint.address;
        let error = MetricsEndpoint::open(address, &metrics).err().unwrap().to_string();
        assert!(
            error.starts_with(&format!("metrics_port: cannot listen at {address}: ")),
            "{error}"
        );
        drop(endpoint);
        assert_eq!(Arc::strong_count(&metrics), 1, "its thread has ended");
    }
}
