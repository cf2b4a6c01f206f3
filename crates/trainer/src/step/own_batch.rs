//! Batches that a user makes, without a loader.

use std::panic::Location;

use fulmen_data::DeviceBatch;
use fulmen_tensor::{Literal, TensorType};

use super::TrainStep;
use crate::{Error, Progress, Result, Strategy};

impl TrainStep<'_> {
    /// Makes a batch from values that come from no loader but, for example, from a game. Pass
    /// values `[batch, …]` for each field of the loader. All rows count as real samples. With
    /// several processes, each passes the whole batch.
    ///
    /// If the loader pads ([`DataLoader::pads`](fulmen_data::DataLoader::pads); to say so, make it with
    /// [`padded(true)`](fulmen_data::DataLoaderBuilder::padded)), the values may have fewer rows.
    /// The batch is then padded with copies of its first row, and masked.
    ///
    /// # Errors
    /// A field that is missing, unknown or of a different type than the loader's; fields with
    /// different numbers of rows; fewer rows than the batch of a loader that does not pad.
    #[track_caller]
    pub fn batch(&self, fields: &[(&str, &Literal)]) -> Result<DeviceBatch> {
        let line = Location::caller();
        let error = |why: String| Error::usage(format!("batch: {why}\n  at {line}"));
        let value_of =
            |name: &str| fields.iter().find(|field| field.0 == name).map(|field| field.1);
        let rows = self.train.batch_size();
        let given = self.given_rows(fields).map_err(error)?;
        let ty = |field: &fulmen_data::Field| {
            TensorType::new(field.dtype, [&[given], &field.shape[..]].concat())
        };
        let shapes = self.train.shapes();
        if let Some((name, _)) =
            fields.iter().find(|(name, _)| shapes[0].iter().all(|field| field.name != *name))
        {
            let known: Vec<_> = shapes[0].iter().map(|field| format!("`{}`", field.name)).collect();
            return Err(error(format!(
                "there is no field `{name}`; the loader has: {}",
                known.join(", ")
            )));
        }
        let fits = |shape: &Vec<fulmen_data::Field>| {
            shape
                .iter()
                .all(|field| value_of(&field.name).is_some_and(|value| *value.ty() == ty(field)))
        };
        let Some(bucket) = shapes.iter().position(fits) else {
            // Report the mismatch with the last shape, which is the largest.
            let problem =
                shapes.iter().rev().flatten().find_map(|field| match value_of(&field.name) {
                    None => Some(format!("the field `{}` ({}) is missing", field.name, ty(field))),
                    Some(value) if *value.ty() != ty(field) => Some(format!(
                        "the field `{}` is {}, expected {}",
                        field.name,
                        value.ty(),
                        ty(field)
                    )),
                    Some(_) => None,
                });
            return Err(error(
                problem.unwrap_or_else(|| "its fields match different shapes of the loader".into()),
            ));
        };
        let sharding = Strategy::batch(self.runtime.mesh());
        let mask: Vec<f32> = (0..rows).map(|row| f32::from(u8::from(row < given))).collect();
        let mask = Literal::from_slice(&mask, [rows])?;
        let mut arrays = Vec::new();
        for value in shapes[bucket].iter().filter_map(|field| value_of(&field.name)) {
            let array = if given == rows {
                self.runtime.to_devices(value, &sharding)?
            } else {
                self.runtime.to_devices(&padded(value, rows)?, &sharding)?
            };
            arrays.push(array);
        }
        arrays.push(self.runtime.to_devices(&mask, &sharding)?);
        let Progress { epoch, batch, .. } = self.progress();
        let own_rows = self.train.local_rows();
        Ok(DeviceBatch {
            arrays,
            valid: given.clamp(own_rows.start, own_rows.end) - own_rows.start,
            epoch,
            index: batch as usize,
            bucket,
        })
    }

    /// The number of rows of a batch's fields. The loader's if they have no row, so that the error
    /// names the types.
    fn given_rows(&self, fields: &[(&str, &Literal)]) -> std::result::Result<usize, String> {
        let rows = self.train.batch_size();
        let rows_of = |value: &Literal| value.ty().shape.dims().first().copied();
        let known = |name: &str| self.train.fields().iter().any(|field| field.name == name);
        let mut given = None;
        for (name, value) in fields.iter().filter(|(name, _)| known(name)) {
            match (rows_of(value), given) {
                (Some(count), None) => given = Some((*name, count)),
                (Some(count), Some((first, first_count))) if count != first_count => {
                    return Err(format!(
                        "the field `{first}` has {first_count} rows, but `{name}` has {count}"
                    ));
                }
                _ => {}
            }
        }
        match given {
            Some((_, count)) if (1..rows).contains(&count) && self.train.pads() => Ok(count),
            Some((name, count)) if (1..rows).contains(&count) => Err(format!(
                "the field `{name}` has {count} rows, expected {rows}; for smaller batches make the loader with \
                 `padded(true)`, and let the loss use the mask, as `batch.mean(..)` does"
            )),
            _ => Ok(rows),
        }
    }
}

/// Fills up a value to `rows` rows, with copies of its first row.
fn padded(value: &Literal, rows: usize) -> Result<Literal> {
    let dims = value.ty().shape.dims();
    let bytes = value.bytes();
    let first = &bytes[..bytes.len() / dims[0]];
    let filled = [bytes, &first.repeat(rows - dims[0])].concat();
    let ty = TensorType::new(value.ty().dtype, [&[rows], &dims[1..]].concat());
    Literal::from_bytes(ty, &filled)
}
