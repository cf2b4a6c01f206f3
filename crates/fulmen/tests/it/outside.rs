//! Fulmen from a user's view: a project outside the workspace, and the documentation.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use super::book::{first_example, read, repository};

/// Keeps the compiled files, so that a second run is quick.
const TARGET: &str = concat!(env!("CARGO_TARGET_TMPDIR"), "/outside");

fn text(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

#[test]
#[ignore = "compiles Fulmen with its dependencies: cargo test -p fulmen --test it outside -- --ignored"]
fn an_empty_project_runs_the_readmes_example() {
    let folder = tempfile::tempdir().unwrap();
    let manifest = format!(
        "[package]\nname = \"outside\"\nedition = \"2024\"\n\n[dependencies]\nfulmen = {{ path = {:?} }}\n",
        repository().join("crates/fulmen").canonicalize().unwrap()
    );
    fs::write(folder.path().join("Cargo.toml"), manifest).unwrap();
    // Use the versions that the workspace is tested with.
    fs::copy(repository().join("Cargo.lock"), folder.path().join("Cargo.lock")).unwrap();
    fs::create_dir(folder.path().join("src")).unwrap();
    fs::write(
        folder.path().join("src/main.rs"),
        first_example(&read(repository().join("README.md"))),
    )
    .unwrap();
    let mut build = Command::new(env!("CARGO"));
    let build_output =
        build.args(["build", "--target-dir", TARGET]).current_dir(folder.path()).output().unwrap();
    assert!(build_output.status.success(), "{}", text(&build_output));

    let run = || {
        let mut run = Command::new(Path::new(TARGET).join("debug/outside"));
        run.env("TMPDIR", folder.path()).current_dir(folder.path());
        run
    };
    let alone = run().output().unwrap();
    assert!(alone.status.success(), "{}", text(&alone));

    // One of several processes, in a build without the feature to join them.
    let several = [("NUM_PROCESSES", "2"), ("PROCESS_ID", "0"), ("COORDINATOR", "127.0.0.1:0")];
    let one_of_two = run()
        .envs(several.map(|(name, value)| (format!("FULMEN_{name}"), value)))
        .output()
        .unwrap();
    let message = text(&one_of_two);
    assert!(!one_of_two.status.success() && message.contains("process 0 of 2"), "{message}");
    assert!(
        message.contains("feature `multi-host` of `fulmen`")
            && message.contains("FULMEN_NUM_PROCESSES"),
        "{message}"
    );
}

#[test]
#[ignore = "compiles Fulmen and documents it: cargo test -p fulmen --test it outside -- --ignored"]
fn the_documentation_of_fulmen_alone_shows_what_it_reexports() {
    let mut doc = Command::new(env!("CARGO"));
    doc.args(["doc", "--no-deps", "--package", "fulmen", "--target-dir", TARGET])
        .current_dir(repository());
    let output = doc.output().unwrap();
    assert!(output.status.success(), "{}", text(&output));
    let pages = [
        "nn/struct.Linear",
        "nn/optim/struct.Adam",
        "tensor/struct.Tensor",
        "trainer/struct.Trainer",
    ];
    for page in
        pages.into_iter().chain(["data/struct.DataLoader", "pjrt/struct.Client", "cli/index"])
    {
        let file = Path::new(TARGET).join(format!("doc/fulmen/{page}.html"));
        assert!(file.is_file(), "{} is missing", file.display());
    }
}
