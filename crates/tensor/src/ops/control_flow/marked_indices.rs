//! Finds the marks of indices that an expression depends on, in its bodies too.

use std::fmt;

use super::branches::Branch;
use super::cond::cond;
use super::scan::Loop;
use crate::graph::{value_id, visit};
use crate::index_checks::{IndexCheck, IndexFacts, WORDS, marked_rule};
use crate::operation::Operation;
use crate::scope::Scope;
use crate::tensor::Kind;
use crate::{DType, Tensor};

/// The marked indices that some values depend on.
///
/// ```
/// use fulmen_tensor::internal::{IndexChecks, IndexRule, check_indices};
/// use fulmen_tensor::{Scope, Tensor};
///
/// let _scope = Scope::open();
/// let targets = Tensor::from_slice(&[0i32, 2], [2]) + 1.0;
/// let rule = IndexRule::below("cross_entropy", "a target", 3, "there are 3 classes");
/// let marked = check_indices(&targets, rule).map_err(|_| "a fault")?;
/// let checks = IndexChecks::find(&[marked * 2.0]);
/// let words = checks.first(&Tensor::scalar(false)).ok_or("no mark")?.eval()?.to_vec::<i32>()?;
/// let facts = checks.facts();
/// assert_eq!(words, [facts[0].id, 1, 3, 0]);
/// assert_eq!(facts[0].rule.message(3), "a target is 3, but there are 3 classes");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct IndexChecks(Vec<IndexCheck>);

impl IndexChecks {
    /// Finds the marks that `results` depend on.
    #[track_caller]
    pub fn find(results: &[Tensor]) -> IndexChecks {
        let _scope = Scope::open();
        IndexChecks(find(results))
    }

    /// What messages say about each check.
    pub fn facts(&self) -> Vec<IndexFacts> {
        self.0.iter().map(|check| check.facts().clone()).collect()
    }

    /// The first check with an invalid index, as i32 `[4]`: its id, or 0 if all indices are valid;
    /// the row-major position of the index; the low and the high word of its value. `None` if there
    /// are no checks. `not_finite`, a boolean scalar, is whether a result is NaN or infinite.
    ///
    /// Checks that need a NaN are in a branch, which runs if there is one. The others are not: on a
    /// CPU, a branch takes longer than the few numbers that a check computes.
    #[track_caller]
    pub fn first(&self, not_finite: &Tensor) -> Option<Tensor> {
        let _scope = Scope::open();
        let (waiting, strict): (Vec<_>, Vec<_>) =
            self.0.iter().partition(|check| check.facts().rule.needs_nan);
        let strict = first_words(&strict);
        let waits = (!waiting.is_empty()).then(|| {
            let words = || first_words(&waiting).into_iter().collect();
            let none = || vec![Tensor::zeros(DType::I32, [WORDS])];
            cond(not_finite, &[] as &[Tensor], |_| words(), |_| none()).remove(0)
        });
        strict.into_iter().chain(waits).reduce(|first, next| first_of(&first, &next))
    }
}

/// The [words](IndexCheck::words) of the first check with an invalid index.
fn first_words(checks: &[&IndexCheck]) -> Option<Tensor> {
    checks.iter().map(|check| check.words()).reduce(|first, next| first_of(&first, &next))
}

/// `first` if it describes an invalid index, else `next`.
fn first_of(first: &Tensor, next: &Tensor) -> Tensor {
    first.narrow(0, 0, 1).ne(0.0).select(first, next)
}

impl fmt::Debug for IndexChecks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|check| check.facts())).finish()
    }
}

/// The checks of the marks that `results` are computed from.
pub(super) fn find(results: &[Tensor]) -> Vec<IndexCheck> {
    let mut checks = Vec::new();
    visit(results, |node| {
        let Kind::Operation(operation) = &node.kind else { return };
        if let Some(rule) = marked_rule(operation.as_ref()) {
            checks.push(IndexCheck::new(rule, &node.inputs[0], node.location));
            return;
        }
        let Some(body) = operation.body() else {
            checks.extend(in_bodies(operation.as_ref(), &node.inputs));
            return;
        };
        let found = find(&body.results);
        if found.is_empty() {
            return;
        }
        let replacements =
            body.parameters.iter().map(value_id).zip(node.inputs.iter().cloned()).collect();
        checks.extend(found.iter().map(|check| check.substituted(&replacements)));
    });
    checks
}

/// The checks within the bodies that an operation with these operands runs.
fn in_bodies(operation: &dyn Operation, operands: &[Tensor]) -> Vec<IndexCheck> {
    if let Some(branch) = operation.downcast::<Branch>() {
        branch.index_checks(operands)
    } else if let Some(scan) = operation.downcast::<Loop>() {
        scan.checks_of_steps(operands)
    } else {
        Vec::new()
    }
}
