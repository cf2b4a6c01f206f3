//! `learn`: each example is run as a user runs it, with the arguments of its README, and must learn what is said there.

use std::error::Error;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;
use std::{env, fs};

use serde_json::{Value, json};

use crate::{bigram, plot};

/// The repository.
const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/..");

#[derive(clap::Args)]
pub(crate) struct Args {
    /// Which examples; without any, all of the table.
    names: Vec<String>,
    /// Write the curve of each into its folder, as curve.svg.
    #[arg(long)]
    pictures: bool,
    /// End with one line of JSON.
    #[arg(long)]
    json: bool,
}

/// What an example learns.
struct Example {
    name: &'static str,
    /// What stands behind `fit`.
    fit: &'static [&'static str],
    /// A value of `test --ckpt-path best`.
    metric: &'static str,
    target: Target,
    /// Columns of `metrics.csv`.
    curves: &'static [&'static str],
}

#[derive(Clone, Copy)]
enum Target {
    AtLeast(f64),
    /// So many nats a byte below the loss of a table of bigrams on the same text.
    BelowBigrams(f64),
}

const EXAMPLES: &[Example] = &[
    Example { name: "mnist", fit: &[], metric: "test_acc", target: Target::AtLeast(0.98), curves: &LOSSES },
    Example {
        name: "resnet",
        fit: &["--data-dir", "examples/mnist/data", "--width", "16", "--max-epochs", "10"],
        metric: "test_acc",
        target: Target::AtLeast(0.985),
        curves: &LOSSES,
    },
    Example {
        name: "gpt",
        fit: &["--max-epochs", "20"],
        metric: "test_loss",
        target: Target::BelowBigrams(0.4),
        curves: &LOSSES,
    },
];

const LOSSES: [&str; 2] = ["train_loss", "val_loss"];

pub(crate) fn run(args: &Args) -> Result<(), Box<dyn Error>> {
    let (mut lines, mut missed) = (vec![], vec![]);
    for example in chosen(&args.names)? {
        let (name, metric) = (example.name, example.metric);
        let (limit, at_least) = match example.target {
            Target::AtLeast(limit) => (limit, true),
            Target::BelowBigrams(margin) => (bigram::test_loss(&Path::new(ROOT).join("docs/src"))? - margin, false),
        };
        let (value, seconds) = example.learn(args.pictures)?;
        let reached = if at_least { value >= limit } else { value <= limit };
        let (bound, verdict) =
            (if at_least { "at least" } else { "at most" }, if reached { "reached" } else { "missed" });
        println!("{name}: {metric} {value:.4}, target {bound} {limit:.4}: {verdict}, {seconds:.0} s");
        lines.push(json!({ "example": name, "metric": metric, "value": value, "bound": bound, "target": limit,
            "reached": reached, "seconds": seconds }));
        if !reached {
            missed.push(name);
        }
    }
    if args.json {
        println!("{}", json!({ "learn": lines }));
    }
    if missed.is_empty() { Ok(()) } else { Err(format!("{} missed the target", missed.join(", ")).into()) }
}

fn chosen(names: &[String]) -> Result<Vec<&'static Example>, String> {
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
    /// Fits and tests in a folder of its own, in which `examples` is the repository's. Gives the metric, and the seconds of
    /// both without the time to build.
    fn learn(&self, picture: bool) -> Result<(f64, f64), Box<dyn Error>> {
        let folder = tempfile::tempdir()?;
        std::os::unix::fs::symlink(Path::new(ROOT).join("examples"), folder.path().join("examples"))?;
        let built = cargo("build", self.name).status()?;
        if !built.success() {
            return Err(format!("{} cannot be built", self.name).into());
        }
        let begin = Instant::now();
        self.program(folder.path(), &[&["fit"], self.fit].concat())?;
        let tested = self.program(folder.path(), &["test", "--ckpt-path", "best"])?;
        let seconds = begin.elapsed().as_secs_f64();
        let value = &tested["metrics"][self.metric];
        let value = value.as_f64().ok_or_else(|| format!("{} logs no {}: {tested}", self.name, self.metric))?;
        if picture {
            let metrics = folder.path().join("runs/version_0/metrics.csv");
            let file = Path::new(ROOT).join("examples").join(self.name).join("curve.svg");
            fs::write(file, plot::svg(&plot::read(&metrics, self.curves)?, "step")?)?;
        }
        Ok((value, seconds))
    }

    /// Runs the program, which says its result in its last line.
    fn program(&self, folder: &Path, args: &[&str]) -> Result<Value, Box<dyn Error>> {
        let output = cargo("run", self.name)
            .arg("--")
            .args(args)
            .arg("--json")
            .current_dir(folder)
            .stderr(Stdio::inherit())
            .output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        if !output.status.success() {
            return Err(format!("`{} {}` failed: {}", self.name, args.join(" "), text.trim()).into());
        }
        let last = text.lines().last().unwrap_or_default();
        serde_json::from_str(last).map_err(|e| format!("{} said `{last}`: {e}", self.name).into())
    }
}

/// Cargo on an example, in release mode.
fn cargo(what: &str, example: &str) -> Command {
    let mut command = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    command.args([what, "--release", "--quiet", "--manifest-path"]).arg(Path::new(ROOT).join("Cargo.toml"));
    command.args(["--package", example]);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_arguments_are_those_of_the_readmes() {
        for Example { name, fit, .. } in EXAMPLES {
            let path = Path::new(ROOT).join("examples").join(name).join("README.md");
            let readme = fs::read_to_string(&path).unwrap();
            let command = format!("$ cargo run --release -p {name} -- fit {}", fit.join(" "));
            let found = readme.lines().any(|line| line == command.trim_end());
            assert!(found, "{} lacks `{}`", path.display(), command.trim_end());
        }
    }
}
