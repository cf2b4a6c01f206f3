//! What an option's text on the command line is in JSON and in TOML.

use serde_json::Value as Json;
use toml_edit::Value;

/// A value of the command line: a number or a truth value if that gives back the very same text, else the text.
pub fn typed(text: &str) -> Json {
    let (whole, float) = (text.parse::<i64>().ok(), text.parse::<f64>().ok().filter(|_| text.contains('.')));
    match (text, whole, float) {
        ("true" | "false", ..) => Json::Bool(text == "true"),
        (_, Some(number), _) if number.to_string() == text => number.into(),
        (_, _, Some(number)) if number.is_finite() && number.to_string() == text => number.into(),
        _ => text.into(),
    }
}

/// Such a value in TOML.
fn toml(value: &Json) -> String {
    match value {
        Json::String(text) => Value::from(text).to_string(),
        Json::Array(values) => format!("[{}]", values.iter().map(toml).collect::<Vec<_>>().join(", ")),
        // As the command line has it, without an exponent.
        Json::Number(number) if number.is_f64() => number.as_f64().unwrap_or_default().to_string(),
        value => value.to_string(),
    }
}

/// A line of a configuration file: a name, its value if it has one, and where that comes from if it is not the default.
pub fn setting(name: &str, value: Option<&Json>, source: Option<&str>) -> String {
    let value = value.map_or_else(|| format!("# {name} ="), |value| format!("{name} = {}", toml(value)));
    value + &source.map(|source| format!("  # {source}")).unwrap_or_default() + "\n"
}
