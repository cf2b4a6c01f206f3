//! The metadata of Hugging Face's `datasets` about columns: the types of values, and the names of
//! classes.
//!
//! Out of scope: finding the files of a dataset (`hugging_face`).

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

/// The type of a column, as `datasets` describes it.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum HfFeature {
    /// A value of this dtype, as named by `datasets`: `float32`, `string`.
    Value(String),
    /// Class indices, with the classes' names.
    ClassLabel(Vec<String>),
    /// An image: a struct of `bytes` and `path`.
    Image,
    /// Audio: a struct of `bytes` and `path`.
    Audio,
    /// A list of values of this type.
    List(Box<HfFeature>),
    /// An array of this dtype and shape; `None` for an axis of variable length.
    Array(String, Vec<Option<usize>>),
    /// A struct with these fields.
    Struct(Vec<(String, HfFeature)>),
    /// Another type, identified by its `_type`.
    Other(String),
}

/// The features of a dataset by column name.
#[derive(Clone, Debug, Default)]
pub struct HfFeatures(BTreeMap<String, HfFeature>);

impl HfFeatures {
    /// Parses the metadata that `datasets` writes into the schema of its files, or a
    /// `dataset_info.json`.
    pub(crate) fn parse(text: &str) -> serde_json::Result<HfFeatures> {
        let value: Value = serde_json::from_str(text)?;
        let info = value.get("info").unwrap_or(&value);
        Ok(HfFeatures(
            info.get("features")
                .and_then(Value::as_object)
                .map(members)
                .unwrap_or_default()
                .into_iter()
                .collect(),
        ))
    }

    /// The type of a column.
    pub fn get(&self, column: &str) -> Option<&HfFeature> {
        self.0.get(column)
    }

    /// Whether there is no metadata.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// All columns, sorted by name.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &HfFeature)> {
        self.0.iter().map(|(name, feature)| (name.as_str(), feature))
    }

    /// The names of a column's classes.
    pub(crate) fn classes(&self, column: &str) -> Option<Arc<[String]>> {
        match self.get(column)? {
            HfFeature::ClassLabel(names) if !names.is_empty() => Some(names.as_slice().into()),
            _ => None,
        }
    }
}

fn members(object: &serde_json::Map<String, Value>) -> Vec<(String, HfFeature)> {
    object.iter().map(|(name, value)| (name.clone(), feature(value))).collect()
}

fn feature(value: &Value) -> HfFeature {
    // `datasets` used to write a list type as its element type in brackets.
    if let Some([element]) = value.as_array().map(Vec::as_slice) {
        return HfFeature::List(Box::new(feature(element)));
    }
    let Some(object) = value.as_object() else { return HfFeature::Other(value.to_string()) };
    let text = |key: &str| object.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
    match object.get("_type").and_then(Value::as_str) {
        Some("Value") => HfFeature::Value(text("dtype")),
        Some("ClassLabel") => {
            let names = object
                .get("names")
                .and_then(Value::as_array)
                .into_iter()
                .flatten()
                .filter_map(Value::as_str)
                .map(str::to_owned)
                .collect();
            HfFeature::ClassLabel(names)
        }
        Some("Image") => HfFeature::Image,
        Some("Audio") => HfFeature::Audio,
        Some("Sequence" | "List" | "LargeList") => HfFeature::List(Box::new(
            object.get("feature").map_or(HfFeature::Other(String::new()), feature),
        )),
        Some("Array2D" | "Array3D" | "Array4D" | "Array5D") => {
            let shape = object.get("shape").and_then(Value::as_array);
            let axis = |axis: &Value| axis.as_u64().and_then(|axis| usize::try_from(axis).ok());
            HfFeature::Array(text("dtype"), shape.into_iter().flatten().map(axis).collect())
        }
        Some(other) => HfFeature::Other(other.to_owned()),
        None => HfFeature::Struct(members(object)),
    }
}
