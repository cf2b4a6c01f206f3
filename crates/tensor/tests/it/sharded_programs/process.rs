//! Compares programs in a separate process, which XLA may abort.

use super::program::Program;
use super::run::{Outcome, compare_all};
use crate::child_process::{ChildProcess, answer};

/// The test that the separate process runs.
const TEST: &str = "sharded_programs::process::compares_what_it_is_sent";

pub(super) struct ComparingProcess(ChildProcess);

impl ComparingProcess {
    pub(super) fn new() -> ComparingProcess {
        ComparingProcess(ChildProcess::new(TEST))
    }

    pub(super) fn compare(&mut self, program: &Program) -> Outcome {
        self.compare_all(std::slice::from_ref(program)).remove(0)
    }

    /// Compares programs for one mesh, which compile as one. If that ends the process, each is
    /// compared alone.
    pub(super) fn compare_all(&mut self, programs: &[Program]) -> Vec<Outcome> {
        match self.0.ask(&serde_json::to_string(programs).unwrap()) {
            Ok(outcomes) => serde_json::from_str(&outcomes).unwrap(),
            Err(ended) if programs.len() == 1 => {
                vec![Outcome::Fails(format!("the process ended: {ended}"))]
            }
            Err(_) => programs.iter().map(|program| self.compare(program)).collect(),
        }
    }
}

/// The work of the separate process. In the tests themselves, it compares one program.
#[test]
fn compares_what_it_is_sent() {
    let respond = |programs: &str| {
        let programs: Vec<Program> = serde_json::from_str(programs).unwrap();
        serde_json::to_string(&compare_all(&programs)).unwrap()
    };
    if !answer(TEST, || respond) {
        let outcome = ComparingProcess::new().compare(&super::generate::small_program(0, &[8]));
        assert!(!outcome.is_wrong(), "{outcome:?}");
    }
}
