//! JSON as Python's `json.dumps` writes it, which is what templates' `tojson` is in transformers.
//!
//! Out of scope: reading JSON.

use std::fmt::Write as _;

use minijinja::value::ValueKind;
use minijinja::{Error, ErrorKind, Value};

/// The arguments of `json.dumps`.
pub(super) struct Format {
    pub(super) ensure_ascii: bool,
    /// The text of a level.
    pub(super) indent: Option<String>,
    pub(super) item_separator: String,
    pub(super) key_separator: String,
    pub(super) sort_keys: bool,
}

impl Format {
    pub(super) fn dump(&self, value: &Value) -> Result<String, Error> {
        let mut out = String::new();
        self.value(value, 0, &mut out)?;
        Ok(out)
    }

    fn value(&self, value: &Value, level: usize, out: &mut String) -> Result<(), Error> {
        match value.kind() {
            ValueKind::None => out.push_str("null"),
            ValueKind::Bool => out.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number if value.is_integer() => {
                let _ = write!(out, "{value}");
            }
            ValueKind::Number => out.push_str(&float(f64::try_from(value.clone())?)),
            ValueKind::String => self.string(value.as_str().unwrap_or_default(), out),
            ValueKind::Seq => {
                let items: Vec<Value> = value.try_iter()?.collect();
                self.items("[]", &items, level, out, |item, out| self.value(item, level + 1, out))?;
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.sort_keys {
                    keys.sort();
                }
                self.items("{}", &keys, level, out, |key, out| {
                    self.string(&key_text(key)?, out);
                    out.push_str(&self.key_separator);
                    self.value(&value.get_item(key)?, level + 1, out)
                })?;
            }
            kind => {
                let message = format!("`tojson` of {kind}, which is not a JSON value");
                return Err(Error::new(ErrorKind::InvalidOperation, message));
            }
        }
        Ok(())
    }

    fn items(
        &self,
        brackets: &str,
        items: &[Value],
        level: usize,
        out: &mut String,
        write: impl Fn(&Value, &mut String) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let new_line = |level: usize, out: &mut String| {
            if let Some(indent) = &self.indent {
                out.push('\n');
                (0..level).for_each(|_| out.push_str(indent));
            }
        };
        out.push_str(&brackets[..1]);
        for (number, item) in items.iter().enumerate() {
            if number > 0 {
                out.push_str(&self.item_separator);
            }
            new_line(level + 1, out);
            write(item, out)?;
        }
        if !items.is_empty() {
            new_line(level, out);
        }
        out.push_str(&brackets[1..]);
        Ok(())
    }

    fn string(&self, text: &str, out: &mut String) {
        out.push('"');
        for c in text.chars() {
            match c {
                '"' => out.push_str("\\\""),
                '\\' => out.push_str("\\\\"),
                '\n' => out.push_str("\\n"),
                '\r' => out.push_str("\\r"),
                '\t' => out.push_str("\\t"),
                '\u{8}' => out.push_str("\\b"),
                '\u{c}' => out.push_str("\\f"),
                c if c < ' ' || (self.ensure_ascii && !c.is_ascii()) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        let _ = write!(out, "\\u{unit:04x}");
                    }
                }
                c => out.push(c),
            }
        }
        out.push('"');
    }
}

fn key_text(key: &Value) -> Result<String, Error> {
    Ok(match key.kind() {
        ValueKind::String => key.to_string(),
        ValueKind::None => "null".to_owned(),
        ValueKind::Bool => if key.is_true() { "true" } else { "false" }.to_owned(),
        ValueKind::Number if key.is_integer() => key.to_string(),
        ValueKind::Number => float(f64::try_from(key.clone())?),
        kind => {
            let message = format!("`tojson` of an object with a key that is {kind}");
            return Err(Error::new(ErrorKind::InvalidOperation, message));
        }
    })
}

/// A number as Python's `repr` writes it: the shortest digits that give it back, with an exponent
/// below 1e-4 and from 1e16 on.
pub(super) fn float(value: f64) -> String {
    if !value.is_finite() {
        let sign = if value < 0.0 { "-" } else { "" };
        return if value.is_nan() { "NaN".to_owned() } else { format!("{sign}Infinity") };
    }
    let scientific = format!("{value:e}");
    let Some((digits, exponent)) = scientific.split_once('e') else { return scientific };
    let exponent: i32 = exponent.parse().unwrap_or_default();
    if value == 0.0 || (-4..16).contains(&exponent) {
        return format!("{value:?}");
    }
    let sign = if exponent < 0 { '-' } else { '+' };
    format!("{digits}e{sign}{:02}", exponent.unsigned_abs())
}
