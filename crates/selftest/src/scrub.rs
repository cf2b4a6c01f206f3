//! [`Scrub`]: takes the names of the user, the host and their folders out of texts.

use std::env;
use std::fs;
use std::path::Path;

use serde_json::Value;

/// What to take out of texts, and what to write in its place.
#[derive(Clone, Debug, Default)]
pub(crate) struct Scrub(Vec<(String, &'static str)>);

impl Scrub {
    /// What is private on this machine. `folder` is the temporary folder of the test, and `hosts`
    /// are the names of other machines.
    pub(crate) fn local<'a>(folder: &Path, hosts: impl IntoIterator<Item = &'a str>) -> Scrub {
        let mut words = Vec::new();
        let mut add = |text: Option<String>, place| {
            // A short text, such as the home folder `/`, is part of too many others.
            words.extend(text.filter(|text| text.len() > 2).map(|text| (text, place)));
        };
        let program = env::current_exe().ok();
        let program = program.as_deref().and_then(Path::parent);
        let working = env::current_dir().ok();
        let text = |path: &Path| path.to_str().map(str::to_owned);
        add(text(folder), "TEMPORARY");
        add(program.and_then(text), "PROGRAM");
        add(working.as_deref().and_then(text), "FOLDER");
        add(env::var("HOME").ok(), "~");
        for name in ["USER", "LOGNAME"] {
            // Everybody's.
            add(env::var(name).ok().filter(|name| name != "root"), "USER");
        }
        let host = fs::read_to_string("/proc/sys/kernel/hostname").ok();
        let hosts = hosts.into_iter().map(str::to_owned);
        for host in host.map(|host| host.trim().to_owned()).into_iter().chain(hosts) {
            add(Some(host).filter(|host| host != "localhost"), "HOST");
        }
        Scrub(words)
    }

    pub(crate) fn text(&self, text: &str) -> String {
        self.0.iter().fold(text.to_owned(), |text, (word, place)| replace_word(&text, word, place))
    }

    /// Changes each text of a value; names of fields are ours.
    pub(crate) fn value(&self, value: &mut Value) {
        match value {
            Value::String(text) => *text = self.text(text),
            Value::Array(items) => items.iter_mut().for_each(|item| self.value(item)),
            Value::Object(fields) => fields.values_mut().for_each(|field| self.value(field)),
            Value::Null | Value::Bool(_) | Value::Number(_) => {}
        }
    }
}

/// Replaces a word where it is not a part of a longer one.
fn replace_word(text: &str, word: &str, place: &str) -> String {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    let mut result = String::new();
    let mut rest = text;
    while let Some(start) = rest.find(word) {
        let end = start + word.len();
        let before = rest[..start].chars().next_back().or(result.chars().next_back());
        let goes_on_before = before.is_some_and(is_part) && word.starts_with(is_part);
        let goes_on_after = rest[end..].starts_with(is_part);
        result += &rest[..start];
        result += if goes_on_before || goes_on_after { word } else { place };
        rest = &rest[end..];
    }
    result + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_words_are_replaced_and_longer_ones_are_not() {
        let scrub = Scrub(vec![("/home/ada".into(), "~"), ("ada".into(), "USER")]);
        let text = "/home/ada/x.so of ada on /home/adam, adadelta";
        assert_eq!(scrub.text(text), "~/x.so of USER on /home/adam, adadelta");
        let mut value = serde_json::json!({ "ada": ["ada", 1] });
        scrub.value(&mut value);
        assert_eq!(value, serde_json::json!({ "ada": ["USER", 1] }));
    }
}
