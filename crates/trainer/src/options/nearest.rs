//! The known name that a misspelled one may mean.

/// The known name with the fewest letters to change, if it is near enough to be meant.
pub fn nearest<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let near = known.map(|known| (strsim::levenshtein(name, known), known)).min();
    near.filter(|(distance, known)| *distance <= 2.max(known.len() / 3)).map(|(_, known)| known)
}
