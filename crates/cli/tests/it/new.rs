//! `fulmen new`: the created project, and invalid arguments.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;

fn new(folder: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_fulmen"))
        .arg("new")
        .args(arguments)
        .current_dir(folder)
        .output()
        .unwrap()
}

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

#[test]
fn a_project_is_made_in_an_empty_folder_only() {
    let folder = tempfile::tempdir().unwrap();
    let made = new(folder.path(), &["my-model", "--json"]);
    assert!(made.status.success(), "{made:?}");
    let report: Value = serde_json::from_slice(&made.stdout).unwrap();
    assert_eq!(report["path"], "my-model");
    let read = |file: &str| fs::read_to_string(folder.path().join("my-model").join(file)).unwrap();
    for file in report["files"].as_array().unwrap() {
        let text = read(file.as_str().unwrap());
        assert!(!text.contains("NAME") && !text.contains("FULMEN"), "{file}: {text}");
    }
    let manifest = read("Cargo.toml");
    let dependency = format!("fulmen = {{ path = {:?} }}", repository().join("crates/fulmen"));
    assert!(
        manifest.contains("name = \"my-model\"") && manifest.contains(&dependency),
        "{manifest}"
    );

    let again = new(folder.path(), &["other", "--path", "my-model"]);
    assert_eq!(again.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&again.stderr).contains("my-model is not empty"), "{again:?}");
    assert!(read("Cargo.toml") == manifest);

    let git = ["git", "--fulmen-git", "https://example.org/fulmen.git"];
    assert!(new(folder.path(), &[&git[..], &["--path", "a/b"]].concat()).status.success());
    let manifest = fs::read_to_string(folder.path().join("a/b/Cargo.toml")).unwrap();
    assert!(
        manifest.contains(r#"fulmen = { git = "https://example.org/fulmen.git" }"#),
        "{manifest}"
    );
    let other = folder.path().join("other-checkout");
    fs::create_dir_all(other.join("crates/fulmen")).unwrap();
    fs::write(other.join("crates/fulmen/Cargo.toml"), "").unwrap();
    let path = ["of-another", "--fulmen-path", other.to_str().unwrap()];
    assert!(new(folder.path(), &path).status.success());
    let manifest = fs::read_to_string(folder.path().join("of-another/Cargo.toml")).unwrap();
    let dependency = other.join("crates/fulmen").canonicalize().unwrap();
    assert!(manifest.contains(&format!("fulmen = {{ path = {dependency:?} }}")), "{manifest}");
}

#[test]
fn names_that_cargo_would_refuse_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    for name in ["My", "1st", "a b", "../up", "-x", "", "fn", "test", "fulmen", "über"] {
        let refused = new(folder.path(), &["--", name]);
        assert_eq!(refused.status.code(), Some(2), "{name}: {refused:?}");
        assert!(
            String::from_utf8_lossy(&refused.stderr).contains("cannot be a project's name"),
            "{refused:?}"
        );
    }
    let refused = new(folder.path(), &["x", "--fulmen-path", "."]);
    assert!(
        String::from_utf8_lossy(&refused.stderr).contains("expected a checkout of Fulmen"),
        "{refused:?}"
    );
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "nothing was made");
}

/// Without the network: the project has the repository's versions, which are there.
#[test]
fn cargo_finds_what_a_new_project_depends_on() {
    let folder = tempfile::tempdir().unwrap();
    let made = new(folder.path(), &["project", "--path", "."]);
    assert!(made.status.success(), "{made:?}");
    fs::copy(repository().join("Cargo.lock"), folder.path().join("Cargo.lock")).unwrap();
    let tree = Command::new(env!("CARGO"))
        .args(["tree", "--offline", "--depth", "1", "--edges", "normal"])
        .current_dir(folder.path())
        .output()
        .unwrap();
    assert!(tree.status.success(), "{tree:?}");
    let version = env!("CARGO_PKG_VERSION");
    let expected = format!("fulmen v{version} ({})", repository().join("crates/fulmen").display());
    let text = String::from_utf8(tree.stdout).unwrap();
    assert!(text.contains(&expected), "{text}");
}

/// The project uses the repository's versions and profile, so that build artifacts are reused.
#[test]
#[ignore = "compiles Fulmen: cargo test -p fulmen-cli --test it a_new_project -- --ignored"]
fn a_new_project_compiles_and_learns() {
    let folder = tempfile::tempdir().unwrap();
    let root = repository();
    let made = new(folder.path(), &["project", "--path", "."]);
    assert!(made.status.success(), "{made:?}");
    fs::copy(root.join("Cargo.lock"), folder.path().join("Cargo.lock")).unwrap();
    let manifest = fs::read_to_string(root.join("Cargo.toml")).unwrap();
    let profile = manifest.find("[profile").unwrap();
    fs::create_dir(folder.path().join(".cargo")).unwrap();
    fs::write(folder.path().join(".cargo/config.toml"), &manifest[profile..]).unwrap();

    let target =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
    for arguments in [
        &["fmt", "--check"][..],
        &["test"],
        &["run", "--", "--config", "config.toml", "--max-epochs", "1"],
    ] {
        let output = Command::new(env!("CARGO"))
            .args(arguments)
            .current_dir(folder.path())
            .env("CARGO_TARGET_DIR", &target)
            .output()
            .unwrap();
        assert!(output.status.success(), "{arguments:?}: {output:?}");
    }
    assert!(folder.path().join("runs/version_0/checkpoints/best").is_dir());
}
