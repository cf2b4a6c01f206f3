//! The file of `predict`: predictions as CSV or safetensors, either whole or not there.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufWriter};
use std::path::Path;

use fulmen_durable::NewFile;
use fulmen_nn::safetensors;
use fulmen_tensor::{Complex, DType, Literal};

use super::Result;
use crate::{Error, Predicted, PredictedBatches};

/// How predictions are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// A line a sample, a column a number.
    Csv,
    /// The values as they are, under their names.
    Safetensors,
}

impl Format {
    /// The format that a file's name asks for. What is known to fail is told before anything is predicted.
    pub(crate) fn of(path: &Path) -> Result<Format, Error> {
        let folder = folder(path);
        if !folder.is_dir() {
            return Err(Error::option(format!("--output {}: there is no folder {}", path.display(), folder.display())));
        }
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("csv") => Ok(Format::Csv),
            Some("safetensors") => Ok(Format::Safetensors),
            _ => Err(Error::option(format!("--output {}: the name must end in .csv or .safetensors", path.display()))),
        }
    }
}

fn folder(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Writes all predictions to a file and says of how many samples they are.
pub(crate) fn write_predictions(path: &Path, format: Format, batches: PredictedBatches) -> Result<usize> {
    let failed = |e: &dyn std::fmt::Display| format!("predictions cannot be written to {}: {e}", path.display());
    match format {
        Format::Safetensors => {
            let all = batches.concat()?;
            let samples = all.num_samples();
            let metadata = BTreeMap::from([("format".to_owned(), "pt".to_owned())]);
            safetensors::write(path, &all.into_values(), &metadata)?;
            Ok(samples)
        }
        Format::Csv => {
            let explained = |e| failed(&fulmen_durable::explain(e, path, None));
            // Dropped before it has its name, it is removed.
            let file = NewFile::create(path).map_err(explained)?;
            let samples = write_csv(file.file(), batches, &explained)?;
            file.keep().map_err(explained)?;
            Ok(samples)
        }
    }
}

fn write_csv(file: &File, batches: PredictedBatches, failed: &dyn Fn(io::Error) -> String) -> Result<usize> {
    let mut writer = csv::Writer::from_writer(BufWriter::new(file));
    let mut samples = 0;
    for batch in batches {
        let batch = batch?;
        if samples == 0 {
            writer.write_record(header(&batch)).map_err(|e| failed(e.into()))?;
        }
        let columns: Vec<Vec<String>> =
            batch.values().iter().map(|(_, literal)| texts(literal)).collect::<Result<_>>()?;
        let rows = batch.num_samples();
        for row in 0..rows {
            let cells = columns.iter().flat_map(|texts| {
                let width = texts.len() / rows;
                &texts[row * width..][..width]
            });
            writer.write_record(cells).map_err(|e| failed(e.into()))?;
        }
        samples += rows;
    }
    writer.flush().map_err(failed)?;
    Ok(samples)
}

/// A column for each number of a row: `name`, or `name_0`, `name_1`, … where there are several.
fn header(batch: &Predicted) -> Vec<String> {
    let mut names = vec![];
    for (name, literal) in batch.values() {
        let dims = &literal.ty().shape.dims()[1..];
        match dims.iter().product() {
            1 if dims.is_empty() => names.push(name.clone()),
            width => names.extend((0..width).map(|i: usize| format!("{name}_{i}"))),
        }
    }
    names
}

/// Each number of a value, with the digits that tell it from its neighbours and no more.
fn texts(literal: &Literal) -> Result<Vec<String>> {
    fn spell<T: fulmen_tensor::Element + ToString>(literal: &Literal) -> Result<Vec<String>> {
        Ok(literal.to_vec::<T>()?.iter().map(T::to_string).collect())
    }
    match literal.ty().dtype {
        DType::F32 => spell::<f32>(literal),
        DType::F64 => spell::<f64>(literal),
        // Exact: both are part of f32.
        DType::F16 | DType::Bf16 => Ok(literal.to_f64().iter().map(|&x| (x as f32).to_string()).collect()),
        DType::I8 => spell::<i8>(literal),
        DType::I16 => spell::<i16>(literal),
        DType::I32 => spell::<i32>(literal),
        DType::I64 => spell::<i64>(literal),
        DType::U8 => spell::<u8>(literal),
        DType::U16 => spell::<u16>(literal),
        DType::U32 => spell::<u32>(literal),
        DType::U64 => spell::<u64>(literal),
        DType::Bool => spell::<bool>(literal),
        DType::C64 => spell::<Complex<f32>>(literal),
        DType::C128 => spell::<Complex<f64>>(literal),
    }
}
