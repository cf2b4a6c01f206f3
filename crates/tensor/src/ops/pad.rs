//! Padding before, after and between the elements of each axis. Negative amounts cut elements off.

use crate::Mesh;
use crate::lower::Lowering;
use crate::operation::{Operation, Vjp, one};
use crate::shape::within_reach;
use crate::whole_axes::WholeAxes;
use crate::{AsTensor, Tensor, TensorType};

#[derive(Debug)]
pub(crate) struct Pad {
    pub(crate) low: Vec<i64>,
    pub(crate) high: Vec<i64>,
    pub(crate) interior: Vec<usize>,
}

impl Operation for Pad {
    fn name(&self) -> &'static str {
        "pad"
    }
    fn infer(&self, inputs: &[&TensorType]) -> Result<Vec<TensorType>, String> {
        let from = inputs[0];
        let value = inputs[1];
        let rank = from.shape.rank();
        if value.shape.rank() != 0 || value.dtype != from.dtype {
            return Err(format!(
                "the padding value must be a scalar of {}, not {value}",
                from.dtype
            ));
        }
        if self.low.len() != rank || self.high.len() != rank || self.interior.len() != rank {
            return Err(format!(
                "low, high and interior must have one entry for each of the {rank} axes of {from}"
            ));
        }
        let mut shape = Vec::with_capacity(rank);
        for (i, &size) in from.shape.iter().enumerate() {
            // This cannot overflow 128 bits.
            let low = self.low[i].into();
            let high = self.high[i].into();
            let interior = self.interior[i] as i128;
            within_reach("low", i, low)?;
            within_reach("high", i, high)?;
            within_reach("interior", i, interior)?;
            let size = size as i128;
            let spread = size + interior * (size - 1).max(0);
            let padded = spread + low + high;
            if padded < 0 {
                return Err(format!(
                    "cutting {} and {} off axis {i} of {} leaves a negative size",
                    -low, -high, from.shape
                ));
            }
            // The compiler adds the interior padding before it cuts.
            within_reach("the spread size", i, spread)?;
            within_reach("the padded size", i, padded)?;
            shape.push(padded as usize);
        }
        one(TensorType::new(from.dtype, shape))
    }
    fn vjp(&self, cx: &Vjp<'_>) -> Vec<Option<Tensor>> {
        let g = cx.cotangent();
        let zero = Tensor::full(g.dtype(), [], 0.0);
        let negative = |v: &[i64]| v.iter().map(|p| -p).collect::<Vec<_>>();
        let uncut = g.pad(&zero, &negative(&self.low), &negative(&self.high), &vec![0; g.rank()]);
        let stride: Vec<usize> = self.interior.iter().map(|i| i + 1).collect();
        let to_operand = uncut.slice(&vec![0; g.rank()], uncut.shape(), &stride);
        let to_value = g.sum_all() - to_operand.sum_all();
        vec![Some(to_operand), Some(to_value)]
    }
    fn check(&self, _: &Mesh, _: &[&TensorType]) -> Result<WholeAxes, String> {
        Ok(WholeAxes::of_both(
            (0..self.low.len()).filter(|&axis| self.interior[axis] > 0).collect(),
        ))
    }
    fn lower(&self, cx: &mut Lowering<'_>) -> String {
        format!(
            "stablehlo.pad {}, low = {:?}, high = {:?}, interior = {:?} : {}",
            cx.operands(),
            self.low,
            self.high,
            self.interior,
            cx.signature()
        )
    }
}

impl Tensor {
    /// Adds `low[i]` copies of the scalar `value` before, `high[i]` after and `interior[i]` between
    /// the elements along each axis `i` (JAX's `lax.pad`). Negative `low` and `high` cut elements
    /// off.
    ///
    /// Poisoned if a list does not have one entry for each axis, if `value` is not a scalar of this
    /// dtype, or if a size becomes negative.
    #[track_caller]
    pub fn pad(
        &self,
        value: impl AsTensor,
        low: &[i64],
        high: &[i64],
        interior: &[usize],
    ) -> Tensor {
        let value = value.as_tensor();
        Tensor::apply(
            Pad { low: low.into(), high: high.into(), interior: interior.into() },
            &[self, value],
        )
    }
}
