//! Compares programs in a separate process, which XLA may abort.

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdout, Command, Stdio};

use super::program::Program;
use super::run::{Outcome, compare};

/// The environment variable that marks the separate process.
const ROLE: &str = "FULMEN_TEST_COMPARES";
/// The prefix of an answer, since the test harness prints its own lines.
const ANSWER: &str = "outcome: ";

pub(super) struct ComparingProcess(Option<(Child, BufReader<ChildStdout>)>);

impl ComparingProcess {
    pub(super) fn new() -> ComparingProcess {
        ComparingProcess(None)
    }

    pub(super) fn compare(&mut self, program: &Program) -> Outcome {
        let (child, answers) = self.0.get_or_insert_with(|| {
            let mut child = Command::new(std::env::current_exe().unwrap())
                .args(["sharded_programs::process::compares_what_it_is_sent", "--exact"])
                .arg("--nocapture")
                .env(ROLE, "1")
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            let answers = BufReader::new(child.stdout.take().unwrap());
            (child, answers)
        });
        let mut input = child.stdin.as_ref().unwrap();
        let sent = writeln!(input, "{}", serde_json::to_string(program).unwrap());
        let mut line = String::new();
        while sent.is_ok() && matches!(answers.read_line(&mut line), Ok(n) if n > 0) {
            if let Some(start) = line.find(ANSWER) {
                return serde_json::from_str(line[start + ANSWER.len()..].trim()).unwrap();
            }
            line.clear();
        }
        let ended = match self.0.take() {
            Some((mut child, _)) => child.wait().map_or_else(|e| e.to_string(), |s| s.to_string()),
            None => String::new(),
        };
        Outcome::Fails(format!("the process ended: {ended}"))
    }
}

impl Drop for ComparingProcess {
    fn drop(&mut self) {
        if let Some((mut child, _)) = self.0.take() {
            drop(child.stdin.take());
            let _ = child.wait();
        }
    }
}

#[test]
fn compares_what_it_is_sent() {
    if std::env::var_os(ROLE).is_none() {
        let outcome = ComparingProcess::new().compare(&super::generate::small_program(0, &[8]));
        assert!(!outcome.is_wrong(), "{outcome:?}");
        return;
    }
    for line in std::io::stdin().lock().lines() {
        let program: Program = serde_json::from_str(&line.unwrap()).unwrap();
        println!("{ANSWER}{}", serde_json::to_string(&compare(&program)).unwrap());
    }
}
