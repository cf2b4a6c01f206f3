//! `learn`: runs the commands under "What it learns" in the README of an example, and compares the
//! result with the target.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;
use std::{env, fs};

use serde_json::{Value, json};

use crate::bigram;
use crate::plot::{self, Curve};

/// The root of the repository.
const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

#[derive(clap::Args)]
pub(crate) struct Args {
    /// The examples [default: all that have a target].
    names: Vec<String>,
    /// The cargo profile to build the examples with.
    #[arg(long, default_value = "release")]
    profile: String,
    /// Write the curve of each example into its folder, as curve.svg.
    #[arg(long)]
    curves: bool,
    /// Print one line of JSON at the end.
    #[arg(long)]
    json: bool,
}

/// The target of an example.
struct Example {
    name: &'static str,
    /// A value that its tests report.
    metric: &'static str,
    target: Target,
    /// Columns of `metrics.csv`.
    curves: &'static [&'static str],
}

/// The condition on the metric of the last test.
#[derive(Clone, Copy)]
enum Target {
    AtLeast(f64),
    AtMost(f64),
    /// At least this much below the loss of a bigram table on the same text, in nats per byte.
    BelowBigrams(f64),
    /// At least this fraction of the metric of the previous test.
    OfPreviousTest(f64),
}

const EXAMPLES: &[Example] = &[
    Example { name: "resnet", metric: "test_acc", target: Target::AtLeast(0.985), curves: LOSSES },
    Example { name: "vit", metric: "test_acc", target: Target::AtLeast(0.85), curves: EPOCHS },
    Example { name: "tabular", metric: "test_r2", target: Target::AtLeast(0.8), curves: EPOCHS },
    Example { name: "gpt", metric: "test_loss", target: Target::BelowBigrams(0.4), curves: LOSSES },
    Example {
        name: "translation",
        metric: "test_exact",
        target: Target::AtLeast(0.99),
        curves: LOSSES,
    },
    Example {
        name: "gan",
        metric: "test_frechet",
        target: Target::AtMost(12.0),
        curves: &["val_frechet"],
    },
    Example {
        name: "diffusion",
        metric: "test_recognized",
        target: Target::AtLeast(0.4),
        curves: LOSSES,
    },
    Example {
        name: "roberta",
        metric: "test_margin",
        target: Target::AtLeast(0.15),
        curves: LOSSES,
    },
    Example {
        name: "finetune",
        metric: "test_acc",
        target: Target::OfPreviousTest(0.95),
        curves: EPOCHS,
    },
];

const LOSSES: &[&str] = &["train_loss", "val_loss"];
const EPOCHS: &[&str] = &["train_loss_epoch", "val_loss"];

pub(crate) fn run(args: &Args) -> Result<(), Box<dyn Error>> {
    let mut lines = Vec::new();
    let mut missed = Vec::new();
    for example in examples_named(&args.names)? {
        let name = example.name;
        let metric = example.metric;
        let (values, seconds) = example.learn(args)?;
        let [.., value] = values[..] else {
            return Err(format!("{name}: its README has no command `test`").into());
        };
        let (limit, at_least) = match (example.target, &values[..]) {
            (Target::AtLeast(limit), _) => (limit, true),
            (Target::AtMost(limit), _) => (limit, false),
            (Target::BelowBigrams(margin), _) => {
                (bigram::test_loss(&Path::new(ROOT).join("docs/src"))? - margin, false)
            }
            (Target::OfPreviousTest(share), [.., previous, _]) => (share * previous, true),
            (Target::OfPreviousTest(_), _) => {
                return Err(format!("{name}: its README has one test").into());
            }
        };
        let reached = if at_least { value >= limit } else { value <= limit };
        let bound = if at_least { "at least" } else { "at most" };
        let verdict = if reached { "reached" } else { "missed" };
        println!(
            "{name}: {metric} {value:.4}, target {bound} {limit:.4}: {verdict}, {seconds:.0} s"
        );
        lines.push(json!({ "example": name, "metric": metric, "value": value, "bound": bound, "target": limit,
            "reached": reached, "seconds": seconds }));
        if !reached {
            missed.push(name);
        }
    }
    if args.json {
        println!("{}", json!({ "learn": lines }));
    }
    if missed.is_empty() {
        Ok(())
    } else {
        Err(format!("{} missed the target", missed.join(", ")).into())
    }
}

/// The examples with these names, or all if there are none.
fn examples_named(names: &[String]) -> Result<Vec<&'static Example>, String> {
    if names.is_empty() {
        return Ok(EXAMPLES.iter().collect());
    }
    let find = |name: &String| {
        EXAMPLES.iter().find(|example| example.name == name).ok_or_else(|| {
            let known = EXAMPLES.iter().map(|example| example.name).collect::<Vec<_>>().join(", ");
            format!("there is no example {name} with a target; there are {known}")
        })
    };
    names.iter().map(find).collect()
}

impl Example {
    /// Runs the commands in a new folder, in which `examples` and `docs` are those of the
    /// repository. Returns the metric of each test, and the total seconds without the build.
    fn learn(&self, args: &Args) -> Result<(Vec<f64>, f64), Box<dyn Error>> {
        let readme = fs::read_to_string(self.file("README.md"))?;
        let commands = commands(&readme);
        let folder = tempfile::tempdir()?;
        for data in ["examples", "docs"] {
            std::os::unix::fs::symlink(Path::new(ROOT).join(data), folder.path().join(data))?;
        }
        for (program, _) in &commands {
            if !cargo("build", program, &args.profile).status()?.success() {
                return Err(format!("{program} cannot be built").into());
            }
        }
        let begin = Instant::now();
        let mut values = Vec::new();
        for (program, line) in &commands {
            eprintln!("{program} {line}");
            let mut command = cargo("run", program, &args.profile);
            command
                .arg("--")
                .args(line.split_whitespace())
                .arg("--json")
                .current_dir(folder.path());
            let result =
                run_for_result(&mut command).map_err(|e| format!("`{program} {line}`: {e}"))?;
            if program == self.name && line.starts_with("test ") {
                let value = result["metrics"][self.metric].as_f64();
                values.push(
                    value.ok_or_else(|| {
                        format!("{} gives no {}: {result}", self.name, self.metric)
                    })?,
                );
            }
        }
        let seconds = begin.elapsed().as_secs_f64();
        if args.curves {
            fs::write(
                self.file("curve.svg"),
                plot::curves(self.name, &self.curves(&folder.path().join("runs"))?, "step")?,
            )?;
        }
        Ok((values, seconds))
    }

    /// The curves of the newest run that logged them.
    fn curves(&self, runs: &Path) -> Result<Vec<Curve>, Box<dyn Error>> {
        let mut curves: Vec<_> = (0..)
            .map(|n| runs.join(format!("version_{n}/metrics.csv")))
            .take_while(|file| file.is_file())
            .map(|file| plot::read(&file, self.curves))
            .collect();
        let newest = curves.iter().rposition(Result::is_ok).unwrap_or_default();
        if curves.is_empty() {
            Err(format!("{} left no metrics", self.name).into())
        } else {
            curves.swap_remove(newest)
        }
    }

    fn file(&self, name: &str) -> PathBuf {
        Path::new(ROOT).join("examples").join(self.name).join(name)
    }
}

/// The commands under "What it learns": programs and their arguments.
fn commands(readme: &str) -> Vec<(String, String)> {
    let section = readme
        .split("\n## ")
        .find(|section| section.starts_with("What it learns\n"))
        .unwrap_or_default();
    section
        .replace("\\\n", "")
        .lines()
        .filter_map(|line| line.strip_prefix("$ cargo run --release -p "))
        .filter_map(|command| command.split_once(" -- "))
        .map(|(program, args)| (program.to_owned(), args.to_owned()))
        .collect()
}

/// Runs a command, and reads its last line, the result.
fn run_for_result(command: &mut Command) -> Result<Value, Box<dyn Error>> {
    let output = command.stderr(Stdio::inherit()).output()?;
    let text = String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        return Err(format!("{}: {}", output.status, text.trim()).into());
    }
    let last = text.lines().last().unwrap_or_default();
    serde_json::from_str(last).map_err(|e| format!("the output `{last}` is not valid: {e}").into())
}

/// Cargo with an example.
fn cargo(subcommand: &str, example: &str, profile: &str) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args([
        subcommand,
        "--quiet",
        "--profile",
        profile,
        "--package",
        example,
        "--manifest-path",
    ]);
    command.arg(Path::new(ROOT).join("Cargo.toml"));
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_readme_says_how_to_train_and_to_test() {
        for example in EXAMPLES {
            let readme = fs::read_to_string(example.file("README.md")).unwrap();
            let commands = commands(&readme);
            assert!(commands.len() >= 2, "{}: {commands:?}", example.name);
            let (program, args) = &commands[commands.len() - 1];
            assert!(program == example.name && args.starts_with("test "), "{program} {args}");
        }
    }
}
