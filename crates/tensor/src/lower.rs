//! Lowers a function to StableHLO text, with the user's line on each statement. This file writes
//! the module and the signatures.
//!
//! Out of scope: the sequence of statements, see `emit.rs`; the statement of each operation, see
//! the operation's file.

use fulmen_pjrt::locate::Platform;
use sha2::{Digest, Sha256};

use crate::axis_order::in_order;
pub(crate) use crate::emit::Lowering;
use crate::emit::{Body, Captured, LargestValue, Leaf, Line, Locations, Program};
use crate::hash::IdMap;
use crate::passes::Pipeline;
use crate::scope::Scope;
use crate::tensor::Kind;
use crate::test_programs::keep_text;
use crate::{Error, Function, Mesh, Result, Sharding, Tensor, TensorType, error};

/// The text of a program, and the values that it captures.
pub(crate) struct Lowered {
    /// The StableHLO text with locations, for the compiler.
    pub(crate) text: String,
    /// The text without locations. Programs with equal keys compute the same.
    pub(crate) key: String,
    pub(crate) largest: Option<LargestValue>,
    /// Values that the expression holds, with their shardings. Their parameters follow the
    /// function's own.
    pub(crate) captured: Vec<(Captured, Sharding)>,
}

/// Lowers a function for the devices of a mesh. Without a platform, the program can be compiled for
/// every platform.
pub(crate) fn lower(
    function: &Function,
    mesh: &Mesh,
    platform: Option<Platform>,
) -> Result<Lowered> {
    lower_with(function, mesh, Pipeline::new(platform, mesh)?)
}

/// Lowers a function by these passes.
pub(crate) fn lower_with(function: &Function, mesh: &Mesh, passes: Pipeline) -> Result<Lowered> {
    let name = function.name();
    let results = function.results();
    let signature = Signature { function, mesh };
    let Parameters { mut declarations, leaves } = signature.parameters()?;
    let mut program =
        Program::new(mesh, passes, function.precision(), function.constants(), declarations.len());
    let mut body = Body::default();
    let orders = function.result_shardings().iter().map(|s| s.order().cloned()).collect();
    let result_names = program.emit_in_order(results, &leaves, orders, &mut body)?;
    for (captured, sharding) in &program.captured {
        let ty = match captured {
            Captured::Device(array) => array.ty(),
            Captured::Host(ty, _) => ty,
        };
        let attributes: Vec<_> =
            signature.sharding("a captured value", ty, sharding)?.into_iter().collect();
        let number = declarations.len();
        declarations.push(format!("%arg{number}: {}", declaration(ty, sharding, &attributes)));
    }

    let result_shardings = results.iter().zip(function.result_shardings());
    let result_types: Vec<_> = result_shardings
        .map(|(result, sharding)| in_order(result.ty(), sharding.order()).stablehlo())
        .collect();
    let return_statement = if results.is_empty() {
        "return".to_owned()
    } else {
        format!("return {} : {}", result_names.join(", "), result_types.join(", "))
    };
    body.lines.push(Line::bare(return_statement));
    let head = format!(
        "func.func public @main({}) -> ({}) {{",
        declarations.join(", "),
        signature.results()?.join(", ")
    );
    let main = Line::function(head, body);
    let write = |mut locations: Option<&mut Locations>| {
        let mut text = format!("module @{} {{\n", identifier(name));
        if signature.is_partitioned() {
            text.extend(["  ", &mesh.declaration(), "\n"]);
        }
        for function in [&main].into_iter().chain(&program.functions) {
            function.write(&mut text, 2, locations.as_deref_mut());
        }
        text.push_str("}\n");
        text
    };
    let mut locations = Locations::default();
    let text = write(Some(&mut locations)) + &locations.definitions;
    let key = write(None);
    keep_text(&key);
    Ok(Lowered { text, key, largest: program.largest, captured: program.captured })
}

/// The signature of a function on a mesh.
struct Signature<'a> {
    function: &'a Function,
    mesh: &'a Mesh,
}

/// The parameters that a function declares.
struct Parameters {
    declarations: Vec<String>,
    leaves: IdMap<Leaf>,
}

impl Signature<'_> {
    fn is_partitioned(&self) -> bool {
        self.mesh.num_devices() > 1
    }

    fn parameters(&self) -> Result<Parameters> {
        let function = self.function;
        let name = function.name();
        let mut declarations: Vec<String> = Vec::new();
        let mut leaves = IdMap::default();
        for (i, parameter) in function.parameters().iter().enumerate() {
            parameter.check()?;
            let Kind::Placeholder { name: parameter_name } = &parameter.node.kind else {
                return Err(not_a_parameter(name, i, parameter, "is not a placeholder"));
            };
            let sharding = &function.parameter_shardings()[i];
            let leaf = Leaf { name: format!("%arg{i}"), order: sharding.order().cloned() };
            if leaves.insert(parameter.node.id, leaf).is_some() {
                return Err(not_a_parameter(name, i, parameter, "repeats an earlier parameter"));
            }
            let mut attributes = Vec::new();
            if let Some(result) = function.aliases()[i] {
                if function.result_shardings()[result] != *sharding {
                    return Err(Error::usage(format!(
                        "`{name}`: parameter {i}, `{parameter_name}`, is donated to result {result}, but their shardings \
                         differ: {sharding} and {}",
                        function.result_shardings()[result]
                    )));
                }
                attributes.push(format!("tf.aliasing_output = {result} : i32"));
            }
            let value = format!("parameter {i}, `{parameter_name}`");
            attributes.extend(self.sharding(&value, parameter.ty(), sharding)?);
            let declared = declaration(parameter.ty(), sharding, &attributes);
            declarations.push(format!("%arg{i}: {declared}"));
        }
        Ok(Parameters { declarations, leaves })
    }

    /// The declarations of the results.
    fn results(&self) -> Result<Vec<String>> {
        let mut declarations = Vec::new();
        let shardings = self.function.result_shardings();
        for (i, (result, sharding)) in self.function.results().iter().zip(shardings).enumerate() {
            let attribute = self.sharding(&format!("result {i}"), result.ty(), sharding)?;
            let attributes: Vec<_> = attribute.into_iter().collect();
            declarations.push(declaration(result.ty(), sharding, &attributes));
        }
        Ok(declarations)
    }

    /// The Shardy attribute of a parameter or result; none on one device.
    fn sharding(
        &self,
        value: &str,
        ty: &TensorType,
        sharding: &Sharding,
    ) -> Result<Option<String>> {
        let is_partitioned = self.is_partitioned();
        let on_mesh = if is_partitioned { sharding } else { &sharding.on_one_device() };
        match on_mesh.shard_shape(self.mesh, &ty.shape) {
            Ok(_) if !is_partitioned => Ok(None),
            Ok(_) => Ok(Some(format!(
                "sdy.sharding = #sdy.sharding{}",
                sharding.attribute_in_memory(ty.shape.rank())
            ))),
            Err(reason) => {
                let name = self.function.name();
                Err(Error::usage(format!("`{name}`: {value}, {ty}: {reason}")))
            }
        }
    }
}

/// The type of a parameter or result with its attributes.
fn declaration(ty: &TensorType, sharding: &Sharding, attributes: &[String]) -> String {
    let ty = in_order(ty, sharding.order()).stablehlo();
    format!("{ty}{}", attribute_dictionary(attributes))
}

/// The program of a function for one device of any platform, as StableHLO text without locations,
/// and the values that its expression holds: the program's last parameters.
///
/// # Errors
/// As for [`Function::stablehlo`].
#[track_caller]
pub fn portable_program(function: &Function) -> Result<(String, Vec<Tensor>)> {
    let _scope = Scope::open();
    let lowered = lower(function, &Mesh::data(1), None)?;
    let values = lowered.captured.into_iter().map(|(captured, _)| match captured {
        Captured::Device(array) => Tensor::from_array(array),
        Captured::Host(ty, elements) => Tensor::from_host(ty, elements),
    });
    Ok((lowered.key, values.collect()))
}

/// The error of a parameter that is not one, for this reason.
fn not_a_parameter(function: &str, i: usize, tensor: &Tensor, reason: &str) -> Error {
    let message = format!(
        "`{function}`: parameter {i}, {tensor:?}, {reason}; each parameter must be a different placeholder, made with \
         Tensor::placeholder()"
    );
    error::recorded(message, tensor.location())
}

/// The dictionary of attributes after a type; empty without attributes.
fn attribute_dictionary(attributes: &[String]) -> String {
    if attributes.is_empty() { String::new() } else { format!(" {{{}}}", attributes.join(", ")) }
}

/// Turns a name into a valid MLIR identifier of letters, digits and underscores.
pub(crate) fn identifier(name: &str) -> String {
    let clean: String =
        name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    if clean.starts_with(|c: char| c.is_ascii_alphabetic()) { clean } else { format!("f_{clean}") }
}

impl Function {
    /// The program for one device as StableHLO text. Each statement has the line of the user's code
    /// that recorded it.
    ///
    /// # Errors
    /// A result is poisoned or depends on a placeholder that is not a parameter.
    pub fn stablehlo(&self) -> Result<String> {
        self.stablehlo_for(&Mesh::data(1))
    }

    /// The program for the devices of a mesh: one text for all devices, with global shapes and
    /// Shardy's shardings. Compile it with as many partitions as the mesh has devices. The text
    /// does not depend on the platform. A runtime compiles a faster form of it for its platform;
    /// see [`Function::stablehlo_on`].
    ///
    /// ```
    /// use fulmen_tensor::{DType, Function, Mesh, Sharding, TensorType};
    ///
    /// let mean = Function::trace("mean", TensorType::new(DType::F32, [8]), |x| x.mean_all());
    /// let mean = mean.shard_parameter(0, Sharding::new([Some("data")]));
    /// let text = mean.stablehlo_for(&Mesh::new([("data", 4)])?)?;
    /// assert!(text.contains("sdy.mesh @mesh = <[\"data\"=4]>"));
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// As for [`Function::stablehlo`]. Also if a sharding does not fit the mesh.
    pub fn stablehlo_for(&self, mesh: &Mesh) -> Result<String> {
        Ok(lower(self, mesh, None)?.text)
    }

    /// Like [`Function::stablehlo_for`], for the devices of one platform: the text that a runtime
    /// on this platform compiles. A few operations are written in another form, which is faster
    /// there.
    ///
    /// ```
    /// use fulmen_pjrt::locate::Platform;
    /// use fulmen_tensor::{DType, Function, Mesh, TensorType};
    ///
    /// let heads = TensorType::new(DType::F32, [8, 128, 4, 64]);
    /// let scores = Function::trace("scores", (heads.clone(), heads), |(queries, keys)| {
    ///     queries.transpose(1, 2).matmul(keys.transpose(1, 2).transpose(-1, -2))
    /// });
    /// let mesh = Mesh::new([("data", 1)])?;
    /// assert!(scores.stablehlo_for(&mesh)?.contains("stablehlo.transpose"));
    /// assert!(!scores.stablehlo_on(Platform::Tpu, &mesh)?.contains("stablehlo.transpose"));
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// As for [`Function::stablehlo_for`].
    pub fn stablehlo_on(&self, platform: Platform, mesh: &Mesh) -> Result<String> {
        Ok(lower(self, mesh, Some(platform))?.text)
    }

    /// A hexadecimal SHA-256 digest of the function's program for a mesh. It covers the program
    /// without source lines, the host values in the expression, and the types of device values.
    /// Equal digests mean equal programs, even across processes and machines.
    ///
    /// ```
    /// use fulmen_tensor::{DType, Function, Mesh, TensorType};
    ///
    /// let scaled = |by: f64| Function::trace("scaled", TensorType::new(DType::F32, [4]), |x| &x * by);
    /// let mesh = Mesh::new([("data", 1)])?;
    /// assert_eq!(scaled(0.1).fingerprint(&mesh)?, scaled(0.1).fingerprint(&mesh)?);
    /// assert_ne!(scaled(0.1).fingerprint(&mesh)?, scaled(0.2).fingerprint(&mesh)?);
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// As for [`Function::stablehlo_for`].
    pub fn fingerprint(&self, mesh: &Mesh) -> Result<String> {
        let lowered = lower(self, mesh, None)?;
        let mut hasher = Sha256::new();
        hasher.update(&lowered.key);
        for (captured, sharding) in &lowered.captured {
            match captured {
                Captured::Device(array) => hasher.update(format!("{} {sharding}", array.ty())),
                Captured::Host(ty, elements) => {
                    hasher.update(format!("{ty} {sharding}"));
                    hasher.update(elements.identity()?);
                }
            }
        }
        Ok(hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
    }
}
