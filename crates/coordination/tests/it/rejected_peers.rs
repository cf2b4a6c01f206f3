//! Connections without the token of the run, and others between its processes: they are refused and
//! reported once, nothing can be read, and the run continues.

use std::collections::VecDeque;
use std::io::{Read as _, Write as _};
use std::net::{IpAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use fulmen_coordination::{Builder, Coordination, Process, Timeouts};

use crate::common::TOKEN;

const LONG: Duration = Duration::from_secs(120);

/// The coordinator's first bytes: a greeting and random ones.
const HELLO: usize = 40;
/// What a process sends until it is admitted.
const HANDSHAKE: usize = 48;

fn builder(index: usize, address: &str, token: Option<&str>) -> Builder {
    let mut process = Process::new(index, 2, address).unwrap();
    if let Some(token) = token {
        process = process.with_run_token(token).unwrap();
    }
    Coordination::builder(process).timeouts(Timeouts { join: LONG, heartbeat: LONG })
}

/// A run of two processes with the token, and its reports about others. `meanwhile` gets the
/// coordinator's address before the second process joins, and returns the address at which that
/// process joins.
fn run(
    host: &str,
    meanwhile: impl FnOnce(&str) -> String,
) -> (Coordination, Coordination, Receiver<String>) {
    let (send_address, addresses) = channel();
    let (report, reports) = channel();
    let zero = builder(0, &format!("{host}:0"), Some(TOKEN))
        .on_listening(move |address| send_address.send(address.to_owned()).unwrap())
        .on_refused(move |refusal| report.send(refusal.to_owned()).unwrap());
    let zero = thread::spawn(move || zero.join().unwrap());
    let one = builder(1, &meanwhile(&addresses.recv().unwrap()), Some(TOKEN)).join().unwrap();
    (zero.join().unwrap(), one, reports)
}

/// Uses the run until its end, and returns the only report, which is about a refusal.
fn goes_on(zero: Coordination, one: Coordination, reports: Receiver<String>) -> String {
    let report = goes_on_with_one_report(zero, one, reports);
    assert!(
        report.starts_with("the coordinator refused a connection from 127.0.0.1: "),
        "{report}"
    );
    report
}

fn goes_on_with_one_report(
    zero: Coordination,
    one: Coordination,
    reports: Receiver<String>,
) -> String {
    let other = thread::spawn(move || {
        one.put("key", "value").unwrap();
        one.shutdown(LONG).unwrap();
    });
    assert_eq!(zero.get("key", LONG).unwrap(), b"value");
    zero.shutdown(LONG).unwrap();
    other.join().unwrap();
    drop(zero);
    let reports: Vec<String> = reports.iter().collect();
    assert_eq!(reports.len(), 1, "{reports:?}");
    reports[0].clone()
}

/// Sends bytes after the greeting, and returns the answer until the coordinator hangs up.
fn answer_to(coordinator: &str, bytes: &[u8]) -> Vec<u8> {
    let mut stream = TcpStream::connect(coordinator).unwrap();
    stream.set_read_timeout(Some(LONG)).unwrap();
    stream.read_exact(&mut [0; HELLO]).unwrap();
    // The coordinator may hang up before all bytes are sent. Its last answer is then lost.
    let _ = stream.write_all(bytes);
    let mut answer = Vec::new();
    if let Err(error) = stream.read_to_end(&mut answer) {
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "it never hangs up");
    }
    answer
}

#[test]
fn a_process_with_another_token_or_none_is_refused() {
    let other = "f".repeat(64);
    let (zero, one, reports) = run("127.0.0.1", |address| {
        for token in [None, Some(other.as_str())] {
            let error = builder(1, address, token).join().unwrap_err();
            assert!(error.is_refused() && error.processes() == [1], "{error:?}");
            assert!(error.to_string().contains("has a different token, or none"), "{error}");
            assert!(error.to_string().contains("FULMEN_RUN_TOKEN"), "{error}");
            assert!(!error.to_string().contains(&other));
        }
        address.to_owned()
    });
    assert!(!format!("{zero:?} {:?}", zero.process()).contains(TOKEN));
    assert!(
        goes_on(zero, one, reports)
            .contains("it does not have the token of this run (FULMEN_RUN_TOKEN)")
    );
}

#[test]
fn a_process_with_a_token_does_not_join_a_coordinator_without_one() {
    let (send_address, addresses) = channel();
    let zero = builder(0, "127.0.0.1:0", None)
        .on_listening(move |address| send_address.send(address.to_owned()).unwrap());
    let zero = thread::spawn(move || zero.join().map(drop));
    let address = addresses.recv().unwrap();
    let error = builder(1, &address, Some(TOKEN)).join().unwrap_err();
    assert!(
        error.is_refused() && error.to_string().contains("has a different token, or none"),
        "{error}"
    );
    // On loopback, processes without a token can join each other.
    let _one = builder(1, &address, None).join().unwrap();
    zero.join().unwrap().unwrap();
}

#[test]
fn garbage_is_refused() {
    let (zero, one, reports) = run("127.0.0.1", str::to_owned);
    let nothing = [0; 64];
    let http_2 = [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &nothing].concat();
    let http_1 = format!("GET / HTTP/1.1\r\nHost: a\r\nUser-Agent: {}\r\n\r\n", "b".repeat(64));
    let garbage: [&[u8]; 4] = [http_1.as_bytes(), &http_2, &[0xff; 1 << 16], &nothing];
    for bytes in garbage {
        let answer = answer_to(zero.coordinator(), bytes);
        assert!(answer.is_empty() || answer == [0], "{answer:?}");
    }
    // One client hangs up at once, and another stops halfway and stays connected.
    drop(TcpStream::connect(zero.coordinator()).unwrap());
    let mut halfway = TcpStream::connect(zero.coordinator()).unwrap();
    halfway.write_all(&[7; HANDSHAKE - 1]).unwrap();
    goes_on(zero, one, reports);
}

/// The way of bytes through a [`Proxy`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    ToCoordinator,
    ToProcess,
}

/// The bytes of each connection, one entry for each direction.
type Recorded = Vec<(Direction, Vec<u8>)>;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Damage {
    #[default]
    Nothing,
    /// The last bit of the next bytes in this direction.
    Once(Direction),
    Always(Direction),
}

/// Forwards connections to the coordinator, and keeps what each of them carries.
struct Proxy {
    address: String,
    recorded: Arc<Mutex<Recorded>>,
    /// What is changed after the handshakes.
    damage: Arc<Mutex<Damage>>,
}

impl Proxy {
    fn new(coordinator: &str) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let proxy = Proxy {
            address: listener.local_addr().unwrap().to_string(),
            recorded: Arc::default(),
            damage: Arc::default(),
        };
        let coordinator = coordinator.to_owned();
        let recorded = proxy.recorded.clone();
        let damage = proxy.damage.clone();
        thread::spawn(move || {
            for process in listener.incoming().map_while(Result::ok) {
                let coordinator = TcpStream::connect(&coordinator).unwrap();
                let ways = [
                    (Direction::ToCoordinator, &process, &coordinator),
                    (Direction::ToProcess, &coordinator, &process),
                ];
                for (direction, from, to) in ways {
                    let from = from.try_clone().unwrap();
                    let to = to.try_clone().unwrap();
                    let recorded = recorded.clone();
                    let damage = damage.clone();
                    thread::spawn(move || forward(direction, from, to, &recorded, &damage));
                }
            }
        });
        proxy
    }

    /// What went one way, a connection each.
    fn recorded(&self, direction: Direction) -> Vec<Vec<u8>> {
        let recorded = self.recorded.lock().unwrap();
        let these = recorded.iter().filter(|(of, _)| *of == direction);
        these.map(|(_, bytes)| bytes.clone()).collect()
    }
}

fn forward(
    direction: Direction,
    mut from: TcpStream,
    mut to: TcpStream,
    recorded: &Mutex<Recorded>,
    damage: &Mutex<Damage>,
) {
    let connection = {
        let mut recorded = recorded.lock().unwrap();
        recorded.push((direction, Vec::new()));
        recorded.len() - 1
    };
    let mut buffer = [0; 1 << 16];
    while let Ok(length @ 1..) = from.read(&mut buffer) {
        let bytes = &mut buffer[..length];
        let before = recorded.lock().unwrap()[connection].1.len();
        recorded.lock().unwrap()[connection].1.extend_from_slice(bytes);
        if before >= HELLO + 1 + HANDSHAKE {
            let mut damage = damage.lock().unwrap();
            if [Damage::Once(direction), Damage::Always(direction)].contains(&damage) {
                bytes[length - 1] ^= 1;
            }
            if *damage == Damage::Once(direction) {
                *damage = Damage::Nothing;
            }
        }
        if to.write_all(bytes).is_err() {
            break;
        }
    }
    let _ = to.shutdown(std::net::Shutdown::Both);
    let _ = from.shutdown(std::net::Shutdown::Both);
}

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|bytes| bytes == part)
}

/// A run whose second process joins through a proxy.
fn run_through_a_proxy() -> (Coordination, Coordination, Receiver<String>, Proxy) {
    let mut proxy = None;
    let (zero, one, reports) =
        run("127.0.0.1", |coordinator| proxy.insert(Proxy::new(coordinator)).address.clone());
    (zero, one, reports, proxy.unwrap())
}

#[test]
fn what_processes_send_cannot_be_read() {
    let (zero, one, reports, proxy) = run_through_a_proxy();
    let secret = "a value that only processes of the run may read";
    one.put("a key from process 1", secret).unwrap();
    zero.put("a key from process 0", secret).unwrap();
    assert_eq!(one.get("a key from process 0", LONG).unwrap(), secret.as_bytes());
    for direction in [Direction::ToCoordinator, Direction::ToProcess] {
        let recorded = proxy.recorded(direction).concat();
        assert!(recorded.len() > secret.len() + HANDSHAKE, "{direction:?}: the calls are recorded");
        for text in [secret, "a key", TOKEN, &zero.processes()[0].host] {
            assert!(!contains(&recorded, text.as_bytes()), "{direction:?}: `{text}` can be read");
        }
    }
    drop(one);
    drop(zero);
    assert_eq!(reports.iter().count(), 0);
}

#[test]
fn a_recorded_connection_cannot_be_replayed() {
    let (zero, one, reports, proxy) = run_through_a_proxy();
    one.put("recorded", "value").unwrap();
    // To the coordinator of this run, and to that of another run with the same token.
    let (other_zero, other_one, other_reports) = run("127.0.0.1", str::to_owned);
    let recorded = proxy.recorded(Direction::ToCoordinator);
    assert!(recorded.iter().any(|bytes| bytes.len() > HANDSHAKE + 100), "calls are recorded");
    for coordinator in [zero.coordinator(), other_zero.coordinator()] {
        for bytes in &recorded {
            let answer = answer_to(coordinator, bytes);
            assert!(answer.is_empty() || answer == [0], "{answer:?}");
        }
    }
    assert_eq!(other_zero.try_get("recorded").unwrap(), None);
    for report in [goes_on(zero, one, reports), goes_on(other_zero, other_one, other_reports)] {
        assert!(report.contains("it does not have the token of this run"), "{report}");
    }
}

#[test]
fn a_changed_bit_ends_the_connection_and_names_the_process() {
    let (zero, one, reports, proxy) = run_through_a_proxy();
    // The process repeats its request over a new connection.
    *proxy.damage.lock().unwrap() = Damage::Once(Direction::ToCoordinator);
    one.put("a", "value").unwrap();
    assert_eq!(zero.get("a", LONG).unwrap(), b"value");
    let connections = proxy.recorded(Direction::ToCoordinator).len();
    assert!(connections >= 2, "the connection has ended");
    *proxy.damage.lock().unwrap() = Damage::Once(Direction::ToProcess);
    assert_eq!(one.get("a", LONG).unwrap(), b"value");
    assert!(proxy.recorded(Direction::ToCoordinator).len() > connections);
    let process = one.processes()[1].to_string();
    assert_eq!(
        goes_on_with_one_report(zero, one, reports),
        format!(
            "the coordinator ended a connection of {process} from 127.0.0.1: what arrived is not what was sent: it was \
             changed on its way. Further refusals from this address are not reported"
        )
    );
}

#[test]
#[ignore = "slow: ci/slow"]
fn a_process_whose_answers_always_change_says_so() {
    let (zero, one, _reports, proxy) = run_through_a_proxy();
    *proxy.damage.lock().unwrap() = Damage::Always(Direction::ToProcess);
    let error = one.barrier("b", Duration::from_secs(1)).unwrap_err();
    assert!(error.is_timeout() && error.processes() == [0], "{error:?}");
    let expected = format!("process 1 could not reach the coordinator, {}", one.processes()[0]);
    assert!(error.to_string().starts_with(&expected), "{error}");
    assert!(error.to_string().contains("it was changed on its way"), "{error}");
    drop(zero);
}

/// Whether the coordinator has not hung up.
fn is_open(mut stream: &TcpStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    loop {
        match stream.read(&mut [0; HELLO]) {
            Ok(1..) => {}
            Ok(0) => return false,
            Err(error) => return error.kind() == std::io::ErrorKind::WouldBlock,
        }
    }
}

#[test]
fn ten_thousand_connections_do_not_stop_the_run() {
    const COUNT: usize = 10_000;
    // Open as many connections at once as this process can, with room for the other tests in it.
    let limits = std::fs::read_to_string("/proc/self/limits").unwrap_or_default();
    let limit = limits.lines().find_map(|line| {
        line.strip_prefix("Max open files")?.split_whitespace().next()?.parse().ok()
    });
    let most = limit.unwrap_or(1024usize) / 4;
    let mut held = VecDeque::new();
    let mut flood = |coordinator: &str| {
        for n in 1..=COUNT / 2 {
            let mut stream = TcpStream::connect(coordinator).unwrap();
            if n % 100 == 0 {
                // The coordinator keeps up: the system's queue of new connections has 128 entries.
                stream.set_read_timeout(Some(LONG)).unwrap();
                stream.read_exact(&mut [0; HELLO]).unwrap();
            }
            held.push_back(stream);
            if held.len() > most {
                held.pop_front();
            }
        }
    };
    // A process joins at the same time.
    let (zero, one, reports) = run("127.0.0.1", |coordinator| {
        flood(coordinator);
        coordinator.to_owned()
    });
    flood(zero.coordinator());
    // The last connection has been greeted, so the oldest ones have already been closed.
    let waiting = held.iter().filter(|stream| is_open(stream)).count();
    assert!(waiting <= 128, "{waiting} connections wait for their handshake");
    goes_on(zero, one, reports);
}

#[test]
fn beyond_loopback_a_run_needs_a_token() {
    for address in ["0.0.0.0:8482", "192.0.2.1:8482", "[2001:db8::1]:8482", "host-a:8482"] {
        for index in 0..2 {
            let error = builder(index, address, None).join().unwrap_err();
            assert!(
                error.is_usage() && error.to_string().contains("set FULMEN_RUN_TOKEN"),
                "{error}"
            );
        }
    }
    // An address of this machine on a network, if it has one. No packet is sent.
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    let Some(IpAddr::V4(own)) =
        socket.connect("192.0.2.1:9").and_then(|()| socket.local_addr()).ok().map(|a| a.ip())
    else {
        return;
    };
    let (zero, one, _reports) = run(&own.to_string(), str::to_owned);
    let other = thread::spawn(move || one.barrier("b", LONG));
    zero.barrier("b", LONG).unwrap();
    other.join().unwrap().unwrap();
}
