//! `fulmen build` and `fulmen env`: programs for other machines, and their setup.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;

use fulmen_pods::{Glibc, required_glibc};
use serde_json::Value;

use crate::machine::fulmen;

const WORKSPACE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");

#[test]
fn a_build_for_tpu_vms_reads_what_the_program_needs() {
    let folder = tempfile::tempdir().unwrap();
    let program = env!("CARGO_BIN_EXE_fulmen");
    // Fake tools that build nothing: cargo's message names this very command.
    for (name, text) in [
        ("zig", "#!/bin/sh\n".to_owned()),
        (
            "cargo-zigbuild",
            format!(
                "#!/bin/sh\necho '{{\"reason\":\"x\",\"executable\":\"{program}\"}}'; echo \"$@\" >&2\n"
            ),
        ),
    ] {
        let path = folder.path().join(name);
        std::fs::write(&path, text).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    }
    let build = |arguments: &[&str]| {
        let mut command = Command::new(program);
        command
            .args(["build", "--for", "tpu-vm"])
            .args(arguments)
            .env("XDG_CACHE_HOME", folder.path());
        let path = format!("{}:{}", folder.path().display(), std::env::var("PATH").unwrap());
        let output = command.env("PATH", path).output().unwrap();
        let [out, err] =
            [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
        (output.status.code(), out, err)
    };
    let (code, out, err) = build(&["-p", "mnist", "--release"]);
    let expected =
        "zigbuild --target x86_64-unknown-linux-gnu.2.31 -p mnist --release --message-format";
    assert!(err.contains(expected), "{err}");
    let (needed, symbol) = required_glibc(Path::new(program)).unwrap().unwrap();
    if Some(needed) > Glibc::parse("2.31") {
        let expected = format!("needs glibc {needed} for {symbol}, and TPU VMs may have 2.31");
        assert!(code == Some(1) && err.contains(&expected), "{err}");
    } else {
        assert!(
            code == Some(0) && out.contains(&format!("needs glibc {needed} ({symbol})")),
            "{out}"
        );
    }
    let (code, out, _) = build(&["--dry-run", "--example", "a b"]);
    assert!(code == Some(0) && out.contains("zigbuild --target") && out.contains("'a b'"), "{out}");
    let (code, _, err) = build(&["--target", "x"]);
    assert!(code == Some(2) && err.contains("--for sets the target"), "{err}");
}

#[test]
#[ignore = "fetches zig and compiles: cargo test -p fulmen-cli --test it tpu_vm -- --ignored"]
fn a_program_for_tpu_vms_needs_no_newer_glibc() {
    let cargo = ["-p", "fulmen-pjrt", "--example", "fetch_libtpu"];
    let mut command = Command::new(env!("CARGO_BIN_EXE_fulmen"));
    let output = command
        .args(["build", "--for", "tpu-vm", "--install"])
        .args(cargo)
        .current_dir(WORKSPACE)
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let path = text.split(':').next().unwrap();
    let (needed, symbol) = required_glibc(Path::new(path)).unwrap().unwrap();
    assert!(Some(needed) <= Glibc::parse("2.31"), "{needed} {symbol}");
    // The built program is complete, and finds the plugin here.
    assert!(Command::new(path).status().unwrap().success());
}

#[test]
fn the_notebooks_start_with_the_printed_setup() {
    for place in ["colab", "kaggle"] {
        let path = Path::new(WORKSPACE).join(format!("docs/notebooks/{place}.ipynb"));
        let notebook: Value =
            serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        let text = |cell: &Value| {
            cell["source"].as_array().unwrap().iter().filter_map(Value::as_str).collect::<String>()
        };
        let cells: Vec<String> = notebook["cells"].as_array().unwrap().iter().map(text).collect();
        let set_up = fulmen(&["env", place]);
        assert!(
            cells.iter().any(|cell| *cell == set_up.trim_end()),
            "put this into a cell of {place}.ipynb:\n{set_up}"
        );
    }
    let script = fulmen(&["env", "gce"]);
    assert!(script.starts_with("#!") && script.contains("transparent_hugepage"), "{script}");
    let syntax = Command::new("bash").args(["-n", "-c", &script]).status().unwrap();
    assert!(syntax.success());
}
