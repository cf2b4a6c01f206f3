//! The file patterns in a dataset card (`README.md`): the key `configs` in the YAML between the
//! first two lines `---`.

use serde::Deserialize;
use serde_json::Value;

/// One entry of `configs`.
#[derive(Debug, Deserialize, PartialEq)]
pub(crate) struct CardConfig {
    pub(crate) config_name: String,
    #[serde(default)]
    pub(crate) default: bool,
    pub(crate) data_dir: Option<String>,
    /// A pattern, a list of patterns, a map from splits to patterns, or a list of maps with `split`
    /// and `path`.
    pub(crate) data_files: Option<Value>,
}

/// The limit on the bytes of `configs`, far above those of any card.
const MAX_BYTES: usize = 1 << 20;

/// The limit on nested lists and maps. Of a card, five are nested.
const MAX_DEPTH: usize = 64;

#[derive(Deserialize)]
struct Card {
    configs: Option<Vec<CardConfig>>,
}

/// The value of `configs`, `None` if the card does not have it, or a parse error with its line. The
/// lines of other keys are replaced by blank lines, so that errors in them do not matter and line
/// numbers stay correct.
pub(crate) fn configs(card: &str) -> Result<Option<Vec<CardConfig>>, String> {
    let mut lines = card.lines();
    if lines.next().is_none_or(|line| line.trim_start_matches('\u{feff}').trim_end() != "---") {
        return Ok(None);
    }
    let mut yaml = "\n".to_owned();
    let mut inside = false;
    for line in lines.take_while(|line| line.trim_end() != "---") {
        // A list may have the same indentation as its key.
        if !line.starts_with([' ', '\t', '-', '#']) && !line.trim().is_empty() {
            inside = line.starts_with("configs:");
        }
        if inside {
            yaml.push_str(line);
        }
        yaml.push('\n');
    }
    if yaml.trim().is_empty() {
        return Ok(None);
    }
    check_size(&yaml)?;
    yaml_serde::from_str::<Card>(&yaml).map(|card| card.configs).map_err(|error| error.to_string())
}

/// Rejects YAML for which the parser would take long: its time grows with the square of the depth.
fn check_size(yaml: &str) -> Result<(), String> {
    let too_deep = |number: usize| {
        Err(format!("at line {}, more than {MAX_DEPTH} lists or maps are nested", number + 1))
    };
    if yaml.len() > MAX_BYTES {
        return Err(format!("it has {} bytes, expected at most {MAX_BYTES}", yaml.len()));
    }
    let mut depth = 0usize;
    for (number, line) in yaml.lines().enumerate() {
        // Lists in a line: `- - - x`.
        let lists = line.split_ascii_whitespace().take_while(|word| matches!(*word, "-" | "?"));
        if lists.count() > MAX_DEPTH {
            return too_deep(number);
        }
        // Brackets in patterns and texts are closed soon.
        for byte in line.bytes() {
            match byte {
                b'[' | b'{' => depth += 1,
                b']' | b'}' => depth = depth.saturating_sub(1),
                _ => {}
            }
            if depth > MAX_DEPTH {
                return too_deep(number);
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn configs_are_read_in_all_the_ways_that_cards_write_them() {
        let card = "---\nlicense: mit\nfeatures: {x: |}\nconfigs:\n- config_name: a   # the first\n  default: true\n  \
                    data_files:\n  - split: train\n    path: \"a/train*\"\n  - split: test\n    path:\n    - 'a/x:y'\n    - b\n- config_name: 20\n  data_files: b/*.parquet\n- config_name: c\n  data_files:\n    - [x, y]\n- {config_name: d, data_files: {train: e}}\ntags:\n- z\n---\nconfigs:\n- no\n";
        let config = |name: &str, default, files| CardConfig {
            config_name: name.to_owned(),
            default,
            data_dir: None,
            data_files: Some(files),
        };
        let expected = [
            config(
                "a",
                true,
                json!([{"split": "train", "path": "a/train*"}, {"split": "test", "path": ["a/x:y", "b"]}]),
            ),
            config("20", false, json!("b/*.parquet")),
            config("c", false, json!([["x", "y"]])),
            config("d", false, json!({"train": "e"})),
        ];
        assert_eq!(configs(card).unwrap().unwrap(), expected);
    }

    #[test]
    fn cards_without_configs_have_none_and_what_cannot_be_read_is_named() {
        assert_eq!(configs("# A dataset\n").unwrap(), None);
        assert_eq!(configs("---\nlicense: mit\n---\n").unwrap(), None);
        assert_eq!(configs("---\nconfigs:\n---\n").unwrap(), None);
        assert_eq!(configs("").unwrap(), None);
        for (card, part) in [
            ("---\nconfigs:\n- config_name: a\n  data_files: \"x\n---\n", "line 4"),
            ("---\nconfigs:\n- a: b\n   c: d\n---\n", "line 4"),
            (
                "---\nlicense: mit\nconfigs:\n- data_files: x\n---\n",
                "missing field `config_name` at line 4",
            ),
            ("---\nconfigs: yes\n---\n", "line 2"),
        ] {
            let error = configs(card).unwrap_err();
            assert!(error.contains(part), "{error}");
        }
        for (nested, line) in [
            ("[".repeat(100_000), 3),
            ("{a: ".repeat(100_000), 3),
            ("- ".repeat(100_000), 3),
            ("? ".repeat(100_000), 3),
            ("\n  [".repeat(100_000), 68),
        ] {
            let card = format!("---\nconfigs:\n- {nested}a\n---\n");
            let error = configs(&card).unwrap_err();
            let expected = format!("at line {line}, more than 64 lists or maps are nested");
            assert_eq!(error, expected);
        }
        // Nested by indentation, a card of a megabyte has some hundred levels.
        let lines: Vec<String> =
            (0..1_000).map(|level| format!("{}-\n", " ".repeat(level))).collect();
        assert!(configs(&format!("---\nconfigs:\n{}\n---\n", lines.concat())).is_err());
        let long = format!("---\nconfigs:\n- config_name: {}\n---\n", "x".repeat(2 << 20));
        assert!(configs(&long).unwrap_err().contains("expected at most 1048576"));
    }
}
