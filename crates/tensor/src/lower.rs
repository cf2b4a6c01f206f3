//! From a function to StableHLO text, with the location of the user's line on each statement.
//!
//! How one operation is written is in the operation's file, and how their statements come one after another in
//! `emit.rs`; here is what surrounds them.

use std::panic::Location;

use sha2::{Digest, Sha256};

pub(crate) use crate::emit::Lowering;
use crate::emit::{Body, Captured, Line, Locations, Program};
use crate::hash::IdMap;
use crate::tensor::Kind;
use crate::{Error, Function, Mesh, Result, Sharding, TensorType};

/// A program as text, and what belongs to it.
pub(crate) struct Lowered {
    /// StableHLO with locations: what is compiled.
    pub(crate) text: String,
    /// The same without locations: two programs with equal keys compute the same.
    pub(crate) key: String,
    /// The type with the most elements, and the line that recorded it.
    pub(crate) largest: Option<(TensorType, &'static Location<'static>)>,
    /// Values that the expression holds, parameters after those that the function declares, and how they are sharded over
    /// the devices.
    pub(crate) captured: Vec<(Captured, Sharding)>,
}

/// Writes the program of a function for the devices of a mesh.
pub(crate) fn lower(function: &Function, mesh: &Mesh) -> Result<Lowered> {
    let (name, parameters, results) = (function.name(), function.parameters(), function.results());
    let partitioned = mesh.num_devices() > 1;
    // What Shardy is told of a value of the program's signature; nothing where there is one device.
    let attributes_of = |what: &str, ty: &TensorType, sharding: &Sharding| match partitioned {
        false => Ok(None),
        true => match sharding.shard_shape(mesh, &ty.shape) {
            Ok(_) => Ok(Some(format!("sdy.sharding = #sdy.sharding{}", sharding.attribute(ty.shape.rank())))),
            Err(why) => Err(Error::usage(format!("`{name}`: {what}, {ty}: {why}"))),
        },
    };
    let mut arguments: Vec<String> = vec![];
    let mut leaves = IdMap::default();
    for (i, parameter) in parameters.iter().enumerate() {
        parameter.check()?;
        let Kind::Placeholder { name: called } = &parameter.node.kind else {
            return Err(Error::not_a_parameter(name, i, "is not a placeholder", parameter, parameter.location()));
        };
        if leaves.insert(parameter.node.id, format!("%arg{i}")).is_some() {
            return Err(Error::not_a_parameter(name, i, "was given before", parameter, parameter.location()));
        }
        let sharding = &function.parameter_shardings()[i];
        let mut attributes = vec![];
        if let Some(result) = function.aliases()[i] {
            if function.result_shardings()[result] != *sharding {
                return Err(Error::usage(format!(
                    "`{name}`: parameter {i}, `{called}`, is donated to result {result}, which is sharded otherwise over the \
                     devices: {sharding} and {}",
                    function.result_shardings()[result]
                )));
            }
            attributes.push(format!("tf.aliasing_output = {result} : i32"));
        }
        attributes.extend(attributes_of(&format!("parameter {i}, `{called}`"), parameter.ty(), sharding)?);
        arguments.push(format!("%arg{i}: {}{}", parameter.ty().stablehlo(), in_braces(&attributes)));
    }

    let mut program = Program::new(mesh, function.precision(), function.constants(), parameters.len());
    let mut body = Body::default();
    let result_names = program.emit(results, &leaves, &mut body)?;
    for (captured, sharding) in &program.captured {
        let ty = match captured {
            Captured::Device(array) => array.ty(),
            Captured::Host(ty, _) => ty,
        };
        let attributes: Vec<_> = attributes_of("a captured value", ty, sharding)?.into_iter().collect();
        arguments.push(format!("%arg{}: {}{}", arguments.len(), ty.stablehlo(), in_braces(&attributes)));
    }

    let result_types: Vec<_> = results.iter().map(|t| t.ty().stablehlo()).collect();
    let mut declared = vec![];
    for (i, (result, sharding)) in results.iter().zip(function.result_shardings()).enumerate() {
        let attributes: Vec<_> = attributes_of(&format!("result {i}"), result.ty(), sharding)?.into_iter().collect();
        declared.push(format!("{}{}", result_types[i], in_braces(&attributes)));
    }
    let returned = match results.len() {
        0 => "return".to_owned(),
        _ => format!("return {} : {}", result_names.join(", "), result_types.join(", ")),
    };
    body.lines.push(Line::bare(returned));
    let head = format!("func.func public @main({}) -> ({}) {{", arguments.join(", "), declared.join(", "));
    let main = Line::function(head, body);
    let write = |mut locations: Option<&mut Locations>| {
        let mut text = format!("module @{} {{\n", identifier(name));
        if partitioned {
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
    Ok(Lowered { text, key: write(None), largest: program.largest, captured: program.captured })
}

/// A dictionary of attributes behind a type; nothing where there are none.
fn in_braces(attributes: &[String]) -> String {
    if attributes.is_empty() { String::new() } else { format!(" {{{}}}", attributes.join(", ")) }
}

/// A name of a module or a function that MLIR takes: letters, digits and underscores.
pub(crate) fn identifier(name: &str) -> String {
    let clean: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    if clean.starts_with(|c: char| c.is_ascii_alphabetic()) { clean } else { format!("f_{clean}") }
}

impl Function {
    /// The program for one device as StableHLO text, each statement with the line of the user's code that recorded it.
    ///
    /// # Errors
    /// The first fault among the results; a placeholder that is not a parameter.
    pub fn stablehlo(&self) -> Result<String> {
        self.stablehlo_for(&Mesh::data(1))
    }

    /// The program for the devices of a mesh: one text for all of them, with whole shapes and Shardy's shardings. It is
    /// compiled with as many partitions as the mesh has devices.
    ///
    /// ```
    /// use fulmen_tensor::{DType, Function, Mesh, Sharding, TensorType};
    ///
    /// let mean = Function::trace("mean", &[TensorType::new(DType::F32, [8])], |x| vec![x[0].mean_all()]);
    /// let mean = mean.shard_parameter(0, Sharding::new([Some("data")]));
    /// let text = mean.stablehlo_for(&Mesh::new([("data", 4)])?)?;
    /// assert!(text.contains("sdy.mesh @mesh = <[\"data\"=4]>"));
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Function::stablehlo`]; a sharding that the mesh does not fit.
    pub fn stablehlo_for(&self, mesh: &Mesh) -> Result<String> {
        Ok(lower(self, mesh)?.text)
    }

    /// A digest (SHA-256, in hexadecimal) of what the function computes on the devices of a mesh: its program without the
    /// lines of the user's code, and the values on the host that it holds. Of values that are on a device only the type
    /// counts. Equal digests mean equal programs, in other processes and on other machines too.
    ///
    /// ```
    /// use fulmen_tensor::{DType, Function, Mesh, TensorType};
    ///
    /// let scaled = |by: f64| Function::trace("scaled", &[TensorType::new(DType::F32, [4])], |x| vec![&x[0] * by]);
    /// let mesh = Mesh::new([("data", 1)])?;
    /// assert_eq!(scaled(0.1).fingerprint(&mesh)?, scaled(0.1).fingerprint(&mesh)?);
    /// assert_ne!(scaled(0.1).fingerprint(&mesh)?, scaled(0.2).fingerprint(&mesh)?);
    /// # Ok::<(), fulmen_tensor::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Function::stablehlo_for`].
    pub fn fingerprint(&self, mesh: &Mesh) -> Result<String> {
        let lowered = lower(self, mesh)?;
        let mut hasher = Sha256::new();
        hasher.update(&lowered.key);
        for (captured, sharding) in &lowered.captured {
            match captured {
                Captured::Device(array) => hasher.update(format!("{} {sharding}", array.ty())),
                Captured::Host(ty, elements) => {
                    hasher.update(format!("{ty} {sharding}"));
                    hasher.update(elements);
                }
            }
        }
        Ok(hasher.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
    }
}
