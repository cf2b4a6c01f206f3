//! Suggests a known name for a misspelled one.

/// The known name with the smallest edit distance, if it is at most 2 or a third of the known
/// name's length.
pub fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let nearest = known.map(|known| (strsim::levenshtein(name, known), known)).min();
    nearest.filter(|(distance, known)| *distance <= 2.max(known.len() / 3)).map(|(_, known)| known)
}
