//! `tf.train.Example`: named lists of bytes, floats or integers
//! (`tensorflow/core/example/{example,feature}.proto`).
//!
//! Out of scope: the format of records in a file (`record`).

use std::collections::BTreeMap;

use fulmen_data::{Error, Result};
use fulmen_durable::messages::quantity;
use prost::Message;

/// A `tf.train.Example` message, or a `tf.train.SequenceExample`, which also has lists of features.
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
    /// The features by name; the context of a `SequenceExample`.
    pub features: BTreeMap<String, Feature>,
    /// The feature lists of a `SequenceExample` by name: a feature for each step. Empty for an
    /// `Example`.
    pub lists: BTreeMap<String, Vec<Feature>>,
}

/// A list of values of one kind.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Feature {
    /// No list. Some writers encode a missing value in this way.
    #[default]
    Missing,
    /// Byte strings: encoded images, text, serialized tensors.
    Bytes(Vec<Vec<u8>>),
    /// 32-bit floats.
    Floats(Vec<f32>),
    /// 64-bit integers.
    Ints(Vec<i64>),
}

impl Feature {
    fn kind(&self) -> String {
        let list = |length: usize, noun: &str| format!("a list of {}", quantity(length, noun));
        match self {
            Feature::Missing => "not a list".to_owned(),
            Feature::Bytes(values) => list(values.len(), "byte string"),
            Feature::Floats(values) => list(values.len(), "float"),
            Feature::Ints(values) => list(values.len(), "integer"),
        }
    }
}

impl Example {
    /// An empty example.
    pub fn new() -> Example {
        Example::default()
    }

    /// Adds a feature.
    #[must_use]
    pub fn with(mut self, name: &str, feature: Feature) -> Example {
        self.features.insert(name.to_owned(), feature);
        self
    }

    /// Adds a feature list, which makes this a `SequenceExample`.
    #[must_use]
    pub fn with_list(mut self, name: &str, steps: impl Into<Vec<Feature>>) -> Example {
        self.lists.insert(name.to_owned(), steps.into());
        self
    }

    /// Parses the message. If a feature is repeated, the last one applies, and unknown fields are
    /// skipped, as in protocol buffers.
    pub fn parse(bytes: &[u8]) -> Result<Example> {
        let message = proto::Example::decode(bytes)
            .map_err(|error| Error::new(format!("not a tf.train.Example: {error}")))?;
        let features = message.features.unwrap_or_default().feature.into_iter();
        let lists = message.lists.unwrap_or_default().list.into_iter();
        let steps =
            |list: proto::FeatureList| list.feature.into_iter().map(Feature::from).collect();
        Ok(Example {
            features: features.map(|(name, feature)| (name, feature.into())).collect(),
            lists: lists.map(|(name, list)| (name, steps(list))).collect(),
        })
    }

    /// Serializes the message. The same features give the same bytes, because they are sorted by
    /// name.
    pub fn encode(&self) -> Vec<u8> {
        let feature = self
            .features
            .iter()
            .map(|(name, feature)| (name.clone(), feature.clone().into()))
            .collect();
        let steps = |steps: &Vec<Feature>| proto::FeatureList {
            feature: steps.iter().cloned().map(Into::into).collect(),
        };
        let list: BTreeMap<_, _> =
            self.lists.iter().map(|(name, list)| (name.clone(), steps(list))).collect();
        let lists = (!list.is_empty()).then_some(proto::FeatureLists { list });
        proto::Example { features: Some(proto::Features { feature }), lists }.encode_to_vec()
    }

    /// The feature with this name.
    pub fn feature(&self, name: &str) -> Result<&Feature> {
        self.features.get(name).ok_or_else(|| self.missing_error(name))
    }

    /// The feature list with this name, of a `SequenceExample`: a feature for each step.
    pub fn list(&self, name: &str) -> Result<&[Feature]> {
        self.lists.get(name).map(Vec::as_slice).ok_or_else(|| {
            let names: Vec<String> = self.lists.keys().map(|name| format!("`{name}`")).collect();
            let has = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
            Error::missing(format!("the example has no feature list `{name}`; its lists: {has}"))
        })
    }

    /// Removes and returns the only byte string of a feature, such as an encoded image.
    pub fn take_bytes(&mut self, name: &str) -> Result<Vec<u8>> {
        match self.features.get_mut(name) {
            Some(Feature::Bytes(values)) if values.len() == 1 => {
                Ok(values.pop().unwrap_or_default())
            }
            Some(other) => Err(wrong(name, "one string of bytes", other)),
            None => Err(self.missing_error(name)),
        }
    }

    /// The only byte string of a feature, as text.
    pub fn text(&self, name: &str) -> Result<&str> {
        match self.feature(name)? {
            Feature::Bytes(values) if values.len() == 1 => std::str::from_utf8(&values[0])
                .map_err(|error| Error::new(format!("the feature `{name}` is not text: {error}"))),
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

    fn missing_error(&self, name: &str) -> Error {
        let names: Vec<String> = self.features.keys().map(|name| format!("`{name}`")).collect();
        let has = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        let lists: Vec<String> = self.lists.keys().map(|name| format!("`{name}`")).collect();
        let lists = match &lists[..] {
            [] => String::new(),
            lists => format!("; its feature lists: {}", lists.join(", ")),
        };
        Error::missing(format!("the example has no feature `{name}`; its features: {has}{lists}"))
    }
}

fn wrong(name: &str, expected: &str, actual: &Feature) -> Error {
    Error::new(format!("the feature `{name}` is {}, expected {expected}", actual.kind()))
}

impl From<proto::Feature> for Feature {
    fn from(feature: proto::Feature) -> Feature {
        match feature.kind {
            None => Feature::Missing,
            Some(proto::Kind::Bytes(list)) => Feature::Bytes(list.value),
            Some(proto::Kind::Floats(list)) => Feature::Floats(list.value),
            Some(proto::Kind::Ints(list)) => Feature::Ints(list.value),
        }
    }
}

impl From<Feature> for proto::Feature {
    fn from(feature: Feature) -> proto::Feature {
        let kind = match feature {
            Feature::Missing => None,
            Feature::Bytes(value) => Some(proto::Kind::Bytes(proto::BytesList { value })),
            Feature::Floats(value) => Some(proto::Kind::Floats(proto::FloatList { value })),
            Feature::Ints(value) => Some(proto::Kind::Ints(proto::Int64List { value })),
        };
        proto::Feature { kind }
    }
}

/// The messages of the wire format.
mod proto {
    use std::collections::BTreeMap;

    use prost::{Message, Oneof};

    #[derive(Message)]
    pub(super) struct Example {
        #[prost(message, optional, tag = "1")]
        pub(super) features: Option<Features>,
        /// Only in a `SequenceExample`.
        #[prost(message, optional, tag = "2")]
        pub(super) lists: Option<FeatureLists>,
    }

    #[derive(Message)]
    pub(super) struct FeatureLists {
        #[prost(btree_map = "string, message", tag = "1")]
        pub(super) list: BTreeMap<String, FeatureList>,
    }

    #[derive(Clone, PartialEq, Message)]
    pub(super) struct FeatureList {
        #[prost(message, repeated, tag = "1")]
        pub(super) feature: Vec<Feature>,
    }

    #[derive(Message)]
    pub(super) struct Features {
        #[prost(btree_map = "string, message", tag = "1")]
        pub(super) feature: BTreeMap<String, Feature>,
    }

    #[derive(Clone, PartialEq, Message)]
    pub(super) struct Feature {
        #[prost(oneof = "Kind", tags = "1, 2, 3")]
        pub(super) kind: Option<Kind>,
    }

    #[derive(Clone, PartialEq, Oneof)]
    pub(super) enum Kind {
        #[prost(message, tag = "1")]
        Bytes(BytesList),
        #[prost(message, tag = "2")]
        Floats(FloatList),
        #[prost(message, tag = "3")]
        Ints(Int64List),
    }

    #[derive(Clone, PartialEq, Message)]
    pub(super) struct BytesList {
        #[prost(bytes = "vec", repeated, tag = "1")]
        pub(super) value: Vec<Vec<u8>>,
    }

    #[derive(Clone, PartialEq, Message)]
    pub(super) struct FloatList {
        #[prost(float, repeated, tag = "1")]
        pub(super) value: Vec<f32>,
    }

    #[derive(Clone, PartialEq, Message)]
    pub(super) struct Int64List {
        #[prost(int64, repeated, tag = "1")]
        pub(super) value: Vec<i64>,
    }
}
