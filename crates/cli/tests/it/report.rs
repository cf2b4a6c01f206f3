//! `fulmen report`: comparing runs.

use std::process::Command;

#[test]
fn two_runs_make_one_page_and_a_missing_folder_is_an_error() {
    let folder = tempfile::tempdir().unwrap();
    for (name, rate) in [("version_0", 0.1), ("version_1", 0.2)] {
        let run = folder.path().join(name);
        std::fs::create_dir(&run).unwrap();
        std::fs::write(run.join("config.toml"), format!("learning_rate = {rate}\n")).unwrap();
        std::fs::write(
            run.join("metrics.jsonl"),
            "{\"step\":5,\"metrics\":{\"train_loss\":1.5}}\n",
        )
        .unwrap();
    }
    let report = |runs: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fulmen"));
        let output = command.current_dir(folder.path()).arg("report").args(runs).output().unwrap();
        (output.status.code(), String::from_utf8([output.stdout, output.stderr].concat()).unwrap())
    };
    assert_eq!(
        report(&["version_0", "version_1", "--output", "both.html"]),
        (Some(0), "both.html\n".to_owned())
    );
    let page = std::fs::read_to_string(folder.path().join("both.html")).unwrap();
    for text in ["<section id=\"differences\">", "learning_rate", "train_loss", "version_1"] {
        assert!(page.contains(text), "{text}\n{page}");
    }
    let (code, printed) = report(&["version_0", "version_7"]);
    assert!(code == Some(1) && printed.contains("version_7: no such folder"), "{printed}");
    assert_eq!(report(&[]).0, Some(2));
}
