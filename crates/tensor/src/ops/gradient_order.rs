//! The order of a product's gradients, as a hint to programs for platforms on which it helps
//! (`passes/gradient_order.rs`).

use super::optimization_barrier::hint_computed_after;
use crate::Tensor;
use crate::operation::Vjp;

/// The cotangent `g` of a product without stacks, for the gradient of its left operand: after
/// `of_rhs`, which the right operand's gradient is made of, if that saves memory. `contracting` are
/// the axes of the right operand that the product sums over.
///
/// The right operand is then a weight with no more columns than rows. After its gradient, the
/// activations on the left need no memory; libtpu would put off some of these gradients. The gradient
/// of a weight with more columns, such as that of a language model's logits, needs more memory than
/// it frees.
pub(super) fn after_weight_gradient(
    cx: &Vjp<'_>,
    g: Tensor,
    of_rhs: &Tensor,
    contracting: &[usize],
) -> Tensor {
    let lhs = cx.input(0).shape();
    let rhs = cx.input(1).shape();
    let rows: usize = contracting.iter().map(|&axis| rhs[axis]).product();
    let is_narrow_weight =
        rhs.num_elements() < lhs.num_elements() && rhs.num_elements() <= rows * rows;
    if cx.keeps_activations && cx.needed == [true, true] && is_narrow_weight {
        hint_computed_after(&g, of_rhs)
    } else {
        g
    }
}
