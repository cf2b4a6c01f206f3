//! `fulmen devices`, `doctor`, `plugin`, `completions` and `man`.

use std::process::Command;

use serde_json::Value;

pub(crate) fn fulmen(arguments: &[&str]) -> String {
    let output = Command::new(env!("CARGO_BIN_EXE_fulmen")).args(arguments).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn devices_are_tried() {
    let cpu: Value =
        serde_json::from_str(&fulmen(&["devices", "--platform", "cpu", "--try", "--json"]))
            .unwrap();
    let device = &cpu[0]["devices"][0];
    assert_eq!(
        (cpu[0]["platform"].as_str(), device["kind"].as_str()),
        (Some("cpu"), Some("cpu")),
        "{cpu}"
    );
    assert!(device["product_ms"].as_f64().unwrap() > 0.0, "{cpu}");
    let text = fulmen(&["devices", "--platform", "tpu"]);
    assert!(text.contains("Looked at:") && !text.contains("product"), "{text}");
}

#[test]
fn plugins_are_listed_and_verified() {
    let plugins: Value = serde_json::from_str(&fulmen(&["plugin", "list", "--json"])).unwrap();
    let path = plugins["cpu"]["path"].as_str().unwrap();
    assert!(plugins["cpu"]["api_version"].is_string() && plugins["tpu"].is_object(), "{plugins}");
    let verified = fulmen(&["plugin", "verify"]);
    assert!(verified.contains(path) && verified.contains("SHA-256"), "{verified}");
    assert!(verified.contains("multiplies matrices on 1 device"), "{verified}");
    assert_eq!(fulmen(&["plugin", "install", "cpu"]).trim(), path);
}

/// A plugin whose start ends the process.
#[test]
fn verifying_says_which_plugin_crashes() {
    let folder = tempfile::tempdir().unwrap();
    let source = folder.path().join("crash.c");
    let plugin = folder.path().join("crash.so");
    std::fs::write(&source, "#include <stdlib.h>\nvoid *GetPjrtApi(void) { abort(); }\n").unwrap();
    let mut cc = Command::new("cc");
    assert!(
        cc.args(["-shared", "-fPIC", "-o"]).args([&plugin, &source]).status().unwrap().success()
    );
    let verify = |plugin: &std::path::Path| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_fulmen"));
        let output =
            command.args(["plugin", "verify"]).env("FULMEN_PJRT_PLUGIN", plugin).output().unwrap();
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let said = verify(&plugin);
    let expected = format!(
        "{}: signal 6 ended the process that tried it: the file is damaged",
        plugin.display()
    );
    assert!(said.contains(&expected), "{said}");
    std::fs::write(&plugin, "text").unwrap();
    assert!(verify(&plugin).contains("cannot be used as a PJRT plugin"));
    assert!(verify(&folder.path().join("missing")).contains("there is no PJRT plugin at"));
}

#[test]
fn completions_and_manual_pages_are_printed() {
    assert!(fulmen(&["completions", "bash"]).contains("complete -F _fulmen"));
    let folder = tempfile::tempdir().unwrap();
    fulmen(&["man", "--output", folder.path().to_str().unwrap()]);
    let page = std::fs::read_to_string(folder.path().join("fulmen-plugin-verify.1")).unwrap();
    assert!(page.contains("damaged"), "{page}");
}

#[test]
fn the_doctor_says_the_same_in_json() {
    let run = |arguments: &[&str]| {
        let command = &mut Command::new(env!("CARGO_BIN_EXE_fulmen"));
        let output =
            command.args(["doctor", "--bucket", "gs://data"]).args(arguments).output().unwrap();
        (output.status.success(), String::from_utf8(output.stdout).unwrap())
    };
    let (_, text) = run(&[]);
    let (fine, json) = run(&["--json"]);
    let sections: Vec<Value> = serde_json::from_str(&json).unwrap();
    assert!(sections.len() > 15, "{json}");
    for section in &sections {
        let heading = section["heading"].as_str().unwrap();
        assert!(
            text.contains(&format!("  {heading}: ")) && section["findings"][0]["found"].is_string(),
            "{heading}: {text}"
        );
    }
    assert_eq!(fine, !json.contains(r#""severity":"error""#), "{json}");
    let refused = Command::new(env!("CARGO_BIN_EXE_fulmen"))
        .args(["doctor", "--bucket", "data"])
        .output()
        .unwrap();
    assert_eq!(refused.status.code(), Some(2));
}
