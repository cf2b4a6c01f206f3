//! From a function to StableHLO text, with a `loc()` of the user's line on each statement.
//!
//! How one operation is spelled stands with the operation, and how their statements come one after another in
//! `listing.rs`; here is what surrounds them.

use std::collections::HashMap;
use std::panic::Location;
use std::sync::Arc;

pub(crate) use crate::listing::Lowering;
use crate::listing::{Line, Program, Scope};
use crate::tensor::Kind;
use crate::{DeviceArray, Error, Function, Mesh, Result, Sharding, TensorType};

/// A program as text, and what belongs to it.
pub(crate) struct Lowered {
    /// StableHLO with locations: what is compiled.
    pub(crate) text: String,
    /// The same without locations: two programs with equal keys compute the same.
    pub(crate) key: String,
    /// The type with the most elements, and the line that recorded it.
    pub(crate) largest: Option<(TensorType, &'static Location<'static>)>,
    /// Values that the expression holds, parameters after those that the function declares, and how they are to lie over
    /// the devices.
    pub(crate) captured: Vec<(Captured, Sharding)>,
}

/// A value that an expression holds and a program takes as an argument.
pub(crate) enum Captured {
    Device(Arc<DeviceArray>),
    Host(TensorType, Arc<[u8]>),
}

/// Writes the program of a function for the devices of a mesh.
pub(crate) fn lower(function: &Function, mesh: &Mesh) -> Result<Lowered> {
    let (name, parameters, results) = (function.name(), function.parameters(), function.results());
    let partitioned = mesh.num_devices() > 1;
    // What Shardy is told of a value of the program's face; nothing where there is one device.
    let face = |what: &str, ty: &TensorType, sharding: &Sharding| match partitioned {
        false => Ok(None),
        true => match sharding.shard_shape(mesh, &ty.shape) {
            Ok(_) => Ok(Some(format!("sdy.sharding = #sdy.sharding{}", sharding.attribute(ty.shape.rank())))),
            Err(why) => Err(Error::usage(format!("`{name}`: {what}, {ty}: {why}"))),
        },
    };
    let mut arguments: Vec<String> = vec![];
    let mut leaves = HashMap::new();
    for (i, parameter) in parameters.iter().enumerate() {
        parameter.check()?;
        let Kind::Placeholder { name: called } = &parameter.node.kind else {
            return Err(Error::not_a_parameter(name, i, "is no placeholder", parameter));
        };
        if leaves.insert(parameter.node.id, format!("%arg{i}")).is_some() {
            return Err(Error::not_a_parameter(name, i, "was given before", parameter));
        }
        let sharding = &function.parameter_shardings()[i];
        let mut attributes = vec![];
        if let Some(result) = function.aliases()[i] {
            if function.result_shardings()[result] != *sharding {
                return Err(Error::usage(format!(
                    "`{name}`: parameter {i}, `{called}`, is donated to result {result}, which lies otherwise over the \
                     devices: {sharding} and {}",
                    function.result_shardings()[result]
                )));
            }
            attributes.push(format!("tf.aliasing_output = {result} : i32"));
        }
        attributes.extend(face(&format!("parameter {i}, `{called}`"), parameter.ty(), sharding)?);
        arguments.push(format!("%arg{i}: {}{}", parameter.ty().stablehlo(), in_braces(&attributes)));
    }

    let mut program = Program::new(mesh, function.precision(), function.constants(), parameters.len());
    let mut scope = Scope::default();
    let result_names = program.list(results, &leaves, &mut scope)?;
    for (captured, sharding) in &program.captured {
        let ty = match captured {
            Captured::Device(array) => array.ty(),
            Captured::Host(ty, _) => ty,
        };
        let attributes: Vec<_> = face("a captured value", ty, sharding)?.into_iter().collect();
        arguments.push(format!("%arg{}: {}{}", arguments.len(), ty.stablehlo(), in_braces(&attributes)));
    }

    let result_types: Vec<_> = results.iter().map(|t| t.ty().stablehlo()).collect();
    let mut declared = vec![];
    for (i, (result, sharding)) in results.iter().zip(function.result_shardings()).enumerate() {
        let attributes: Vec<_> = face(&format!("result {i}"), result.ty(), sharding)?.into_iter().collect();
        declared.push(format!("{}{}", result_types[i], in_braces(&attributes)));
    }
    let returned = match results.len() {
        0 => "return".to_owned(),
        _ => format!("return {} : {}", result_names.join(", "), result_types.join(", ")),
    };
    scope.lines.push(Line::bare(returned));
    let write = |with_locations| {
        let mesh = if partitioned { format!("  {}\n", mesh.declaration()) } else { String::new() };
        let mut text = format!(
            "module @{} {{\n{mesh}  func.func public @main({}) -> ({}) {{\n",
            identifier(name),
            arguments.join(", "),
            declared.join(", ")
        );
        for line in &scope.lines {
            line.write(&mut text, 4, with_locations);
        }
        text.push_str("  }\n");
        for helper in program.helpers.values() {
            text.push_str(helper);
        }
        text.push_str("}\n");
        text
    };
    Ok(Lowered { text: write(true), key: write(false), largest: program.largest, captured: program.captured })
}

/// A dictionary of attributes behind a type; nothing where there are none.
fn in_braces(attributes: &[String]) -> String {
    if attributes.is_empty() { String::new() } else { format!(" {{{}}}", attributes.join(", ")) }
}

/// A module name that MLIR takes: letters, digits and underscores.
fn identifier(name: &str) -> String {
    let clean: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    if clean.starts_with(|c: char| c.is_ascii_alphabetic()) { clean } else { format!("f_{clean}") }
}
