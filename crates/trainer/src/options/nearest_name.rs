//! Suggests a known name for a misspelled one.

/// The known name with the smallest edit distance, if it is at most 2 or a third of the known
/// name's length.
pub fn nearest_name<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let (distance, nearest) = known.map(|known| (strsim::levenshtein(name, known), known)).min()?;
    (distance <= 2.max(nearest.len() / 3)).then_some(nearest)
}
