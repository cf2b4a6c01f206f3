//! [`Report`]: what all parts found. `report.schema.json` describes its JSON.

use std::collections::BTreeMap;
use std::fmt;
use std::time::{SystemTime, UNIX_EPOCH};

use fulmen_durable::messages::{amount, duration, quantity};
use fulmen_error::{Error, Result};
use serde::{Deserialize, Serialize};

use crate::event::{Events, Failure, Measurement};
use crate::scrub::Scrub;
use crate::{Options, parts};

/// The version of the report's form.
const VERSION: u32 = 1;

/// The beginning of the name of a fact that says whether a kernel is approved.
pub(crate) const KERNEL_FACT: &str = "kernel ";

/// What all parts found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The version of this form.
    pub schema: u32,
    /// The version of Fulmen.
    pub fulmen: String,
    /// The seconds since 1970.
    pub unix_seconds: u64,
    /// The operating system and the instruction set.
    pub system: String,
    /// What was tested.
    pub options: Options,
    /// Whether every part passed.
    pub passed: bool,
    /// The parts, in the order in which they ran.
    pub parts: Vec<PartReport>,
}

/// How the process of a part ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Ending {
    /// It did everything.
    Finished,
    /// A signal ended it.
    Signal {
        /// Its number.
        signal: i32,
        /// Its name.
        name: String,
    },
    /// It ended too early.
    Exit {
        /// Its exit code.
        code: i32,
    },
    /// It was still working at its limit, and was ended.
    TimedOut {
        /// The limit.
        limit_seconds: u64,
    },
    /// It was ended because that of another process of the pod ended too early.
    Stopped,
}

impl Ending {
    /// How the process ended, in words.
    pub(crate) fn describe(&self) -> String {
        match self {
            Ending::Finished => "finished".to_owned(),
            Ending::Signal { signal, name } => format!("crashed with signal {signal} ({name})"),
            Ending::Exit { code } => format!("ended with exit code {code}"),
            Ending::TimedOut { limit_seconds } => {
                let limit = quantity(limit_seconds, "second");
                format!("was still working after {limit} and was ended")
            }
            Ending::Stopped => "was ended because that of another process ended".to_owned(),
        }
    }
}

/// What a part found.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PartReport {
    /// The name of the part.
    pub name: String,
    /// Whether it did everything, and nothing was wrong.
    pub passed: bool,
    /// How its process ended.
    pub ending: Ending,
    /// How long it took.
    pub seconds: f64,
    /// How many comparisons agreed.
    pub comparisons: u64,
    /// What is wrong.
    pub failures: Vec<Failure>,
    /// What was not tested, and why.
    pub skipped: Vec<String>,
    /// Facts by name.
    pub facts: BTreeMap<String, String>,
    /// What was measured.
    pub measurements: Vec<Measurement>,
    /// What the process was doing when it ended.
    pub doing: Vec<String>,
    /// The last lines that a process of the part printed, if one did not finish.
    pub last_output: Vec<String>,
}

impl PartReport {
    pub(crate) fn new(
        name: &str,
        seconds: f64,
        events: Events,
        ending: Ending,
        last_output: Vec<String>,
    ) -> PartReport {
        PartReport {
            name: name.to_owned(),
            passed: ending == Ending::Finished && events.failures.is_empty(),
            last_output,
            ending,
            seconds,
            comparisons: events.passed,
            failures: events.failures,
            skipped: events.skipped,
            facts: events.facts,
            measurements: events.measurements,
            doing: events.doing,
        }
    }

    /// A report without anything in it.
    pub(crate) fn of_nothing(name: &str) -> PartReport {
        PartReport::new(name, 0.0, Events::default(), Ending::Finished, Vec::new())
    }

    /// The same without what is private.
    pub(crate) fn scrubbed(self, scrub: &Scrub) -> Result<PartReport> {
        let wrong = |e: serde_json::Error| Error::runtime("writing the report", e);
        let mut value = serde_json::to_value(&self).map_err(wrong)?;
        scrub.value(&mut value);
        serde_json::from_value(value).map_err(wrong)
    }

    /// How the process ended, in words; `None` if it finished.
    pub(crate) fn end(&self) -> Option<String> {
        if self.ending == Ending::Finished {
            return None;
        }
        let end = self.ending.describe();
        let doing = if self.doing.is_empty() { "starting".into() } else { self.doing.join(", ") };
        Some(format!("the part {end}; it was doing: {doing}"))
    }
}

impl Report {
    pub(crate) fn new(options: &Options, parts: Vec<PartReport>) -> Report {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Report {
            schema: VERSION,
            fulmen: env!("CARGO_PKG_VERSION").to_owned(),
            unix_seconds: now.as_secs(),
            system: format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
            options: options.clone(),
            passed: !parts.is_empty() && parts.iter().all(|part| part.passed),
            parts,
        }
    }

    /// The report as JSON.
    ///
    /// # Errors
    /// None that is known.
    pub fn to_json(&self) -> Result<String> {
        let text = serde_json::to_string_pretty(self);
        Ok(text.map_err(|e| Error::runtime("writing the report", e))? + "\n")
    }

    /// Reads a report.
    ///
    /// # Errors
    /// The text is not a report, or one of another version.
    pub fn from_json(text: &str) -> Result<Report> {
        let report: Report = serde_json::from_str(text)
            .map_err(|e| Error::usage(format!("not a report of `fulmen selftest`: {e}")))?;
        if report.schema != VERSION {
            return Err(Error::usage(format!(
                "a report of version {}; this program reads version {VERSION}",
                report.schema
            )));
        }
        Ok(report)
    }

    /// The last line: what came of it.
    pub fn closing_line(&self) -> String {
        let wrong: Vec<&str> =
            self.parts.iter().filter(|part| !part.passed).map(|part| part.name.as_str()).collect();
        let seconds = duration(self.parts.iter().map(|part| part.seconds).sum());
        let comparisons =
            quantity(self.parts.iter().map(|p| p.comparisons).sum::<u64>(), "comparison");
        if self.passed {
            let parts = quantity(self.parts.len(), "part");
            return format!("passed: {parts}, {comparisons}, {seconds}");
        }
        let failures =
            quantity(self.parts.iter().map(|p| p.failures.len()).sum::<usize>(), "failure");
        format!("FAILED: {} ({failures}; {comparisons} agree, {seconds})", wrong.join(", "))
    }
}

/// How many failures of a part are printed; the others are in the report.
const PRINTED: usize = 10;

/// The lines about a part that are printed when it ends.
impl fmt::Display for PartReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = if self.passed { "passed" } else { "FAILED" };
        let comparisons = quantity(self.comparisons, "comparison");
        let seconds = duration(self.seconds);
        write!(
            f,
            "{state}  {:<10}  {comparisons}, {seconds}: {}",
            self.name,
            parts::about(&self.name)
        )?;
        let is_shown = |name: &str| self.name == "device" || name.starts_with(KERNEL_FACT);
        for (name, value) in self.facts.iter().filter(|(name, _)| is_shown(name)) {
            write!(f, "\n          {name}: {value}")?;
        }
        for measured in &self.measurements {
            write!(f, "\n          {measured}")?;
        }
        for failure in self.failures.iter().take(PRINTED) {
            write!(f, "\n          {failure}")?;
        }
        let more = self.failures.len().saturating_sub(PRINTED);
        if more > 0 {
            write!(f, "\n          and {}", quantity(more, "more failure"))?;
        }
        if let Some(end) = self.end() {
            write!(f, "\n          {end}")?;
        }
        for line in &self.last_output {
            write!(f, "\n          | {line}")?;
        }
        for skipped in &self.skipped {
            write!(f, "\n          not tested: {skipped}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Failure { name, setting, message, .. } = self;
        if setting.is_empty() {
            return write!(f, "{name}: {message}");
        }
        write!(f, "{name} ({setting}): {message}")?;
        if let Some(ulps) = self.ulps {
            write!(f, "; largest error {} of the last place", quantity(ulps.round(), "unit"))?;
        }
        Ok(())
    }
}

impl Measurement {
    /// The number with its unit.
    pub(crate) fn text(&self) -> String {
        if self.unit == "s" { duration(self.value) } else { amount(self.value, &self.unit) }
    }
}

impl fmt::Display for Measurement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.name, self.text())?;
        if let Some(share) = self.share {
            write!(f, ", {:.0} % of the data sheet", share * 100.0)?;
        }
        if let Some(note) = &self.note {
            write!(f, " ({note})")?;
        }
        Ok(())
    }
}
