//! What is in a configuration file: entries with names, lines and values, whatever the format.

/// A name in a file and what it is set to.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) line: usize,
    pub(crate) content: Content,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Content {
    Value(ConfigValue),
    Section(Vec<Entry>),
    /// The name has no value: YAML's `null`. The option keeps the value that it has without the
    /// file.
    Unset,
}

/// A value as text, so that its argument decides its type, as for a flag.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ConfigValue {
    Text(String),
    /// A truth value, with its text: an argument that takes text gets the text.
    Boolean {
        value: bool,
        text: String,
    },
    List(Vec<ConfigValue>),
}

impl ConfigValue {
    /// A truth value that is written as `true` or `false`.
    pub(crate) fn boolean(value: bool) -> ConfigValue {
        ConfigValue::Boolean { value, text: value.to_string() }
    }

    /// The text of a flag's value. A list has the form of TOML's.
    pub(crate) fn text(&self) -> String {
        match self {
            ConfigValue::Text(text) | ConfigValue::Boolean { text, .. } => text.clone(),
            ConfigValue::List(values) => {
                let values: Vec<String> = values.iter().map(ConfigValue::text).collect();
                format!("[{}]", values.join(", "))
            }
        }
    }
}

/// What is wrong in a file, and its line.
#[derive(Debug, PartialEq)]
pub(crate) struct Mistake {
    pub(crate) line: usize,
    pub(crate) message: String,
}

impl Mistake {
    pub(crate) fn new(line: usize, message: impl Into<String>) -> Mistake {
        Mistake { line, message: message.into() }
    }
}
