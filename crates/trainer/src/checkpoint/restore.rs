//! [`Value`]: a tensor of a checkpoint. Each process reads the parts that its devices need.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry as Slot;

use fulmen_checkpoint::{Checkpoint, Rectangle};
use fulmen_nn::safetensors::type_of;
use fulmen_tensor::{Block, Literal, Runtime, TensorType};

use super::save::to_u64s;
use crate::state::{Entry, RestoredValue};
use crate::{Error, Result, error};

/// A tensor of a training state, before it is read.
#[derive(Debug)]
pub(crate) enum Value {
    /// The name and type of a tensor in the checkpoint.
    Stored(String, TensorType),
    /// A new value, which the checkpoint doesn't have.
    New(Literal),
}

impl Value {
    pub(crate) fn ty(&self) -> &TensorType {
        match self {
            Value::Stored(_, ty) => ty,
            Value::New(literal) => literal.ty(),
        }
    }

    /// A copy of the reference, if the tensor is in the checkpoint.
    pub(crate) fn to_stored(&self) -> Option<Value> {
        match self {
            Value::Stored(name, ty) => Some(Value::Stored(name.clone(), ty.clone())),
            Value::New(_) => None,
        }
    }

    /// Reads the whole value and converts it to this type.
    pub(crate) fn read(&self, from: &Checkpoint, ty: &TensorType) -> Result<Literal> {
        match self {
            Value::Stored(name, stored) => {
                let start = vec![0; ty.shape.rank()];
                read_block(from, name, stored, ty, &Block { start, size: ty.shape.dims().to_vec() })
            }
            Value::New(literal) => Ok(literal.to_dtype(ty.dtype)?),
        }
    }
}

/// Reads the parts of a state entry that the devices of this process hold, from the values with its
/// names. A part that several devices hold is read once.
pub(crate) fn restore(
    values: &[Value],
    from: &Checkpoint,
    entry: &Entry,
    runtime: &Runtime,
) -> Result<RestoredValue> {
    let stored = values.iter().map(|value| match value {
        Value::Stored(name, ty) => Some((name, ty)),
        Value::New(_) => None,
    });
    let Some(stored) = stored.collect::<Option<Vec<_>>>() else {
        let rows = values
            .iter()
            .map(|value| value.read(from, &entry.row_type()))
            .collect::<Result<Vec<_>>>()?;
        return Ok(RestoredValue::Whole(entry.stack_literals(rows)?));
    };
    let mut parts = BTreeMap::new();
    for block in runtime.blocks(&entry.ty, &entry.sharding)? {
        if let Slot::Vacant(part) = parts.entry(block.start.clone()) {
            let row_block = entry.row_block(&block);
            let rows = stored
                .iter()
                .map(|(name, stored)| read_block(from, name, stored, &entry.ty, &row_block));
            part.insert(entry.stack_literals(rows.collect::<Result<_>>()?)?);
        }
    }
    Ok(RestoredValue::Parts(parts))
}

fn read_block(
    from: &Checkpoint,
    name: &str,
    stored: &TensorType,
    ty: &TensorType,
    block: &Block,
) -> Result<Literal> {
    let bytes = from
        .read(name, &Rectangle::new(to_u64s(&block.start), to_u64s(&block.size)))
        .map_err(error::checkpoint_file)?;
    Literal::from_bytes(TensorType::new(stored.dtype, &block.size[..]), &bytes)?.to_dtype(ty.dtype)
}

/// The tensors of a checkpoint.
pub(crate) fn values(checkpoint: &Checkpoint) -> Result<BTreeMap<String, Value>> {
    let value = |(name, entry)| {
        let ty = type_of(entry)
            .map_err(|e| error::checkpoint(checkpoint.name().as_ref(), format!("`{name}` {e}")))?;
        Ok((String::clone(name), Value::Stored(name.clone(), ty)))
    };
    checkpoint.manifest().tensors.iter().map(value).collect()
}

/// Removes the value of each name from the tensors of a checkpoint. A float of another width is
/// rounded when it is read.
///
/// # Errors
/// The error lists all names that are missing or have a different type. On success, all values fit,
/// so the caller can begin to change the module.
pub(crate) fn match_tensors<'a>(
    names: impl IntoIterator<Item = (&'a str, &'a TensorType)>,
    tensors: &mut BTreeMap<String, Value>,
) -> Result<Vec<Value>> {
    let mut matched = Vec::new();
    let mut problems = Vec::new();
    for (name, ty) in names {
        let fits = |stored: &TensorType| {
            stored == ty
                || stored.shape == ty.shape && stored.dtype.is_float() && ty.dtype.is_float()
        };
        match tensors.remove(name) {
            Some(value) if fits(value.ty()) => matched.push(value),
            Some(value) => problems.push(format!("`{name}` is {} there and {ty} here", value.ty())),
            None => problems.push(format!("`{name}` ({ty}) is missing")),
        }
    }
    if problems.is_empty() {
        Ok(matched)
    } else {
        Err(Error::usage(format!("it does not fit:\n  {}", problems.join("\n  "))))
    }
}
