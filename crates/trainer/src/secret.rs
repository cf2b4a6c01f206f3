//! [`Secret`]: a password or token, which no file, log or message of a run shows.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::convert::Infallible;
use std::fmt;
use std::str::FromStr;

use parking_lot::Mutex;
use serde::{Serialize, Serializer};
use serde_json::{Map, Value as Json};

/// Stands for a secret where it would be shown.
const HIDDEN: &str = "***";

/// Shorter secrets are hidden only where they are a whole value: in other texts, their letters are
/// part of ordinary words.
const MIN_PART_BYTES: usize = 4;

/// The secrets of this process.
static SECRETS: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());

/// A password or token, for example the type of an argument of a program.
///
/// The text of a secret is nowhere in what a run writes: its configuration, checkpoints, loggers,
/// the recorded command line, and messages. Wherever it would be shown, there is `***`. A resumed
/// program must therefore be given its secrets again.
///
/// ```
/// use fulmen_trainer::Secret;
///
/// let token: Secret = "hf_abcdef".parse().unwrap();
/// assert_eq!(token.expose(), "hf_abcdef");
/// assert_eq!(format!("{token} {token:?}"), "*** Secret(***)");
/// assert_eq!(serde_json::to_string(&token).unwrap(), r#""***""#);
/// ```
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Makes a secret of this text. From now on, this process writes the text nowhere.
    pub fn new(text: impl Into<String>) -> Secret {
        let text = text.into();
        if !text.is_empty() {
            SECRETS.lock().insert(text.clone());
        }
        Secret(text)
    }

    /// The text, to be passed to the service that it is for.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl FromStr for Secret {
    type Err = Infallible;
    fn from_str(text: &str) -> Result<Secret, Infallible> {
        Ok(Secret::new(text))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Secret({HIDDEN})")
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(HIDDEN)
    }
}

impl Serialize for Secret {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(HIDDEN)
    }
}

/// The text with `***` in place of each secret of this process.
pub fn without_secrets(text: &str) -> Cow<'_, str> {
    let secrets = SECRETS.lock();
    if secrets.contains(text) {
        return Cow::Borrowed(HIDDEN);
    }
    let mut found: Vec<&String> = secrets
        .iter()
        .filter(|secret| secret.len() >= MIN_PART_BYTES && text.contains(secret.as_str()))
        .collect();
    // A secret may contain another.
    found.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
    found
        .into_iter()
        .fold(Cow::Borrowed(text), |text, secret| Cow::Owned(text.replace(secret.as_str(), HIDDEN)))
}

/// Replaces the secrets in all texts of a value.
fn hide_in(value: &mut Json) {
    match value {
        Json::String(text) => *text = without_secrets(text).into_owned(),
        Json::Array(values) => values.iter_mut().for_each(hide_in),
        Json::Object(values) => hide_in_values(values),
        Json::Null | Json::Bool(_) | Json::Number(_) => {
            // A secret of digits is a number here.
            if SECRETS.lock().contains(&value.to_string()) {
                *value = HIDDEN.into();
            }
        }
    }
}

/// Replaces the secrets in all values.
pub(crate) fn hide_in_values(values: &mut Map<String, Json>) {
    values.values_mut().for_each(hide_in);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_of_a_secret_is_hidden_in_texts_and_values() {
        let token = Secret::new("hf_first");
        let longer = Secret::new("hf_first-and-more");
        let short = Secret::new("q7");
        let digits = Secret::new("83719264");
        assert_eq!(without_secrets("--token=hf_first"), "--token=***");
        assert_eq!(without_secrets(longer.expose()), "***");
        assert_eq!(without_secrets("a hf_first-and-more b"), "a *** b");
        assert_eq!((&*without_secrets(short.expose()), &*without_secrets("q77")), ("***", "q77"));
        let mut values = serde_json::json!({
            "url": format!("https://me:{}@host", token.expose()),
            "list": [digits.expose(), 83719264, 3, true],
        });
        hide_in(&mut values);
        let expected = serde_json::json!({
            "url": "https://me:***@host",
            "list": ["***", "***", 3, true],
        });
        assert_eq!(values, expected);
    }
}
