//! [`OptionText`]: reads and writes the values of options as text.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

use clap::builder::{BoolishValueParser, ValueParser};
use fulmen_tensor::{Accelerator, Devices, MatmulPrecision};

use crate::options::duration::{parse_time, show_time};
use crate::plan::NO_LIMIT;
use crate::{
    BatchLimit, FastDevRun, GradientClipAlgorithm, LearningRateScaling, LoggerSet, MetricsPort,
    Precision, Profiler, Result, Resume, Strategy, TrainDuration,
};

/// Reads and writes the value of an option as text.
pub(super) trait OptionText: Clone + Send + Sync + 'static {
    fn parse_env(text: &OsStr) -> Result<Self, String>;
    /// The parser for the command line.
    fn parser() -> ValueParser {
        ValueParser::new(|text: &str| Self::parse_env(OsStr::new(text)))
    }
    fn show(value: &Self) -> String;
    /// The value in the form of the command line, if it is set.
    fn argument(value: &Self) -> Option<String> {
        Some(Self::show(value))
    }
}

/// Lightning's value for "no limit".
pub(super) const NO_LIMIT_TEXT: &str = "-1";

/// What `-1` means as the value of this option, if the option is a limit.
fn no_limit(name: &str) -> Option<String> {
    match name {
        "max_epochs" => Some(NO_LIMIT.to_string()),
        "max_steps" => Some("0".to_owned()),
        "limit_train_batches"
        | "limit_val_batches"
        | "limit_test_batches"
        | "limit_predict_batches" => Some(BatchLimit::ALL.to_string()),
        _ => None,
    }
}

/// Reads the value of the option with this name. For a limit, `-1` means no limit, as in Lightning.
pub(super) fn parse_named<T: OptionText>(name: &str, text: &OsStr) -> Result<T, String> {
    match no_limit(name) {
        Some(unlimited) if text == NO_LIMIT_TEXT => T::parse_env(OsStr::new(&unlimited)),
        _ => T::parse_env(text),
    }
}

/// The parser of the option with this name for the command line.
pub(super) fn parser<T: OptionText>(name: &'static str) -> ValueParser {
    match no_limit(name) {
        Some(_) => ValueParser::new(move |text: &str| parse_named::<T>(name, OsStr::new(text))),
        None => T::parser(),
    }
}

fn parse<T: FromStr>(text: &OsStr) -> Result<T, String>
where
    T::Err: std::fmt::Display,
{
    text.to_str().ok_or("it is not UTF-8")?.parse().map_err(|e: T::Err| e.to_string())
}

impl OptionText for u64 {
    fn parse_env(text: &OsStr) -> Result<u64, String> {
        parse(text).map_err(|_| format!("expected a whole number from 0 to {}", u64::MAX))
    }
    fn show(value: &u64) -> String {
        value.to_string()
    }
}

impl OptionText for f64 {
    fn parse_env(text: &OsStr) -> Result<f64, String> {
        parse(text).map_err(|_| "expected a number".into())
    }
    fn show(value: &f64) -> String {
        value.to_string()
    }
}

impl OptionText for bool {
    fn parse_env(text: &OsStr) -> Result<bool, String> {
        match text.to_str().map(str::to_lowercase).as_deref() {
            Some("1" | "true" | "yes" | "on") => Ok(true),
            Some("0" | "false" | "no" | "off") => Ok(false),
            _ => Err("it is neither true nor false".into()),
        }
    }
    fn parser() -> ValueParser {
        BoolishValueParser::new().into()
    }
    fn show(value: &bool) -> String {
        value.to_string()
    }
}

/// Implements `OptionText` for types whose `Display` and `FromStr` use the same text.
macro_rules! display_texts {
    ($($ty:ty),*) => {$(
        impl OptionText for $ty {
            fn parse_env(text: &OsStr) -> Result<$ty, String> {
                parse(text)
            }
            fn show(value: &$ty) -> String {
                value.to_string()
            }
        }
    )*};
}
display_texts!(
    Accelerator,
    Devices,
    GradientClipAlgorithm,
    LearningRateScaling,
    LoggerSet,
    MatmulPrecision,
    MetricsPort,
    Profiler,
    Resume,
    Strategy,
    TrainDuration,
    BatchLimit,
    FastDevRun
);

impl OptionText for Duration {
    fn parse_env(text: &OsStr) -> Result<Duration, String> {
        let text = text.to_str().ok_or("it is not UTF-8")?;
        parse_time(text).map_err(|error| format!("{error}; expected a time, such as 25s or 1m30s"))
    }
    fn show(value: &Duration) -> String {
        show_time(*value)
    }
}

impl OptionText for Precision {
    fn parse_env(text: &OsStr) -> Result<Precision, String> {
        parse(text)
    }
    fn show(value: &Precision) -> String {
        if value.config_error().is_some() { value.to_string() } else { value.name().to_owned() }
    }
}

impl OptionText for PathBuf {
    fn parse_env(text: &OsStr) -> Result<PathBuf, String> {
        Ok(text.into())
    }
    fn parser() -> ValueParser {
        ValueParser::path_buf()
    }
    fn show(value: &PathBuf) -> String {
        if value.as_os_str().is_empty() { "none".into() } else { value.display().to_string() }
    }
    fn argument(value: &PathBuf) -> Option<String> {
        (!value.as_os_str().is_empty()).then(|| Self::show(value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_has_the_units_of_a_duration() {
        let parse = |text: &str| Duration::parse_env(OsStr::new(text));
        for (text, seconds, shown) in [
            ("25s", 25, "25s"),
            ("90s", 90, "1m30s"),
            ("1h30m", 5400, "1h30m"),
            ("2d", 172_800, "48h"),
            ("0s", 0, "0s"),
        ] {
            let time = parse(text).unwrap();
            assert_eq!(
                (time, Duration::show(&time)),
                (Duration::from_secs(seconds), shown.to_owned())
            );
        }
        assert_eq!(parse("1s500ms"), Ok(Duration::from_millis(1500)));
        for invalid in ["", "25", "s", "-1", "5x", "1h30", "1e99d"] {
            assert!(parse(invalid).unwrap_err().contains("25s or 1m30s"), "{invalid}");
        }
    }
}
