//! TensorBoard's event files: their messages (`tensorboard/compat/proto`, only the fields in use)
//! and their record format, which is that of TFRecord.

use std::collections::BTreeMap;

use prost::Message;

/// The version in the first event of a file.
pub(crate) const FILE_VERSION: &str = "brain.Event:2";

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Event {
    /// Unix time in seconds.
    #[prost(double, tag = "1")]
    pub(crate) wall_time: f64,
    #[prost(int64, tag = "2")]
    pub(crate) step: i64,
    #[prost(string, optional, tag = "3")]
    pub(crate) file_version: Option<String>,
    #[prost(message, optional, tag = "5")]
    pub(crate) summary: Option<Summary>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Summary {
    #[prost(message, repeated, tag = "1")]
    pub(crate) value: Vec<Value>,
}

/// Exactly one of the fields other than `metadata` is set.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Value {
    #[prost(string, tag = "1")]
    pub(crate) tag: String,
    #[prost(float, optional, tag = "2")]
    pub(crate) simple_value: Option<f32>,
    #[prost(message, optional, tag = "4")]
    pub(crate) image: Option<Image>,
    #[prost(message, optional, tag = "5")]
    pub(crate) histo: Option<HistogramProto>,
    #[prost(message, optional, tag = "8")]
    pub(crate) tensor: Option<Tensor>,
    #[prost(message, optional, tag = "9")]
    pub(crate) metadata: Option<Metadata>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Image {
    #[prost(int32, tag = "1")]
    pub(crate) height: i32,
    #[prost(int32, tag = "2")]
    pub(crate) width: i32,
    /// The number of channels.
    #[prost(int32, tag = "3")]
    pub(crate) colorspace: i32,
    /// The content of a PNG file.
    #[prost(bytes = "vec", tag = "4")]
    pub(crate) encoded_image_string: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct HistogramProto {
    #[prost(double, tag = "1")]
    pub(crate) min: f64,
    #[prost(double, tag = "2")]
    pub(crate) max: f64,
    #[prost(double, tag = "3")]
    pub(crate) num: f64,
    #[prost(double, tag = "4")]
    pub(crate) sum: f64,
    #[prost(double, tag = "5")]
    pub(crate) sum_squares: f64,
    /// The upper bound of each bucket.
    #[prost(double, repeated, tag = "6")]
    pub(crate) bucket_limit: Vec<f64>,
    #[prost(double, repeated, tag = "7")]
    pub(crate) bucket: Vec<f64>,
}

/// A tensor of strings.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct Tensor {
    #[prost(int32, tag = "1")]
    pub(crate) dtype: i32,
    #[prost(message, optional, tag = "2")]
    pub(crate) tensor_shape: Option<TensorShape>,
    #[prost(string, repeated, tag = "8")]
    pub(crate) string_val: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct TensorShape {
    #[prost(message, repeated, tag = "2")]
    pub(crate) dim: Vec<Dim>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Dim {
    #[prost(int64, tag = "1")]
    pub(crate) size: i64,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct Metadata {
    #[prost(message, optional, tag = "1")]
    pub(crate) plugin_data: Option<PluginData>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct PluginData {
    #[prost(string, tag = "1")]
    pub(crate) plugin_name: String,
    #[prost(bytes = "vec", tag = "2")]
    pub(crate) content: Vec<u8>,
}

/// The data of the plugin `hparams` (`tensorboard/plugins/hparams`).
#[derive(Clone, PartialEq, Message)]
pub(crate) struct HParams {
    #[prost(message, optional, tag = "3")]
    pub(crate) session_start_info: Option<SessionStart>,
    #[prost(message, optional, tag = "4")]
    pub(crate) session_end_info: Option<SessionEnd>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct SessionStart {
    #[prost(btree_map = "string, message", tag = "1")]
    pub(crate) hparams: BTreeMap<String, HParam>,
    #[prost(double, tag = "5")]
    pub(crate) start_time_secs: f64,
}

/// `google.protobuf.Value`; exactly one field is set.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct HParam {
    #[prost(double, optional, tag = "2")]
    pub(crate) number_value: Option<f64>,
    #[prost(string, optional, tag = "3")]
    pub(crate) string_value: Option<String>,
    #[prost(bool, optional, tag = "4")]
    pub(crate) bool_value: Option<bool>,
}

#[derive(Clone, PartialEq, Message)]
pub(crate) struct SessionEnd {
    /// 1: success, 2: failure.
    #[prost(int32, tag = "1")]
    pub(crate) status: i32,
    #[prost(double, tag = "2")]
    pub(crate) end_time_secs: f64,
}

impl Tensor {
    /// Makes a vector of strings.
    pub(crate) fn from_texts(texts: &[String]) -> Tensor {
        const DT_STRING: i32 = 7;
        let tensor_shape = Some(TensorShape { dim: vec![Dim { size: texts.len() as i64 }] });
        Tensor { dtype: DT_STRING, tensor_shape, string_val: texts.to_vec() }
    }
}

impl Metadata {
    /// The metadata of a value that belongs to a plugin.
    pub(crate) fn for_plugin(plugin_name: &str, content: Vec<u8>) -> Metadata {
        Metadata { plugin_data: Some(PluginData { plugin_name: plugin_name.to_owned(), content }) }
    }
}

impl Event {
    /// The event as a TFRecord: its length and its bytes, each with a checksum.
    pub(crate) fn record(&self) -> Vec<u8> {
        let event = self.encode_to_vec();
        let length = (event.len() as u64).to_le_bytes();
        [&length[..], &masked(&length).to_le_bytes(), &event, &masked(&event).to_le_bytes()]
            .concat()
    }
}

/// CRC-32C with TFRecord's mask.
fn masked(bytes: &[u8]) -> u32 {
    crc32c::crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}
