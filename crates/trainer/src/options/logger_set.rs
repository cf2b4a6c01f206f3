//! [`LoggerSet`]: the built-in loggers of a run.

use std::fmt;
use std::str::FromStr;

use crate::options::lightning_names::replacement_for_value;
use crate::{Error, Result};

/// The built-in loggers of a run.
///
/// ```
/// use fulmen_trainer::LoggerSet;
/// assert_eq!("csv,jsonl".parse::<LoggerSet>()?, LoggerSet::Only(vec!["csv", "jsonl"]));
/// assert_eq!("none".parse::<LoggerSet>()?, LoggerSet::Only(Vec::new()));
/// # Ok::<(), fulmen_trainer::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LoggerSet {
    /// `csv`, `jsonl` and `tensorboard`; none of them if the program adds its own loggers.
    #[default]
    Auto,
    /// These, in addition to the program's own.
    Only(Vec<&'static str>),
}

const NAMES: [&str; 5] = ["csv", "jsonl", "tensorboard", "mlflow", "wandb"];

impl FromStr for LoggerSet {
    type Err = Error;

    fn from_str(text: &str) -> Result<LoggerSet> {
        match text.trim() {
            "auto" | "true" => return Ok(LoggerSet::Auto),
            "none" | "false" => return Ok(LoggerSet::Only(Vec::new())),
            _ => {}
        }
        let mut names = Vec::new();
        for name in text.trim().trim_matches(['[', ']']).split(',').map(str::trim) {
            let known = NAMES.iter().find(|known| **known == name).ok_or_else(|| {
                if let Some(replacement) = replacement_for_value("logger", name) {
                    return Error::usage(format!("`{name}` is not a logger: {replacement}"));
                }
                Error::usage(format!(
                    "`{name}` is not a logger; there are: {}; or use auto or none",
                    NAMES.join(", ")
                ))
            })?;
            if !names.contains(known) {
                names.push(*known);
            }
        }
        Ok(LoggerSet::Only(names))
    }
}

impl TryFrom<&str> for LoggerSet {
    type Error = Error;

    fn try_from(text: &str) -> Result<LoggerSet> {
        text.parse()
    }
}

/// Lightning's `logger=False`.
impl From<bool> for LoggerSet {
    fn from(on: bool) -> LoggerSet {
        if on { LoggerSet::Auto } else { LoggerSet::Only(Vec::new()) }
    }
}

impl fmt::Display for LoggerSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LoggerSet::Auto => f.write_str("auto"),
            LoggerSet::Only(names) if names.is_empty() => f.write_str("none"),
            LoggerSet::Only(names) => f.write_str(&names.join(",")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_is_parsed_and_an_unknown_name_is_an_error() {
        for (text, shown) in
            [("auto", "auto"), ("none", "none"), ("[jsonl, csv]", "jsonl,csv"), ("csv,csv", "csv")]
        {
            assert_eq!(text.parse::<LoggerSet>().unwrap().to_string(), shown);
        }
        let error = "csv,aim".parse::<LoggerSet>().unwrap_err().to_string();
        assert_eq!(
            error,
            "`aim` is not a logger; there are: csv, jsonl, tensorboard, mlflow, wandb; or use auto or none"
        );
    }
}
