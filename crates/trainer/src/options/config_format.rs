//! Converts an option's text on the command line to JSON and TOML.

use serde_json::Value as Json;
use toml_edit::Value;

/// The JSON value of a text on the command line: a number or a Boolean if it formats to the same
/// text, otherwise the text.
pub fn json_value(text: &str) -> Json {
    let whole = text.parse::<i64>().ok();
    let float = text.parse::<f64>().ok().filter(|_| text.contains('.'));
    match (text, whole, float) {
        ("true" | "false", ..) => Json::Bool(text == "true"),
        (_, Some(number), _) if number.to_string() == text => number.into(),
        (_, _, Some(number)) if number.is_finite() && number.to_string() == text => number.into(),
        _ => text.into(),
    }
}

/// Formats a JSON value as TOML.
fn toml_value(value: &Json) -> String {
    match value {
        Json::String(text) => Value::from(text).to_string(),
        Json::Array(values) => {
            format!("[{}]", values.iter().map(toml_value).collect::<Vec<_>>().join(", "))
        }
        // Without an exponent, as on the command line.
        Json::Number(number) if number.is_f64() => number.as_f64().unwrap_or_default().to_string(),
        value => value.to_string(),
    }
}

/// Formats a line of a configuration file: a name, its value if it has one, and the source of the
/// value unless it is the default.
pub fn toml_line(name: &str, value: Option<&Json>, source: Option<&str>) -> String {
    let setting = value
        .map_or_else(|| format!("# {name} ="), |value| format!("{name} = {}", toml_value(value)));
    setting + &source.map(|source| format!("  # {source}")).unwrap_or_default() + "\n"
}
