//! transformers' settings of Jinja: its functions and filters, and Python's methods of texts.
//!
//! Out of scope: templates and conversations.

use std::fmt::Write as _;
use std::time::SystemTime;

use chrono::format::{Item, StrftimeItems};
use chrono::{DateTime, Utc};
use minijinja::value::{Kwargs, Tuple, ValueKind, from_args};
use minijinja::{AutoEscape, Environment, Error, ErrorKind, Output, State, Value};
use minijinja_contrib::pycompat;

use super::generation;
use super::python_json::{Format, float};

/// The environment of all templates.
pub(super) fn environment() -> Environment<'static> {
    let mut environment = Environment::new();
    let mut syntax = minijinja::syntax::SyntaxConfig::builder();
    syntax.trim_blocks(true).lstrip_blocks(true);
    if let Ok(syntax) = syntax.build() {
        environment.set_syntax(syntax);
    }
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_unknown_method_callback(python_method);
    environment.set_formatter(write_value);
    environment.add_filter("string", string);
    environment.add_filter("tojson", tojson);
    environment.add_test("iterable", is_iterable);
    environment.add_test("sequence", is_sequence);
    environment.add_filter(generation::FILTER, generation::filter);
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("strftime_now", no_time);
    environment
}

fn invalid(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::InvalidOperation, message.into())
}

fn raise_exception(message: &str) -> Result<Value, Error> {
    Err(invalid(format!("the template refuses the conversation: {message}")))
}

fn no_time(_format: &str) -> Result<Value, Error> {
    Err(invalid(
        "the template asks for the time, so its texts change from day to day; pass a fixed time by Chat::now",
    ))
}

/// A number with a fraction as Python writes it.
fn python_float(value: &Value) -> Option<String> {
    let is_float = value.kind() == ValueKind::Number && !value.is_integer();
    f64::try_from(value.clone()).ok().filter(|_| is_float).map(float)
}

fn write_value(out: &mut Output<'_>, state: &mut State, value: &Value) -> Result<(), Error> {
    match python_float(value) {
        Some(number) => out.write_str(&number).map_err(Error::from),
        None => minijinja::escape_formatter(out, state, value),
    }
}

fn string(value: &Value) -> Value {
    Value::from(python_float(value).unwrap_or_else(|| value.to_string()))
}

/// What Python's `iter` accepts.
fn is_iterable(value: &Value) -> bool {
    !value.is_none() && value.try_iter().is_ok()
}

/// What has a length and items in Python.
fn is_sequence(value: &Value) -> bool {
    use ValueKind::{Map, Seq, String, Undefined};
    matches!(value.kind(), Map | Seq | String | Undefined)
}

/// A time in UTC by a format of `strftime`.
pub(super) fn strftime(now: SystemTime, format: &str) -> Result<String, Error> {
    let items: Vec<Item<'_>> = StrftimeItems::new(format).collect();
    if items.contains(&Item::Error) {
        return Err(invalid(format!("`strftime_now` has an unknown format: {format:?}")));
    }
    Ok(DateTime::<Utc>::from(now).format_with_items(items.iter()).to_string())
}

/// `json.dumps` with transformers' defaults.
fn tojson(value: &Value, kwargs: Kwargs) -> Result<String, Error> {
    let indent = match kwargs.get::<Option<Value>>("indent")?.filter(|indent| !indent.is_none()) {
        None => None,
        Some(indent) if indent.kind() == ValueKind::String => Some(indent.to_string()),
        Some(indent) => Some(" ".repeat(usize::try_from(indent)?)),
    };
    let separators = kwargs.get::<Option<Value>>("separators")?.filter(|value| !value.is_none());
    let format = Format {
        ensure_ascii: kwargs.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        sort_keys: kwargs.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
        item_separator: match &separators {
            Some(pair) => pair.get_item_by_index(0)?.to_string(),
            None => if indent.is_some() { "," } else { ", " }.to_owned(),
        },
        key_separator: match &separators {
            Some(pair) => pair.get_item_by_index(1)?.to_string(),
            None => ": ".to_owned(),
        },
        indent,
    };
    kwargs.assert_all_used()?;
    format.dump(value)
}

/// Python's methods of texts that `pycompat` does not have; the others are its own.
fn python_method(
    state: &mut State,
    value: &Value,
    method: &str,
    args: &[Value],
) -> Result<Value, Error> {
    let Some(text) = value.as_str() else {
        return pycompat::unknown_method_callback(state, value, method, args);
    };
    let parts = |before: &str, separator: &str, after: &str| {
        Value::from(Tuple::from([before, separator, after].map(Value::from)))
    };
    match method {
        "removeprefix" => {
            let (prefix,): (&str,) = from_args(args)?;
            Ok(Value::from(text.strip_prefix(prefix).unwrap_or(text)))
        }
        "removesuffix" => {
            let (suffix,): (&str,) = from_args(args)?;
            Ok(Value::from(text.strip_suffix(suffix).unwrap_or(text)))
        }
        "partition" => {
            let (separator,): (&str,) = from_args(args)?;
            Ok(match text.split_once(separator) {
                Some((before, after)) => parts(before, separator, after),
                None => parts(text, "", ""),
            })
        }
        "rpartition" => {
            let (separator,): (&str,) = from_args(args)?;
            Ok(match text.rsplit_once(separator) {
                Some((before, after)) => parts(before, separator, after),
                None => parts("", "", text),
            })
        }
        "rsplit" => rsplit(text, args),
        _ => pycompat::unknown_method_callback(state, value, method, args),
    }
}

/// `str.rsplit(sep, maxsplit)` with a separator.
fn rsplit(text: &str, args: &[Value]) -> Result<Value, Error> {
    let (separator, limit): (&str, Option<i64>) = from_args(args)?;
    if separator.is_empty() {
        return Err(invalid("`rsplit` has an empty separator"));
    }
    let mut parts: Vec<&str> = match limit.and_then(|limit| usize::try_from(limit).ok()) {
        Some(limit) => text.rsplitn(limit.saturating_add(1), separator).collect(),
        None => text.rsplit(separator).collect(),
    };
    parts.reverse();
    Ok(parts.into_iter().map(Value::from).collect())
}

/// An error with the place in the template.
pub(super) fn describe(origin: &str, error: &Error) -> String {
    let mut text = origin.to_owned();
    if let Some(line) = error.line() {
        let _ = write!(text, ", line {line}");
    }
    let message = match (error.kind(), error.detail()) {
        (ErrorKind::InvalidOperation, Some(detail)) => detail.to_owned(),
        (kind, Some(detail)) => format!("{kind}: {detail}"),
        (kind, None) => kind.to_string(),
    };
    let _ = write!(text, ": {message}");
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        let _ = write!(text, ": {cause}");
        source = cause.source();
    }
    text
}
