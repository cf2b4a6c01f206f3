//! The largest elements of rows, for several devices.

use super::Replacement;
use crate::TensorType;
use crate::operation::Operation;
use crate::ops::top_k::TopK;
use crate::region::{Region, parameters};

/// The longest rows that are sorted: those of routers. To sort a vocabulary takes longer than to
/// send a batch of it.
const LONGEST: usize = 1024;

/// The first elements of a sorted row. XLA cannot split `chlo.top_k`: each device receives the rows
/// of all others and selects from all of them, in JAX too. It splits a sort by rows. libtpu splits
/// both.
pub(super) fn as_sort(operation: &dyn Operation, operands: &[&TensorType]) -> Option<Replacement> {
    let top_k = operation.downcast::<TopK>()?;
    let row = operands[0].shape.dims().last().copied()?;
    if row > LONGEST {
        return None;
    }
    let parameters = parameters("topk", "operand", operands.iter().copied());
    let (values, indices) = parameters[0].sort(-1, true);
    let results = vec![values.narrow(-1, 0, top_k.k), indices.narrow(-1, 0, top_k.k)];
    Some(Replacement::Expression(Region { parameters, results }))
}

#[cfg(test)]
mod tests {
    use fulmen_pjrt::locate::Platform;

    use super::*;
    use crate::passes::tests::{count, texts};
    use crate::{DType, Function};

    #[test]
    fn on_several_devices_short_rows_are_sorted() -> crate::Result<()> {
        let sorts = |row: usize, devices: usize, platform: Platform| {
            let rows = TensorType::new(DType::F32, [8, row]);
            let function = Function::trace("f", rows, |x| x.topk(2));
            let texts = texts(&function, devices, platform, "rows-of-top-k")?;
            Ok::<_, crate::Error>((count(&texts.with, "sort"), count(&texts.without, "sort")))
        };
        for platform in [Platform::Cpu, Platform::Cuda] {
            assert_eq!(sorts(64, 4, platform)?, (1, 0));
            assert_eq!(sorts(64, 1, platform)?, (0, 0));
            assert_eq!(sorts(32_000, 4, platform)?, (0, 0));
        }
        assert_eq!(sorts(64, 4, Platform::Tpu)?, (0, 0));
        Ok(())
    }
}
