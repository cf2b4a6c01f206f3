//! `tf.train.Example`: named lists of bytes, floats or integers (`tensorflow/core/example/{example,feature}.proto`).
//!
//! Not here: other messages; reading protocol buffers goes only as far as these need.

use std::collections::BTreeMap;

use fulmen_data::{Error, Result};

/// A `tf.train.Example` message.
///
/// ```
/// use fulmen_shards::{Example, Feature};
///
/// let example = Example::new()
///     .with("image/encoded", Feature::Bytes(vec![vec![0xff, 0xd8]]))
///     .with("image/class/label", Feature::Ints(vec![17]));
/// let mut read = Example::parse(&example.encode())?;
/// assert_eq!(read, example);
/// assert_eq!(read.int("image/class/label")?, 17);
/// assert_eq!(read.take_bytes("image/encoded")?, [0xff, 0xd8]);
/// # Ok::<(), fulmen_data::Error>(())
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Example {
    /// The features by their names.
    pub features: BTreeMap<String, Feature>,
}

/// A list of values of one kind.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Feature {
    /// No list at all, as some writers leave a missing value.
    #[default]
    Missing,
    /// Strings of bytes: encoded pictures, text, serialized tensors.
    Bytes(Vec<Vec<u8>>),
    /// Numbers of 32 bits.
    Floats(Vec<f32>),
    /// Whole numbers of 64 bits.
    Ints(Vec<i64>),
}

impl Feature {
    fn kind(&self) -> String {
        match self {
            Feature::Missing => "no list".to_owned(),
            Feature::Bytes(values) => format!("a list of {} strings of bytes", values.len()),
            Feature::Floats(values) => format!("a list of {} floats", values.len()),
            Feature::Ints(values) => format!("a list of {} integers", values.len()),
        }
    }
}

impl Example {
    /// One without features.
    pub fn new() -> Example {
        Example::default()
    }

    /// The same with one feature more.
    #[must_use]
    pub fn with(mut self, name: &str, feature: Feature) -> Example {
        self.features.insert(name.to_owned(), feature);
        self
    }

    /// Reads the message. Of a feature that comes twice the last one counts, and fields that are not known are passed over,
    /// as protocol buffers have it.
    pub fn parse(bytes: &[u8]) -> Result<Example> {
        let mut example = Example::new();
        let read = each_field(bytes, |field| match field {
            (1, Value::Bytes(features)) => each_field(features, |field| {
                match field {
                    (1, Value::Bytes(entry)) => {
                        let (name, feature) = parse_entry(entry)?;
                        example.features.insert(name, feature);
                    }
                    (1, _) => return Err("an entry of its features is no message"),
                    _ => {}
                }
                Ok(())
            }),
            (1, _) => Err("its features are no message"),
            _ => Ok(()),
        });
        read.map_err(|why| Error::new(format!("this is no tf.train.Example: {why}")))?;
        Ok(example)
    }

    /// The message. The same features give the same bytes: they stand in the order of their names.
    pub fn encode(&self) -> Vec<u8> {
        let mut features = Vec::new();
        for (name, feature) in &self.features {
            let mut list = Vec::new();
            let kind = match feature {
                Feature::Missing => None,
                Feature::Bytes(values) => {
                    values.iter().for_each(|value| put_bytes(&mut list, 1, value));
                    Some(1)
                }
                Feature::Floats(values) => {
                    if !values.is_empty() {
                        let packed: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
                        put_bytes(&mut list, 1, &packed);
                    }
                    Some(2)
                }
                Feature::Ints(values) => {
                    if !values.is_empty() {
                        let mut packed = Vec::new();
                        values.iter().for_each(|&value| put_varint(&mut packed, value as u64));
                        put_bytes(&mut list, 1, &packed);
                    }
                    Some(3)
                }
            };
            let mut message = Vec::new();
            if let Some(kind) = kind {
                put_bytes(&mut message, kind, &list);
            }
            let mut entry = Vec::new();
            put_bytes(&mut entry, 1, name.as_bytes());
            put_bytes(&mut entry, 2, &message);
            put_bytes(&mut features, 1, &entry);
        }
        let mut example = Vec::new();
        put_bytes(&mut example, 1, &features);
        example
    }

    /// The feature with this name.
    pub fn feature(&self, name: &str) -> Result<&Feature> {
        self.features.get(name).ok_or_else(|| self.lacks(name))
    }

    /// Takes out the only string of bytes of a feature, such as an encoded picture.
    pub fn take_bytes(&mut self, name: &str) -> Result<Vec<u8>> {
        match self.features.get_mut(name) {
            Some(Feature::Bytes(values)) if values.len() == 1 => Ok(values.pop().unwrap_or_default()),
            Some(other) => Err(wrong(name, "one string of bytes", other)),
            None => Err(self.lacks(name)),
        }
    }

    /// The only string of bytes of a feature as text.
    pub fn text(&self, name: &str) -> Result<&str> {
        match self.feature(name)? {
            Feature::Bytes(values) if values.len() == 1 => std::str::from_utf8(&values[0])
                .map_err(|why| Error::new(format!("the feature `{name}` is no text: {why}"))),
            other => Err(wrong(name, "one string of bytes", other)),
        }
    }

    /// The only integer of a feature, such as a label.
    pub fn int(&self, name: &str) -> Result<i64> {
        match self.feature(name)? {
            Feature::Ints(values) if values.len() == 1 => Ok(values[0]),
            other => Err(wrong(name, "one integer", other)),
        }
    }

    /// All integers of a feature.
    pub fn ints(&self, name: &str) -> Result<&[i64]> {
        match self.feature(name)? {
            Feature::Ints(values) => Ok(values),
            other => Err(wrong(name, "a list of integers", other)),
        }
    }

    /// All floats of a feature.
    pub fn floats(&self, name: &str) -> Result<&[f32]> {
        match self.feature(name)? {
            Feature::Floats(values) => Ok(values),
            other => Err(wrong(name, "a list of floats", other)),
        }
    }

    fn lacks(&self, name: &str) -> Error {
        let names: Vec<String> = self.features.keys().map(|name| format!("`{name}`")).collect();
        let has = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        Error::missing(format!("the example has no feature `{name}`; its features: {has}"))
    }
}

fn wrong(name: &str, expected: &str, found: &Feature) -> Error {
    Error::new(format!("the feature `{name}` is {}, expected {expected}", found.kind()))
}

type Parsed<T> = std::result::Result<T, &'static str>;

/// The value of a field, as the wire says it.
enum Value<'a> {
    Varint(u64),
    Bytes(&'a [u8]),
    Four([u8; 4]),
    Eight,
}

/// A name and its feature: an entry of a map.
fn parse_entry(entry: &[u8]) -> Parsed<(String, Feature)> {
    let (mut name, mut feature) = (String::new(), Feature::default());
    each_field(entry, |field| {
        match field {
            (1, Value::Bytes(text)) => {
                name = String::from_utf8(text.to_vec()).map_err(|_| "the name of a feature is not UTF-8")?;
            }
            (2, Value::Bytes(message)) => feature = parse_feature(message)?,
            (1 | 2, _) => return Err("an entry of its features has a field of a wrong kind"),
            _ => {}
        }
        Ok(())
    })?;
    Ok((name, feature))
}

fn parse_feature(message: &[u8]) -> Parsed<Feature> {
    let mut feature = Feature::default();
    each_field(message, |field| {
        let (number, list) = match field {
            (number @ 1..=3, Value::Bytes(list)) => (number, list),
            (1..=3, _) => return Err("a feature has a list that is no message"),
            _ => return Ok(()),
        };
        // Of several kinds the last one counts; parts of a list of one kind go together.
        let same =
            matches!((number, &feature), (1, Feature::Bytes(_)) | (2, Feature::Floats(_)) | (3, Feature::Ints(_)));
        if !same {
            feature = match number {
                1 => Feature::Bytes(Vec::new()),
                2 => Feature::Floats(Vec::new()),
                _ => Feature::Ints(Vec::new()),
            };
        }
        each_field(list, |value| match (&mut feature, value) {
            (Feature::Bytes(values), (1, Value::Bytes(value))) => {
                values.push(value.to_vec());
                Ok(())
            }
            (Feature::Floats(values), (1, Value::Four(value))) => {
                values.push(f32::from_le_bytes(value));
                Ok(())
            }
            (Feature::Floats(values), (1, Value::Bytes(packed))) => {
                if packed.len() % 4 != 0 {
                    return Err("a list of floats is no multiple of 4 bytes");
                }
                values.extend(packed.chunks_exact(4).map(|v| f32::from_le_bytes([v[0], v[1], v[2], v[3]])));
                Ok(())
            }
            (Feature::Ints(values), (1, Value::Varint(value))) => {
                values.push(value as i64);
                Ok(())
            }
            (Feature::Ints(values), (1, Value::Bytes(mut packed))) => {
                while !packed.is_empty() {
                    values.push(varint(&mut packed)? as i64);
                }
                Ok(())
            }
            (_, (1, _)) => Err("a list has values of another kind"),
            _ => Ok(()),
        })
    })?;
    Ok(feature)
}

/// Hands out the fields of a message, each with its number.
fn each_field<'a>(mut bytes: &'a [u8], mut take: impl FnMut((u64, Value<'a>)) -> Parsed<()>) -> Parsed<()> {
    while !bytes.is_empty() {
        let tag = varint(&mut bytes)?;
        let value = match tag & 7 {
            0 => Value::Varint(varint(&mut bytes)?),
            1 => {
                split(&mut bytes, 8)?;
                Value::Eight
            }
            2 => {
                let length = varint(&mut bytes)?;
                Value::Bytes(split(&mut bytes, length)?)
            }
            5 => match *split(&mut bytes, 4)? {
                [a, b, c, d] => Value::Four([a, b, c, d]),
                _ => return Err("it ends within a field"),
            },
            _ => return Err("a field has a wire type that is none"),
        };
        if tag >> 3 == 0 {
            return Err("a field has the number 0");
        }
        take((tag >> 3, value))?;
    }
    Ok(())
}

fn split<'a>(bytes: &mut &'a [u8], length: u64) -> Parsed<&'a [u8]> {
    let length = usize::try_from(length).ok().filter(|&length| length <= bytes.len());
    let (first, rest) = bytes.split_at(length.ok_or("it ends within a field")?);
    *bytes = rest;
    Ok(first)
}

/// Seven bits a byte, the lowest first; the last byte has its highest bit clear.
fn varint(bytes: &mut &[u8]) -> Parsed<u64> {
    let mut value = 0u64;
    for shift in (0..70).step_by(7) {
        let (&byte, rest) = bytes.split_first().ok_or("it ends within a number")?;
        *bytes = rest;
        // Of a tenth byte one bit is left.
        value |= u64::from(byte & 0x7f).checked_shl(shift).unwrap_or(0);
        if byte & 0x80 == 0 {
            return Ok(value);
        }
    }
    Err("a number has more than 64 bits")
}

fn put_varint(into: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        into.push(value as u8 | 0x80);
        value >>= 7;
    }
    into.push(value as u8);
}

fn put_bytes(into: &mut Vec<u8>, number: u64, bytes: &[u8]) {
    put_varint(into, number << 3 | 2);
    put_varint(into, bytes.len() as u64);
    into.extend_from_slice(bytes);
}
