//! `fulmen build` and `fulmen env`: programs for other machines, and their setup.

use std::path::Path;
use std::process::Command;

use fulmen_pods::{Glibc, required_glibc};
use serde_json::Value;

use crate::machine::fulmen;
use crate::programs::write_script;

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
        write_script(&path, &text);
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
fn installing_runs_no_python_file_of_the_current_folder() {
    let folder = tempfile::tempdir().unwrap();
    let ran = folder.path().join("ran");
    for name in ["pip.py", "ziglang.py", "site.py", "requirements.py"] {
        let text = format!("open({:?}, 'w').close()\n", ran.display().to_string());
        std::fs::write(folder.path().join(name), text).unwrap();
    }
    for name in ["cargo-zigbuild", "zig"] {
        let program = folder.path().join(name);
        write_script(&program, &format!("#!/bin/sh\n: >{}\n", ran.display()));
    }
    let output = Command::new(env!("CARGO_BIN_EXE_fulmen"))
        .args(["build", "--for", "tpu-vm", "--install"])
        .current_dir(folder.path())
        .env("XDG_CACHE_HOME", folder.path().join("cache"))
        // pip has no package to install, so it fails without the network.
        .env("PIP_NO_INDEX", "1")
        .env("PIP_CONFIG_FILE", "/dev/null")
        // The empty part means the current folder.
        .env("PATH", format!(":{}", python_folder()))
        .output()
        .unwrap();
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(!ran.exists(), "a file of the current folder was run");
    let left = std::fs::read_dir(folder.path().join("cache/fulmen")).unwrap().count();
    assert_eq!(left, 0, "nothing is left behind");
}

/// A folder with Python, without cargo-zigbuild.
fn python_folder() -> String {
    let path = std::env::var_os("PATH").unwrap();
    let mut folders = std::env::split_paths(&path);
    let folder = folders.find(|folder| folder.join("python3").exists()).unwrap();
    assert!(!folder.join("cargo-zigbuild").exists(), "this test needs a PATH without it");
    folder.display().to_string()
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
    for (name, place) in [("colab", "colab"), ("kaggle", "kaggle"), ("rust", "colab")] {
        let path = Path::new(WORKSPACE).join(format!("docs/notebooks/{name}.ipynb"));
        let notebook: Value =
            serde_json::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
        let text = |cell: &Value| {
            cell["source"].as_array().unwrap().iter().filter_map(Value::as_str).collect::<String>()
        };
        let cells: Vec<String> = notebook["cells"].as_array().unwrap().iter().map(text).collect();
        let set_up = fulmen(&["env", place]);
        assert!(
            cells.iter().any(|cell| *cell == set_up.trim_end()),
            "put this into a cell of {name}.ipynb:\n{set_up}"
        );
    }
    let script = fulmen(&["env", "gce"]);
    assert!(script.starts_with("#!") && script.contains("transparent_hugepage"), "{script}");
    let syntax = Command::new("bash").args(["-n", "-c", &script]).status().unwrap();
    assert!(syntax.success());
}

#[test]
fn the_setup_clones_what_repository_names() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    // Nothing is installed: these are there, and do nothing.
    std::fs::create_dir(path("programs")).unwrap();
    for name in ["cc", "curl", "python3", "cargo"] {
        let program = path("programs").join(name);
        write_script(&program, "#!/bin/sh\n");
    }
    let programs = format!("{}:{}", path("programs").display(), std::env::var("PATH").unwrap());
    std::fs::create_dir(path("repository")).unwrap();
    std::fs::write(path("repository/Cargo.toml"), "[workspace]\n").unwrap();
    for arguments in [
        &["init", "--quiet"][..],
        &["add", "Cargo.toml"],
        &["-c", "user.name=a", "-c", "user.email=a@b", "commit", "--quiet", "-m", "a"],
    ] {
        let git =
            Command::new("git").args(arguments).current_dir(path("repository")).status().unwrap();
        assert!(git.success());
    }

    let script = fulmen(&["env", "gce"]);
    // What changes the machine.
    let script = script.split("# The start of a program").next().unwrap();
    let set_up = |repository: &str| {
        Command::new("bash")
            .args(["-c", script])
            .env("PATH", &programs)
            .env("SOURCE", path("fulmen"))
            .env("REPOSITORY", repository)
            .output()
            .unwrap()
    };
    let refused = set_up("");
    let error = String::from_utf8_lossy(&refused.stderr);
    let expected = format!("SOURCE is '{}' and REPOSITORY is ''", path("fulmen").display());
    assert!(refused.status.code() == Some(1) && error.contains(&expected), "{error}");
    let repository = format!("file://{}", path("repository").display());
    // The second time, the checkout is there.
    for repository in [&repository, ""] {
        let output = set_up(repository);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        assert!(path("fulmen/Cargo.toml").is_file());
    }
}
