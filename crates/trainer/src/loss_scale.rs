//! The loss scale of f16: small gradients vanish in 16 bits, so the loss is multiplied before it is differentiated, and
//! the gradients are divided afterwards. The factor is part of the training state; a step whose gradients overflowed
//! changes no parameter and halves it, and many good steps double it (PyTorch's `GradScaler`, with its numbers).

use fulmen_tensor::{DType, Tensor};

/// The scale, f32, and the number of good steps since it changed, i32, with their first values.
pub(crate) fn entries() -> Vec<(String, Tensor)> {
    vec![
        ("trainer/loss_scale".to_owned(), Tensor::full(DType::F32, [], 65536.0)),
        ("trainer/good_steps".to_owned(), Tensor::zeros(DType::I32, [])),
    ]
}

/// Good steps after which the scale doubles.
const GROWTH_INTERVAL: f64 = 2000.0;

/// The scale as a step finds it.
pub(crate) struct LossScale<'a> {
    pub(crate) scale: &'a Tensor,
    pub(crate) good_steps: &'a Tensor,
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

    /// The scale and the number of good steps for the next step.
    pub(crate) fn next(&self, finite: &Tensor) -> [Tensor; 2] {
        let good = self.good_steps + 1.0;
        let grows = good.ge(GROWTH_INTERVAL);
        let grown = grows.select(&(self.scale * 2.0), self.scale);
        let scale = finite.select(&grown, &(self.scale * 0.5));
        let zero = good.zeros_like();
        [scale, finite.select(&grows.select(&zero, &good), &zero)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scale_halves_after_an_overflow_and_doubles_after_many_good_steps() {
        let check = |good: i32, gradient: f32| {
            let (scale, good_steps) = (Tensor::scalar(1024.0f32), Tensor::scalar(good));
            let state = LossScale { scale: &scale, good_steps: &good_steps };
            let finite = state.all_finite(&[Tensor::scalar(1.0f32), Tensor::from_slice(&[0.0, gradient], [2])]);
            let [scale, good] = state.next(&finite);
            (scale.eval().unwrap().to_vec::<f32>().unwrap()[0], good.eval().unwrap().to_vec::<i32>().unwrap()[0])
        };
        assert_eq!(check(5, 1.0), (1024.0, 6));
        assert_eq!(check(1999, 1.0), (2048.0, 0));
        assert_eq!(check(5, f32::INFINITY), (512.0, 0));
        assert_eq!(check(1999, f32::NAN), (512.0, 0));
    }
}
