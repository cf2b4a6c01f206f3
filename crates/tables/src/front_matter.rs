//! The part of a dataset card (`README.md`) that says which files belong to which split: the key `configs` of the YAML
//! between its first `---` and the next.
//!
//! Not here: YAML as a whole. Maps, lists, lists in brackets and plain or quoted texts are what this key is written with.

use serde_json::{Map, Value};

/// A line of YAML: its number, its indentation, and the rest.
#[derive(Clone, Copy)]
struct Line<'a> {
    number: usize,
    indent: usize,
    text: &'a str,
}

/// Deeper lists are refused: each level is one on the stack.
const DEEPEST: usize = 32;

/// The value of `configs`, none where the card has none; or what cannot be read, with its line.
pub(crate) fn configs(card: &str) -> Result<Option<Value>, String> {
    let mut lines = card.lines().enumerate();
    if lines.next().is_none_or(|(_, line)| line.trim_start_matches('\u{feff}').trim_end() != "---") {
        return Ok(None);
    }
    let mut block = Vec::new();
    let mut inside = false;
    for (number, line) in lines.take_while(|(_, line)| line.trim_end() != "---") {
        let text = line.trim();
        let indent = line.len() - line.trim_start().len();
        if text.is_empty() || text.starts_with('#') {
            continue;
        }
        // A list may stand as far to the left as the key that it belongs to.
        if indent == 0 && !text.starts_with('-') {
            inside = text == "configs:";
        } else if inside {
            block.push(Line { number: number + 1, indent, text });
        }
    }
    let mut rest = &block[..];
    match block.is_empty() {
        true => Ok(None),
        false => value(&mut rest, 0).map(Some),
    }
}

/// The list or map that begins in the first line.
fn value(lines: &mut &[Line<'_>], depth: usize) -> Result<Value, String> {
    let Some(&first) = lines.first() else { return Ok(Value::Null) };
    if depth > DEEPEST {
        return Err(format!("line {}: lists and maps nest too deeply", first.number));
    }
    match item(first.text) {
        Some(_) => list(lines, first.indent, depth),
        None => map(lines, first.indent, depth),
    }
}

/// What follows the hyphen of a list's element.
fn item(text: &str) -> Option<&str> {
    let rest = text.strip_prefix('-')?;
    (rest.is_empty() || rest.starts_with(' ')).then(|| rest.trim_start())
}

fn list(lines: &mut &[Line<'_>], indent: usize, depth: usize) -> Result<Value, String> {
    let mut elements = Vec::new();
    while let Some((&line, after)) = lines.split_first() {
        let Some(rest) = item(line.text).filter(|_| line.indent == indent) else { break };
        *lines = after;
        if rest.is_empty() {
            elements.push(nested(lines, indent, depth)?);
        } else if item(rest).is_some() || key(rest).is_some() {
            // The element goes on below; what stands after the hyphen is its first line.
            let inner = indent + line.text.len() - rest.len();
            let count = after.iter().take_while(|line| line.indent > indent).count();
            let mut block = vec![Line { number: line.number, indent: inner, text: rest }];
            block.extend_from_slice(&after[..count]);
            *lines = &after[count..];
            let mut block = &block[..];
            elements.push(value(&mut block, depth + 1)?);
            done(block)?;
        } else {
            elements.push(scalar(rest, line.number)?);
        }
    }
    Ok(Value::Array(elements))
}

fn map(lines: &mut &[Line<'_>], indent: usize, depth: usize) -> Result<Value, String> {
    let mut members = Map::new();
    while let Some((&line, after)) = lines.split_first() {
        if line.indent < indent || item(line.text).is_some() {
            break;
        }
        let Some((name, rest)) = key(line.text).filter(|_| line.indent == indent) else {
            return Err(format!("line {}: `{}` is no `key: value`", line.number, line.text));
        };
        *lines = after;
        let value = match rest.is_empty() {
            true => below(lines, indent, depth)?,
            false => scalar(rest, line.number)?,
        };
        members.insert(name.to_owned(), value);
    }
    Ok(Value::Object(members))
}

/// What belongs to a key: lines further to the right, or a list as far to the right as the key.
fn below(lines: &mut &[Line<'_>], indent: usize, depth: usize) -> Result<Value, String> {
    match lines.first() {
        Some(line) if line.indent == indent && item(line.text).is_some() => list(lines, indent, depth + 1),
        _ => nested(lines, indent, depth),
    }
}

/// Lines further to the right than `indent`.
fn nested(lines: &mut &[Line<'_>], indent: usize, depth: usize) -> Result<Value, String> {
    let count = lines.iter().take_while(|line| line.indent > indent).count();
    let (mut block, rest) = lines.split_at(count);
    *lines = rest;
    let value = value(&mut block, depth + 1)?;
    done(block)?;
    Ok(value)
}

fn done(rest: &[Line<'_>]) -> Result<(), String> {
    match rest.first() {
        None => Ok(()),
        Some(line) => Err(format!("line {}: `{}` is not indented as the lines before it", line.number, line.text)),
    }
}

/// A key and what follows its colon.
fn key(text: &str) -> Option<(&str, &str)> {
    if text.starts_with(['"', '\'', '[', '{']) {
        return None;
    }
    let (name, rest) = text.split_once(':')?;
    (rest.is_empty() || rest.starts_with(' ')).then(|| (name.trim(), rest.trim()))
}

/// A text, quoted or not, or a list in brackets.
fn scalar(text: &str, number: usize) -> Result<Value, String> {
    if let Some(inner) = text.strip_prefix('[') {
        let inner = inner.split(" #").next().unwrap_or_default().trim_end();
        let inner =
            inner.strip_suffix(']').ok_or_else(|| format!("line {number}: the bracket of `{text}` is not closed"))?;
        let parts = inner.split(',').map(str::trim).filter(|part| !part.is_empty());
        return parts.map(|part| scalar(part, number)).collect();
    }
    for quote in ['"', '\''] {
        if let Some(inner) = text.strip_prefix(quote) {
            let end = inner.find(quote).ok_or_else(|| format!("line {number}: the quote of `{text}` is not closed"))?;
            return Ok(Value::String(inner[..end].to_owned()));
        }
    }
    if text.starts_with(['|', '>', '&', '*', '{', '!']) {
        return Err(format!("line {number}: `{text}` is YAML of a kind that is not read here; write a plain text"));
    }
    let text = text.split(" #").next().unwrap_or_default().trim_end();
    Ok(match text {
        "true" => Value::Bool(true),
        "false" => Value::Bool(false),
        text => Value::String(text.to_owned()),
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn configs_are_read_in_all_the_ways_that_cards_write_them() {
        let card = "---\nlicense: mit\nfeatures: {x: |}\nconfigs:\n- config_name: a   # the first\n  default: true\n  \
                    data_files:\n  - split: train\n    path: \"a/train*\"\n  - split: test\n    path:\n    - 'a/x:y'\n    - b\n- config_name: b\n  data_files: b/*.parquet\n- config_name: c\n  data_files:\n    - [x, y]\ntags:\n- z\n---\nconfigs:\n- no\n";
        let expected = json!([
            {"config_name": "a", "default": true, "data_files": [
                {"split": "train", "path": "a/train*"}, {"split": "test", "path": ["a/x:y", "b"]}]},
            {"config_name": "b", "data_files": "b/*.parquet"},
            {"config_name": "c", "data_files": [["x", "y"]]},
        ]);
        assert_eq!(configs(card).unwrap(), Some(expected));
    }

    #[test]
    fn cards_without_configs_have_none_and_what_cannot_be_read_is_named() {
        assert_eq!(configs("# A dataset\n").unwrap(), None);
        assert_eq!(configs("---\nlicense: mit\n---\n").unwrap(), None);
        assert_eq!(configs("").unwrap(), None);
        let error = configs("---\nconfigs:\n- config_name: a\n  data_files: |\n    x\n---\n").unwrap_err();
        assert!(error.starts_with("line 4: "), "{error}");
        let error = configs("---\nconfigs:\n- a: b\n   c: d\n---\n").unwrap_err();
        assert!(error.starts_with("line 4: "), "{error}");
        let deep = format!("---\nconfigs:\n {}a\n---\n", "- ".repeat(10_000));
        assert!(configs(&deep).unwrap_err().contains("too deeply"));
    }
}
