//! Eight real processes on this machine: a good run, and runs in which one process has another
//! program, is late or is killed, or the coordinator is killed.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::common::{TASK_VARIABLE, TestProcesses, say};
use fulmen_coordination::{Coordination, Process, Result, Timeouts};

const COUNT: usize = 8;
const LONG: Duration = Duration::from_secs(60);
/// Longer than a process waits for a processor on a busy machine.
const HEARTBEAT: (&str, &str) = ("FULMEN_HEARTBEAT_TIMEOUT", "8");

/// The process that the other tests start.
#[test]
#[ignore = "a task in the other tests"]
fn member() {
    let Some(task) = std::env::var_os(TASK_VARIABLE) else { return };
    match run_task(&task.to_string_lossy()) {
        Ok(()) => say("ended well"),
        Err(error) => {
            let kind = match &error {
                e if e.is_timeout() => "timeout",
                e if e.is_peer_silent() && e.is_peer_lost() => "peer silent",
                e if e.is_peer_lost() => "peer lost",
                e if e.is_disagreement() => "disagreement",
                e if e.is_coordinator_lost() => "coordinator lost",
                _ => "other",
            };
            say(format!("ended {kind} {:?} {error}", error.processes()));
        }
    }
}

fn run_task(task: &str) -> Result<()> {
    let env = |name: &str| std::env::var_os(name);
    let process = Process::from_env(env)?;
    let index = process.index();
    say("joins");
    let coordination = Coordination::builder(process)
        .timeouts(Timeouts::from_env(env)?)
        .on_listening(|address| say(format!("listening {address}")))
        .join()?;
    assert_eq!(coordination.processes().len(), COUNT);
    say("joined");
    match task {
        // The calls of a training run.
        "train" => {
            if index == 0 {
                coordination.put("run_dir", "version_3")?;
            }
            assert_eq!(coordination.get("run_dir", LONG)?, b"version_3");
            coordination.put(&format!("host {index}"), index.to_string())?;
            coordination.barrier("all values are there", LONG)?;
            for other in 0..COUNT {
                assert_eq!(
                    coordination.try_get(&format!("host {other}"))?,
                    Some(other.to_string().into_bytes())
                );
            }
            assert_eq!(coordination.try_get("nothing")?, None);
            let program = std::env::var("PROGRAM").unwrap_or("9f3a".into());
            let facts = [("program", program.as_str()), ("mesh", "data=8")];
            let facts: BTreeMap<String, String> =
                facts.map(|(k, v)| (k.to_owned(), v.to_owned())).into();
            coordination.check_consistent("fit", &facts, LONG)?;
            for _ in 0..20 {
                coordination.barrier("step", LONG)?;
            }
            coordination.health()?;
            coordination.shutdown(LONG)
        }
        // Steps that need all processes. Process 5 is asked to stop after some of them.
        "stop together" => {
            let halt = coordination.halt("fit");
            let stopped = loop {
                coordination.barrier("step", LONG)?;
                std::thread::sleep(STEP);
                STEPS.fetch_add(1, Ordering::Relaxed);
                if index == 5 && STEPS.load(Ordering::Relaxed) == STOP_STEP {
                    halt.request("SIGTERM");
                }
                if let Some(why) = halt.poll()? {
                    break format!("{why} after {}", STEPS.load(Ordering::Relaxed));
                }
            };
            say(format!("stopped {stopped}"));
            coordination.shutdown(LONG)
        }
        "wait at a barrier" => coordination.barrier("never complete", LONG),
        "wait for a value" => coordination.get("never put", LONG).map(|_| ()),
        "watch the health" => loop {
            coordination.health()?;
            std::thread::sleep(Duration::from_millis(10));
        },
        "be called" => {
            let (send, receive) = std::sync::mpsc::channel();
            coordination.on_failure(move |error| send.send(error.clone()).unwrap());
            Err(receive.recv_timeout(LONG).unwrap())
        }
        task => panic!("there is no task `{task}`"),
    }
}

fn all_are(endings: &[String], kind_and_processes: &str, says: &[&str]) {
    for ending in endings {
        assert!(ending.starts_with(kind_and_processes), "{ending}");
        assert!(says.iter().all(|text| ending.contains(text)), "{ending} does not say {says:?}");
    }
}

#[test]
fn eight_processes_share_values_synchronize_and_agree() {
    let mut test_processes = TestProcesses::new("processes::member", COUNT);
    (0..COUNT).for_each(|index| test_processes.start(index, "train", &[]));
    all_are(&test_processes.endings(0..COUNT), "well", &[]);
}

#[test]
fn a_process_with_another_program_ends_all_and_is_named() {
    let mut test_processes = TestProcesses::new("processes::member", COUNT);
    for index in 0..COUNT {
        let program: &[(&str, &str)] = if index == 5 { &[("PROGRAM", "77c0")] } else { &[] };
        test_processes.start(index, "train", program);
    }
    let pid = format!("pid {}", test_processes.pid(5));
    let says = ["`program`: process 5 (", &pid, "has 77c0, the other 7 have 9f3a"];
    all_are(&test_processes.endings(0..COUNT), "disagreement [5]", &says);
}

#[test]
fn all_wait_for_a_late_process() {
    let mut test_processes = TestProcesses::new("processes::member", COUNT);
    (0..COUNT - 1).for_each(|index| test_processes.start(index, "train", &[]));
    (0..COUNT - 1).for_each(|index| drop(test_processes.wait_for(index, "joins")));
    test_processes.start(COUNT - 1, "train", &[]);
    all_are(&test_processes.endings(0..COUNT), "well", &[]);
}

#[test]
#[ignore = "slow: ci/slow"]
fn a_process_that_is_too_late_ends_all_and_is_named() {
    let mut test_processes = TestProcesses::new("processes::member", COUNT);
    let short: &[(&str, &str)] = &[("FULMEN_JOIN_TIMEOUT", "4")];
    // Process 0 is the last one that joins in time. Its time limit is short and applies to all
    // processes.
    (0..COUNT - 2).for_each(|index| test_processes.start(index, "train", &[]));
    (0..COUNT - 2).for_each(|index| drop(test_processes.wait_for(index, "joins")));
    test_processes.start(COUNT - 2, "train", short);
    let others = test_processes.endings(1..COUNT - 1);
    all_are(
        &others,
        "timeout [7]",
        &["process 7 has not joined within 4 s", "7 of 8 processes have"],
    );
    test_processes.start(COUNT - 1, "train", short);
    let late = &test_processes.endings([COUNT - 1])[0];
    all_are(&test_processes.endings([0]), "timeout [7]", &["process 7 has not joined within 4 s"]);
    // The coordinator has ended, or is about to.
    assert!(late.starts_with("timeout ") && late.contains("process 7"), "{late}");
}

/// All eight have joined, and each waits in a different way.
fn waiting(tasks: [&str; COUNT]) -> TestProcesses {
    let mut test_processes = TestProcesses::new("processes::member", COUNT);
    tasks
        .iter()
        .enumerate()
        .for_each(|(index, task)| test_processes.start(index, task, &[HEARTBEAT]));
    (0..COUNT).for_each(|index| {
        test_processes.wait_for(index, "joined");
    });
    test_processes
}

/// The minimum time of a step of `stop together`, the number of steps so far, and the time of the
/// request to stop.
const STEP: Duration = Duration::from_millis(20);
static STEPS: AtomicU64 = AtomicU64::new(0);
const STOP_STEP: u64 = 10;

#[test]
fn eight_processes_stop_after_the_same_step_within_a_second() {
    let mut test_processes = TestProcesses::new("processes::member", COUNT);
    (0..COUNT).for_each(|index| test_processes.start(index, "stop together", &[]));
    let stops: Vec<String> =
        (0..COUNT).map(|index| test_processes.wait_for(index, "stopped ")).collect();
    assert!(stops.iter().all(|stop| *stop == stops[0]), "{stops:?}");
    let steps: u64 = stops[0].strip_prefix("SIGTERM after ").unwrap().parse().unwrap();
    // Fifty steps take at least a second, and longer on a busy machine.
    assert!((STOP_STEP..STOP_STEP + 50).contains(&steps), "{steps}");
    all_are(&test_processes.endings(0..COUNT), "well", &[]);
}

const BARRIER: &str = "wait at a barrier";

/// Every way to wait for the other processes.
const EVERY_TASK: [&str; COUNT] = [
    BARRIER,
    BARRIER,
    "wait for a value",
    BARRIER,
    BARRIER,
    "watch the health",
    BARRIER,
    "be called",
];

#[test]
#[ignore = "slow: ci/slow"]
fn a_killed_process_ends_all_and_is_named() {
    let mut test_processes = waiting(EVERY_TASK);
    let pid = format!("pid {}", test_processes.pid(4));
    test_processes.kill(4);
    let others = (0..COUNT).filter(|&index| index != 4);
    all_are(
        &test_processes.endings(others),
        "peer silent [4]",
        &["process 4 (", &pid, "has not sent a heartbeat for 8 s"],
    );
}

#[test]
#[ignore = "slow: ci/slow"]
fn a_killed_coordinator_ends_all_processes() {
    let mut test_processes = waiting(EVERY_TASK);
    let pid = format!("pid {}", test_processes.pid(0));
    test_processes.kill(0);
    let says = ["process 0 (", &pid, "the coordinator at 127.0.0.1:", "has not answered for 8 s"];
    all_are(&test_processes.endings(1..COUNT), "coordinator lost [0]", &says);
}
