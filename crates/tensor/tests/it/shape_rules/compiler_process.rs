//! Compiles a program's text with the CPU plugin in a separate process. A crash of that process
//! counts as a rejection.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, ChildStdout, Command, Stdio};

use fulmen_pjrt::locate::{Platform, locate};
use fulmen_pjrt::{CompileOptions, Effort, Plugin};

/// The environment variable that marks the separate process.
const ROLE: &str = "FULMEN_TEST_JUDGES";
/// The prefix of an answer, since the test harness prints its own lines.
const ANSWER: &str = "verdict: ";

pub(super) struct CompilerProcess(Option<(Child, BufReader<ChildStdout>)>);

impl CompilerProcess {
    pub(super) fn new() -> CompilerProcess {
        CompilerProcess(None)
    }

    /// `None` if the program compiles, else the error.
    pub(super) fn refuses(&mut self, text: &str) -> Option<String> {
        let (child, answers) = self.0.get_or_insert_with(|| {
            let mut child = Command::new(std::env::current_exe().unwrap())
                .args([
                    "shape_rules::compiler_process::compiles_what_it_is_sent",
                    "--exact",
                    "--nocapture",
                ])
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
        let sent = writeln!(input, "{}", text.len())
            .and_then(|()| input.write_all(text.as_bytes()))
            .and_then(|()| input.flush());
        let mut line = String::new();
        while sent.is_ok() && matches!(answers.read_line(&mut line), Ok(n) if n > 0) {
            if let Some(start) = line.find(ANSWER) {
                let answer = line[start + ANSWER.len()..].trim();
                return (!answer.is_empty()).then(|| answer.to_owned());
            }
            line.clear();
        }
        let (mut child, _) = self.0.take()?;
        let ended = child.wait().map_or_else(|e| e.to_string(), |status| status.to_string());
        Some(format!("the compiler's process ended: {ended}"))
    }
}

impl Drop for CompilerProcess {
    fn drop(&mut self) {
        if let Some((mut child, _)) = self.0.take() {
            drop(child.stdin.take());
            let _ = child.wait();
        }
    }
}

#[test]
fn compiles_what_it_is_sent() {
    if std::env::var_os(ROLE).is_none() {
        let mut compiler = CompilerProcess::new();
        let program = |ty: &str| {
            format!(
                "func.func public @main(%a: tensor<2xf32>) -> {ty} {{\n  return %a : tensor<2xf32>\n}}\n"
            )
        };
        assert_eq!(compiler.refuses(&program("tensor<2xf32>")), None);
        assert!(compiler.refuses(&program("tensor<3xf32>")).is_some());
        return;
    }
    let plugin = Plugin::load(locate(Platform::Cpu, None).unwrap()).unwrap();
    let client = plugin.create_client(&[]).unwrap();
    let options = CompileOptions::new().partitions(1).optimization(Effort::O0);
    let mut from = BufReader::new(std::io::stdin());
    let mut length = String::new();
    while from.read_line(&mut length).unwrap() > 0 {
        let mut text = vec![0; length.trim().parse().unwrap()];
        from.read_exact(&mut text).unwrap();
        let made = client.compile(&String::from_utf8(text).unwrap(), &options);
        let answer = made.err().map_or(String::new(), |error| error.to_string().replace('\n', " "));
        println!("{ANSWER}{answer}");
        length.clear();
    }
}
