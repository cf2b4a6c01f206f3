//! Checks that the scripts in `ci`, the hosted workflow and the README agree on what is checked.

use super::book::{read, repository};

fn text(path: &str) -> String {
    read(repository().join(path))
}

/// The words between two texts, without brackets and commas.
fn words(text: &str, before: &str, after: &str) -> Vec<String> {
    let (_, rest) = text.split_once(before).unwrap_or_else(|| panic!("no `{before}` in {text}"));
    let words = rest.split(after).next().unwrap_or_default().split([' ', ',', '[', ']']);
    words.filter(|word| !word.is_empty()).map(str::to_owned).collect()
}

/// A subject as `.ci/run` starts it: a script of `ci` with its arguments, but without options.
fn subject(command: &str) -> String {
    let words: Vec<&str> = command.split(' ').filter(|word| !word.starts_with("--")).collect();
    words.join(" ")
}

#[test]
fn the_hosted_workflow_has_every_subject() {
    let workflow = text(".github/workflows/ci.yml");
    let (_, matrix) = workflow.split_once("        subject: [").unwrap();
    let (matrix, _) = matrix.split_once("]\n").unwrap();
    let mut hosted: Vec<String> = matrix.split(", ").map(str::to_owned).collect();
    for job in ["fast", "tests"] {
        assert!(workflow.contains(&format!("- run: ci/{job}\n")), "{job} is not in {workflow}");
        hosted.push(job.to_owned());
    }
    let mut local = Vec::new();
    for line in text(".ci/run").lines() {
        if let Some(loop_over) = line.strip_prefix("for subject in ") {
            local.extend(words(loop_over, "", ";"));
        } else if line.starts_with("part ") {
            let (_, command) = line.split_once("\" ci/").unwrap();
            local.push(subject(command));
        }
    }
    hosted.sort_unstable();
    local.sort_unstable();
    assert_eq!(hosted, local);
    for subject in local {
        let script = subject.split(' ').next().unwrap();
        assert!(repository().join("ci").join(script).is_file(), "ci/{script} does not exist");
    }
}

#[test]
fn the_hosted_workflow_tests_the_oldest_rust() {
    let manifest = text("Cargo.toml");
    let oldest = words(&manifest, "\nrust-version = \"", "\"");
    let tested = words(&text(".github/workflows/ci.yml"), "        toolchain: ", "\n");
    assert_eq!(tested, ["stable".to_owned(), format!("\"{}\"", oldest[0])]);
}

#[test]
fn every_fuzz_target_runs_each_week() {
    let manifest = text("fuzz/Cargo.toml");
    let mut targets: Vec<String> = manifest
        .split("[[bin]]\n")
        .skip(1)
        .map(|bin| words(bin, "name = \"", "\"")[0].clone())
        .collect();
    targets.sort_unstable();
    assert_eq!(words(&text("ci/fuzz"), "\n  set -- ", "\n"), targets);
    assert_eq!(words(&text(".github/workflows/weekly.yml"), "        target: ", "\n"), targets);
}

#[test]
fn the_checks_run_the_readmes_command_for_the_tests() {
    assert!(text("README.md").contains("\n$ cargo test\n"));
    assert!(text("ci/tests").ends_with(" ci/without-cmake cargo test\n"));
}

/// The types whose pages a beginner opens first.
const FIRST_PAGES: [(&str, &str); 14] = [
    ("trainer/src/module/mod.rs", "trait TrainingModule"),
    ("trainer/src/module/step_context.rs", "struct StepContext"),
    ("trainer/src/callbacks/callback.rs", "trait Callback"),
    ("trainer/src/checkpoint/weights.rs", "enum Weights"),
    ("trainer/src/hooks/summary.rs", "struct FitSummary"),
    ("trainer/src/batch.rs", "struct Batch"),
    ("trainer/src/plan.rs", "struct Plan"),
    ("trainer-cli/src/app.rs", "trait CliApp"),
    ("nn/src/module.rs", "trait Module"),
    ("data/src/loader/batch.rs", "struct HostBatch"),
    ("data/src/loader/builder.rs", "struct DataLoaderBuilder"),
    ("data/src/stream/iterable.rs", "trait IterableDataset"),
    ("tensor/src/dtype.rs", "enum DType"),
    ("tensor/src/shape.rs", "struct Shape"),
];

#[test]
fn the_pages_that_beginners_open_first_have_an_example_that_runs() {
    for (file, item) in FIRST_PAGES {
        let source = text(&format!("crates/{file}"));
        let (before, _) = source
            .split_once(&format!("\npub {item}"))
            .unwrap_or_else(|| panic!("{file} has no {item}"));
        let docs = before.lines().rev().take_while(|line| !line.is_empty());
        assert!(docs.filter(|line| *line == "/// ```").count() >= 2, "{file}: {item}");
    }
}
