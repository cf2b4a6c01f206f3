//! The messages of libtpu's metric service, those of the package `tpu-info` reduced to the fields
//! that are needed here.

use std::collections::HashMap;

use prost::Message;

use super::Percentiles;

#[derive(Clone, PartialEq, Message)]
pub(super) struct MetricRequest {
    #[prost(string, tag = "1")]
    pub(super) metric_name: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct MetricResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) metric: Option<TpuMetric>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct TpuMetric {
    #[prost(message, repeated, tag = "3")]
    pub(super) metrics: Vec<Metric>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Metric {
    #[prost(message, optional, tag = "1")]
    pub(super) attribute: Option<Attribute>,
    #[prost(message, optional, tag = "3")]
    pub(super) gauge: Option<Gauge>,
    #[prost(message, optional, tag = "5")]
    pub(super) distribution: Option<Distribution>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Attribute {
    #[prost(string, tag = "1")]
    pub(super) key: String,
    #[prost(message, optional, tag = "2")]
    pub(super) value: Option<AttributeValue>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct AttributeValue {
    #[prost(string, optional, tag = "1")]
    pub(super) string: Option<String>,
    #[prost(int64, optional, tag = "3")]
    pub(super) int: Option<i64>,
    #[prost(message, optional, tag = "6")]
    pub(super) list: Option<Attributes>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Attributes {
    #[prost(message, repeated, tag = "1")]
    pub(super) attributes: Vec<Attribute>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Gauge {
    #[prost(double, optional, tag = "1")]
    pub(super) double: Option<f64>,
    #[prost(int64, optional, tag = "2")]
    pub(super) int: Option<i64>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Distribution {
    #[prost(int64, tag = "1")]
    pub(super) count: i64,
    #[prost(double, tag = "2")]
    pub(super) mean: f64,
    #[prost(message, optional, tag = "6")]
    pub(super) buckets: Option<Buckets>,
    #[prost(int64, repeated, tag = "7")]
    pub(super) counts: Vec<i64>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Buckets {
    #[prost(message, optional, tag = "2")]
    pub(super) exponential: Option<Exponential>,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct Exponential {
    #[prost(double, tag = "2")]
    pub(super) growth: f64,
    #[prost(double, tag = "3")]
    pub(super) scale: f64,
}

impl Metric {
    /// The number of the device: the attribute itself or, in newer versions, text among other
    /// attributes.
    pub(super) fn device(&self) -> Option<i64> {
        let value = self.attribute.as_ref()?.value.as_ref()?;
        match &value.list {
            Some(list) => {
                let ordinal =
                    list.attributes.iter().find(|attribute| attribute.key == "device_ordinal")?;
                let number = ordinal.value.as_ref()?;
                number.int.or_else(|| number.string.as_ref()?.parse().ok())
            }
            // protobuf omits zeros.
            None => value.int.or_else(|| value.string.is_none().then_some(0)),
        }
    }

    pub(super) fn number(&self) -> Option<f64> {
        let gauge = self.gauge.as_ref()?;
        gauge.double.or_else(|| gauge.int.map(|int| int as f64))
    }

    pub(super) fn integer(&self) -> Option<i64> {
        self.gauge.as_ref()?.int
    }
}

impl Metric {
    /// The size of the buffers that a latency is of or, without one, the first attribute. `tpu-info`
    /// groups latencies by it.
    pub(super) fn group(&self) -> Option<&str> {
        let attributes = &self.attribute.as_ref()?.value.as_ref()?.list.as_ref()?.attributes;
        let sized = attributes.iter().find(|attribute| attribute.key == "buffer-size");
        sized.or(attributes.first())?.value.as_ref()?.string.as_deref()
    }
}

impl Distribution {
    /// The percentiles of a histogram. `None` without samples, and unless the buckets grow
    /// exponentially.
    pub(super) fn percentiles(&self) -> Option<Percentiles> {
        Some(Percentiles {
            p50: self.quantile(0.5)?,
            p90: self.quantile(0.9)?,
            p95: self.quantile(0.95)?,
            p999: self.quantile(0.999)?,
        })
    }

    /// Adds the samples of another histogram with the same buckets. The mean is of no use then.
    pub(super) fn add(&mut self, other: &Distribution) {
        self.count += other.count;
        if self.counts.len() < other.counts.len() {
            self.counts.resize(other.counts.len(), 0);
        }
        for (count, more) in self.counts.iter_mut().zip(&other.counts) {
            *count += more;
        }
    }

    fn quantile(&self, fraction: f64) -> Option<f64> {
        let Exponential { growth, scale } = self.buckets.as_ref()?.exponential?;
        let rank = (self.count as f64 * fraction).floor();
        let mut below = 0.0;
        for (bucket, &count) in self.counts.iter().enumerate() {
            let count = count as f64;
            if below + count > rank {
                // The first bucket holds all values below the other buckets.
                let lower = if bucket == 0 { 0.0 } else { scale * growth.powi(bucket as i32 - 1) };
                let upper = scale * growth.powi(bucket as i32);
                return Some(lower + (upper - lower) * (rank - below) / count);
            }
            below += count;
        }
        None
    }
}

/// Asks for the state of each core, without the lines of its program.
#[derive(Clone, PartialEq, Message)]
pub(super) struct StatusRequest {}

#[derive(Clone, PartialEq, Message)]
pub(super) struct StatusResponse {
    #[prost(map = "int32, message", tag = "2")]
    pub(super) cores: HashMap<i32, CoreState>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct CoreState {
    #[prost(message, optional, tag = "1")]
    pub(super) id: Option<CoreId>,
    #[prost(bytes = "vec", tag = "4")]
    pub(super) program: Vec<u8>,
    #[prost(message, repeated, tag = "6")]
    pub(super) queued: Vec<QueuedProgram>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct CoreId {
    #[prost(message, optional, tag = "3")]
    pub(super) on_chip: Option<CoreOnChip>,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct CoreOnChip {
    /// 1 is a TensorCore; the others are SparseCores.
    #[prost(int32, tag = "1")]
    pub(super) kind: i32,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub(super) struct QueuedProgram {}

impl CoreState {
    pub(super) fn is_tensor_core(&self) -> bool {
        let on_chip = self.id.as_ref().and_then(|id| id.on_chip.as_ref());
        on_chip.is_some_and(|on_chip| on_chip.kind == 1)
    }

    /// Whether the core has a program, or one waits for it.
    pub(super) fn is_in_use(&self) -> bool {
        !self.program.is_empty() || !self.queued.is_empty()
    }
}
