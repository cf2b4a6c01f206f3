//! `fulmen runs`: listing, showing and comparing a Trainer's folders.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

fn fulmen(folder: &Path, arguments: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_fulmen"));
    let output = command.current_dir(folder).arg("runs").args(arguments).output().unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(text).unwrap())
}

/// A run on eight chips of a v5e for half an hour.
fn write_run(root: &Path, number: u32, learning_rate: &str, accuracies: [f64; 3]) {
    let folder = root.join(format!("version_{number}"));
    fs::create_dir_all(&folder).unwrap();
    let config = format!(
        "lr = {learning_rate}  # command line\nname = \"x\"\n[trainer]\n# ckpt-path =\nseed = 3  # a.toml:2\n"
    );
    fs::write(folder.join("config.toml"), config).unwrap();
    let seconds = json!({ "start": 60.0, "compile": 120.0, "data": 0.0, "steps": 1440.0, "validation": 180.0 });
    let before = json!({ "seconds": { "steps": 1e6 }, "last_step": 1 });
    let goodput = json!({ "runs": [before, { "seconds": seconds, "last_step": 35 }] });
    fs::write(folder.join("goodput.json"), goodput.to_string()).unwrap();
    let environment = json!({ "platform": "tpu", "device_kind": "TPU v5 lite", "devices": [0, 1, 2, 3, 4, 5, 6, 7], "started": 1.7e9 });
    fs::write(folder.join("environment.json"), environment.to_string()).unwrap();
    let state = if number == 9 { "finished" } else { "running" };
    fs::write(folder.join("summary.json"), json!({ "state": state }).to_string()).unwrap();
    let mut rows = "epoch,step,train_loss,val_acc\n0,5,0.75,\n".to_owned();
    for (epoch, accuracy) in accuracies.iter().enumerate() {
        rows += &format!("{epoch},{},,{accuracy}\n", 10 * (epoch + 1));
    }
    // The file of a killed run ends within a row.
    fs::write(folder.join("metrics.csv"), rows + "2,31,0.5,\n2,3").unwrap();
}

#[test]
fn runs_are_listed_shown_and_compared() {
    let folder = tempfile::tempdir().unwrap();
    let runs = folder.path().join("runs");
    write_run(&runs, 9, "0.5", [0.25, 0.75, 0.5]);
    write_run(&runs, 10, "0.125", [0.5, 0.625, f64::NAN]);
    fs::create_dir(runs.join("something")).unwrap();

    let (code, printed) = fulmen(folder.path(), &["list"]);
    for same in [&["ls"][..], &[], &["list", "runs"]] {
        assert_eq!(fulmen(folder.path(), same), (code, printed.clone()), "{same:?}");
    }
    let lines: Vec<Vec<&str>> = printed
        .lines()
        .map(|line| line.split("  ").map(str::trim).filter(|x| !x.is_empty()).collect())
        .collect();
    assert_eq!(code, Some(0), "{printed}");
    assert_eq!(
        lines[0],
        ["run", "started", "state", "epochs", "steps", "time", "goodput", "cost", "best val_acc"]
    );
    // Eight chips for half an hour, at 1.20 dollars an hour per chip.
    assert_eq!(
        (lines[1][0], &lines[1][2..]),
        ("version_9", &["finished", "3", "35", "30 min", "80 %", "$4.80", "0.7500"][..])
    );
    assert_eq!((lines[2][0], lines[2][2], lines[2][8]), ("version_10", "unfinished", "0.6250"));

    let (_, printed) = fulmen(folder.path(), &["show", "runs/version_9", "--json"]);
    let shown: Value = serde_json::from_str(&printed).unwrap();
    assert_eq!(shown["metrics"]["val_acc"], json!({ "last": 0.5, "best": 0.75, "step": 20 }));
    assert_eq!(shown["metrics"]["train_loss"]["best"], 0.5);
    assert_eq!(shown["config"], json!({ "lr": "0.5", "name": "\"x\"", "trainer.seed": "3" }));
    let (_, printed) = fulmen(folder.path(), &["show", "runs/version_9"]);
    assert!(
        printed.contains("devices: 8 × TPU v5 lite") && printed.contains("time.compile: 2 min"),
        "{printed}"
    );

    let (_, printed) = fulmen(folder.path(), &["compare", "--json"]);
    let compared: Value = serde_json::from_str(&printed).unwrap();
    assert_eq!(compared["differences"], json!({ "lr": ["0.5", "0.125"] }));
    assert_eq!(compared["runs"][1]["metrics"]["val_acc"]["best"], 0.625);
    let (code, printed) = fulmen(folder.path(), &["compare", "runs/version_10", "runs/version_9"]);
    assert_eq!(code, Some(0));
    assert!(
        printed.lines().nth(1).unwrap().split_whitespace().eq(["lr", "0.125", "0.5"]),
        "{printed}"
    );

    for (arguments, message) in [
        (&["list", "runs/something"][..], "there is no run in runs/something"),
        (&["show", "runs/something"], "runs/something is not the folder of a run"),
        (&["compare", "runs/version_9"], "there is only one run"),
    ] {
        let (code, printed) = fulmen(folder.path(), arguments);
        assert!(code == Some(2) && printed.contains(message), "{code:?} {printed}");
    }
}
