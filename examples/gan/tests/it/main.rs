//! The program, as a user runs it.
#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::process::Command;

#[test]
fn a_few_steps_draw_a_sheet_of_digits() {
    let runs = tempfile::tempdir().unwrap();
    let mut program = Command::new(env!("CARGO_BIN_EXE_gan"));
    program.env("FULMEN_MAX_STEPS", "20").env("FULMEN_DEFAULT_ROOT_DIR", runs.path());
    let output = program.output().unwrap();
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{stderr}");
    assert!(stdout.starts_with("20 steps, 1 compilation; "), "{stdout}");
    let sheet = std::fs::read(runs.path().join("version_0/digits.pgm")).unwrap();
    let header = b"P5 224 224 255\n";
    assert!(sheet.starts_with(header) && sheet.len() == header.len() + 224 * 224);
    let metrics = std::fs::read_to_string(runs.path().join("version_0/metrics.csv")).unwrap();
    assert!(metrics.lines().next().unwrap().contains("loss-generator"), "{metrics}");
}
