//! Compares programs in a separate process, which XLA may abort.

use super::program::Program;
use super::run::{Outcome, compare};
use crate::child_process::{ChildProcess, answer};

/// The test that the separate process runs.
const TEST: &str = "sharded_programs::process::compares_what_it_is_sent";

pub(super) struct ComparingProcess(ChildProcess);

impl ComparingProcess {
    pub(super) fn new() -> ComparingProcess {
        ComparingProcess(ChildProcess::new(TEST))
    }

    pub(super) fn compare(&mut self, program: &Program) -> Outcome {
        match self.0.ask(&serde_json::to_string(program).unwrap()) {
            Ok(outcome) => serde_json::from_str(&outcome).unwrap(),
            Err(ended) => Outcome::Fails(format!("the process ended: {ended}")),
        }
    }
}

/// The work of the separate process. In the tests themselves, it compares one program.
#[test]
fn compares_what_it_is_sent() {
    let respond = |program: &str| {
        let program: Program = serde_json::from_str(program).unwrap();
        serde_json::to_string(&compare(&program)).unwrap()
    };
    if !answer(TEST, || respond) {
        let outcome = ComparingProcess::new().compare(&super::generate::small_program(0, &[8]));
        assert!(!outcome.is_wrong(), "{outcome:?}");
    }
}
