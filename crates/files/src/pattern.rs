//! Names with patterns: `train-{000..015}.tar`, `part-{a,b}`, `*.parquet`.
//!
//! Out of scope: which files exist (`local`, `remote`).

use glob::{MatchOptions, Pattern};

/// The limit on the number of names. A typo like `{0..9999999999}` must not fill the memory.
const MAX_NAMES: usize = 1_000_000;

/// The limit on the bytes of all names, for many names that are long.
const MAX_BYTES: usize = 256 << 20;

/// The limit on nested braces. Deeper nesting is a mistake.
const MAX_DEPTH: usize = 16;

/// Whether the text contains a wildcard.
pub(super) fn has_wildcard(text: &[u8]) -> bool {
    text.iter().any(|byte| matches!(byte, b'*' | b'?' | b'['))
}

/// Expands braces in bash's order: `{a,b}` are alternatives, `{000..015}` and `{0..15..3}` are
/// numbers (with as many digits as the longer end if one starts with 0). Other braces are left as
/// they are.
pub(super) fn braces(text: &[u8]) -> Result<Vec<Vec<u8>>, String> {
    expand(text, 0)
}

fn expand(text: &[u8], depth: usize) -> Result<Vec<Vec<u8>>, String> {
    if depth > MAX_DEPTH {
        return Err(format!("its braces are nested more than {MAX_DEPTH} deep"));
    }
    let mut names = vec![Vec::new()];
    let mut rest = text;
    while let Some(&first) = rest.first() {
        let group = if first == b'{' { group(rest, depth)? } else { None };
        if let Some((choices, length)) = group {
            let total = names.len().checked_mul(choices.len()).filter(|&total| total <= MAX_NAMES);
            let longest = |names: &[Vec<u8>]| names.iter().map(Vec::len).max().unwrap_or(0);
            let longest = longest(&names) + longest(&choices);
            if total.and_then(|total| total.checked_mul(longest)).is_none_or(|all| all > MAX_BYTES)
            {
                return Err(too_many());
            }
            names = names
                .iter()
                .flat_map(|name| choices.iter().map(|choice| [&name[..], choice].concat()))
                .collect();
            rest = &rest[length..];
        } else {
            // The text up to the next brace.
            let length =
                1 + rest[1..].iter().position(|&byte| byte == b'{').unwrap_or(rest.len() - 1);
            if names.len().saturating_mul(length) > MAX_BYTES {
                return Err(too_many());
            }
            names.iter_mut().for_each(|name| name.extend_from_slice(&rest[..length]));
            rest = &rest[length..];
        }
    }
    Ok(names)
}

fn too_many() -> String {
    format!("its braces expand to more than {MAX_NAMES} names")
}

/// The expansion of a group of braces, and the length of the group.
type Group = (Vec<Vec<u8>>, usize);

/// The group of braces at the start of `text`; `None` if `text` does not start with one.
fn group(text: &[u8], depth: usize) -> Result<Option<Group>, String> {
    let mut open = 0usize;
    let mut commas = vec![0];
    let end = text.iter().enumerate().find_map(|(index, byte)| {
        match byte {
            b'{' => open += 1,
            b'}' => open -= 1,
            b',' if open == 1 => commas.push(index),
            _ => {}
        }
        (open == 0).then_some(index)
    });
    let Some(end) = end else { return Ok(None) };
    if commas.len() == 1 {
        return Ok(numbers(&text[1..end])?.map(|names| (names, end + 1)));
    }
    commas.push(end);
    let mut choices = Vec::new();
    for bounds in commas.windows(2) {
        choices.extend(expand(&text[bounds[0] + 1..bounds[1]], depth + 1)?);
        if choices.len() > MAX_NAMES {
            return Err(too_many());
        }
    }
    Ok(Some((choices, end + 1)))
}

/// Expands `first..last` or `first..last..step`.
fn numbers(content: &[u8]) -> Result<Option<Vec<Vec<u8>>>, String> {
    let Ok(content) = std::str::from_utf8(content) else { return Ok(None) };
    let parts: Vec<&str> = content.split("..").collect();
    let (first, last, step) = match parts[..] {
        [first, last] => (first, last, Some(1)),
        [first, last, step] => (first, last, step.parse::<i64>().ok()),
        _ => return Ok(None),
    };
    let (Ok(from), Ok(to), Some(step)) = (first.parse::<i64>(), last.parse::<i64>(), step) else {
        return Ok(None);
    };
    let step = step.unsigned_abs().max(1);
    let count = from.abs_diff(to) / step;
    if count >= MAX_NAMES as u64 {
        return Err(too_many());
    }
    let padded = [first, last].iter().any(|end| {
        let digits = end.trim_start_matches('-');
        digits.len() > 1 && digits.starts_with('0')
    });
    let width = if padded { first.len().max(last.len()) } else { 0 };
    let names = (0..=count).map(|i| {
        // The number is between the ends, which fit in 64 bits.
        let distance = i128::from(i) * i128::from(step);
        let number =
            if from <= to { i128::from(from) + distance } else { i128::from(from) - distance };
        format!("{number:0width$}").into_bytes()
    });
    Ok(Some(names.collect()))
}

/// Wildcards as in a shell: `*` matches any characters, `?` one character, `[a-z]` one of these
/// characters, `[!a-z]` any other character, and `**` between slashes any number of folders. A
/// leading dot must be matched explicitly.
///
/// This uses the crate `glob`, because `globset` matches bytes instead of characters and does not
/// treat a leading dot specially.
pub(super) struct Wildcards(Pattern);

impl Wildcards {
    /// Bytes that are not UTF-8 are replaced. Replace them in the names to match, too.
    pub(super) fn new(text: &[u8]) -> Wildcards {
        let text = String::from_utf8_lossy(text).replace("[^", "[!");
        let mut parts: Vec<String> = text.split('/').map(str::to_owned).collect();
        // Several stars within a name are equivalent to one.
        for part in parts.iter_mut().filter(|part| *part != "**") {
            while part.contains("**") {
                *part = part.replace("**", "*");
            }
        }
        let text = parts.join("/");
        let pattern = Pattern::new(&text);
        // An unclosed bracket is literal. Without brackets a pattern cannot be invalid.
        Wildcards(
            pattern.unwrap_or_else(|_| Pattern::new(&text.replace('[', "[[]")).unwrap_or_default()),
        )
    }

    /// Whether a name or a path matches.
    pub(super) fn matches(&self, path: &str) -> bool {
        let options = MatchOptions {
            case_sensitive: true,
            require_literal_separator: true,
            require_literal_leading_dot: true,
        };
        self.0.matches_with(path, options)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Vec<String> {
        braces(text.as_bytes())
            .unwrap()
            .into_iter()
            .map(|name| String::from_utf8(name).unwrap())
            .collect()
    }

    /// The expected lists come from bash 5.2.
    #[test]
    fn braces_stand_for_what_they_stand_for_in_bash() {
        assert_eq!(names("t-{008..011}.tar"), ["t-008.tar", "t-009.tar", "t-010.tar", "t-011.tar"]);
        assert_eq!(names("{8..10}"), ["8", "9", "10"]);
        assert_eq!(names("{3..1}"), ["3", "2", "1"]);
        assert_eq!(names("{-1..1}"), ["-1", "0", "1"]);
        assert_eq!(names("{0..10..4}"), ["0", "4", "8"]);
        assert_eq!(names("{a,b{1,2}}x{3,4}"), ["ax3", "ax4", "b1x3", "b1x4", "b2x3", "b2x4"]);
        assert_eq!(names("{a,}b"), ["ab", "b"]);
        assert_eq!(names("x{a}y{"), ["x{a}y{"]);
        assert_eq!(names("}{1..x}"), ["}{1..x}"]);
        assert_eq!(names(""), [""]);
    }

    #[test]
    fn braces_without_bound_are_refused() {
        for text in
            ["{0..1000000}", "{1..1000}{1..1001}", "{-9223372036854775808..9223372036854775807}"]
        {
            assert!(braces(text.as_bytes()).unwrap_err().contains("1000000 names"), "{text}");
        }
        let nested = ["{a,".repeat(100_000), "}".repeat(100_000)].concat();
        assert!(braces(nested.as_bytes()).unwrap_err().contains("deep"));
        // The ends are parsed as 64-bit numbers.
        assert_eq!(names("{9223372036854775806..9223372036854775807}").len(), 2);
    }

    #[test]
    fn wildcards_fit_as_in_a_shell() {
        let matches = |pattern: &str, name: &str| Wildcards::new(pattern.as_bytes()).matches(name);
        for (pattern, name) in [
            ("*.tar", "a.tar"),
            ("*a*b*", "xaxbx"),
            ("a?c", "abc"),
            ("a?c", "aüc"),
            ("[a-c]1", "b1"),
            ("[!a-c]1", "d1"),
            ("[]]", "]"),
            ("[", "["),
            ("*", ""),
            (".*", ".hidden"),
            ("a***b", "axb"),
            ("[^a-c]1", "d1"),
        ] {
            assert!(matches(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in [
            ("*.tar", "a.tar.gz"),
            ("a?c", "ac"),
            ("[a-c]1", "d1"),
            ("*", ".hidden"),
            ("a", "ab"),
            ("ab", "a"),
            ("?", ""),
        ] {
            assert!(!matches(pattern, name), "{pattern} {name}");
        }
        assert!(matches("a/**/*.tar", "a/b/c/d.tar"));
        assert!(matches("a/**/*.tar", "a/d.tar"));
        assert!(!matches("a/*.tar", "a/b/d.tar"));
    }
}
