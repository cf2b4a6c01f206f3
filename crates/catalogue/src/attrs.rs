//! The attributes of a case: the arguments of its operation that are not tensors.

use fulmen_tensor::DType;
use serde::Deserialize;
use serde_json::Value;

/// The arguments of an operation that are not tensors. Each method reads the attribute as its return
/// type, and panics if the attribute has a different type.
#[derive(Clone, Deserialize)]
#[serde(transparent)]
pub struct Attrs(Value);

impl Attrs {
    #[track_caller]
    fn read<T>(&self, name: &str, convert: impl Fn(&Value) -> Option<T>) -> T {
        convert(&self.0[name]).unwrap_or_else(|| panic!("attribute `{name}` of {}", self.0))
    }

    /// Whether the case has the attribute.
    pub fn has(&self, name: &str) -> bool {
        self.0.get(name).is_some_and(|value| !value.is_null())
    }

    /// Replaces the value of an attribute.
    pub fn set(&mut self, name: &str, word: &str) {
        self.0[name] = Value::from(word);
    }

    #[track_caller]
    pub(crate) fn bool(&self, name: &str) -> bool {
        self.read(name, Value::as_bool)
    }

    #[track_caller]
    pub(crate) fn usize(&self, name: &str) -> usize {
        self.read(name, as_usize)
    }

    #[track_caller]
    pub(crate) fn u64(&self, name: &str) -> u64 {
        self.read(name, Value::as_u64)
    }

    #[track_caller]
    pub(crate) fn i64(&self, name: &str) -> i64 {
        self.read(name, Value::as_i64)
    }

    #[track_caller]
    pub(crate) fn isize(&self, name: &str) -> isize {
        self.read(name, as_isize)
    }

    /// A number, or one of the words for numbers that JSON lacks: `"nan"`, `"inf"`, `"-inf"`.
    #[track_caller]
    pub(crate) fn number(&self, name: &str) -> f64 {
        self.read(name, as_number)
    }

    #[track_caller]
    pub(crate) fn str(&self, name: &str) -> &str {
        self.0[name].as_str().unwrap_or_else(|| panic!("attribute `{name}` of {}", self.0))
    }

    #[track_caller]
    pub(crate) fn dtype(&self, name: &str) -> DType {
        self.read(name, |v| DType::all().find(|d| Some(d.name()) == v.as_str()))
    }

    #[track_caller]
    pub(crate) fn usizes(&self, name: &str) -> Vec<usize> {
        self.read(name, |v| list(v, as_usize))
    }

    #[track_caller]
    pub(crate) fn i64s(&self, name: &str) -> Vec<i64> {
        self.read(name, |v| list(v, Value::as_i64))
    }

    #[track_caller]
    pub(crate) fn numbers(&self, name: &str) -> Vec<f64> {
        self.read(name, |v| list(v, as_number))
    }

    /// A list of pairs, like `padding`.
    #[track_caller]
    pub(crate) fn pairs(&self, name: &str) -> Vec<(i64, i64)> {
        self.read(name, |v| list(v, |pair| Some((pair[0].as_i64()?, pair[1].as_i64()?))))
    }

    /// A list of lists of axes.
    #[track_caller]
    pub(crate) fn lists(&self, name: &str) -> Vec<Vec<isize>> {
        self.read(name, |v| list(v, |inner| list(inner, as_isize)))
    }

    /// Axes, which may count from the end.
    #[track_caller]
    pub(crate) fn isizes(&self, name: &str) -> Vec<isize> {
        self.read(name, |v| list(v, as_isize))
    }

    /// `axes`, which may count from the end.
    #[track_caller]
    pub(crate) fn axes(&self) -> Vec<isize> {
        self.isizes("axes")
    }

    /// `axis`, which may count from the end.
    #[track_caller]
    pub(crate) fn axis(&self) -> isize {
        self.isize("axis")
    }

    #[track_caller]
    pub(crate) fn keepdims(&self) -> bool {
        self.bool("keepdims")
    }
}

fn list<T>(value: &Value, item: impl Fn(&Value) -> Option<T>) -> Option<Vec<T>> {
    value.as_array()?.iter().map(item).collect()
}

fn as_usize(value: &Value) -> Option<usize> {
    value.as_u64()?.try_into().ok()
}

fn as_isize(value: &Value) -> Option<isize> {
    value.as_i64()?.try_into().ok()
}

pub(crate) fn as_number(value: &Value) -> Option<f64> {
    match value {
        Value::String(word) => word.parse().ok(),
        Value::Bool(truth) => Some(f64::from(u8::from(*truth))),
        other => other.as_f64(),
    }
}
