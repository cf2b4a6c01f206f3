//! Named values, for a plugin's options and attributes.

use std::collections::BTreeMap;
use std::fmt;

use crate::abi::*;
use crate::api::{list, text};
use crate::error::{self, Result};

/// The value of an option or an attribute.
///
/// ```
/// use fulmen_pjrt::NamedValue;
/// assert_eq!(NamedValue::from(8), NamedValue::Int(8));
/// assert_eq!(NamedValue::from("bfc"), NamedValue::String("bfc".to_owned()));
/// ```
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum NamedValue {
    /// A string.
    String(String),
    /// An integer.
    Int(i64),
    /// A list of integers.
    IntList(Vec<i64>),
    /// A floating-point number.
    Float(f32),
    /// A boolean.
    Bool(bool),
}

impl NamedValue {
    /// The type's name, for messages.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Self::String(_) => "a string",
            Self::Int(_) => "an integer",
            Self::IntList(_) => "a list of integers",
            Self::Float(_) => "a float",
            Self::Bool(_) => "a bool",
        }
    }
}

impl fmt::Display for NamedValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::String(value) => f.write_str(value),
            Self::Int(value) => value.fmt(f),
            Self::IntList(value) => fmt::Debug::fmt(value, f),
            Self::Float(value) => value.fmt(f),
            Self::Bool(value) => value.fmt(f),
        }
    }
}

macro_rules! from {
    ($($type:ty => $variant:ident),*) => {$(
        impl From<$type> for NamedValue {
            fn from(value: $type) -> Self { Self::$variant(value.into()) }
        }
    )*};
}
from!(&str => String, String => String, i64 => Int, i32 => Int, Vec<i64> => IntList, &[i64] => IntList, f32 => Float, bool => Bool);

/// Copies the plugin's list.
///
/// # Safety
/// `start` must be null or point to `len` named values that are alive.
pub(crate) unsafe fn read_named(
    start: *const PJRT_NamedValue,
    len: usize,
) -> Result<BTreeMap<String, NamedValue>> {
    let mut values = BTreeMap::new();
    if start.is_null() {
        return Ok(values);
    }
    // The plugin sets the size of the elements, which may be larger than ours.
    // SAFETY: there is a first element if `len` is not 0.
    let struct_size = if len == 0 { 0 } else { unsafe { (*start).struct_size } };
    let stride = struct_size.max(size_of::<PJRT_NamedValue>());
    for i in 0..len {
        // SAFETY: within the list.
        let named = unsafe { &*start.cast::<u8>().add(i * stride).cast::<PJRT_NamedValue>() };
        // SAFETY: the name belongs to the list.
        let name = unsafe { text(named.name, named.name_size) };
        // SAFETY: `kind` says which member of the union is set.
        let value = unsafe {
            match named.kind {
                PJRT_NAMED_VALUE_STRING => {
                    NamedValue::String(text(named.value.string_value, named.value_size))
                }
                PJRT_NAMED_VALUE_INT64 => NamedValue::Int(named.value.int64_value),
                PJRT_NAMED_VALUE_INT64_LIST => NamedValue::IntList(
                    list(named.value.int64_array_value, named.value_size).to_vec(),
                ),
                PJRT_NAMED_VALUE_FLOAT => NamedValue::Float(named.value.float_value),
                PJRT_NAMED_VALUE_BOOL => NamedValue::Bool(named.value.bool_value),
                kind => {
                    return Err(error::broken(format!(
                        "the plugin's value {name:?} has the unknown type {kind}"
                    )));
                }
            }
        };
        values.insert(name, value);
    }
    Ok(values)
}

/// The options in the plugin's layout. The result borrows from `options`.
pub(crate) fn write_named(options: &[(&str, NamedValue)]) -> Vec<PJRT_NamedValue> {
    options
        .iter()
        .map(|(name, value)| {
            let mut named = PJRT_NamedValue::new();
            named.name = name.as_ptr().cast();
            named.name_size = name.len();
            named.value_size = 1;
            match value {
                NamedValue::String(value) => {
                    named.kind = PJRT_NAMED_VALUE_STRING;
                    named.value.string_value = value.as_ptr().cast();
                    named.value_size = value.len();
                }
                NamedValue::Int(value) => {
                    named.kind = PJRT_NAMED_VALUE_INT64;
                    named.value.int64_value = *value;
                }
                NamedValue::IntList(value) => {
                    named.kind = PJRT_NAMED_VALUE_INT64_LIST;
                    named.value.int64_array_value = value.as_ptr();
                    named.value_size = value.len();
                }
                NamedValue::Float(value) => {
                    named.kind = PJRT_NAMED_VALUE_FLOAT;
                    named.value.float_value = *value;
                }
                NamedValue::Bool(value) => {
                    named.kind = PJRT_NAMED_VALUE_BOOL;
                    named.value.bool_value = *value;
                }
            }
            named
        })
        .collect()
}

/// Options with known types. A plugin may abort the process if a value has a different type.
const KNOWN_OPTIONS: &[(&str, &str)] = &[
    ("cpu_device_count", "an integer"),
    ("asynchronous", "a bool"),
    ("platform_name", "a string"),
    ("allocator", "a string"),
    ("memory_fraction", "a float"),
    ("preallocate", "a bool"),
    ("collective_memory_size", "an integer"),
    ("visible_devices", "a list of integers"),
    ("abort_collectives_on_failure", "a bool"),
    ("use_tfrt_gpu_client", "a bool"),
    ("node_id", "an integer"),
    ("num_nodes", "an integer"),
    ("partition_index", "an integer"),
    ("should_stage_host_to_device_transfers", "a bool"),
    ("enable_mock_nccl", "a bool"),
    ("mock_gpu_topology", "a string"),
];

/// Rejects options that are known to abort a plugin.
pub(crate) fn check_create_options(options: &[(&str, NamedValue)]) -> Result<()> {
    for (i, (name, value)) in options.iter().enumerate() {
        if options[..i].iter().any(|(earlier, _)| earlier == name) {
            return Err(error::invalid(format!("the option {name} is given twice")));
        }
        if let Some((_, expected)) = KNOWN_OPTIONS.iter().find(|(known, _)| known == name)
            && value.kind() != *expected
        {
            return Err(error::invalid(format!(
                "the option {name} must be {expected}, not {} ({value})",
                value.kind()
            )));
        }
        if let ("cpu_device_count", NamedValue::Int(count)) = (*name, value)
            && !(1..=1024).contains(count)
        {
            return Err(error::invalid(format!(
                "cpu_device_count must be from 1 to 1024, not {count}"
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn written_values_read_back() {
        let options = [
            ("s", NamedValue::from("text")),
            ("i", NamedValue::Int(-3)),
            ("l", NamedValue::IntList(vec![1, 2])),
            ("f", NamedValue::Float(0.5)),
            ("b", NamedValue::Bool(true)),
        ];
        let named = write_named(&options);
        // SAFETY: both lists are alive.
        let read = unsafe { read_named(named.as_ptr(), named.len()) }.unwrap();
        assert_eq!(
            read,
            options.iter().map(|(name, value)| (name.to_string(), value.clone())).collect()
        );
    }

    #[test]
    fn options_that_abort_a_plugin_are_refused() {
        let check = |options: &[(&str, NamedValue)], expected: &str| {
            let error = check_create_options(options).unwrap_err();
            assert!(error.is_usage());
            assert_eq!(error.to_string(), expected);
        };
        check(
            &[("cpu_device_count", "2".into())],
            "the option cpu_device_count must be an integer, not a string (2)",
        );
        check(
            &[("asynchronous", 1.into())],
            "the option asynchronous must be a bool, not an integer (1)",
        );
        check(&[("cpu_device_count", 0.into())], "cpu_device_count must be from 1 to 1024, not 0");
        check(&[("a", 0.into()), ("a", 0.into())], "the option a is given twice");
        check_create_options(&[("cpu_device_count", 8.into()), ("something_new", true.into())])
            .unwrap();
    }
}
