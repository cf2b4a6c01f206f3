//! [`PredictionWriter`]: writes predictions to a CSV or safetensors file, or in a custom format.
//! The file exists only when it is complete.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use fulmen_durable::NewFile;
use fulmen_nn::safetensors;
use fulmen_tensor::{Complex, DType, Literal};

use crate::{Error, Predicted, PredictedBatches, Result, error};

/// Writes predictions to a file, which gets its name only when it is complete.
///
/// - A `.csv` file has a line for each sample and a column for each number: `NAME`, or `NAME_0`,
///   `NAME_1`, … if there are several. Its lines are written as the predictions arrive.
/// - A `.safetensors` file has the values unchanged, under their names. They are kept in memory
///   until the end.
///
/// If the loader knows where its samples come from ([`Predicted::origins`]), the first column of a
/// CSV is `file`, and the metadata of a safetensors file have `files`, a list as JSON.
///
/// ```no_run
/// use fulmen_trainer::{PredictionWriter, Weights};
/// # fn f(trainer: &mut fulmen_trainer::Trainer, module: &impl fulmen_trainer::TrainingModule,
/// #      loader: &fulmen_data::DataLoader) -> fulmen_trainer::Result<()> {
/// let writer = PredictionWriter::new("predictions.csv")?;
/// let samples = writer.write(trainer.predict(module, loader, Weights::Best)?)?;
/// # let _ = samples; Ok(())
/// # }
/// ```
pub struct PredictionWriter {
    path: PathBuf,
    format: Format,
}

/// The column with the files, and the metadata's entry.
const FILE: &str = "file";
const FILES: &str = "files";

enum Format {
    Csv,
    Safetensors,
    Custom(Box<WriteBatch>),
}

/// Appends the predictions of one batch to those of earlier batches.
type WriteBatch = dyn Fn(&mut dyn Write, &Predicted) -> io::Result<()>;

impl PredictionWriter {
    /// Creates a writer for this file. It checks the path, before anything is predicted.
    ///
    /// # Errors
    /// The name ends in neither `.csv` nor `.safetensors`, or its folder doesn't exist.
    pub fn new(path: impl AsRef<Path>) -> Result<PredictionWriter> {
        PredictionWriter::open(path.as_ref(), None)
    }

    /// Creates a writer that also supports a custom format, such as text or images. If the name
    /// ends in `extension`, `write` is called with each batch, in order, and appends its
    /// predictions to the file.
    ///
    /// ```
    /// use fulmen_trainer::{Predicted, PredictionWriter};
    ///
    /// let writer = PredictionWriter::with_format("answers.txt", "txt", |file, batch: &Predicted| {
    ///     let scores = batch.get("score").map(|score| score.to_f64()).unwrap_or_default();
    ///     scores.iter().try_for_each(|&score| writeln!(file, "{}", if score > 0.5 { "yes" } else { "no" }))
    /// })?;
    /// # let _ = writer;
    /// # Ok::<(), fulmen_trainer::Error>(())
    /// ```
    ///
    /// # Errors
    /// The errors of [`new`](PredictionWriter::new), with `extension` as a further possible ending.
    pub fn with_format(
        path: impl AsRef<Path>,
        extension: &str,
        write: impl Fn(&mut dyn Write, &Predicted) -> io::Result<()> + 'static,
    ) -> Result<PredictionWriter> {
        PredictionWriter::open(path.as_ref(), Some((extension, Box::new(write))))
    }

    fn open(path: &Path, custom: Option<(&str, Box<WriteBatch>)>) -> Result<PredictionWriter> {
        let failed = |message: &str| Err(Error::usage(format!("{}: {message}", path.display())));
        let folder =
            path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."));
        if !folder.is_dir() {
            return failed(&format!("there is no folder {}", folder.display()));
        }
        let extension = path.extension().and_then(|extension| extension.to_str());
        let format = match (extension, custom) {
            (Some(extension), Some((name, write))) if extension == name => Format::Custom(write),
            (Some("csv"), _) => Format::Csv,
            (Some("safetensors"), _) => Format::Safetensors,
            (_, None) => return failed("the name must end in .csv or .safetensors"),
            (_, Some((name, _))) => {
                return failed(&format!("the name must end in .{name}, .csv or .safetensors"));
            }
        };
        Ok(PredictionWriter { path: path.into(), format })
    }

    /// Reads all predictions and writes them. Returns the number of samples. With several
    /// processes, all must call it; process 0 writes.
    ///
    /// # Errors
    /// The errors of the predictions, and a file that cannot be written.
    pub fn write(&self, batches: PredictedBatches) -> Result<usize> {
        if !batches.is_coordinator() {
            return batches.map(|batch| Ok(batch?.num_samples())).sum();
        }
        if let Format::Safetensors = self.format {
            let predicted = batches.concat()?;
            let samples = predicted.num_samples();
            let mut metadata = BTreeMap::from([("format".to_owned(), "pt".to_owned())]);
            if let Some(files) = predicted.origins() {
                metadata.insert(FILES.to_owned(), serde_json::Value::from(files).to_string());
            }
            safetensors::write(&self.path, &predicted.into_values(), &metadata)?;
            return Ok(samples);
        }
        let failed =
            |e| error::predictions(&self.path, fulmen_durable::explain(e, &self.path, None));
        // Dropping the file before `keep` removes it.
        let file = NewFile::create(&self.path).map_err(failed)?;
        let samples = match &self.format {
            Format::Custom(write) => write_custom(file.file(), batches, write, &failed)?,
            _ => write_csv(file.file(), batches, &failed)?,
        };
        file.keep().map_err(failed)?;
        Ok(samples)
    }
}

impl fmt::Debug for PredictionWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PredictionWriter").field("path", &self.path).finish_non_exhaustive()
    }
}

fn write_custom(
    file: &File,
    batches: PredictedBatches,
    write: &WriteBatch,
    failed: &dyn Fn(io::Error) -> Error,
) -> Result<usize> {
    let mut writer = BufWriter::new(file);
    let mut samples = 0;
    for batch in batches {
        let batch = batch?;
        write(&mut writer, &batch).map_err(failed)?;
        samples += batch.num_samples();
    }
    writer.flush().map_err(failed)?;
    Ok(samples)
}

fn write_csv(
    file: &File,
    batches: PredictedBatches,
    failed: &dyn Fn(io::Error) -> Error,
) -> Result<usize> {
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
            let file = files(&batch).and_then(|files| files.get(row)).map(String::as_str);
            let cells = columns.iter().flat_map(|texts| {
                let width = texts.len() / rows;
                texts[row * width..][..width].iter().map(String::as_str)
            });
            writer.write_record(file.into_iter().chain(cells)).map_err(|e| failed(e.into()))?;
        }
        samples += rows;
    }
    writer.flush().map_err(failed)?;
    Ok(samples)
}

/// The files of the samples, unless a value of the module has the name of their column.
fn files(batch: &Predicted) -> Option<&[String]> {
    batch.origins().filter(|_| batch.get(FILE).is_none())
}

/// The column names, one for each number of a row: `name`, or `name_0`, `name_1`, … if there are
/// several. Before them is the file, if it is known.
fn header(batch: &Predicted) -> Vec<String> {
    let mut names: Vec<String> = files(batch).map(|_| FILE.to_owned()).into_iter().collect();
    for (name, literal) in batch.values() {
        let dims = &literal.ty().shape.dims()[1..];
        match dims.iter().product() {
            1 if dims.is_empty() => names.push(name.clone()),
            width => names.extend((0..width).map(|i: usize| format!("{name}_{i}"))),
        }
    }
    names
}

/// Formats each number of a value with the shortest digits that identify it.
fn texts(literal: &Literal) -> Result<Vec<String>> {
    fn spell<T: fulmen_tensor::Element + ToString>(literal: &Literal) -> Result<Vec<String>> {
        Ok(literal.to_vec::<T>()?.iter().map(T::to_string).collect())
    }
    match literal.ty().dtype {
        DType::F32 => spell::<f32>(literal),
        DType::F64 => spell::<f64>(literal),
        // This is exact, because f32 holds all values of both types.
        DType::F16 | DType::Bf16 => {
            Ok(literal.to_f64().iter().map(|&x| (x as f32).to_string()).collect())
        }
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
