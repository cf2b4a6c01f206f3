//! The checks of `fulmen doctor`: each is a function of a [`Machine`], and has a heading in the
//! book's chapter on troubleshooting. The checks need no root, open no device, and load no plugin
//! into this process.
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

use fulmen_durable::messages::quantity;
use serde::Serialize;

pub use machine::Machine;

struct Check {
    /// The heading of the section, which the book uses too.
    heading: &'static str,
    run: fn(&Machine) -> Vec<Finding>,
}

const CHECKS: &[Check] = &[
    Check { heading: "Plugins", run: plugins::plugins },
    Check { heading: "Age of libtpu", run: plugins::age_of_libtpu },
    Check { heading: "TPU devices", run: tpu::devices },
    Check { heading: "Lock file", run: tpu::lock_file },
    Check { heading: "Memory", run: resources::memory },
    Check { heading: "Huge pages", run: resources::huge_pages },
    Check { heading: "Limits of a process", run: resources::limits },
    Check { heading: "Cores", run: resources::cores },
    Check { heading: "Variables of other frameworks", run: environment::foreign_variables },
    Check { heading: "Variables that are read", run: environment::fulmen_variables },
    Check { heading: "Metadata server", run: cloud::metadata },
    Check { heading: "Zone and bucket", run: cloud::bucket },
    Check { heading: "Clock", run: cloud::clock },
    Check { heading: "Ports", run: ports::ports },
    Check { heading: "Colab, Kaggle, Kubernetes and Google Cloud", run: cloud::hosting },
    Check { heading: "Compile cache", run: storage::compile_cache },
    Check { heading: "Disk", run: storage::disk },
];

/// The severity of a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Severity {
    /// Everything is fine.
    Ok,
    /// A fact to know; nothing is wrong.
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
    #[serde(rename = "found")]
    pub message: String,
    /// What to do about the problem; `None` if nothing is wrong.
    pub remedy: Option<String>,
}

impl Finding {
    fn ok(message: impl Into<String>) -> Finding {
        Self { severity: Severity::Ok, message: message.into(), remedy: None }
    }

    fn note(message: impl Into<String>, remedy: impl Into<String>) -> Finding {
        Self { severity: Severity::Note, message: message.into(), remedy: Some(remedy.into()) }
    }

    fn warning(message: impl Into<String>, remedy: impl Into<String>) -> Finding {
        Self { severity: Severity::Warning, ..Self::note(message, remedy) }
    }

    fn error(message: impl Into<String>, remedy: impl Into<String>) -> Finding {
        Self { severity: Severity::Error, ..Self::note(message, remedy) }
    }
}

/// The findings of a check under its heading.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Section {
    /// The heading, which the book's chapter on troubleshooting uses too.
    pub heading: &'static str,
    /// The findings, at least one.
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
            for Finding { severity, message, remedy } in findings {
                let severity = match severity {
                    Severity::Ok => "ok     ",
                    Severity::Note => "note   ",
                    Severity::Warning => "warning",
                    Severity::Error => "ERROR  ",
                };
                writeln!(f, "{severity}  {heading}: {message}")?;
                if let Some(remedy) = remedy {
                    writeln!(f, "           do: {remedy}")?;
                }
            }
        }
        let errors = quantity(self.count(Severity::Error), "error");
        write!(f, "{errors}, {}", quantity(self.count(Severity::Warning), "warning"))
    }
}
