//! Indices that are out of range, on the device and on the host: the words in the vector of logged
//! values, and the message.

use fulmen_tensor::internal::{IndexChecks, IndexFacts, place};
use fulmen_tensor::{DType, Shape, Tensor};

use super::StepFacts;
use super::layout::LogLayout;
use crate::Batch;

/// The number of words: the batches so far, where steps are not counted otherwise; the step or
/// batch of the first invalid index, or 0; the id of its check; its row-major position; its low and
/// high word.
pub(super) const WORDS: usize = 6;

/// A check of a step's indices, for messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CheckedIndices {
    pub(super) facts: IndexFacts,
    /// The number of rows of the batch.
    pub(super) rows: usize,
}

/// An index that is out of range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct IndexFault {
    /// The step, or the batch of an evaluation, counted from 1.
    pub(crate) step: u64,
    /// The function and its line, and what is wrong.
    pub(crate) mistake: String,
    /// The row of the batch, and the position in the row.
    pub(crate) place: Option<String>,
}

impl IndexFault {
    /// The message. `step` says what is counted, such as `step` or `validation batch`.
    pub(crate) fn message(&self, step: &str) -> String {
        let place = self.place.as_ref().map_or(String::new(), |place| format!(", {place}"));
        format!("{} ({step} {}{place})", self.mistake, self.step)
    }
}

impl CheckedIndices {
    /// Where the index at this row-major position is. A tensor of all tokens of the batch counts as
    /// its rows.
    fn place(&self, position: usize) -> Option<String> {
        let shape = &self.facts.shape;
        let rows = self.rows;
        let elements = shape.num_elements();
        match shape.dims() {
            [] => None,
            [first, ..] if *first == rows => place(shape, position),
            _ if rows > 0 && elements.is_multiple_of(rows) => {
                place(&Shape::from([rows, elements / rows]), position)
            }
            _ => Some(format!("element {position} of {shape}")),
        }
    }
}

impl LogLayout {
    /// The first invalid index that `results` depend on, for [`LogLayout::index_words`]. Adds the
    /// checks of the step. `not_finite` is whether a loss or a logged value is NaN or infinite.
    pub(super) fn check_indices(
        &mut self,
        results: &[Tensor],
        not_finite: Option<Tensor>,
        batch: &Batch,
    ) -> Option<Tensor> {
        let checks = IndexChecks::find(results);
        let rows = batch.size();
        self.add_checks(checks.facts().into_iter().map(|facts| CheckedIndices { facts, rows }));
        checks.first(&not_finite.unwrap_or_else(|| Tensor::scalar(false)))
    }

    /// The words after a step. `found` describes the step's first invalid index, if it checks
    /// indices.
    pub(super) fn index_words(
        before: &Tensor,
        found: Option<Tensor>,
        facts: Option<&StepFacts<'_>>,
    ) -> Tensor {
        let Some(found) = found else { return before.clone() };
        let word = |i: usize| before.narrow(0, i, 1);
        let batches = match facts {
            Some(_) => word(0),
            None => word(0) + 1.0,
        };
        let step = match facts {
            Some(facts) => (facts.step + 1.0).to_dtype(DType::I32).reshape([1]),
            None => batches.clone(),
        };
        let is_first = word(1).eq(0.0).and(found.narrow(0, 0, 1).ne(0.0));
        let new = Tensor::concatenate(&[&step, &found], 0);
        let fault = is_first.select(&new, &before.narrow(0, 1, WORDS - 1));
        Tensor::concatenate(&[&batches, &fault], 0)
    }

    /// Reads the words on the host.
    pub(super) fn read_index_words(&self, words: &[i32]) -> Option<IndexFault> {
        let &[_, step, id, position, low, high] = words else { return None };
        let step = u64::try_from(step).ok().filter(|&step| step > 0)?;
        let value = (i64::from(high) << 32) | i64::from(low as u32);
        let check = self.checks.iter().find(|check| check.facts.id == id)?;
        let IndexFacts { rule, location, .. } = &check.facts;
        let file = location.file();
        let line = location.line();
        Some(IndexFault {
            step,
            mistake: format!("{} at {file}:{line}: {}", rule.operation, rule.message(value)),
            place: usize::try_from(position).ok().and_then(|position| check.place(position)),
        })
    }

    /// Adds the checks of a step on batches of another shape.
    pub(crate) fn merge_checks(&mut self, other: &LogLayout) {
        self.add_checks(other.checks.iter().cloned());
    }

    /// Adds the checks of a step.
    pub(super) fn add_checks(&mut self, checks: impl IntoIterator<Item = CheckedIndices>) {
        for check in checks {
            if !self.checks.contains(&check) {
                self.checks.push(check);
            }
        }
    }
}
