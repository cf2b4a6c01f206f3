//! The loss scale of f16: small gradients vanish in 16 bits, so the loss is multiplied before it is differentiated, and
//! the gradients are divided afterwards. The factor is part of the training state; a step whose gradients overflowed
//! changes no parameter, is none for the optimizer and halves it, and many good steps double it (PyTorch's `GradScaler`,
//! with its numbers; the factor stays between 2⁻²⁴ and 2²⁴).

use std::collections::BTreeMap;

use fulmen_tensor::{DType, Literal, Tensor};

use crate::Result;
use crate::setting::Setting;
use crate::state::STEP;

/// The scale before the first step.
const FIRST: f32 = 65536.0;
const SCALE: &str = "trainer/loss_scale";
const GOOD_STEPS: &str = "trainer/good_steps";
const UPDATES: &str = "trainer/updates";

/// The scale, f32, and the numbers of good steps since it changed and of all good steps, i32, with their first values.
pub(crate) fn entries() -> Vec<(String, Tensor)> {
    let zero = || Tensor::zeros(DType::I32, []);
    vec![(SCALE.to_owned(), Tensor::scalar(FIRST)), (GOOD_STEPS.to_owned(), zero()), (UPDATES.to_owned(), zero())]
}

/// Makes the state of a run that was saved in another precision fit this one: without a loss scale it has none, and with
/// one it begins anew.
pub(crate) fn adapt(tensors: &mut BTreeMap<String, Literal>, setting: &Setting) -> Result<()> {
    let names = [SCALE, GOOD_STEPS, UPDATES];
    if !setting.precision.scales_loss() {
        names.iter().for_each(|&name| drop(tensors.remove(name)));
    } else if !tensors.contains_key(SCALE) {
        let steps = tensors.get(STEP).map_or(0, |step| step.to_f64().first().map_or(0, |&step| step as i32));
        tensors.insert(SCALE.to_owned(), Literal::from_slice(&[FIRST], [])?);
        tensors.insert(GOOD_STEPS.to_owned(), Literal::from_slice(&[0i32], [])?);
        tensors.insert(UPDATES.to_owned(), Literal::from_slice(&[steps], [])?);
    }
    Ok(())
}

/// Good steps after which the scale doubles.
const GROWTH_INTERVAL: f64 = 2000.0;

/// The scale as a step finds it.
pub(crate) struct LossScale<'a> {
    pub(crate) scale: &'a Tensor,
    pub(crate) good_steps: &'a Tensor,
    pub(crate) updates: &'a Tensor,
}

impl LossScale<'_> {
    /// The loss to differentiate.
    pub(crate) fn scaled(&self, loss: &Tensor) -> Tensor {
        loss.to_dtype(DType::F32) * self.scale
    }

    /// A gradient of the scaled loss as one of the loss.
    pub(crate) fn unscaled(&self, gradient: &Tensor) -> Tensor {
        (gradient.to_dtype(DType::F32) / self.scale).to_dtype(gradient.dtype())
    }

    /// Whether no gradient overflowed: a boolean scalar.
    pub(crate) fn all_finite(&self, gradients: &[Tensor]) -> Tensor {
        // Zero times what is finite is zero; times the rest it is NaN.
        let zeros = gradients.iter().map(|gradient| (gradient.to_dtype(DType::F32) * 0.0).sum_all());
        zeros.fold(Tensor::full(DType::F32, [], 0.0), |sum, zero| sum + zero).eq(0.0)
    }

    /// The entries for the next step, in their order.
    pub(crate) fn next(&self, finite: &Tensor) -> [Tensor; 3] {
        let good = self.good_steps + 1.0;
        let grows = good.ge(GROWTH_INTERVAL);
        let grown = grows.select(&(self.scale * 2.0), self.scale);
        let (least, most) = (2f64.powi(-24), 2f64.powi(24));
        let scale = finite.select(&grown, &(self.scale * 0.5)).maximum(least).minimum(most);
        let zero = good.zeros_like();
        let updates = finite.select(&(self.updates + 1.0), self.updates);
        [scale, finite.select(&grows.select(&zero, &good), &zero), updates]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scale_halves_after_an_overflow_and_doubles_after_many_good_steps() {
        let check = |good: i32, gradient: f32| {
            let (scale, good_steps, updates) = (Tensor::scalar(1024.0f32), Tensor::scalar(good), Tensor::scalar(7i32));
            let state = LossScale { scale: &scale, good_steps: &good_steps, updates: &updates };
            let finite = state.all_finite(&[Tensor::scalar(1.0f32), Tensor::from_slice(&[0.0, gradient], [2])]);
            let [scale, good, updates] = state.next(&finite);
            let integer = |t: Tensor| t.eval().unwrap().to_vec::<i32>().unwrap()[0];
            (scale.eval().unwrap().to_vec::<f32>().unwrap()[0], integer(good), integer(updates))
        };
        assert_eq!(check(5, 1.0), (1024.0, 6, 8));
        assert_eq!(check(1999, 1.0), (2048.0, 0, 8));
        assert_eq!(check(5, f32::INFINITY), (512.0, 0, 7));
        assert_eq!(check(1999, f32::NAN), (512.0, 0, 7));
    }
}
