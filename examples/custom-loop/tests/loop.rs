//! The program as a user runs it.

use std::process::Command;

#[test]
fn the_loop_learns_and_keeps_its_best_state() {
    let folder = tempfile::tempdir().unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_custom-loop")).arg(folder.path()).output().unwrap();
    let stdout = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{stdout}{}", String::from_utf8_lossy(&output.stderr));
    let accuracy = stdout.lines().rev().find_map(|line| line.trim().strip_prefix("test_acc")).unwrap();
    assert!(accuracy.trim().parse::<f64>().unwrap() > 0.95, "{stdout}");
    assert!(folder.path().join("best.safetensors").is_file());
    assert_eq!(stdout.matches("validation, epoch").count(), 3, "{stdout}");
}
