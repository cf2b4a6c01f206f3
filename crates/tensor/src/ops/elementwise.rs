//! Which operations are elementwise.

use super::clamp::Clamp;
use super::classify::IsFinite;
use super::compare::Compare;
use super::convert::Convert;
use crate::operation::{Operation, RecomputePolicy};

/// Whether each element of the result depends only on the operands' elements at its position. All
/// operands have the shape of the result.
pub(crate) fn is_elementwise(operation: &dyn Operation) -> bool {
    operation.recompute_policy() == RecomputePolicy::IfCheap
        || operation.downcast::<Clamp>().is_some()
        || operation.downcast::<Compare>().is_some()
        || operation.downcast::<Convert>().is_some()
        || operation.downcast::<IsFinite>().is_some()
}
