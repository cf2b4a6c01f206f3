//! Three real processes with several runs at the same address, one after the other, as in a
//! cross-validation. One process is slow to leave.
#![cfg(unix)]

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use crate::common::{TASK_VARIABLE, TOKEN, TestProcesses, say};
use fulmen_coordination::{Coordination, Process, Result, Timeouts};

const COUNT: usize = 3;
const LONG: Duration = Duration::from_secs(60);

/// The process that the test starts.
#[test]
#[ignore = "a task in the other test"]
fn member() {
    let Some(go) = std::env::var_os(TASK_VARIABLE) else { return };
    match run_task(Path::new(&go)) {
        Ok(()) => say("ended well"),
        Err(error) => say(format!("ended {error}")),
    }
}

fn run_task(go: &Path) -> Result<()> {
    let env = |name: &str| std::env::var_os(name);
    let mut process = Process::from_env(env)?;
    let index = process.index();
    for round in 0..3 {
        say(format!("joins round {round}"));
        let coordination = Coordination::builder(process)
            .timeouts(Timeouts::from_env(env)?)
            .on_listening(move |address| {
                if round == 0 {
                    say(format!("listening {address}"))
                }
            })
            .join()?;
        coordination.put("round", round.to_string())?;
        coordination.barrier("all are there", LONG)?;
        if round == 0 {
            say("waits for the end");
            while index != 2 && !go.exists() {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
        coordination.shutdown(LONG)?;
        process = Process::new(index, COUNT, coordination.coordinator())?.with_run_token(TOKEN)?;
    }
    Ok(())
}

#[test]
fn a_process_that_is_early_for_the_next_run_waits() {
    let folder = tempfile::tempdir().unwrap();
    let go = folder.path().join("go");
    let mut test_processes = TestProcesses::new("restarts::member", COUNT);
    for index in 0..COUNT {
        test_processes.start(index, go.to_str().unwrap(), &[("FULMEN_HEARTBEAT_TIMEOUT", "60")]);
    }
    (0..COUNT).for_each(|index| drop(test_processes.wait_for(index, "waits for the end")));
    // The slow process has requested the end, and does not see the answer. Process 0 waits for it,
    // while process 1 continues with the next run.
    let pid = test_processes.pid(2).to_string();
    let signal =
        |name: &str| assert!(Command::new("kill").args([name, &pid]).status().unwrap().success());
    let pause = || std::thread::sleep(Duration::from_millis(300));
    loop {
        pause();
        signal("-STOP");
        std::fs::write(&go, "").unwrap();
        // If the process was stopped before its request, try again.
        if test_processes.wait_for_within(Duration::from_secs(5), 1, "joins round 1").is_some() {
            break;
        }
        signal("-CONT");
    }
    pause();
    signal("-CONT");
    assert_eq!(test_processes.endings(0..COUNT), ["well"; COUNT]);
}
