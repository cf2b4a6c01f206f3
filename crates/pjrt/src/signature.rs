//! The arguments and results of a compiled program, as the compiler reports them. Only the required
//! fields of XLA's messages are decoded.

use std::fmt;
use std::sync::Arc;

use prost::Message;

use crate::element_type::{ArrayType, ElementType};
use crate::error::{self, Result};
use crate::hlo::proto::{HeaderWithConfig, Shape, TUPLE};

/// The arguments and results of a compiled program on each device. Those of a program that is split
/// over devices are the parts on one device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Signature {
    /// The arguments.
    pub parameters: Vec<ArrayType>,
    /// The results.
    pub outputs: Vec<ArrayType>,
    /// Whether the memory of each argument may be reused for a result.
    pub donated: Vec<bool>,
    /// The types of the results again, shared by the buffers that hold them.
    shared_outputs: Vec<Arc<ArrayType>>,
}

impl Signature {
    /// The part of a `HloModuleProtoWithConfig` with the signature.
    pub(crate) fn header(program: &[u8]) -> Result<HeaderWithConfig> {
        HeaderWithConfig::decode(program).map_err(|error| {
            error::broken(format!("the plugin's optimized program cannot be read: {error}"))
        })
    }

    pub(crate) fn new(header: &HeaderWithConfig) -> Result<Signature> {
        let module = header.hlo_module.clone().unwrap_or_default();
        let shape = module
            .host_program_shape
            .ok_or_else(|| error::broken("the plugin's optimized program has no signature"))?;
        let parameters = arrays(&shape.parameters)?;
        let outputs = match shape.result {
            Some(result) if result.element_type == TUPLE => arrays(&result.tuple_shapes)?,
            Some(result) => vec![array(&result)?],
            None => Vec::new(),
        };
        let mut donated = vec![false; parameters.len()];
        let aliases = module
            .input_output_alias
            .unwrap_or_default()
            .entries
            .into_iter()
            .map(|e| e.parameter_number);
        let donors =
            module.buffer_donor.unwrap_or_default().entries.into_iter().map(|e| e.parameter_number);
        for number in aliases.chain(donors) {
            match usize::try_from(number).ok().and_then(|number| donated.get_mut(number)) {
                Some(donated) => *donated = true,
                None => {
                    return Err(error::broken(format!(
                        "the program donates parameter {number}, which does not exist"
                    )));
                }
            }
        }
        let shared_outputs = outputs.iter().cloned().map(Arc::new).collect();
        Ok(Self { parameters, outputs, donated, shared_outputs })
    }

    pub(crate) fn shared_output(&self, index: usize) -> &Arc<ArrayType> {
        &self.shared_outputs[index]
    }
}

impl fmt::Display for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(")?;
        for (i, (parameter, donated)) in self.parameters.iter().zip(&self.donated).enumerate() {
            let comma = if i > 0 { ", " } else { "" };
            let mark = if *donated { " donated" } else { "" };
            write!(f, "{comma}{parameter}{mark}")?;
        }
        f.write_str(") -> (")?;
        for (i, output) in self.outputs.iter().enumerate() {
            let comma = if i > 0 { ", " } else { "" };
            write!(f, "{comma}{output}")?;
        }
        f.write_str(")")
    }
}

fn arrays(shapes: &[Shape]) -> Result<Vec<ArrayType>> {
    shapes.iter().map(array).collect()
}

fn array(shape: &Shape) -> Result<ArrayType> {
    if shape.is_dynamic_dimension.contains(&true) {
        return Err(error::broken(
            "an argument or a result of the program has a dynamic size; only static sizes are supported",
        ));
    }
    let dims = shape
        .dimensions
        .iter()
        .map(|&dim| usize::try_from(dim))
        .collect::<Result<Vec<_>, _>>()
        .map_err(|_| {
            error::broken(format!("the program has an array of dimensions {:?}", shape.dimensions))
        })?;
    Ok(ArrayType::new(ElementType::from_primitive(shape.element_type)?, dims))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hlo::proto::{Alias, Aliases, Donor, Donors, Header, ProgramShape};

    fn shape(element_type: i32, dimensions: &[i64], tuple_shapes: &[Shape]) -> Shape {
        Shape {
            element_type,
            dimensions: dimensions.to_vec(),
            tuple_shapes: tuple_shapes.to_vec(),
            is_dynamic_dimension: vec![false; dimensions.len()],
            layout: None,
        }
    }

    fn decode(program: &[u8]) -> Result<Signature> {
        Signature::new(&Signature::header(program)?)
    }

    fn module(
        parameters: &[Shape],
        result: Option<Shape>,
        aliases: &[i64],
        donors: &[i64],
    ) -> Vec<u8> {
        HeaderWithConfig {
            hlo_module: Some(Header {
                host_program_shape: Some(ProgramShape { parameters: parameters.to_vec(), result }),
                input_output_alias: Some(Aliases {
                    entries: aliases
                        .iter()
                        .map(|&parameter_number| Alias { parameter_number })
                        .collect(),
                }),
                buffer_donor: Some(Donors {
                    entries: donors
                        .iter()
                        .map(|&parameter_number| Donor { parameter_number })
                        .collect(),
                }),
            }),
        }
        .encode_to_vec()
    }

    #[test]
    fn reads_what_the_compiler_wrote() {
        let parameters = [shape(11, &[2, 3], &[]), shape(4, &[], &[]), shape(16, &[1], &[])];
        let result = shape(TUPLE, &[], &[shape(11, &[2, 3], &[]), shape(1, &[4], &[])]);
        let signature = decode(&module(&parameters, Some(result), &[0], &[2])).unwrap();
        assert_eq!(
            signature.to_string(),
            "(f32[2,3] donated, s32[], bf16[1] donated) -> (f32[2,3], pred[4])"
        );
        let one = decode(&module(&[], Some(shape(11, &[5], &[])), &[], &[])).unwrap();
        assert_eq!(one.to_string(), "() -> (f32[5])");
    }

    #[test]
    fn invalid_signatures_are_errors() {
        let check = |bytes: &[u8], expected: &str| {
            let error = decode(bytes).unwrap_err();
            assert!(error.to_string().contains(expected), "{error}");
        };
        check(b"\xff\xff", "cannot be read");
        check(b"", "has no signature");
        check(&module(&[], None, &[3], &[]), "donates parameter 3, which does not exist");
        check(&module(&[shape(17, &[], &[])], None, &[], &[]), "XLA type 17");
        check(&module(&[shape(11, &[-1], &[])], None, &[], &[]), "dimensions [-1]");
        let mut dynamic = shape(11, &[4], &[]);
        dynamic.is_dynamic_dimension = vec![true];
        check(&module(&[dynamic], None, &[], &[]), "dynamic size");
    }
}
