//! Reads a TOML file.

use toml_edit::{Document, Item, Key, TableLike, Value};

use super::value::{ConfigValue, Content, Entry, Mistake};

/// The entries of a file, in their order.
pub(crate) fn read(text: &str) -> Result<Vec<Entry>, Mistake> {
    let line = |offset: usize| {
        1 + text.as_bytes().iter().take(offset).filter(|&&byte| byte == b'\n').count()
    };
    let document = Document::parse(text).map_err(|e| {
        Mistake::new(line(e.span().map_or(0, |span| span.start)), e.message().to_owned())
    })?;
    entries(document.as_table(), &line)
}

fn entries(table: &dyn TableLike, line: &impl Fn(usize) -> usize) -> Result<Vec<Entry>, Mistake> {
    let mut entries = Vec::new();
    for (name, item) in table.iter() {
        let start = table.key(name).and_then(Key::span).map_or(0, |span| span.start);
        let line_of_key = line(start);
        let content = match item {
            Item::ArrayOfTables(_) => {
                let message = format!("write [{name}] instead of [[{name}]]");
                return Err(Mistake::new(line_of_key, message));
            }
            Item::None => Content::Unset,
            Item::Table(table) => Content::Section(self::entries(table, line)?),
            Item::Value(Value::InlineTable(table)) => Content::Section(self::entries(table, line)?),
            Item::Value(value) => Content::Value(
                convert(value)
                    .map_err(|message| Mistake::new(line_of_key, format!("`{name}`: {message}")))?,
            ),
        };
        entries.push(Entry { name: name.to_owned(), line: line_of_key, content });
    }
    Ok(entries)
}

fn convert(value: &Value) -> Result<ConfigValue, &'static str> {
    Ok(match value {
        Value::String(text) => ConfigValue::Text(text.value().clone()),
        Value::Integer(number) => ConfigValue::Text(number.value().to_string()),
        // Keep the decimal point: 1.0 is a fraction of an epoch, 1 a number of batches.
        Value::Float(number) => ConfigValue::Text(format!("{:?}", number.value())),
        Value::Boolean(value) => ConfigValue::boolean(*value.value()),
        Value::Datetime(time) => ConfigValue::Text(time.value().to_string()),
        Value::Array(values) => {
            ConfigValue::List(values.iter().map(convert).collect::<Result<_, _>>()?)
        }
        Value::InlineTable(_) => return Err("expected a value, not a table"),
    })
}
