//! [`TrainDuration`]: how long a training run lasts, in epochs, steps, samples, tokens or time.
//! Also reads and writes times for all options.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use crate::{Error, Result};

/// How long a training run lasts: in epochs, optimizer steps, samples, tokens or time.
///
/// ```
/// use std::time::Duration;
/// use fulmen_trainer::TrainDuration;
///
/// assert_eq!("10ep".parse::<TrainDuration>()?, TrainDuration::Epochs(10));
/// assert_eq!("500ba".parse::<TrainDuration>()?, TrainDuration::Steps(500));
/// assert_eq!("1e6sa".parse::<TrainDuration>()?, TrainDuration::Samples(1_000_000));
/// assert_eq!("1e9tok".parse::<TrainDuration>()?, TrainDuration::Tokens(1_000_000_000));
/// assert_eq!("2h30m".parse::<TrainDuration>()?, TrainDuration::Time(Duration::from_secs(9000)));
/// assert_eq!("00:02:30:00".parse::<TrainDuration>()?.to_string(), "2h30m"); // days, hours, minutes, seconds
/// assert!("500".parse::<TrainDuration>().unwrap_err().to_string().contains("500ba"));
/// # Ok::<(), fulmen_trainer::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TrainDuration {
    /// No limit: `none`.
    #[default]
    Unlimited,
    /// Epochs: `10ep`.
    Epochs(u64),
    /// Optimizer steps: `500ba`.
    Steps(u64),
    /// Samples of the training data, over all devices: `1e6sa`, `1e6samples`.
    Samples(u64),
    /// Tokens of the training data, over all devices: `1e9tok`. The tokens of a sample are the
    /// elements of its field `input_ids`, including padding.
    Tokens(u64),
    /// Time to train and validate: `2h30m`, `90s`, `00:12:00:00` (days, hours, minutes and
    /// seconds).
    Time(Duration),
}

/// The number of seconds in a unit of time.
fn seconds(unit: &str) -> Option<f64> {
    Some(match unit {
        "d" | "day" | "days" => 86400.0,
        "h" | "hour" | "hours" => 3600.0,
        "m" | "min" | "minutes" => 60.0,
        "s" | "sec" | "seconds" => 1.0,
        "ms" => 1e-3,
        _ => return None,
    })
}

/// Splits a text into a number, its unit, and the rest.
fn split_quantity(text: &str) -> Option<(f64, String, &str)> {
    let bytes = text.as_bytes();
    let digits = |from: usize| {
        from + bytes[from..].iter().take_while(|b| b.is_ascii_digit() || **b == b'.').count()
    };
    let mut end = digits(0);
    // `1e9tok` has an exponent, but `1ep` doesn't.
    if matches!(bytes.get(end), Some(b'e' | b'E')) {
        let sign = usize::from(matches!(bytes.get(end + 1), Some(b'+')));
        if bytes.get(end + 1 + sign).is_some_and(u8::is_ascii_digit) {
            end = digits(end + 1 + sign);
        }
    }
    let number = text[..end].parse().ok()?;
    let rest = text[end..].trim_start();
    let unit = rest.len() - rest.trim_start_matches(|c: char| c.is_alphabetic()).len();
    Some((number, rest[..unit].to_lowercase(), rest[unit..].trim_start()))
}

/// Reads a time: numbers with units (`2h30m`), or days, hours, minutes and seconds between colons
/// (`00:02:30:00`).
///
/// # Errors
/// A message that says what is wrong.
pub(crate) fn parse_time(text: &str) -> Result<Duration, String> {
    let mut sum = 0.0;
    if text.contains(':') {
        let parts: Option<Vec<f64>> =
            text.split(':').map(|part| part.parse::<u32>().ok().map(f64::from)).collect();
        let Some([days, hours, minutes, seconds]) = parts.as_deref() else {
            return Err(
                "a time with colons is days, hours, minutes and seconds, such as 00:12:30:00"
                    .to_owned(),
            );
        };
        sum = ((days * 24.0 + hours) * 60.0 + minutes) * 60.0 + seconds;
    } else {
        let mut rest = text.trim();
        loop {
            let (number, unit, next) = split_quantity(rest)
                .ok_or_else(|| format!("`{rest}` does not begin with a number"))?;
            sum += number
                * seconds(&unit)
                    .ok_or_else(|| format!("`{unit}` is not a unit of time (d, h, m, s or ms)"))?;
            if next.is_empty() {
                break;
            }
            rest = next;
        }
    }
    Duration::try_from_secs_f64(sum).map_err(|_| "it is longer than any run can be".to_owned())
}

/// Writes a time as [`parse_time`] reads it.
pub(crate) fn show_time(time: Duration) -> String {
    let whole = time.as_secs();
    let rest = f64::from(time.subsec_nanos()) / 1e9 + (whole % 60) as f64;
    let parts = [(whole / 3600, "h"), (whole / 60 % 60, "m")].into_iter().filter(|part| part.0 > 0);
    let mut text: String = parts.map(|(count, unit)| format!("{count}{unit}")).collect();
    if rest > 0.0 || whole == 0 {
        text.push_str(&format!("{rest}s"));
    }
    text
}

fn parse(text: &str) -> Result<TrainDuration, String> {
    if text.is_empty() || text.eq_ignore_ascii_case("none") {
        return Ok(TrainDuration::Unlimited);
    }
    let (number, unit, rest) = split_quantity(text).ok_or("it does not begin with a number")?;
    if text.contains(':') || seconds(&unit).is_some() {
        return parse_time(text).map(TrainDuration::Time);
    }
    let kind = match unit.as_str() {
        "ep" | "epoch" | "epochs" => TrainDuration::Epochs,
        "ba" | "batches" | "step" | "steps" => TrainDuration::Steps,
        "sa" | "sp" | "sample" | "samples" => TrainDuration::Samples,
        "tok" | "token" | "tokens" => TrainDuration::Tokens,
        "" => {
            return Err(format!(
                "it has no unit; write {text}ba for steps, {text}ep for epochs or {text}s for seconds"
            ));
        }
        _ => return Err(format!("`{unit}` is not a unit")),
    };
    if !rest.is_empty() {
        return Err(format!("remove `{rest}`; only times can be added up"));
    }
    let whole = number.fract() == 0.0 && number < 9e15;
    if whole { Ok(kind(number as u64)) } else { Err("it is not a whole number".into()) }
}

impl FromStr for TrainDuration {
    type Err = Error;
    fn from_str(text: &str) -> Result<TrainDuration> {
        parse(text.trim()).map_err(|error| {
            let expected = "write 10ep (epochs), 500ba (steps), 1e6sa (samples), 1e9tok (tokens), 2h30m or none";
            Error::usage(format!("`{text}` is not a duration: {error}; {expected}"))
        })
    }
}

impl TryFrom<&str> for TrainDuration {
    type Error = Error;
    fn try_from(text: &str) -> Result<TrainDuration> {
        text.parse()
    }
}

impl From<Duration> for TrainDuration {
    fn from(time: Duration) -> TrainDuration {
        TrainDuration::Time(time)
    }
}

/// Writes the duration as it is parsed.
impl fmt::Display for TrainDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TrainDuration::Unlimited => f.write_str("none"),
            TrainDuration::Epochs(count) => write!(f, "{count}ep"),
            TrainDuration::Steps(count) => write!(f, "{count}ba"),
            TrainDuration::Samples(count) => write!(f, "{count}samples"),
            TrainDuration::Tokens(count) => write!(f, "{count}tok"),
            TrainDuration::Time(time) => f.write_str(&show_time(*time)),
        }
    }
}

impl TrainDuration {
    /// What is expected, if the duration is 0.
    pub(crate) fn config_error(&self) -> Option<&'static str> {
        use TrainDuration::{Epochs, Samples, Steps, Time, Tokens};
        matches!(self, Epochs(0) | Steps(0) | Samples(0) | Tokens(0) | Time(Duration::ZERO))
            .then_some("it must be more than 0")
    }

    /// Like [`config_error`](TrainDuration::config_error), for an option that must be a time.
    pub(crate) fn config_error_of_time(&self) -> Option<&'static str> {
        match self {
            TrainDuration::Time(_) | TrainDuration::Unlimited => self.config_error(),
            _ => Some("it must be a time, such as 2h30m or 90s"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_duration_is_parsed_from_its_own_text() {
        for text in [
            "none",
            "10ep",
            "500ba",
            "1000000samples",
            "1000tok",
            "2h30m",
            "90h",
            "0.5s",
            "1h1m1s",
            "30s",
        ] {
            let duration: TrainDuration = text.parse().unwrap();
            assert_eq!(duration.to_string(), text);
            assert_eq!(duration.to_string().parse::<TrainDuration>().unwrap(), duration);
        }
        let time = |text: &str| text.parse::<TrainDuration>().unwrap();
        assert_eq!(time("1d 2h"), time("26h"));
        assert_eq!(time("1.5h"), time("00:01:30:00"));
        assert_eq!(time("2e3steps"), TrainDuration::Steps(2000));
        assert_eq!(time("1s500ms"), time("1.5s"));
    }

    #[test]
    fn errors_say_why_a_text_is_not_a_duration() {
        for (text, expected) in [
            ("500", "write 500ba for steps, 500ep for epochs or 500s"),
            ("ep", "does not begin with a number"),
            ("-1", "does not begin with a number"),
            ("1.5ep", "not a whole number"),
            ("1e99ep", "not a whole number"),
            ("1e99h", "longer than any run"),
            ("1ep3ba", "only times can be added up"),
            ("1h3ba", "`ba` is not a unit of time"),
            ("1h3", "`` is not a unit of time"),
            ("3x", "`x` is not a unit"),
            ("1.5tok", "not a whole number"),
            ("1:00", "days, hours, minutes and seconds"),
        ] {
            let message = text.parse::<TrainDuration>().unwrap_err().to_string();
            assert!(
                message.contains(expected)
                    && message.contains(&format!("`{text}` is not a duration")),
                "{message}"
            );
        }
    }
}
