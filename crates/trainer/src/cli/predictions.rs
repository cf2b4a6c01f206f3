//! The file of `predict`: predictions as CSV or safetensors, either whole or not there.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::BufWriter;
use std::path::Path;

use fulmen_nn::safetensors;
use fulmen_tensor::{Complex, DType, Literal};

use super::Result;
use crate::{Predicted, PredictedBatches};

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
    pub(crate) fn of(path: &Path) -> Result<Format> {
        let folder = folder(path);
        if !folder.is_dir() {
            return Err(format!("--output {}: there is no folder {}", path.display(), folder.display()).into());
        }
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("csv") => Ok(Format::Csv),
            Some("safetensors") => Ok(Format::Safetensors),
            _ => Err(format!("--output {}: the name must end in .csv or .safetensors", path.display()).into()),
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
            let folder = folder(path);
            let mut builder = tempfile::Builder::new();
            builder.prefix(".writing-");
            // A temporary file is readable by its owner only; this one is to stay, so it gets what any new file gets.
            #[cfg(unix)]
            let builder = builder.permissions(std::os::unix::fs::PermissionsExt::from_mode(0o666));
            // Dropped before it has its name, it is removed.
            let temporary = builder.tempfile_in(folder).map_err(|e| failed(&e))?;
            let samples = write_csv(temporary.as_file(), batches, &failed)?;
            temporary.as_file().sync_all().map_err(|e| failed(&e))?;
            temporary.persist(path).map_err(|e| failed(&e.error))?;
            // The new name is on the disk when the folder is. Only Unix can sync one.
            #[cfg(unix)]
            File::open(folder).and_then(|folder| folder.sync_all()).map_err(|e| failed(&e))?;
            Ok(samples)
        }
    }
}

fn write_csv(
    file: &File,
    batches: PredictedBatches,
    failed: &dyn Fn(&dyn std::fmt::Display) -> String,
) -> Result<usize> {
    let mut writer = csv::Writer::from_writer(BufWriter::new(file));
    let mut samples = 0;
    for batch in batches {
        let batch = batch?;
        if samples == 0 {
            writer.write_record(header(&batch)).map_err(|e| failed(&e))?;
        }
        let columns: Vec<Vec<String>> =
            batch.values().iter().map(|(_, literal)| texts(literal)).collect::<Result<_>>()?;
        let rows = batch.num_samples();
        for row in 0..rows {
            let cells = columns.iter().flat_map(|texts| {
                let width = texts.len() / rows;
                &texts[row * width..][..width]
            });
            writer.write_record(cells).map_err(|e| failed(&e))?;
        }
        samples += rows;
    }
    writer.flush().map_err(|e| failed(&e))?;
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
