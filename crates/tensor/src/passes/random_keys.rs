//! Random keys that are computed once.

use std::sync::Arc;

use super::Replacement;
use crate::TensorType;
use crate::operation::Operation;
use crate::ops::threefry::Threefry2x32;

/// The hash of a key's words, behind a barrier. XLA's CPU compiler would compute the words of a
/// derived key again for each use, in time exponential in the number of rounds.
pub(super) fn rule(operation: &dyn Operation, operands: &[&TensorType]) -> Option<Replacement> {
    operation.downcast::<Threefry2x32>()?;
    let words = operands[1];
    let once = || Replacement::Operation(Arc::new(Threefry2x32 { is_computed_once: true }));
    (words.shape.rank() == 1).then(once)
}

#[cfg(test)]
mod tests {
    use fulmen_pjrt::locate::Platform;

    use crate::passes::tests::{count, text, texts};
    use crate::{DType, Function, Tensor, TensorType, random};

    #[test]
    fn on_cpus_a_derived_key_is_computed_once() -> crate::Result<()> {
        let ty = TensorType::new(DType::U32, [2]);
        let numbers = Tensor::from_slice(&[7u32, 8], [2]);
        let function = Function::trace("f", ty, |x| random::fold_in_each(&x, &numbers));
        let texts = texts(&function, 1, Platform::Cpu, "random-keys")?;
        assert_eq!(count(&texts.with, "optimization_barrier"), 1, "{}", texts.with);
        assert_eq!(count(&texts.without, "optimization_barrier"), 0);
        assert_eq!(count(&text(&function, Some(Platform::Tpu))?, "optimization_barrier"), 0);
        assert_eq!(count(&text(&function, None)?, "optimization_barrier"), 1);
        Ok(())
    }
}
