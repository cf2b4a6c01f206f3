//! The classes of a head, as `config.json` has them.

use std::collections::BTreeMap;

/// So many classes without names of their own, for `id2label` in a config: `LABEL_0`, `LABEL_1`, …
///
/// ```
/// assert_eq!(fulmen_models::labels(3)["2"], "LABEL_2");
/// ```
pub fn labels(count: usize) -> BTreeMap<String, String> {
    (0..count).map(|i| (i.to_string(), format!("LABEL_{i}"))).collect()
}
