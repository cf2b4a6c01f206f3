//! `{% generation %}` blocks, which mark what the assistant has said. minijinja has no tags of one's
//! own, so they become blocks of a filter that puts marks around its text.
//!
//! Out of scope: rendering.

use super::RenderedChat;

/// The filter that puts marks around a text.
pub(super) const FILTER: &str = "__generation__";

/// Noncharacters, which no text contains.
pub(super) const START: char = '\u{fdd0}';
pub(super) const END: char = '\u{fdd1}';

/// The filter.
pub(super) fn filter(text: &str) -> String {
    format!("{START}{text}{END}")
}

/// The source with blocks of the filter instead of `{% generation %}`.
pub(super) fn mark(source: &str) -> String {
    let mut marked = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find('{') {
        marked.push_str(&rest[..start]);
        rest = &rest[start..];
        let length = construct_length(rest);
        let construct = &rest[..length];
        match tag_name(construct) {
            Some("generation") => {
                marked.push_str(&construct.replacen("generation", &format!("filter {FILTER}"), 1));
            }
            Some("endgeneration") => {
                marked.push_str(&construct.replacen("endgeneration", "endfilter", 1));
            }
            _ => marked.push_str(construct),
        }
        rest = &rest[length..];
        if tag_name(construct) == Some("raw") {
            let end = raw_length(rest);
            marked.push_str(&rest[..end]);
            rest = &rest[end..];
        }
    }
    marked.push_str(rest);
    marked
}

/// The name of a tag without arguments: `generation` of `{%- generation -%}`.
fn tag_name(construct: &str) -> Option<&str> {
    let inner = construct.strip_prefix("{%")?.strip_suffix("%}")?;
    let inner = inner.strip_prefix(['-', '+']).unwrap_or(inner);
    Some(inner.strip_suffix(['-', '+']).unwrap_or(inner).trim())
}

/// The length of the tag, expression, comment or brace at the start of a text.
fn construct_length(text: &str) -> usize {
    let end = match text.as_bytes().get(1) {
        Some(b'#') => return text.find("#}").map_or(text.len(), |end| end + 2),
        Some(b'%') => "%}",
        Some(b'{') => "}}",
        _ => return 1,
    };
    let bytes = text.as_bytes();
    let mut position = 2;
    let mut depth = 0usize;
    while position < bytes.len() {
        if depth == 0 && bytes[position..].starts_with(end.as_bytes()) {
            return position + 2;
        }
        match bytes[position] {
            quote @ (b'\'' | b'"') => position = string_end(bytes, position, quote),
            b'{' => depth += 1,
            b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        position += 1;
    }
    text.len()
}

/// The position of the quote that ends a string, or of the last byte.
fn string_end(bytes: &[u8], start: usize, quote: u8) -> usize {
    let mut position = start + 1;
    while position < bytes.len() && bytes[position] != quote {
        position += if bytes[position] == b'\\' { 2 } else { 1 };
    }
    position.min(bytes.len() - 1)
}

/// The length of a raw text, up to its `{% endraw %}`.
fn raw_length(text: &str) -> usize {
    let mut start = 0;
    while let Some(found) = text[start..].find("{%") {
        start += found;
        let end = text[start..].find("%}").map_or(text.len(), |end| start + end + 2);
        if tag_name(&text[start..end]) == Some("endraw") {
            return start;
        }
        start += 2;
    }
    text.len()
}

/// Removes the marks, and returns what was between them.
pub(super) fn take_marks(marked: &str) -> Result<RenderedChat, &'static str> {
    const BROKEN: &str =
        "the template cuts the text of a `{% generation %}` block, so what is generated is unknown";
    let mut text = String::with_capacity(marked.len());
    let mut generation = Vec::new();
    let mut starts = Vec::new();
    for c in marked.chars() {
        match c {
            START => starts.push(text.len()),
            END => generation.push(starts.pop().ok_or(BROKEN)?..text.len()),
            c => text.push(c),
        }
    }
    if starts.is_empty() { Ok(RenderedChat { text, generation }) } else { Err(BROKEN) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_tags_become_blocks_of_the_filter() {
        let unchanged = [
            "{# {% generation %} #}",
            "{{ '{% generation %}' }}",
            "{% raw %}{% generation %}{% endraw %}",
            "{{ {'a': {'b': \"}}{% generation %}\"}} }}",
            "{% set generation = 1 %}{{ generation }}",
            "{ {",
            "{% generation",
            "{{ 'a\\",
        ];
        for source in unchanged {
            assert_eq!(mark(source), source);
        }
        assert_eq!(
            mark("a{%- generation -%} b {{ '%}' }}{%endgeneration+%}c"),
            "a{%- filter __generation__ -%} b {{ '%}' }}{%endfilter+%}c"
        );
    }
}
