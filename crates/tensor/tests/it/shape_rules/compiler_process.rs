//! Compiles a program's text with the CPU plugin in a separate process. A crash of that process
//! counts as a rejection.

use fulmen_pjrt::locate::{Platform, locate};
use fulmen_pjrt::{CompileOptions, Effort, Plugin};

use crate::child_process::{ChildProcess, answer};

/// The test that the separate process runs.
const TEST: &str = "shape_rules::compiler_process::compiles_what_it_is_sent";

pub(super) struct CompilerProcess(ChildProcess);

impl CompilerProcess {
    pub(super) fn new() -> CompilerProcess {
        CompilerProcess(ChildProcess::new(TEST))
    }

    /// `None` if the program compiles, else the error.
    pub(super) fn refuses(&mut self, text: &str) -> Option<String> {
        match self.0.ask(text) {
            Ok(error) => (!error.is_empty()).then_some(error),
            Err(ended) => Some(format!("the compiler's process ended: {ended}")),
        }
    }
}

/// The work of the separate process. In the tests themselves, it compiles two small programs.
#[test]
fn compiles_what_it_is_sent() {
    let compiler = || {
        let plugin = Plugin::load(locate(Platform::Cpu, None).unwrap()).unwrap();
        let client = plugin.create_client(&[]).unwrap();
        move |text: &str| {
            let options = CompileOptions::new().partitions(1).optimization(Effort::O0);
            let compiled = client.compile(text, &options);
            compiled.err().map_or(String::new(), |error| error.to_string().replace('\n', " "))
        }
    };
    if answer(TEST, compiler) {
        return;
    }
    let mut compiler = CompilerProcess::new();
    let program = |ty: &str| {
        format!(
            "func.func public @main(%a: tensor<2xf32>) -> {ty} {{\n  return %a : tensor<2xf32>\n}}\n"
        )
    };
    assert_eq!(compiler.refuses(&program("tensor<2xf32>")), None);
    assert!(compiler.refuses(&program("tensor<3xf32>")).is_some());
}
