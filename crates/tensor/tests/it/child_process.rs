//! A separate process that answers questions, for work during which XLA may end the process.
//!
//! It is this test program again, with one test. That test calls [`answer`], which returns at once
//! in every other process.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Command, Stdio};

/// The environment variable with the test that the separate process runs.
const ROLE: &str = "FULMEN_TEST_ANSWERS";
/// The prefix of an answer, since the test harness prints its own lines.
const ANSWER: &str = "answer: ";

pub(crate) struct ChildProcess {
    test: &'static str,
    running: Option<(Child, BufReader<ChildStdout>)>,
}

impl ChildProcess {
    /// A process that runs a test of this program. It starts with the first question, and again with
    /// the next one if it has ended.
    pub(crate) fn new(test: &'static str) -> ChildProcess {
        ChildProcess { test, running: None }
    }

    /// The answer to a question. The error says how the process ended.
    pub(crate) fn ask(&mut self, question: &str) -> Result<String, String> {
        let test = self.test;
        let (child, answers) = self.running.get_or_insert_with(|| {
            let mut child = Command::new(std::env::current_exe().unwrap())
                .args([test, "--exact", "--nocapture"])
                .env(ROLE, test)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            let answers = BufReader::new(child.stdout.take().unwrap());
            (child, answers)
        });
        let mut input = child.stdin.as_ref().unwrap();
        let sent = writeln!(input, "{}", serde_json::to_string(question).unwrap());
        let mut line = String::new();
        while sent.is_ok() && matches!(answers.read_line(&mut line), Ok(n) if n > 0) {
            if let Some(start) = line.find(ANSWER) {
                return Ok(serde_json::from_str(line[start + ANSWER.len()..].trim()).unwrap());
            }
            line.clear();
        }
        Err(match self.running.take() {
            Some((mut child, _)) => child.wait().map_or_else(|e| e.to_string(), |s| s.to_string()),
            None => String::new(),
        })
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        if let Some((mut child, _)) = self.running.take() {
            drop(child.stdin.take());
            let _ = child.wait();
        }
    }
}

/// In the separate process of this test, answers all questions and returns true. `respond` is called
/// there only.
pub(crate) fn answer<F: FnMut(&str) -> String>(test: &str, respond: impl FnOnce() -> F) -> bool {
    if std::env::var(ROLE).ok().as_deref() != Some(test) {
        return false;
    }
    let mut respond = respond();
    for line in std::io::stdin().lock().lines() {
        let question: String = serde_json::from_str(&line.unwrap()).unwrap();
        println!("{ANSWER}{}", serde_json::to_string(&respond(&question)).unwrap());
    }
    true
}
