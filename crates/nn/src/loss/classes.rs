//! Targets that are class indices: which are valid, which are ignored, and the values at them.

use fulmen_tensor::internal::{IndexRule, check_indices};
use fulmen_tensor::{DType, Refusal, Tensor};

/// Targets `[samples]` for values `[samples, classes]`.
pub(super) struct Classes {
    one_hot: Tensor,
    /// True if the target is ignored.
    pub(super) ignored: Option<Tensor>,
    /// True if the target is a class or ignored.
    sound: Tensor,
}

impl Classes {
    /// A target that is neither a class nor ignored is an error of `loss`, where the host knows it.
    pub(super) fn new(
        loss: &str,
        target: &Tensor,
        classes: usize,
        ignore_index: Option<i64>,
    ) -> Result<Classes, Refusal> {
        let target = Classes::check(loss, target, classes, ignore_index)?;
        Ok(Classes::of(&target, classes, ignore_index))
    }

    /// The same targets, marked, so that a training step reports one that is neither a class nor
    /// ignored. An error of `loss` if the host knows such a target.
    pub(super) fn check(
        loss: &str,
        target: &Tensor,
        classes: usize,
        ignore_index: Option<i64>,
    ) -> Result<Tensor, Refusal> {
        let reason = format!("there are {classes} classes");
        let rule = IndexRule::below(loss, "a target", classes, reason);
        check_indices(target, IndexRule { ignored: ignore_index, ..rule })
    }

    /// Targets that are checked already.
    pub(super) fn of(target: &Tensor, classes: usize, ignore_index: Option<i64>) -> Classes {
        // A short integer type cannot represent the number of classes; converting a long one may
        // lose its high bits. So the range is checked in i64 unless i32 holds all values.
        let wide = match target.dtype() {
            DType::U32 | DType::I64 | DType::U64 => DType::I64,
            _ => DType::I32,
        };
        let index = target.to_dtype(wide);
        let right = index.ge(0.0).and(index.lt(classes as f64));
        let one_hot =
            right.select(&index, &index.zeros_like()).to_dtype(DType::I32).one_hot(classes);
        // An index outside the targets' type ignores nothing, and must not wrap to a valid one.
        let is_representable = |i: &i64| wide == DType::I64 || i32::try_from(*i).is_ok();
        let ignored = ignore_index
            .filter(is_representable)
            .map(|i| index.eq(Tensor::scalar(i).to_dtype(wide)));
        let sound = match &ignored {
            Some(ignored) => right.or(ignored),
            None => right,
        };
        Classes { one_hot, ignored, sound }
    }

    /// The value `[samples]` at each target.
    pub(super) fn pick(&self, values: &Tensor) -> Tensor {
        // Not a sum of products: 0 · −∞, for an impossible class, would be NaN.
        self.one_hot.select(values, &Tensor::zeros(values.dtype(), [])).sum(-1)
    }

    /// Losses `[samples]` with 0 for ignored targets and NaN for invalid ones.
    pub(super) fn masked_losses(&self, losses: &Tensor) -> Tensor {
        // Multiplied by NaN, so that the gradient is NaN too.
        let ones = losses.ones_like();
        let losses = losses * self.sound.select(&ones, &(&ones * f64::NAN));
        match &self.ignored {
            Some(ignored) => ignored.select(&losses.zeros_like(), &losses),
            None => losses,
        }
    }

    /// The weight of each sample in a mean: the weight of its class, or 0 if the sample is ignored.
    /// `None` if all weights are equal.
    pub(super) fn counts(&self, weight: Option<&Tensor>, dtype: DType) -> Option<Tensor> {
        let counts = match weight {
            Some(weight) => self.pick(weight),
            None => self.ignored.as_ref()?.not().to_dtype(dtype),
        };
        Some(match &self.ignored {
            Some(ignored) => ignored.select(&counts.zeros_like(), &counts),
            None => counts,
        })
    }
}
