//! Processes of this test program, each with its own task, and their outputs.
#![allow(dead_code, reason = "not every test file uses all of them")]

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

/// The variable with the task of a process.
pub(crate) const TASK_VARIABLE: &str = "FULMEN_TEST_PART";

/// The token of the runs.
pub(crate) const TOKEN: &str = "5f0c9c1be2a84f61b90b5a8f33d1f9d0";

/// What begins a line of standard error among the lines of a process.
const STDERR: &str = "stderr: ";

/// Far longer than any task takes. A process that needs longer is stuck.
const STUCK: Duration = Duration::from_secs(300);

pub(crate) struct TestProcesses {
    /// The path of the ignored test that each process runs.
    test_name: &'static str,
    count: usize,
    coordinator: String,
    processes: Vec<TestProcess>,
}

struct TestProcess {
    index: usize,
    child: Child,
    lines: Receiver<String>,
    output: Vec<String>,
}

/// A failing test leaves no process behind.
impl Drop for TestProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl TestProcesses {
    pub(crate) fn new(test_name: &'static str, count: usize) -> TestProcesses {
        TestProcesses { test_name, count, coordinator: "127.0.0.1:0".into(), processes: Vec::new() }
    }

    /// Starts a process that runs the ignored test `test_name` with a task. Process 0 comes first and
    /// reports its address.
    pub(crate) fn start(&mut self, index: usize, task: &str, variables: &[(&str, &str)]) {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", self.test_name, "--ignored", "--nocapture"])
            .env(TASK_VARIABLE, task)
            .env("FULMEN_COORDINATOR", &self.coordinator)
            .env("FULMEN_PROCESS_ID", index.to_string())
            .env("FULMEN_NUM_PROCESSES", self.count.to_string())
            .env("FULMEN_RUN_TOKEN", TOKEN)
            .envs(variables.iter().copied())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (send, lines) = channel();
        let send_address = send.clone();
        let output = BufReader::new(child.stdout.take().unwrap());
        std::thread::spawn(move || {
            for line in output.lines().map_while(Result::ok) {
                if let Some(line) = line.strip_prefix('@') {
                    let _ = send.send(line.to_owned());
                }
            }
        });
        let errors = BufReader::new(child.stderr.take().unwrap());
        std::thread::spawn(move || {
            for line in errors.lines().map_while(Result::ok) {
                eprintln!("[process {index}] {line}");
                let _ = send_address.send(format!("{STDERR}{line}"));
                // A process also prints its address by itself.
                if let Some(address) = line.strip_prefix("the coordinator listens at ") {
                    let _ = send_address.send(format!("listening {address}"));
                }
            }
        });
        self.processes.push(TestProcess { index, child, lines, output: Vec::new() });
        if index == 0 {
            self.coordinator = self.wait_for(0, "listening ");
        }
    }

    fn process(&mut self, index: usize) -> &mut TestProcess {
        self.processes.iter_mut().find(|a| a.index == index).unwrap()
    }

    /// Waits for an output line of a process that starts like this, and returns the rest.
    pub(crate) fn wait_for(&mut self, index: usize, start: &str) -> String {
        let rest = self.wait_for_within(STUCK, index, start);
        rest.unwrap_or_else(|| {
            panic!("process {index} is stuck after {:?}", self.process(index).output)
        })
    }

    /// Like [`TestProcesses::wait_for`], with a time limit.
    pub(crate) fn wait_for_within(
        &mut self,
        time: Duration,
        index: usize,
        start: &str,
    ) -> Option<String> {
        let process = self.process(index);
        let start_time = Instant::now();
        loop {
            if let Some(line) = process.output.iter().find_map(|line| line.strip_prefix(start)) {
                return Some(line.to_owned());
            }
            match process.lines.recv_timeout(time.saturating_sub(start_time.elapsed())) {
                Ok(line) => process.output.push(line),
                Err(RecvTimeoutError::Timeout) => return None,
                Err(RecvTimeoutError::Disconnected) => {
                    panic!("process {index} ended after {:?}", process.output)
                }
            }
        }
    }

    pub(crate) fn pid(&mut self, index: usize) -> u32 {
        self.process(index).child.id()
    }

    /// Kills a process like `kill -9`.
    pub(crate) fn kill(&mut self, index: usize) {
        let process = self.process(index);
        process.child.kill().unwrap();
        process.child.wait().unwrap();
    }

    /// The last output of each process, after it has exited.
    pub(crate) fn endings(&mut self, indices: impl IntoIterator<Item = usize>) -> Vec<String> {
        let mut endings = Vec::new();
        for index in indices {
            endings.push(self.wait_for(index, "ended "));
            self.exit_codes([index]);
        }
        endings
    }

    /// The lines that a process has written to standard error, after it has exited.
    pub(crate) fn stderr(&mut self, index: usize) -> Vec<String> {
        let process = self.process(index);
        process.output.extend(process.lines.iter());
        let lines = process.output.iter().filter_map(|line| line.strip_prefix(STDERR));
        lines.map(str::to_owned).collect()
    }

    /// The exit code of each process, or -1 if a signal ended it.
    pub(crate) fn exit_codes(&mut self, indices: impl IntoIterator<Item = usize>) -> Vec<i32> {
        let mut codes = Vec::new();
        for index in indices {
            let start_time = Instant::now();
            let child = &mut self.process(index).child;
            let status = loop {
                if let Some(status) = child.try_wait().unwrap() {
                    break status;
                }
                assert!(start_time.elapsed() < STUCK, "process {index} does not exit");
                std::thread::sleep(Duration::from_millis(5));
            };
            codes.push(status.code().unwrap_or(-1));
        }
        codes
    }
}

/// Prints a line for the test, in one of the processes.
pub(crate) fn say(line: impl std::fmt::Display) {
    // The test harness may be in the middle of a line.
    println!("\n@{line}");
}
