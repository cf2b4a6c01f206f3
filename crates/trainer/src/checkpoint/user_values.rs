//! [`UserValues`]: the values of a user's own loop, such as the best metric so far, which a
//! checkpoint stores in its manifest.

use std::any::Any;

use serde::Serialize;
use serde::de::value::Error as DeError;
use serde::de::{DeserializeOwned, IntoDeserializer as _};
use serde_json::{Map, Value, json};

/// The largest size of all values together, as JSON.
const MAX_BYTES: usize = 64 << 10;

/// The name that marks the bits of a number that JSON lacks.
const BITS: &str = "f64_bits";

/// Values by their names. A NaN or an infinity is stored by its bits.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct UserValues(Map<String, Value>);

impl UserValues {
    /// Reads what [`to_json`](UserValues::to_json) wrote.
    pub(crate) fn from_json(value: &Value) -> Result<UserValues, String> {
        let values = match value {
            Value::Null => Map::new(),
            Value::Object(values) => values.clone(),
            _ => return Err("its metadata `values` is not an object".into()),
        };
        check_size(&values).map_err(|e| format!("its metadata `values`: {e}"))?;
        Ok(UserValues(values))
    }

    pub(crate) fn to_json(&self) -> Value {
        Value::Object(self.0.clone())
    }

    /// Adds or replaces a value.
    pub(crate) fn set<T: Serialize + Any>(&mut self, name: &str, value: &T) -> Result<(), String> {
        let any: &dyn Any = value;
        let number = any
            .downcast_ref::<f64>()
            .copied()
            .or_else(|| any.downcast_ref::<f32>().map(|&value| f64::from(value)));
        let json = match number.filter(|number| !number.is_finite()) {
            Some(number) => json!({ BITS: number.to_bits() }),
            None => serde_json::to_value(value).map_err(|e| e.to_string())?,
        };
        if has_null(&json) {
            return Err(
                "it has a null, which stands for none, but also for a NaN or an infinity within a value; leave such parts \
                 out, or save the number under a name of its own"
                    .into(),
            );
        }
        let mut values = self.0.clone();
        values.insert(name.to_owned(), json);
        check_size(&values)?;
        self.0 = values;
        Ok(())
    }

    /// The value with this name, if there is one.
    ///
    /// # Errors
    /// It does not have this type.
    pub(crate) fn get<T: DeserializeOwned>(&self, name: &str) -> Result<Option<T>, String> {
        let Some(value) = self.0.get(name) else { return Ok(None) };
        let read = match number(value) {
            Some(number) => {
                T::deserialize(number.into_deserializer()).map_err(|e: DeError| e.to_string())
            }
            None => T::deserialize(value).map_err(|e| e.to_string()),
        };
        read.map(Some).map_err(|e| {
            let text: String = value.to_string().chars().take(80).collect();
            format!("it is {text}, which does not have the requested type: {e}")
        })
    }

    /// All names, for messages.
    pub(crate) fn names(&self) -> String {
        let names: Vec<_> = self.0.keys().map(|name| format!("`{name}`")).collect();
        if names.is_empty() { "none".to_owned() } else { names.join(", ") }
    }
}

/// The number that is stored by its bits.
fn number(value: &Value) -> Option<f64> {
    let object = value.as_object().filter(|object| object.len() == 1)?;
    object.get(BITS)?.as_u64().map(f64::from_bits)
}

fn has_null(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(values) => values.iter().any(has_null),
        Value::Object(values) => values.values().any(has_null),
        _ => false,
    }
}

fn check_size(values: &Map<String, Value>) -> Result<(), String> {
    let bytes = serde_json::to_vec(values).map_or(usize::MAX, |text| text.len());
    if bytes > MAX_BYTES {
        return Err(format!(
            "all values together take {bytes} bytes as JSON, and the limit is {MAX_BYTES}; write large values to a file"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copy(values: &UserValues) -> UserValues {
        let text = values.to_json().to_string();
        UserValues::from_json(&serde_json::from_str(&text).unwrap()).unwrap()
    }

    #[test]
    fn values_survive_json_even_if_they_are_not_finite() {
        let mut values = UserValues::default();
        values.set("best", &f64::INFINITY).unwrap();
        values.set("worst", &f32::NEG_INFINITY).unwrap();
        values.set("last", &0.1f64).unwrap();
        values.set("names", &vec!["a".to_owned(), "b".to_owned()]).unwrap();
        let values = copy(&values);
        assert_eq!(values.get::<f64>("best"), Ok(Some(f64::INFINITY)));
        assert_eq!(values.get::<f32>("worst"), Ok(Some(f32::NEG_INFINITY)));
        assert_eq!(values.get::<f64>("last"), Ok(Some(0.1)));
        assert_eq!(values.get::<Vec<String>>("names").unwrap().unwrap(), ["a", "b"]);
        assert_eq!(values.get::<f64>("other"), Ok(None));
        assert_eq!(values.names(), "`best`, `last`, `names`, `worst`");
        let mistake = values.get::<u64>("last").unwrap_err();
        assert!(mistake.starts_with("it is 0.1, which does not have the requested"), "{mistake}");
    }

    #[test]
    fn a_value_that_json_would_change_or_that_is_large_is_rejected() {
        let mut values = UserValues::default();
        values.set("kept", &1).unwrap();
        for nulls in [vec![f64::NAN], vec![1.0, f64::INFINITY]] {
            assert!(values.set("kept", &nulls).unwrap_err().contains("it has a null"));
        }
        assert!(values.set("kept", &None::<f64>).is_err());
        let large = values.set("kept", &"x".repeat(MAX_BYTES)).unwrap_err();
        assert!(large.contains("the limit is 65536"), "{large}");
        assert_eq!(values.get("kept"), Ok(Some(1)), "a rejected value changes nothing");

        let forged = json!({ "a": "x".repeat(MAX_BYTES) });
        assert!(UserValues::from_json(&forged).unwrap_err().contains("`values`: all values"));
        assert!(UserValues::from_json(&json!([1])).is_err());
        let odd = UserValues::from_json(&json!({ "a": { BITS: "x" }, "b": { BITS: 1, "c": 2 } }));
        assert!(odd.unwrap().get::<f64>("a").is_err());
    }
}
