//! [`diff`]: the differences between two checkpoints.

use std::fmt;

use fulmen_durable::messages::quantity;
use half::{bf16, f16};
use safetensors::Dtype;
use serde_json::Value;

use crate::shard::size_of;
use crate::{Checkpoint, Error, Result};

/// One difference between two checkpoints. `Display` describes it.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Difference {
    /// A tensor that exists only in the first checkpoint.
    OnlyFirst(String),
    /// A tensor that exists only in the second checkpoint.
    OnlySecond(String),
    /// A tensor whose dtype or shape differs.
    Type {
        /// Its name.
        name: String,
        /// Dtype and shape in the first.
        first: String,
        /// Dtype and shape in the second.
        second: String,
    },
    /// A tensor whose values differ.
    Values {
        /// Its name.
        name: String,
        /// The number of elements whose bits differ.
        different: u64,
        /// The number of all elements.
        elements: u64,
        /// The largest difference between two elements that are finite in both; `None` if the
        /// elements are not floats.
        largest: Option<f64>,
    },
    /// A field of [`Run`](crate::Run), such as `options.max_epochs`.
    Run {
        /// Its name.
        name: String,
        /// Its value in the first.
        first: Value,
        /// Its value in the second.
        second: Value,
    },
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Difference::OnlyFirst(name) => write!(f, "{name}: only in the first checkpoint"),
            Difference::OnlySecond(name) => write!(f, "{name}: only in the second checkpoint"),
            Difference::Type { name, first, second } => write!(f, "{name}: {first} and {second}"),
            Difference::Values { name, different, elements, largest } => {
                let elements = quantity(elements, "element");
                write!(f, "{name}: different in {different} of {elements}")?;
                largest.map_or(Ok(()), |largest| write!(f, ", by at most {largest:e}"))
            }
            Difference::Run { name, first, second } => write!(f, "{name}: {first} and {second}"),
        }
    }
}

/// Returns the differences between two checkpoints: first those between the runs, then those
/// between the tensors, by name. The tensors may be written in different parts. Holds at most 128
/// MiB in memory.
///
/// # Errors
/// A checkpoint cannot be read or is damaged.
pub fn diff(first: &Checkpoint, second: &Checkpoint) -> Result<Vec<Difference>> {
    let mut differences = Vec::new();
    let value = |checkpoint: &Checkpoint| {
        serde_json::to_value(&checkpoint.manifest().run).map_err(|e| Error::usage(e.to_string()))
    };
    compare_json("", &value(first)?, &value(second)?, &mut differences);
    let a = &first.manifest().tensors;
    let b = &second.manifest().tensors;
    for (name, tensor) in a {
        let Some(other) = b.get(name) else {
            differences.push(Difference::OnlyFirst(name.clone()));
            continue;
        };
        if (tensor.dtype, &tensor.shape) != (other.dtype, &other.shape) {
            differences.push(Difference::Type {
                name: name.clone(),
                first: format!("{} {:?}", tensor.dtype, tensor.shape),
                second: format!("{} {:?}", other.dtype, other.shape),
            });
            continue;
        }
        let mut different = 0;
        let mut elements = 0;
        let mut largest = None::<f64>;
        for slab in first.slabs(name)? {
            let x = first.read(name, &slab)?;
            let y = second.read(name, &slab)?;
            let size = size_of(tensor.dtype).unwrap_or(1) as usize;
            elements += (x.len() / size) as u64;
            for (x, y) in x.chunks_exact(size).zip(y.chunks_exact(size)).filter(|(x, y)| x != y) {
                different += 1;
                let distance =
                    float(tensor.dtype, x).zip(float(tensor.dtype, y)).map(|(x, y)| (x - y).abs());
                if let Some(distance) = distance.filter(|distance| distance.is_finite()) {
                    largest = Some(largest.map_or(distance, |largest| largest.max(distance)));
                }
            }
        }
        if different > 0 {
            differences.push(Difference::Values {
                name: name.clone(),
                different,
                elements,
                largest,
            });
        }
    }
    differences.extend(
        b.keys().filter(|name| !a.contains_key(*name)).cloned().map(Difference::OnlySecond),
    );
    Ok(differences)
}

fn float(dtype: Dtype, bytes: &[u8]) -> Option<f64> {
    match dtype {
        Dtype::F64 => Some(f64::from_le_bytes(bytes.try_into().ok()?)),
        Dtype::F32 => Some(f32::from_le_bytes(bytes.try_into().ok()?).into()),
        Dtype::F16 => Some(f16::from_le_bytes(bytes.try_into().ok()?).into()),
        Dtype::BF16 => Some(bf16::from_le_bytes(bytes.try_into().ok()?).into()),
        _ => None,
    }
}

fn compare_json(name: &str, first: &Value, second: &Value, differences: &mut Vec<Difference>) {
    let (Value::Object(a), Value::Object(b)) = (first, second) else {
        if first != second {
            let name = name.to_owned();
            let first = first.clone();
            let second = second.clone();
            differences.push(Difference::Run { name, first, second });
        }
        return;
    };
    for key in a.keys().chain(b.keys().filter(|key| !a.contains_key(*key))) {
        let name = if name.is_empty() { key.clone() } else { format!("{name}.{key}") };
        compare_json(&name, &first[key], &second[key], differences);
    }
}
