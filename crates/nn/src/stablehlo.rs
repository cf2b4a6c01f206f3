//! [`to_stablehlo`]: a model's forward pass as a StableHLO program with its weights, for other
//! programs to run: JAX, IREE, and whatever else compiles StableHLO. It corresponds to
//! `torch_xla.stablehlo.exported_program_to_stablehlo`.
//!
//! Out of scope: shapes that vary, several devices, training steps.

use std::io::Write as _;
use std::panic::Location;
use std::path::Path;

use fulmen_tensor::internal::{portable_program, with_eval_advice};
use fulmen_tensor::{
    Argument, Compiled, DType, DeviceArray, Function, Literal, Runtime, Tensor, TensorType,
    Variable,
};
use serde_json::{Map, Value as Json, json};

use crate::library::NN;
use crate::weights::{StateDict, new_folder, save_values, values_of};
use crate::{Error, Module, Result, SavedModes, error};

/// The version of StableHLO with which the programs can be serialized as portable artifacts. A
/// reader of this version or a newer one can parse them.
pub const STABLEHLO_VERSION: &str = "1.4.0";

/// The version of the folder's layout.
const FORMAT_VERSION: u64 = 1;

/// The files of a saved program.
const PROGRAM: &str = "forward.mlir";
const WEIGHTS: &str = "weights.safetensors";
const DESCRIPTION: &str = "forward.json";

/// The largest description and program that are read.
const MAX_DESCRIPTION_BYTES: u64 = 64 << 20;
const MAX_PROGRAM_BYTES: u64 = 1 << 30;

/// The name of a saved program in errors.
const FORMAT: &str = "StableHLO program";

/// A StableHLO program of fixed shapes for one device, and the weights that it takes as arguments.
///
/// The program's parameters are the inputs, and then the weights.
#[derive(Clone, Debug)]
pub struct ExportedProgram {
    text: String,
    inputs: Vec<(String, TensorType)>,
    weights: Vec<(String, Tensor)>,
    results: Vec<TensorType>,
}

/// Records a model's forward pass in evaluation mode as a StableHLO program. `inputs` are the names
/// and types of what `forward` receives. Their shapes are fixed, the size of a batch too: export
/// one program for each shape.
///
/// Parameters and buffers that the results depend on become arguments of the program, under their
/// names. Constants of more than 1 KiB do too, as `constant.0` and so on. The text has no lines of
/// your source.
///
/// ```
/// use fulmen_nn::stablehlo::{ExportedProgram, to_stablehlo};
/// use fulmen_nn::{Linear, Module};
/// use fulmen_tensor::{Accelerator, DType, Devices, Literal, Runtime, TensorType};
///
/// let model = Linear::new(3, 2);
/// model.initialize(0);
/// let x = TensorType::new(DType::F32, [4, 3]);
/// let program = to_stablehlo(&model, &[("x", x)], |inputs| vec![model.forward(&inputs[0])])?;
/// assert!(program.text().contains("stablehlo.dot_general"));
///
/// let parent = tempfile::tempdir()?;
/// let folder = parent.path().join("linear");
/// program.save(&folder)?; // forward.mlir, weights.safetensors, forward.json
///
/// let runtime = Runtime::open(Accelerator::Cpu, &Devices::from(1))?;
/// let program = ExportedProgram::load(&folder)?.compile(&runtime)?;
/// let y = program.call(&[&Literal::from_slice(&[1.0f32; 12], [4, 3])?])?;
/// assert_eq!(y[0].ty().to_string(), "f32[4, 2]");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// - A result is poisoned, for example by a mistake in `forward`; the error has your line.
/// - A weight has no value.
/// - There is no result, or two inputs have one name.
#[track_caller]
pub fn to_stablehlo<M: Module + ?Sized>(
    module: &M,
    inputs: &[(&str, TensorType)],
    forward: impl FnOnce(&[Tensor]) -> Vec<Tensor>,
) -> Result<ExportedProgram> {
    let location = Location::caller();
    let refuse =
        |message: String| Err(Error::usage_at(format!("to_stablehlo: {message}"), location));
    for (i, (name, _)) in inputs.iter().enumerate() {
        if inputs[..i].iter().any(|(earlier, _)| earlier == name) {
            return refuse(format!("two inputs are named `{name}`; give each its own name"));
        }
    }
    let placeholder = |name: &str, ty: &TensorType| Tensor::placeholder(name, ty.clone());
    let scope = NN.open();
    let values = values_of(module);
    let arguments: Vec<Tensor> = inputs.iter().map(|(name, ty)| placeholder(name, ty)).collect();
    let weights: Vec<Tensor> =
        module.state().iter().map(|(name, cell)| placeholder(name, &cell.ty())).collect();
    let recorded = Recorded::new(module, &weights);
    module.eval();
    drop(scope);
    let advice = "return it as a result of the exported program";
    let results = with_eval_advice("the exported program", advice, || forward(&arguments));
    drop(recorded);
    if results.is_empty() {
        return refuse("the program has no result; return at least one tensor".to_owned());
    }
    for result in &results {
        result.check()?;
    }

    let mut is_used = vec![false; weights.len()];
    for result in &results {
        for (used, depends) in is_used.iter_mut().zip(result.depends_on_each(&weights)) {
            *used |= depends;
        }
    }
    let mut parameters = arguments;
    let mut used_values = Vec::new();
    for ((value, placeholder), _) in values.into_iter().zip(weights).zip(is_used).filter(|x| x.1) {
        parameters.push(placeholder);
        used_values.push(value);
    }
    let types = results.iter().map(|result| result.ty().clone()).collect();
    let (text, constants) = portable_program(&Function::new("forward", parameters, results))?;
    let mut number = 0;
    for constant in constants {
        while used_values.iter().any(|(name, _)| *name == format!("constant.{number}")) {
            number += 1;
        }
        used_values.push((format!("constant.{number}"), constant));
    }
    for (name, value) in &used_values {
        value.check().map_err(|error| error::value(name, error))?;
    }
    let inputs = inputs.iter().map(|(name, ty)| ((*name).to_owned(), ty.clone())).collect();
    Ok(ExportedProgram { text, inputs, weights: used_values, results: types })
}

impl ExportedProgram {
    /// The program as StableHLO text.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The names and types of the inputs.
    pub fn inputs(&self) -> &[(String, TensorType)] {
        &self.inputs
    }

    /// The names and values of the weights, in the order of the parameters that follow the inputs.
    pub fn weights(&self) -> &[(String, Tensor)] {
        &self.weights
    }

    /// The types of the results.
    pub fn results(&self) -> &[TensorType] {
        &self.results
    }

    /// Saves the program as a folder: `forward.mlir` (the text), `weights.safetensors`, and
    /// `forward.json`, which has the names and types of the program's parameters and results. The
    /// folder appears once everything is written. It must not exist before, or must be empty.
    ///
    /// # Errors
    /// The folder is not empty or cannot be written; a weight cannot be read from the device, or is
    /// c128, which safetensors do not support.
    pub fn save(&self, folder: impl AsRef<Path>) -> Result<()> {
        let folder = folder.as_ref();
        let new = new_folder(folder)?;
        save_values(self.weights.clone(), &new.path().join(WEIGHTS), &folder.join(WEIGHTS))?;
        let description = format!("{:#}\n", self.description());
        for (file, text) in [(PROGRAM, &self.text), (DESCRIPTION, &description)] {
            let path = new.path().join(file);
            fulmen_durable::write(&path, None, |file| file.write_all(text.as_bytes()))
                .map_err(|e| error::io("write", &folder.join(file), e))?;
        }
        new.keep().map_err(|e| error::io("write", folder, e))
    }

    fn description(&self) -> Json {
        let typed = |ty: &TensorType| json!({ "dtype": ty.dtype.name(), "shape": ty.shape.dims() });
        let named = |(name, ty): (&String, &TensorType)| json!({ "name": name, "dtype": ty.dtype.name(), "shape": ty.shape.dims() });
        json!({
            "format": "fulmen-stablehlo",
            "version": FORMAT_VERSION,
            "stablehlo_version": STABLEHLO_VERSION,
            "program": PROGRAM,
            "program_crc32c": format!("{:08x}", crc32c::crc32c(self.text.as_bytes())),
            "weights_file": WEIGHTS,
            "inputs": self.inputs.iter().map(|(name, ty)| named((name, ty))).collect::<Vec<_>>(),
            "weights": self.weights.iter().map(|(name, value)| named((name, value.ty()))).collect::<Vec<_>>(),
            "results": self.results.iter().map(typed).collect::<Vec<_>>(),
        })
    }

    /// Loads a folder that [`ExportedProgram::save`] wrote.
    ///
    /// # Errors
    /// A file is missing, cannot be read or is damaged; the weights are not those of the
    /// description; a newer version of Fulmen wrote the folder.
    pub fn load(folder: impl AsRef<Path>) -> Result<ExportedProgram> {
        let folder = folder.as_ref();
        let read = |file: &str, max_bytes| {
            let path = folder.join(file);
            let bytes = fulmen_durable::read_regular(&path, max_bytes)
                .map_err(|e| error::io("read", &path, e))?;
            String::from_utf8(bytes).map_err(|_| error::format(&path, FORMAT, "it is not UTF-8"))
        };
        let path = folder.join(DESCRIPTION);
        let refuse = |message: String| error::format(&path, FORMAT, message);
        let description: Map<String, Json> =
            serde_json::from_str(&read(DESCRIPTION, MAX_DESCRIPTION_BYTES)?)
                .map_err(|e| refuse(e.to_string()))?;
        let description = Description(&description);
        description.check_version().map_err(refuse)?;
        let inputs = description.named_types("inputs").map_err(refuse)?;
        let weights = description.named_types("weights").map_err(refuse)?;
        let results = description.types("results").map_err(refuse)?;
        let text = read(PROGRAM, MAX_PROGRAM_BYTES)?;
        let expected = description.text("program_crc32c").map_err(refuse)?;
        let actual = format!("{:08x}", crc32c::crc32c(text.as_bytes()));
        if actual != expected {
            let message = format!(
                "the checksum of the text is {actual}, but {DESCRIPTION} has {expected}; export the program again"
            );
            return Err(error::format(&folder.join(PROGRAM), FORMAT, message));
        }

        let path = folder.join(WEIGHTS);
        let refuse = |message: String| error::format(&path, FORMAT, message);
        let values = StateDict::read(&path)?;
        if values.len() != weights.len() {
            return Err(refuse(format!(
                "it has {} tensors, but the program takes {}",
                values.len(),
                weights.len()
            )));
        }
        let mut tensors = Vec::with_capacity(weights.len());
        for (name, ty) in weights {
            let value = values.get(&name)?;
            let value = value.ok_or_else(|| refuse(format!("it has no tensor `{name}`")))?;
            if *value.ty() != ty {
                return Err(refuse(format!("`{name}` is {}, expected {ty}", value.ty())));
            }
            tensors.push((name, value.to_tensor()));
        }
        Ok(ExportedProgram { text, inputs, weights: tensors, results })
    }

    /// Compiles the program for the one device of a runtime, and copies the weights there.
    ///
    /// # Errors
    /// The runtime has several devices; the text has a custom call, cannot be compiled, or does not
    /// have these parameters and results; the device is out of memory.
    pub fn compile(&self, runtime: &Runtime) -> Result<CompiledProgram> {
        let values: Vec<&Tensor> = self.weights.iter().map(|(_, value)| value).collect();
        let inputs = self.inputs.iter().map(|(_, ty)| ty);
        let parameters: Vec<TensorType> =
            inputs.chain(values.iter().map(|value| value.ty())).cloned().collect();
        let compiled =
            runtime.compile_stablehlo("forward", &self.text, &parameters, &self.results)?;
        let literals = runtime.eval_many(&values)?;
        let weights = literals.iter().map(|literal| runtime.to_device(literal));
        let weights = weights.collect::<fulmen_tensor::Result<_>>()?;
        Ok(CompiledProgram { runtime: runtime.clone(), compiled, weights })
    }
}

/// An [`ExportedProgram`] that is loaded on a device.
pub struct CompiledProgram {
    runtime: Runtime,
    compiled: Compiled,
    weights: Vec<DeviceArray>,
}

impl CompiledProgram {
    /// Runs the program and copies its results to the host.
    ///
    /// # Errors
    /// The inputs differ from the program's in number or type, or the run fails.
    pub fn call(&self, inputs: &[&Literal]) -> Result<Vec<Literal>> {
        let inputs = inputs.iter().map(|input| self.runtime.to_device(input));
        let inputs = inputs.collect::<fulmen_tensor::Result<Vec<_>>>()?;
        let arguments = inputs.iter().chain(&self.weights).map(Argument::Borrow).collect();
        let outputs = self.compiled.call(arguments)?;
        self.runtime.read(&outputs.arrays.iter().collect::<Vec<_>>())?.wait()
    }
}

/// The content of `forward.json`. Errors are the end of a message.
#[derive(Clone, Copy)]
struct Description<'a>(&'a Map<String, Json>);

impl<'a> Description<'a> {
    fn text(self, key: &str) -> Result<&'a str, String> {
        let value = self.0.get(key).and_then(Json::as_str);
        value.ok_or_else(|| format!("`{key}` must be a text"))
    }

    fn check_version(self) -> Result<(), String> {
        if self.text("format")? != "fulmen-stablehlo" {
            return Err("`format` must be \"fulmen-stablehlo\"".to_owned());
        }
        match self.0.get("version").and_then(Json::as_u64) {
            Some(FORMAT_VERSION) => Ok(()),
            Some(other) => Err(format!(
                "it has version {other}, expected {FORMAT_VERSION}; load it with the Fulmen that wrote it"
            )),
            None => Err("`version` must be a number".to_owned()),
        }
    }

    fn list(self, key: &str) -> Result<&'a [Json], String> {
        let list = self.0.get(key).and_then(Json::as_array);
        list.map(Vec::as_slice).ok_or_else(|| format!("`{key}` must be a list"))
    }

    fn types(self, key: &str) -> Result<Vec<TensorType>, String> {
        self.list(key)?.iter().map(|item| type_of(key, item)).collect()
    }

    fn named_types(self, key: &str) -> Result<Vec<(String, TensorType)>, String> {
        let named = |item: &Json| {
            let name = item["name"].as_str();
            let name = name.ok_or_else(|| format!("`{key}`: an entry has no `name`"))?;
            Ok((name.to_owned(), type_of(key, item)?))
        };
        self.list(key)?.iter().map(named).collect()
    }
}

fn type_of(key: &str, item: &Json) -> Result<TensorType, String> {
    let wrong = || format!("`{key}`: an entry must have a dtype and a shape, but is {item}");
    let dtype = item["dtype"].as_str().and_then(|name| DType::all().find(|d| d.name() == name));
    let size = |size: &Json| size.as_u64().and_then(|size| usize::try_from(size).ok());
    let shape: Option<Vec<usize>> =
        item["shape"].as_array().and_then(|sizes| sizes.iter().map(size).collect());
    Ok(TensorType::new(dtype.ok_or_else(wrong)?, shape.ok_or_else(wrong)?))
}

/// A module in which placeholders stand for the values. Dropping this restores the values and the
/// modes, even after a panic in `forward`.
struct Recorded {
    cells: Vec<(Variable, Tensor)>,
    _modes: SavedModes,
}

impl Recorded {
    fn new<M: Module + ?Sized>(module: &M, placeholders: &[Tensor]) -> Recorded {
        let mut cells = Vec::with_capacity(placeholders.len());
        for ((_, cell), placeholder) in module.state().into_iter().zip(placeholders) {
            let before = cell.get();
            cell.set(placeholder.clone());
            cells.push((cell, before));
        }
        Recorded { cells, _modes: SavedModes::of(module) }
    }
}

impl Drop for Recorded {
    fn drop(&mut self) {
        for (cell, before) in &self.cells {
            cell.set(before.clone());
        }
    }
}
