//! What processes say while others are missing.

use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use fulmen_coordination::{Coordination, Process, Timeouts};

/// Joins with a limit of 7 seconds, and returns what it said meanwhile.
fn said_while_joining(index: &str, coordinator: &str) -> Vec<String> {
    let process = Process::from_env(|name| match name {
        "FULMEN_COORDINATOR" => Some(coordinator.into()),
        "FULMEN_PROCESS_ID" => Some(index.into()),
        "FULMEN_NUM_PROCESSES" => Some("3".into()),
        "FULMEN_HOSTS" => Some("host-a,host-b,host-c".into()),
        _ => None,
    });
    let said = Arc::new(Mutex::new(Vec::new()));
    let listener = said.clone();
    let joined = Coordination::builder(process.unwrap())
        .timeouts(Timeouts { join: Duration::from_secs(7), ..Timeouts::default() })
        .on_waiting(move |text| listener.lock().unwrap().push(text.to_owned()))
        .join();
    assert!(joined.unwrap_err().is_timeout());
    let said = said.lock().unwrap();
    said.clone()
}

#[test]
#[ignore = "slow: ci/slow"]
fn missing_processes_are_named_after_five_seconds() {
    // A port that no program gets by chance.
    let unused = "127.0.0.1:1";
    let other = thread::spawn(move || said_while_joining("1", unused));
    assert_eq!(
        said_while_joining("0", "127.0.0.1:0"),
        [
            "process 0 has waited 5 s for process 1 (host-b), process 2 (host-c); 1 of 3 processes have joined; the limit \
             is 7 s (FULMEN_JOIN_TIMEOUT)"
        ]
    );
    assert_eq!(
        other.join().unwrap(),
        [format!(
            "process 1 has waited 5 s for process 0 at {unused}, which does not answer; the limit is 7 s (FULMEN_JOIN_TIMEOUT)"
        )]
    );
}
