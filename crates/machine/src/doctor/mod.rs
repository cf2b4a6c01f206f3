//! The checks of `fulmen doctor`: each is a heading in the book's chapter on troubleshooting and a
//! function of a [`Machine`]. They need no root, open no device, and load no plugin into this
//! process.
//!
//! Out of scope: details about processes that hold a device (`fulmen ps`).

mod cloud;
mod environment;
mod machine;
mod plugins;
mod ports;
mod resources;
mod storage;
#[cfg(test)]
mod tests;
mod tpu;

use std::fmt;

use serde::Serialize;

pub use machine::Machine;

/// One check.
struct Check {
    /// The heading of the section, which the book uses too.
    heading: &'static str,
    look: fn(&Machine) -> Vec<Finding>,
}

const CHECKS: &[Check] = &[
    Check { heading: "Plugins", look: plugins::plugins },
    Check { heading: "Age of libtpu", look: plugins::age_of_libtpu },
    Check { heading: "TPU devices", look: tpu::devices },
    Check { heading: "Lock file", look: tpu::lock_file },
    Check { heading: "Memory", look: resources::memory },
    Check { heading: "Huge pages", look: resources::huge_pages },
    Check { heading: "Limits of a process", look: resources::limits },
    Check { heading: "Cores", look: resources::cores },
    Check { heading: "Variables of other frameworks", look: environment::of_others },
    Check { heading: "Variables that are read", look: environment::in_use },
    Check { heading: "Metadata server", look: cloud::metadata },
    Check { heading: "Zone and bucket", look: cloud::bucket },
    Check { heading: "Clock", look: cloud::clock },
    Check { heading: "Ports", look: ports::ports },
    Check { heading: "Colab, Kaggle, Kubernetes and Google Cloud", look: cloud::hosting },
    Check { heading: "Compile cache", look: storage::compile_cache },
    Check { heading: "Disk", look: storage::disk },
];

/// How bad a finding is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Everything is fine.
    Ok,
    /// For information.
    Note,
    /// Training runs, but slowly or not for long.
    Warning,
    /// Training does not start.
    Error,
}

/// A result of a check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Finding {
    /// The severity.
    pub severity: Severity,
    /// What was found.
    pub found: String,
    /// What to do about it; `None` if nothing is wrong.
    pub remedy: Option<String>,
}

impl Finding {
    fn ok(found: impl Into<String>) -> Finding {
        Self { severity: Severity::Ok, found: found.into(), remedy: None }
    }

    fn note(found: impl Into<String>, remedy: impl Into<String>) -> Finding {
        Self { severity: Severity::Note, found: found.into(), remedy: Some(remedy.into()) }
    }

    fn warning(found: impl Into<String>, remedy: impl Into<String>) -> Finding {
        Self { severity: Severity::Warning, ..Self::note(found, remedy) }
    }

    fn error(found: impl Into<String>, remedy: impl Into<String>) -> Finding {
        Self { severity: Severity::Error, ..Self::note(found, remedy) }
    }
}

/// The findings of a check under its heading.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Section {
    /// The heading, which the book's chapter on troubleshooting uses too.
    pub heading: &'static str,
    /// At least one.
    pub findings: Vec<Finding>,
}

/// The findings of all checks. `Display` prints them for a user.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Report {
    /// The sections, in the order of the book's chapter.
    pub sections: Vec<Section>,
}

impl Report {
    /// The number of findings of this severity.
    ///
    /// ```
    /// use fulmen_machine::doctor::{Machine, Severity};
    /// let report = Machine::local(["false"]).examine();
    /// println!("{} warnings", report.count(Severity::Warning));
    /// ```
    pub fn count(&self, severity: Severity) -> usize {
        let findings = self.sections.iter().flat_map(|section| &section.findings);
        findings.filter(|finding| finding.severity == severity).count()
    }
}

/// One line for each finding, and one for its remedy.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for Section { heading, findings } in &self.sections {
            for Finding { severity, found, remedy } in findings {
                let severity = match severity {
                    Severity::Ok => "ok     ",
                    Severity::Note => "note   ",
                    Severity::Warning => "warning",
                    Severity::Error => "ERROR  ",
                };
                writeln!(f, "{severity}  {heading}: {found}")?;
                if let Some(remedy) = remedy {
                    writeln!(f, "           do: {remedy}")?;
                }
            }
        }
        let count = |severity, name: &str| match self.count(severity) {
            1 => format!("1 {name}"),
            count => format!("{count} {name}s"),
        };
        write!(f, "{}, {}", count(Severity::Error, "error"), count(Severity::Warning, "warning"))
    }
}

/// Bytes in a readable unit.
fn size(bytes: u64) -> String {
    match bytes as f64 {
        bytes if bytes >= 1e9 => format!("{:.1} GB", bytes / 1e9),
        bytes => format!("{:.0} MB", bytes / 1e6),
    }
}
