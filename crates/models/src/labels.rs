//! [`Labels`]: the classes of a head, as `config.json` has them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// The names of the classes that a model distinguishes.
///
/// ```
/// use fulmen_models::Labels;
///
/// let labels = Labels::new(["cat", "dog"]);
/// assert_eq!((labels.len(), labels.id2label["1"].as_str()), (2, "dog"));
/// assert_eq!(Labels::numbered(10).id2label["9"], "LABEL_9");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "GivenLabels")]
pub struct Labels {
    /// The names, by number.
    pub id2label: BTreeMap<String, String>,
    /// The numbers, by name.
    pub label2id: BTreeMap<String, usize>,
}

/// The keys of a file, of which any may be missing.
#[derive(Deserialize)]
struct GivenLabels {
    id2label: Option<BTreeMap<String, String>>,
    label2id: Option<BTreeMap<String, usize>>,
    num_labels: Option<usize>,
}

impl TryFrom<GivenLabels> for Labels {
    type Error = String;

    fn try_from(given: GivenLabels) -> Result<Labels, String> {
        let GivenLabels { id2label, label2id, num_labels } = given;
        let Some(id2label) = id2label else {
            return Ok(num_labels.map_or_else(Labels::default, Labels::numbered));
        };
        let mut numbers = BTreeMap::new();
        for (id, name) in &id2label {
            let Ok(number) = id.parse() else {
                return Err(format!("the keys of `id2label` are whole numbers from 0, not `{id}`"));
            };
            numbers.insert(name.clone(), number);
        }
        Ok(Labels { id2label, label2id: label2id.unwrap_or(numbers) })
    }
}

/// Two classes, the default of transformers.
impl Default for Labels {
    fn default() -> Labels {
        Labels::numbered(2)
    }
}

impl Labels {
    /// Classes of these names, which are numbered from 0.
    pub fn new(names: impl IntoIterator<Item = impl Into<String>>) -> Labels {
        let names: Vec<String> = names.into_iter().map(Into::into).collect();
        Labels {
            id2label: names
                .iter()
                .enumerate()
                .map(|(id, name)| (id.to_string(), name.clone()))
                .collect(),
            label2id: names.into_iter().enumerate().map(|(id, name)| (name, id)).collect(),
        }
    }

    /// Labels for `count` classes with default names: `LABEL_0`, `LABEL_1`, …
    pub fn numbered(count: usize) -> Labels {
        Labels::new((0..count).map(|id| format!("LABEL_{id}")))
    }

    /// The number of classes.
    pub fn len(&self) -> usize {
        self.id2label.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.id2label.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_file_may_have_only_the_number_of_classes_or_their_names() {
        let read = |value: Value| {
            serde_json::from_value::<Labels>(value).unwrap_or_else(|e| panic!("{e}"))
        };
        assert_eq!(read(json!({})), Labels::numbered(2));
        assert_eq!(read(json!({"num_labels": 3, "id2label": null})), Labels::numbered(3));
        let named = Labels::new(["cat", "dog"]);
        assert_eq!(read(json!({"id2label": {"0": "cat", "1": "dog"}})), named);
        assert_eq!(read(json!(named)), named);
    }
}
