//! Fourier transforms of row-major arrays, for several CPUs.

use std::sync::Arc;

use super::Replacement;
use crate::TensorType;
use crate::operation::Operation;
use crate::ops::fft::Fft;

/// The transform of a row-major operand. The CPU's library takes only row-major arrays. XLA gives a
/// transform the layouts of its neighbors, which between devices are often other ones, and the
/// program then fails when it runs, in JAX too.
pub(super) fn rule(operation: &dyn Operation, _: &[&TensorType]) -> Option<Replacement> {
    let transform = operation.downcast::<Fft>()?;
    Some(Replacement::Operation(Arc::new(transform.row_major())))
}

#[cfg(test)]
mod tests {
    use fulmen_pjrt::locate::Platform;

    use super::*;
    use crate::passes::tests::texts;
    use crate::{DType, Function};

    #[test]
    fn on_several_cpus_a_transform_takes_and_gives_row_major_arrays() -> crate::Result<()> {
        let function = Function::trace("f", TensorType::new(DType::C64, [4, 8]), |x| x.fft(-1));
        let layouts = |text: &str| text.matches("@LayoutConstraint").count();
        let several = texts(&function, 4, Platform::Cpu, "fourier-layouts")?;
        assert_eq!((layouts(&several.with), layouts(&several.without)), (2, 0));
        assert_eq!(layouts(&texts(&function, 1, Platform::Cpu, "fourier-layouts")?.with), 0);
        assert_eq!(layouts(&texts(&function, 4, Platform::Tpu, "fourier-layouts")?.with), 0);
        Ok(())
    }
}
