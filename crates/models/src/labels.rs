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
#[serde(default)]
pub struct Labels {
    /// The names, by number.
    pub id2label: BTreeMap<String, String>,
    /// The numbers, by name.
    pub label2id: BTreeMap<String, usize>,
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
