//! [`Row`]: one quantity of Fulmen and of each peer, printed as a sentence and as a line of JSON.
//! `report` reads the JSON.

use std::fmt;
use std::fs;
use std::process::Command;

use fulmen_report::chart::number;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::stats::Spread;

/// Fulmen's name in the results.
pub(crate) const OURS: &str = "Fulmen";

/// The allocator of this program, and of the plugin that it loads.
const ALLOCATOR: &str =
    if cfg!(feature = "jemalloc") { "jemalloc" } else { "the system's `malloc`" };

/// One quantity.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Row {
    pub(crate) suite: String,
    /// The measured subject: `W1`, `W1 on 8 devices`.
    pub(crate) name: String,
    /// The quantity: `step`, `peak memory`.
    pub(crate) quantity: String,
    pub(crate) unit: String,
    /// The results of each contender, [`OURS`] first.
    pub(crate) results: Vec<Measurement>,
    /// The peers that did not run, and the reasons.
    pub(crate) missing: Vec<(String, String)>,
    /// Additional values.
    pub(crate) details: Map<String, Value>,
    pub(crate) environment: Environment,
}

/// The result of a contender.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Measurement {
    pub(crate) name: String,
    /// Versions: `0.12.0.1, Python 3.13.0`.
    pub(crate) version: String,
    pub(crate) spread: Spread,
}

/// The machine and the commit.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Environment {
    pub(crate) commit: Option<String>,
    pub(crate) cpu: String,
    pub(crate) cores: usize,
    /// The kind of the GPUs, if it ran on GPUs.
    #[serde(default)]
    pub(crate) gpu: Option<String>,
    /// What serves `malloc` in our process: jemalloc, by the feature of that name, or the system. Unknown in lines of
    /// before that feature.
    #[serde(default)]
    pub(crate) allocator: Option<String>,
}

impl Environment {
    fn detect() -> Environment {
        let git = Command::new("git")
            .args(["rev-parse", "--short", "HEAD"])
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .output();
        let commit = git.ok().filter(|output| output.status.success());
        let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let cpu = info
            .lines()
            .find(|line| line.starts_with("model name"))
            .and_then(|line| line.split_once(':'));
        Environment {
            commit: commit.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()),
            cpu: cpu.map_or("an unknown processor", |(_, name)| name.trim()).to_owned(),
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            gpu: None,
            allocator: Some(ALLOCATOR.to_owned()),
        }
    }
}

impl Row {
    pub(crate) fn new(suite: &str, name: impl Into<String>, quantity: &str, unit: &str) -> Row {
        Row {
            suite: suite.to_owned(),
            name: name.into(),
            quantity: quantity.to_owned(),
            unit: unit.to_owned(),
            results: Vec::new(),
            missing: Vec::new(),
            details: Map::new(),
            environment: Environment::detect(),
        }
    }

    /// Adds Fulmen's measurements.
    pub(crate) fn ours(self, values: &[f64]) -> Row {
        self.peer(OURS, env!("CARGO_PKG_VERSION"), values)
    }

    /// Adds a peer's measurements. Without any, the peer is missing.
    pub(crate) fn peer(mut self, name: &str, version: &str, values: &[f64]) -> Row {
        match Spread::new(values) {
            Some(spread) => {
                let name = name.to_owned();
                let version = version.to_owned();
                self.results.push(Measurement { name, version, spread });
                self
            }
            None => self.missing(name, "nothing was measured"),
        }
    }

    /// Adds a peer that did not run.
    pub(crate) fn missing(mut self, name: &str, why: &str) -> Row {
        self.missing.push((name.to_owned(), why.to_owned()));
        self
    }

    /// Adds an additional value.
    pub(crate) fn detail(mut self, name: &str, value: impl Into<Value>) -> Row {
        self.details.insert(name.to_owned(), value.into());
        self
    }

    /// The median of a contender.
    pub(crate) fn median(&self, name: &str) -> Option<f64> {
        self.results.iter().find(|result| result.name == name).map(|result| result.spread.median)
    }

    /// Fulmen's median divided by a peer's.
    pub(crate) fn ratio(&self, peer: &str) -> Option<f64> {
        Some(self.median(OURS)? / self.median(peer)?)
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, {}:", self.name, self.quantity)?;
        for (i, Measurement { name, spread, .. }) in self.results.iter().enumerate() {
            let separator = if i == 0 { "" } else { ";" };
            write!(f, "{separator} {name} {}", number(spread.median))?;
            if !self.unit.is_empty() {
                write!(f, " {}", self.unit)?;
            }
            if spread.count > 1 {
                write!(f, " ({} to {})", number(spread.low), number(spread.high))?;
            }
            if let Some(ratio) = self.ratio(name).filter(|_| name != OURS) {
                write!(f, ", ratio {ratio:.3}")?;
            }
        }
        for (name, value) in &self.details {
            write!(f, "; {name} {value}")?;
        }
        self.missing.iter().try_for_each(|(name, why)| write!(f, "\n  without {name}: {why}"))
    }
}

/// Prints a row; with `json`, also as a line of JSON.
pub(crate) fn print_row(row: &Row, json: bool) -> Result<(), serde_json::Error> {
    println!("{row}");
    if json {
        println!("{}", serde_json::to_string(row)?);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_a_sentence_and_a_line() {
        let row = Row::new("steps", "W1", "step", "ms").ours(&[1.0, 2.0, 3.0]).peer(
            "jax",
            "0.12",
            &[4.0],
        );
        let row = row.peer("torch", "2.9", &[]).detail("devices", 8);
        let sentence = row.to_string();
        assert!(
            sentence.starts_with(
                "W1, step: Fulmen 2 ms (1.5 to 2.5); jax 4 ms, ratio 0.500; devices 8"
            ),
            "{sentence}"
        );
        assert!(sentence.ends_with("\n  without torch: nothing was measured"), "{sentence}");
        let line = serde_json::to_string(&row).unwrap();
        let read: Row = serde_json::from_str(&line).unwrap();
        assert_eq!((read.ratio("jax"), read.ratio("torch")), (Some(0.5), None));
        assert_eq!(read.environment, row.environment);
    }
}
