//! Reads a YAML file, such as one of Lightning's `LightningCLI`.
//!
//! A value stays text until its argument reads it, as on the command line. So `no` is a country for
//! an argument that takes text, and false for an option that is true or false. What YAML 1.1, which
//! Lightning reads, and YAML 1.2 read as different numbers is rejected.

use std::collections::HashMap;

use saphyr_parser::{Event, Parser, ScalarStyle, Span};

use super::value::{ConfigValue, Content, Entry, Mistake};

/// How deep values may be nested. A configuration needs three levels.
const MAX_DEPTH: usize = 16;

/// How many values a file may have, counting each use of an anchor.
const MAX_VALUES: usize = 10_000;

/// A value before its meaning is known.
#[derive(Clone, Debug)]
struct Node {
    line: usize,
    kind: Kind,
}

#[derive(Clone, Debug)]
enum Kind {
    /// A text. A plain one has no quotes.
    Scalar {
        text: String,
        is_plain: bool,
    },
    List(Vec<Node>),
    /// Keys and values in turn.
    Map(Vec<Node>),
}

/// A list or map whose end has not been read.
struct Open {
    line: usize,
    anchor: usize,
    is_map: bool,
    children: Vec<Node>,
}

/// The entries of a file, in their order.
pub(crate) fn read(text: &str) -> Result<Vec<Entry>, Mistake> {
    let Some(root) = read_document(text)? else { return Ok(Vec::new()) };
    match &root.kind {
        Kind::Map(children) => entries(children),
        Kind::Scalar { text, is_plain: true } if is_null(text) => Ok(Vec::new()),
        _ => Err(Mistake::new(root.line, "expected keys with values, such as `max_epochs: 5`")),
    }
}

/// Reads the only document of a file.
fn read_document(text: &str) -> Result<Option<Node>, Mistake> {
    let mut reader = Reader::default();
    for event in Parser::new_from_str(text) {
        let (event, span) =
            event.map_err(|e| Mistake::new(e.marker().line().max(1), e.info().to_owned()))?;
        reader.add(event, span)?;
    }
    Ok(reader.root)
}

#[derive(Default)]
struct Reader {
    open: Vec<Open>,
    anchors: HashMap<usize, Node>,
    values: usize,
    root: Option<Node>,
}

impl Reader {
    fn add(&mut self, event: Event<'_>, span: Span) -> Result<(), Mistake> {
        let line = span.start.line().max(1);
        match event {
            Event::DocumentStart(_) if self.root.is_some() => {
                Err(Mistake::new(line, "there is a second document; a configuration has only one"))
            }
            Event::Scalar(_, _, _, Some(tag))
            | Event::SequenceStart(_, Some(tag))
            | Event::MappingStart(_, Some(tag)) => Err(Mistake::new(
                line,
                format!(
                    "the tag `{}{}` is not supported; write the value without it, a text in quotes",
                    if tag.is_yaml_core_schema() { "!!" } else { &tag.handle },
                    tag.suffix
                ),
            )),
            Event::Scalar(text, style, anchor, None) => {
                let is_plain = style == ScalarStyle::Plain;
                let kind = Kind::Scalar { text: text.into_owned(), is_plain };
                self.finish(Node { line, kind }, anchor, 1)
            }
            Event::SequenceStart(anchor, None) => self.begin(line, anchor, false),
            Event::MappingStart(anchor, None) => self.begin(line, anchor, true),
            Event::SequenceEnd | Event::MappingEnd => self.end(),
            Event::Alias(anchor) => {
                let Some(node) = self.anchors.get(&anchor).cloned() else {
                    return Err(Mistake::new(line, "this alias is within the value that it names"));
                };
                let size = node.size();
                self.finish(Node { line, ..node }, 0, size)
            }
            Event::Nothing
            | Event::StreamStart
            | Event::StreamEnd
            | Event::DocumentStart(_)
            | Event::DocumentEnd => Ok(()),
        }
    }

    fn begin(&mut self, line: usize, anchor: usize, is_map: bool) -> Result<(), Mistake> {
        if self.open.len() == MAX_DEPTH {
            let message = format!("values are nested in more than {MAX_DEPTH} levels");
            return Err(Mistake::new(line, message));
        }
        self.open.push(Open { line, anchor, is_map, children: Vec::new() });
        Ok(())
    }

    fn end(&mut self) -> Result<(), Mistake> {
        let Some(Open { line, anchor, is_map, children }) = self.open.pop() else { return Ok(()) };
        let kind = if is_map { Kind::Map(children) } else { Kind::List(children) };
        self.finish(Node { line, kind }, anchor, 1)
    }

    /// Adds a complete value to what is open. `size` is the number of values that it adds.
    fn finish(&mut self, node: Node, anchor: usize, size: usize) -> Result<(), Mistake> {
        self.values = self.values.saturating_add(size);
        if self.values > MAX_VALUES {
            let message = format!("there are more than {MAX_VALUES} values");
            return Err(Mistake::new(node.line, message));
        }
        // 0 means that the value has no anchor.
        if anchor > 0 {
            self.anchors.insert(anchor, node.clone());
        }
        match self.open.last_mut() {
            Some(open) => open.children.push(node),
            None => self.root = Some(node),
        }
        Ok(())
    }
}

impl Node {
    /// The number of values in it, with itself.
    fn size(&self) -> usize {
        match &self.kind {
            Kind::Scalar { .. } => 1,
            Kind::List(children) | Kind::Map(children) => {
                1 + children.iter().map(Node::size).sum::<usize>()
            }
        }
    }
}

/// The entries of a map. Those of `<<` are added behind its own, which override them.
fn entries(children: &[Node]) -> Result<Vec<Entry>, Mistake> {
    let mut entries: Vec<Entry> = Vec::new();
    let mut merged: Vec<Entry> = Vec::new();
    for pair in children.chunks_exact(2) {
        let Kind::Scalar { text: name, is_plain } = &pair[0].kind else {
            return Err(Mistake::new(pair[0].line, "a key must be a name"));
        };
        if *is_plain && name == "<<" {
            merged.extend(merge(&pair[1])?);
            continue;
        }
        let line = pair[0].line;
        let content = match &pair[1].kind {
            Kind::Map(children) => Content::Section(self::entries(children)?),
            _ => content(&pair[1]).map_err(|mistake| Mistake {
                message: format!("`{name}`: {}", mistake.message),
                ..mistake
            })?,
        };
        entries.push(Entry { name: name.clone(), line, content });
    }
    for entry in merged {
        if !entries.iter().any(|own| same_name(&own.name, &entry.name)) {
            entries.push(entry);
        }
    }
    Ok(entries)
}

fn same_name(a: &str, b: &str) -> bool {
    a.replace('_', "-") == b.replace('_', "-")
}

/// The entries that `<<` adds: those of a map, or of several, the first of which counts.
fn merge(node: &Node) -> Result<Vec<Entry>, Mistake> {
    match &node.kind {
        Kind::Map(children) => entries(children),
        Kind::List(nodes) => {
            let mut entries: Vec<Entry> = Vec::new();
            for entry in nodes.iter().map(merge).collect::<Result<Vec<_>, _>>()?.concat() {
                if !entries.iter().any(|known| same_name(&known.name, &entry.name)) {
                    entries.push(entry);
                }
            }
            Ok(entries)
        }
        Kind::Scalar { .. } => {
            Err(Mistake::new(node.line, "`<<` needs an alias of keys with values, such as `*base`"))
        }
    }
}

fn content(node: &Node) -> Result<Content, Mistake> {
    match &node.kind {
        Kind::Scalar { text, is_plain: true } if is_null(text) => Ok(Content::Unset),
        _ => Ok(Content::Value(value(node)?)),
    }
}

fn value(node: &Node) -> Result<ConfigValue, Mistake> {
    match &node.kind {
        Kind::Scalar { text, is_plain: false } => Ok(ConfigValue::Text(text.clone())),
        Kind::Scalar { text, is_plain: true } => {
            plain(text).map_err(|message| Mistake::new(node.line, message))
        }
        Kind::List(nodes) => {
            Ok(ConfigValue::List(nodes.iter().map(value).collect::<Result<_, _>>()?))
        }
        Kind::Map(_) => Err(Mistake::new(node.line, "expected a value, not a table")),
    }
}

fn is_null(text: &str) -> bool {
    ["", "~", "null", "Null", "NULL"].contains(&text)
}

/// The value of a text without quotes.
fn plain(text: &str) -> Result<ConfigValue, String> {
    if is_null(text) {
        return Err("expected a value, not null".to_owned());
    }
    let digits = text.strip_prefix(['-', '+']).unwrap_or(text);
    let is_number = digits.bytes().all(|byte| byte.is_ascii_digit() || byte == b'_');
    if is_number && digits.len() > 1 && digits.starts_with('0') {
        return Err(format!(
            "{text} is a number with base 8 in YAML 1.1, but not in YAML 1.2; write it without the leading 0, or in \
             quotes if it is a text"
        ));
    }
    let is_one_of = |words: [&str; 3]| words.contains(&&*text.to_lowercase());
    let boolean = |value| ConfigValue::Boolean { value, text: text.to_owned() };
    Ok(if is_one_of(["true", "yes", "on"]) {
        boolean(true)
    } else if is_one_of(["false", "no", "off"]) {
        boolean(false)
    } else {
        ConfigValue::Text(text.to_owned())
    })
}
