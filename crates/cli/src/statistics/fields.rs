//! The fields of a data set while its samples are read.

use std::collections::{BTreeMap, HashMap};

use fulmen_data::internal::{cores, in_parallel};
use fulmen_data::{Error, Result};
use serde::Serialize;

use super::images::{ImageStatistics, Images, measure};
use super::numbers::{NumberStatistics, Numbers};

/// More fields than a data set has.
const MAX_FIELDS: usize = 1000;
/// How many different values of a field are counted, and how long a counted one is, in bytes.
const MAX_VALUES: usize = 1000;
const MAX_VALUE_BYTES: usize = 100;
/// How many images wait to be decoded together, and their bytes.
const MAX_WAITING: usize = 1024;
const MAX_WAITING_BYTES: usize = 64 << 20;

/// The statistics of a field. Usually one of `numbers` to `images` is there; a field of JSON whose
/// values have different types has several.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct FieldStatistics {
    /// The name: a column, an extension, or the path to a value in JSON (`json.box.width`).
    pub name: String,
    /// The number of samples with a value.
    pub count: u64,
    /// The number of samples without a value: null, NaN, or nothing at all.
    pub missing: u64,
    /// Numbers; a truth value is 0 or 1.
    pub numbers: Option<NumberStatistics>,
    /// The lengths of texts, in characters.
    pub characters: Option<NumberStatistics>,
    /// The lengths of lists: of elements, or of tokens of a document.
    pub lengths: Option<NumberStatistics>,
    /// The sizes of other contents, in bytes.
    pub bytes: Option<NumberStatistics>,
    /// Images.
    pub images: Option<ImageStatistics>,
    /// How many samples have each value, such as a class; `None` if there are more than 1000 values
    /// or long ones, or if the values are not whole numbers, texts or truth values.
    pub values: Option<BTreeMap<String, u64>>,
}

/// A value of a sample.
pub(super) enum Value<'a> {
    Missing,
    Truth(bool),
    /// Not NaN: that is missing.
    Number(f64),
    Text(&'a str),
    /// The name or the number of a class.
    Class(&'a str),
    /// A value of a file without types, which may be a number.
    Untyped(&'a str),
    /// A list of this length.
    List(usize),
    /// Contents of this size that are not looked into.
    Bytes(usize),
    /// A value that is only counted.
    Other,
}

#[derive(Default)]
struct Field {
    name: String,
    count: u64,
    numbers: Numbers,
    /// The values of `Untyped`, read as numbers, and how many are none.
    untyped: Numbers,
    not_numbers: u64,
    not_a_number: u64,
    untyped_characters: Numbers,
    characters: Numbers,
    lengths: Numbers,
    bytes: Numbers,
    images: Images,
    values: Values,
}

/// How often each value occurs.
enum Values {
    Counted(BTreeMap<String, u64>),
    TooMany,
}

impl Default for Values {
    fn default() -> Values {
        Values::Counted(BTreeMap::new())
    }
}

impl Values {
    fn add(&mut self, value: &str) {
        let Values::Counted(counts) = self else { return };
        if let Some(count) = counts.get_mut(value) {
            *count += 1;
        } else if counts.len() < MAX_VALUES && value.len() <= MAX_VALUE_BYTES {
            counts.insert(value.to_owned(), 1);
        } else {
            *self = Values::TooMany;
        }
    }

    /// The counts to show. Of numbers without a type, only whole ones are counted, and NaN is none.
    fn counts(self, is_untyped_number: bool) -> Option<BTreeMap<String, u64>> {
        let Values::Counted(mut counts) = self else { return None };
        if is_untyped_number {
            counts.retain(|value, _| !value.trim().parse::<f64>().is_ok_and(f64::is_nan));
            if !counts.keys().all(|value| value.trim().parse::<i64>().is_ok()) {
                return None;
            }
        }
        (!counts.is_empty()).then_some(counts)
    }
}

impl Field {
    fn add(&mut self, value: &Value<'_>) {
        match *value {
            Value::Missing => return,
            Value::Truth(truth) => {
                self.numbers.add(f64::from(u8::from(truth)));
                self.values.add(if truth { "true" } else { "false" });
            }
            Value::Number(number) => {
                self.numbers.add(number);
                self.add_whole(number);
            }
            Value::Text(text) => {
                self.characters.add(text.chars().count() as f64);
                self.values.add(text);
            }
            Value::Class(name) => self.values.add(name),
            Value::Untyped(text) => self.add_untyped(text),
            Value::List(length) => self.lengths.add(length as f64),
            Value::Bytes(bytes) => self.bytes.add(bytes as f64),
            Value::Other => {}
        }
        self.count += 1;
    }

    fn add_whole(&mut self, number: f64) {
        if number == number.trunc() && number.abs() < 9e15 {
            self.values.add(&format!("{number:.0}"));
        } else {
            self.values = Values::TooMany;
        }
    }

    fn add_untyped(&mut self, text: &str) {
        self.untyped_characters.add(text.chars().count() as f64);
        match text.trim().parse::<f64>() {
            Ok(number) if number.is_nan() => self.not_a_number += 1,
            Ok(number) => self.untyped.add(number),
            Err(_) => self.not_numbers += 1,
        }
        self.values.add(text);
    }

    /// Whether everything in a file without types is a number.
    fn is_numeric(&self) -> bool {
        self.not_numbers == 0 && !self.untyped.is_empty()
    }

    fn statistics(mut self, samples: u64) -> FieldStatistics {
        let is_numeric = self.is_numeric();
        if is_numeric {
            self.numbers.merge(self.untyped);
        } else {
            self.characters.merge(self.untyped_characters);
        }
        let count = if is_numeric { self.count - self.not_a_number } else { self.count };
        let values = self.values.counts(is_numeric);
        FieldStatistics {
            name: self.name,
            count,
            missing: samples.saturating_sub(count),
            numbers: self.numbers.statistics(),
            characters: self.characters.statistics(),
            lengths: self.lengths.statistics(),
            bytes: self.bytes.statistics(),
            images: self.images.statistics(),
            values,
        }
    }
}

/// An image that waits to be decoded.
struct Waiting {
    field: usize,
    origin: String,
    file: Vec<u8>,
}

/// The fields that have been seen, in the order of their first appearance.
#[derive(Default)]
pub(super) struct Fields {
    pub(super) samples: u64,
    fields: Vec<Field>,
    numbers: HashMap<String, usize>,
    waiting: Vec<Waiting>,
    waiting_bytes: usize,
}

impl Fields {
    pub(super) fn add(&mut self, name: &str, value: &Value<'_>) -> Result<()> {
        let number = self.number(name)?;
        self.fields[number].add(value);
        Ok(())
    }

    /// Adds an image; `origin` is for messages.
    pub(super) fn add_image(&mut self, name: &str, origin: String, file: Vec<u8>) -> Result<()> {
        let field = self.number(name)?;
        self.waiting_bytes += file.len();
        self.waiting.push(Waiting { field, origin, file });
        if self.waiting.len() >= MAX_WAITING || self.waiting_bytes >= MAX_WAITING_BYTES {
            self.decode_waiting()?;
        }
        Ok(())
    }

    /// Adds the numbers of tokens, whose documents are counted by their lengths.
    pub(super) fn add_ids(&mut self, name: &str, ids: &[u32]) -> Result<()> {
        let number = self.number(name)?;
        let numbers = &mut self.fields[number].numbers;
        ids.iter().for_each(|&id| numbers.add(f64::from(id)));
        Ok(())
    }

    fn number(&mut self, name: &str) -> Result<usize> {
        if let Some(&number) = self.numbers.get(name) {
            return Ok(number);
        }
        let number = self.fields.len();
        if number == MAX_FIELDS {
            return Err(Error::content(format!(
                "there are more than {MAX_FIELDS} fields; the next one is `{name}`"
            )));
        }
        self.fields.push(Field { name: name.to_owned(), ..Field::default() });
        self.numbers.insert(name.to_owned(), number);
        Ok(number)
    }

    fn decode_waiting(&mut self) -> Result<()> {
        let waiting = std::mem::take(&mut self.waiting);
        self.waiting_bytes = 0;
        let measured = in_parallel(&waiting, cores(), |image| {
            measure(&image.file)
                .map_err(|error| Error::content(format!("{}: {error}", image.origin)))
        })?;
        for (image, measured) in waiting.iter().zip(&measured) {
            let field = &mut self.fields[image.field];
            field.images.add(measured);
            field.count += 1;
        }
        Ok(())
    }

    pub(super) fn finish(mut self) -> Result<Vec<FieldStatistics>> {
        self.decode_waiting()?;
        let samples = self.samples;
        Ok(self.fields.into_iter().map(|field| field.statistics(samples)).collect())
    }
}
