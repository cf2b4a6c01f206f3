//! The loss by the kernel of `fulmen_kernels`.

use fulmen_kernels::LinearCrossEntropy;
use fulmen_tensor::{Refusal, Tensor};

use super::LinearCrossEntropyLoss;
use crate::axes::axis_parts;
use crate::loss::classes::Classes;
use crate::loss::cross_entropy::{class_weight, mean_by};
use crate::precision::product_dtype;

impl LinearCrossEntropyLoss {
    /// [`LossMethod::Kernel`](super::LossMethod::Kernel), of at least one position.
    pub(super) fn by_kernel(
        &self,
        x: &Tensor,
        weight: &Tensor,
        target: &Tensor,
    ) -> Result<Tensor, Refusal> {
        if let Some(what) = self.kernel_lacks() {
            let message =
                format!("the loss by `kernel` does not take {what}; use the method `chunks`");
            return Err(message.into());
        }
        let classes = weight.size(0);
        let ignored = self.loss.ignore_index;
        let target = Classes::check("linear_cross_entropy", target, classes, ignored)?;
        let product = product_dtype(x.dtype(), weight.dtype())?;
        let shape = target.shape().dims();
        // The devices that share the batch each compute the kernel for their part of it.
        let parts = axis_parts("batch");
        let is_shared = shape.len() > 1 && shape[0].is_multiple_of(parts);
        let groups = if is_shared { parts } else { 1 };
        let tokens = target.shape().num_elements() / groups;
        let sums = LinearCrossEntropy::new().softcap(self.softcap).forward(
            x.to_dtype(product).reshape([groups, tokens, x.size(-1)]),
            weight.to_dtype(product),
            target.reshape([groups, tokens]),
        );
        let [log_sum, of_target, sum] =
            [sums.log_sum_exp, sums.of_target, sums.sum].map(|sum| sum.reshape(shape));
        let logits = Tensor::zeros(log_sum.dtype(), [shape, &[classes]].concat());
        let class_weight = class_weight(self.loss.weight.as_ref(), classes, &logits)?;
        let targets = Classes::of(&target, classes, ignored);
        let known = [&log_sum, &of_target, &(sum / classes as f64)];
        let losses = self.loss.losses_of(known, &targets, class_weight.as_ref());
        mean_by(self.loss.reduction, &targets, &losses, class_weight.as_ref())
    }
}
