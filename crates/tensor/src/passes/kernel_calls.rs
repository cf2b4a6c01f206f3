//! Kernels, which libtpu's compiler for kernels (Mosaic) compiles.
//!
//! Elsewhere a kernel is an expression of other operations.

use std::sync::Arc;

use super::Replacement;
use crate::TensorType;
use crate::operation::Operation;
use crate::ops::control_flow::kernel_call::KernelCall;

/// The name by which libtpu knows a kernel.
const TARGET: &str = "tpu_custom_call";

/// The kernel in the place of the expression that computes the same.
pub(super) fn rule(operation: &dyn Operation, _: &[&TensorType]) -> Option<Replacement> {
    let call = operation.downcast::<KernelCall>().filter(|call| call.opaque().target == TARGET)?;
    Some(Replacement::Operation(Arc::new(call.as_custom_call())))
}

#[cfg(test)]
mod tests {
    use fulmen_pjrt::locate::Platform;

    use super::*;
    use crate::internal::{OpaqueCall, kernel_call};
    use crate::passes::tests::{count, texts};
    use crate::{DType, Function};

    #[test]
    fn on_tpus_a_kernel_is_a_call_and_elsewhere_its_expression() -> crate::Result<()> {
        let opaque = OpaqueCall { target: TARGET.into(), config: "{\"a\": 1}".into(), parts: None };
        let function = Function::trace("f", TensorType::new(DType::F32, [4, 8]), |x| {
            kernel_call("sine", &[x], |x| vec![x[0].sin()], opaque)
        });
        let on_tpu = texts(&function, 1, Platform::Tpu, "kernels")?;
        let forms = |text: &str| (count(text, "custom_call @tpu_custom_call"), count(text, "sine"));
        assert_eq!((forms(&on_tpu.with), forms(&on_tpu.without)), ((1, 0), (0, 1)));
        assert!(on_tpu.with.contains("backend_config = \"{\\22a\\22: 1}\""), "{}", on_tpu.with);
        assert_eq!(forms(&texts(&function, 1, Platform::Cpu, "kernels")?.with), (0, 1));
        Ok(())
    }
}
