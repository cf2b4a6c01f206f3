//! The error of a program that XLA's partitioner refuses. It names the user's operation and line.
//!
//! [`whole_axes`](crate::whole_axes) keeps the operations that are known to fail from the
//! partitioner. This is for all others.

use std::panic::Location;

use fulmen_durable::messages::quantity;

use crate::recorded_op::{RecordedOp, inspect};
use crate::{Error, Function, Mesh, error};

/// The pass that splits a program over the devices. XLA names it in the errors of its own checks
/// after the pass.
const PASS: &str = "spmd-partitioning";

/// XLA's heading for the line in the user's program. What follows is only that line and the pass.
const HEADING: &str = "Suspected Python Code Location";

/// An operation that XLA refused.
struct Refused {
    name: &'static str,
    /// The types of its operands.
    operands: Vec<String>,
    location: &'static Location<'static>,
}

/// The error of the compiler for this function on the devices of a mesh.
pub(crate) fn compile_error(function: &Function, mesh: &Mesh, error: fulmen_pjrt::Error) -> Error {
    let name = function.name();
    let text = error.to_string();
    if mesh.num_devices() == 1 || !text.contains(PASS) || error.is_out_of_memory() {
        return Error::runtime(format!("compiling `{name}`"), error);
    }
    let ops = inspect(function.parameters(), function.results()).unwrap_or_default();
    let refused = find(&ops, &text);
    let what = match &refused {
        Some(Refused { name, operands, .. }) if operands.is_empty() => format!("`{name}`"),
        Some(Refused { name, operands, .. }) => format!("`{name}` of {}", operands.join(", ")),
        None => "an operation".to_owned(),
    };
    let location = refused.as_ref().map(|r| format!("\n  at {}", r.location)).unwrap_or_default();
    let reason = text.split(HEADING).next().unwrap_or_default().trim();
    let message = format!(
        "compiling `{name}`: XLA's partitioner cannot split {what} over {}, {mesh}{location}\n\
         Split another axis of its operands with `with_sharding`, or make them whole before it with `all_gather`.\n\
         XLA's message: {reason}",
        quantity(mesh.num_devices(), "device"),
    );
    error::partitioner(message, refused.map(|r| r.location), error)
}

/// The operation whose line the text names, preferably the one whose name follows. Statements that
/// no user's code recorded have the line and another name.
fn find(ops: &[RecordedOp], text: &str) -> Option<Refused> {
    let mut found = None;
    search(ops, text, &mut found);
    found
}

fn search(ops: &[RecordedOp], text: &str, found: &mut Option<Refused>) {
    for op in ops {
        for body in &op.bodies {
            search(&body.ops, text, found);
        }
        let Some(name) = op.operation else { continue };
        let is_named = text.contains(&format!("{} [{name}]", op.location));
        if is_named || found.is_none() && text.contains(&format!("{} [", op.location)) {
            let operand =
                |value: &crate::RecordedValue| ops[value.op].types[value.output].to_string();
            let operands = op.operands.iter().map(operand).collect();
            *found = Some(Refused { name, operands, location: op.location });
        }
        if is_named {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lower::Lowering;
    use crate::operation::{Operation, Vjp};
    use crate::scope::Scope;
    use crate::{Accelerator, DType, Devices, Runtime, Sharding, Tensor, TensorType, scan};

    /// A slice with a stride, without the constraint that the axis must be whole.
    #[derive(Debug)]
    struct Strided;

    impl Operation for Strided {
        fn name(&self) -> &'static str {
            "strided"
        }
        fn infer(&self, _: &[&TensorType]) -> Result<Vec<TensorType>, String> {
            Ok(vec![TensorType::new(DType::F32, [3, 1])])
        }
        fn vjp(&self, _: &Vjp<'_>) -> Vec<Option<Tensor>> {
            vec![None]
        }
        fn lower(&self, cx: &mut Lowering<'_>) -> String {
            format!("stablehlo.slice {} [3:8:2, 3:4:3] : {}", cx.operand(0), cx.signature())
        }
    }

    #[track_caller]
    fn strided(x: &Tensor) -> Tensor {
        let _scope = Scope::at(Location::caller());
        Tensor::apply(Strided, &[x])
    }

    /// The error for the devices of this mesh. The parameter is split over both axes.
    fn error(f: impl FnOnce(&[Tensor]) -> Vec<Tensor>, a: usize, b: usize) -> crate::Result<Error> {
        let mesh = Mesh::new([("a", a), ("b", b)])?;
        let devices = mesh.num_devices();
        let runtime = Runtime::open(Accelerator::Cpu, &Devices::from(devices))?;
        let types = [TensorType::new(DType::F32, [8, 4])];
        let function = Function::trace("step", &types, |x| f(&x))
            .shard_parameter(0, Sharding::new([Some("b"), Some("a")]));
        let compiled = runtime.with_mesh(&mesh)?.compile(&function);
        Ok(compiled.err().unwrap_or_else(|| Error::usage("it compiles")))
    }

    #[test]
    fn what_xla_refuses_to_split_is_refused_at_the_users_line() -> crate::Result<()> {
        let line = line!() + 1;
        let error_of = |a, b| error(|x| vec![strided(&x[0].sin()).cos()], a, b);
        assert_eq!(error_of(1, 1)?.to_string(), "it compiles");
        let error = error_of(4, 2)?;
        let message = error.to_string();
        let expected = format!(
            "compiling `step`: XLA's partitioner cannot split `strided` of f32[8, 4] over 8 devices, a=4 × b=2\n  at {}:{line}:",
            file!()
        );
        assert!(message.starts_with(&expected), "{message}");
        assert!(message.contains("with `all_gather`"), "{message}");
        assert!(message.contains("XLA's message: ") && message.contains("verifier"), "{message}");
        assert!(!message.contains("Python"), "{message}");
        assert_eq!(error.location().map(Location::line), Some(line));
        assert!(error.is_runtime() && !error.is_usage() && !error.is_out_of_memory());
        Ok(())
    }

    #[test]
    fn an_operation_in_a_body_is_found() -> crate::Result<()> {
        let line = line!() + 2;
        let body = |x: Tensor, _: Tensor| {
            let sum = strided(&x).sum_all();
            (x + sum, ())
        };
        let rows = |x: &[Tensor]| vec![scan(&x[0], Tensor::zeros(DType::F32, [3]), body).0];
        let error = error(rows, 4, 2)?;
        assert!(error.to_string().contains("`strided` of f32[8, 4]"), "{error}");
        assert_eq!(error.location().map(Location::line), Some(line));
        Ok(())
    }
}
