//! Patterns over dotted names: `*` matches any text and `?` matches one character. If a pattern
//! matches no name, messages suggest the closest names.

/// The edit distance from the names that match the pattern: 0 if `name` matches. An edit replaces,
/// adds or drops a character.
fn distance(pattern: &str, name: &str) -> usize {
    let name: Vec<char> = name.chars().collect();
    // row[i]: the edits after which the pattern so far matches the first i characters.
    let mut row: Vec<usize> = (0..=name.len()).collect();
    for letter in pattern.chars() {
        let before = row.clone();
        row[0] = before[0] + usize::from(letter != '*');
        for i in 1..=name.len() {
            row[i] = if letter == '*' {
                before[i].min(row[i - 1])
            } else {
                let same = letter == '?' || letter == name[i - 1];
                (before[i - 1] + usize::from(!same)).min(before[i] + 1).min(row[i - 1] + 1)
            };
        }
    }
    row[name.len()]
}

/// Whether the pattern matches the whole name.
pub fn matches_pattern(pattern: &str, name: &str) -> bool {
    distance(pattern, name) == 0
}

/// An error message if the pattern matches none of these names.
pub fn check_pattern<'a>(
    pattern: &str,
    names: impl Iterator<Item = &'a str> + Clone,
) -> Option<String> {
    if names.clone().any(|name| matches_pattern(pattern, name)) {
        return None;
    }
    let nearest: Vec<String> =
        closest(pattern, names, 3).iter().map(|name| format!("`{name}`")).collect();
    let near = if nearest.is_empty() { "there is none".into() } else { nearest.join(", ") };
    Some(format!("the pattern `{pattern}` matches no parameter; the nearest are {near}"))
}

/// The names closest to a pattern, nearest first.
fn closest<'a>(pattern: &str, names: impl Iterator<Item = &'a str>, limit: usize) -> Vec<&'a str> {
    let mut near: Vec<(usize, &str)> = names.map(|name| (distance(pattern, name), name)).collect();
    near.sort_by_key(|(distance, _)| *distance);
    near.into_iter().take(limit).map(|(_, name)| name).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_any_text_and_a_question_mark_for_one_letter() {
        for (pattern, name, expected) in [
            ("*.bias", "encoder.0.bias", true),
            ("*.bias", "bias", false),
            ("*bias", "bias", true),
            ("encoder.*", "encoder.layers.0.weight", true),
            ("encoder.*", "decoder.layers.0.weight", false),
            ("layers.?.weight", "layers.3.weight", true),
            ("layers.?.weight", "layers.13.weight", false),
            ("*.*.weight", "a.b.weight", true),
            ("*", "", true),
            ("", "", true),
            ("", "a", false),
            ("fc.wéight", "fc.wéight", true),
            ("fc1", "fc1.weight", false),
        ] {
            assert_eq!(matches_pattern(pattern, name), expected, "{pattern} {name}");
        }
    }

    #[test]
    fn the_nearest_names_come_first() {
        let names = ["encoder.weight", "decoder.weight", "head.bias"];
        assert_eq!(closest("head.bais", names.into_iter(), 2)[0], "head.bias");
        assert_eq!(closest("endoder.*", names.into_iter(), 1), ["encoder.weight"]);
    }
}
