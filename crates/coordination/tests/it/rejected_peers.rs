//! Connections without the token of the run: they are refused and reported once, and the run
//! continues.

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

/// The coordinator's first bytes: a greeting and a nonce.
const HELLO: usize = 40;

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

/// Uses the run until its end, and returns the only report.
fn goes_on(zero: Coordination, one: Coordination, reports: Receiver<String>) -> String {
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
    assert!(
        reports[0].starts_with("the coordinator refused a connection from 127.0.0.1: "),
        "{reports:?}"
    );
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
    halfway.write_all(&[7; 63]).unwrap();
    goes_on(zero, one, reports);
}

/// Forwards connections to the coordinator. Returns its own address, and the bytes that each
/// connection sent.
fn recorder(coordinator: &str) -> (String, Arc<Mutex<Vec<Vec<u8>>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let coordinator = coordinator.to_owned();
    let recorded: Arc<Mutex<Vec<Vec<u8>>>> = Arc::default();
    let record = recorded.clone();
    thread::spawn(move || {
        for (connection, mut from) in listener.incoming().map_while(Result::ok).enumerate() {
            record.lock().unwrap().push(Vec::new());
            let record = record.clone();
            let mut to = TcpStream::connect(&coordinator).unwrap();
            let mut answers = to.try_clone().unwrap();
            let mut back = from.try_clone().unwrap();
            thread::spawn(move || std::io::copy(&mut answers, &mut back));
            thread::spawn(move || {
                let mut buffer = [0; 4096];
                while let Ok(length @ 1..) = from.read(&mut buffer) {
                    record.lock().unwrap()[connection].extend_from_slice(&buffer[..length]);
                    if to.write_all(&buffer[..length]).is_err() {
                        break;
                    }
                }
                let _ = to.shutdown(std::net::Shutdown::Write);
            });
        }
    });
    (address, recorded)
}

#[test]
fn a_recorded_connection_cannot_be_replayed() {
    let mut recorded = Arc::default();
    let (zero, one, reports) = run("127.0.0.1", |coordinator| {
        let (address, record) = recorder(coordinator);
        recorded = record;
        address
    });
    one.put("recorded", "value").unwrap();
    let connections = recorded.lock().unwrap().clone();
    assert!(
        connections.iter().any(|bytes| bytes.windows(8).any(|bytes| bytes == b"recorded")),
        "the call is recorded"
    );
    for bytes in &connections {
        assert!(
            !bytes.windows(TOKEN.len()).any(|bytes| bytes == TOKEN.as_bytes()),
            "the token has been sent"
        );
        let answer = answer_to(zero.coordinator(), bytes);
        assert!(answer.is_empty() || answer == [0], "{answer:?}");
    }
    goes_on(zero, one, reports);
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
