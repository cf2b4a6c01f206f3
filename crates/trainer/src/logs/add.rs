//! Adds the values that a step logs to the vector, on the device.

use fulmen_tensor::{DType, Tensor};

use crate::logs::index_faults;
use crate::logs::layout::{LogLayout, NONE, Rule, SumKind};
use crate::logs::log_entry::{LogEntry, LoggedValue};
use crate::logs::{MonitoredValue, StepFacts};
use crate::rules::weight;
use crate::{Batch, ReduceFx};

/// A tensor of a step that the vector sums, or keeps.
struct StepValue<'a> {
    kind: SumKind,
    value: Tensor,
    rule: &'a Rule,
    /// Whether the branch was taken that computes it, if one does.
    taken: Option<&'a Tensor>,
}

/// The words before the sums.
struct Header {
    words: Vec<Tensor>,
    /// Whether losses and other values are NaN or infinite.
    not_finite: Vec<Tensor>,
    /// Whether the step is the first that is not finite, if that is known.
    is_first: Option<Tensor>,
}

impl LogLayout {
    /// The vector after a step: `before` plus the values that the step logged. `facts` is `None`
    /// for an evaluation. Adds the checks of the step's indices.
    pub(crate) fn add_step(
        &mut self,
        before: &Tensor,
        logged: &[LogEntry],
        batch: &Batch,
        facts: Option<&StepFacts<'_>>,
    ) -> Tensor {
        let Header { words: mut parts, mut not_finite, is_first } = self.add_header(before, facts);
        let logged = logged.iter().filter(|entry| !matches!(entry.value, LoggedValue::Media(..)));
        let mut values = Vec::new();
        for (entry, logged) in self.entries.iter().zip(logged) {
            let taken = logged.branch.as_ref().map(|branch| &branch.taken);
            for (sum, value) in entry.sums.iter().zip(batch_sums(logged, batch)) {
                values.push(StepValue { kind: sum.kind, value, rule: &entry.rule, taken });
            }
        }
        parts.extend(self.add_floats(before, &values));
        parts.extend(self.add_counters(before, &values));
        parts.extend(self.replace_latest(before, &values));
        let values: Vec<Tensor> = values.into_iter().map(|value| value.value).collect();
        let index_words = before.narrow(0, self.index_words_start(), index_faults::WORDS);
        let checked = [&parts[..], &values[..]].concat();
        if facts.is_none() {
            // In an evaluation, any logged value counts.
            not_finite.extend(values.iter().filter_map(has_not_finite));
        }
        let found = self.check_indices(&checked, any(&not_finite), batch);
        parts.push(LogLayout::index_words(&index_words, found, facts));
        if let Some(anomalies) = &self.anomalies {
            let levels = before.narrow(0, self.len() - self.levels(), self.levels());
            parts.push(match is_first {
                Some(first) => {
                    first.broadcast_to([self.levels()]).select(anomalies.levels(), &levels)
                }
                None => levels,
            });
        }
        Tensor::concatenate(&parts, 0)
    }

    /// The words before the sums, after a step.
    fn add_header(&self, before: &Tensor, facts: Option<&StepFacts<'_>>) -> Header {
        let words = (0..self.header_len()).map(|i| before.narrow(0, i, 1)).collect();
        let mut header = Header { words, not_finite: Vec::new(), is_first: None };
        let Some(StepFacts { losses, step, optimizers }) = facts else { return header };
        let anomalies = self.anomalies.as_ref().map(|anomalies| anomalies.has_anomaly().clone());
        header.not_finite = losses.iter().map(|loss| loss.is_finite().not()).collect();
        header.not_finite.extend(anomalies);
        if let Some(bad) = any(&header.not_finite) {
            let first = header.words[0].eq(0.0).and(bad);
            header.words[0] = first.select(&(*step + 1.0), &header.words[0]);
            header.is_first = Some(first);
        }
        let mut monitored_index = 1 + 2 * self.optimizers.len();
        for (i, facts) in optimizers.iter().enumerate() {
            let mut put = |index: usize, value: &Tensor, belongs_to_step: bool| {
                let new =
                    if value.dtype().is_float() { bits(value) } else { value.broadcast_to([1]) };
                let has_value = facts.has_step_values.iter().filter(|_| belongs_to_step);
                let when = facts.steps_now.iter().chain(has_value).cloned();
                let word = &mut header.words[index];
                *word = match when.reduce(|all, one| all.and(one)) {
                    Some(when) => when.select(&new, &*word),
                    None => new,
                };
            };
            put(1 + 2 * i, &facts.learning_rate, false);
            if let Some(MonitoredValue { value, .. }) = &facts.in_epochs {
                put(2 + 2 * i, value, true);
            }
            for MonitoredValue { value, belongs_to_step, .. } in &facts.monitored {
                put(monitored_index, value, *belongs_to_step);
                monitored_index += 1;
            }
        }
        header
    }

    /// The float sums after a step, and their rounding errors.
    fn add_floats(&self, before: &Tensor, values: &[StepValue<'_>]) -> Vec<Tensor> {
        if self.floats == 0 {
            return Vec::new();
        }
        let float = |i: usize| {
            let start = self.header_len() + i * self.floats;
            before.narrow(0, start, self.floats).bitcast(DType::F32)
        };
        let sum = float(0);
        let lost = float(1);
        let x = joined(values, SumKind::Float);
        // Knuth's two-sum: the rounding error of a floating-point sum is itself a float.
        let total = &sum + &x;
        let part = &total - &sum;
        let error = (&sum - (&total - &part)) + (&x - &part);
        let finite_error = error.is_finite().select(&error, &error.zeros_like());
        [total, lost + finite_error].map(|part| part.bitcast(DType::I32)).into()
    }

    /// The low and the high words of the counters after a step.
    fn add_counters(&self, before: &Tensor, values: &[StepValue<'_>]) -> Vec<Tensor> {
        if self.counters == 0 {
            return Vec::new();
        }
        let start = self.header_len() + 2 * self.floats;
        let low = before.narrow(0, start, self.counters).bitcast(DType::U32);
        let high = before.narrow(0, start + self.counters, self.counters);
        let total = &low + joined(values, SumKind::Counter).bitcast(DType::U32);
        let carry = total.lt(&low).to_dtype(DType::I32);
        vec![total.bitcast(DType::I32), high + carry]
    }

    /// The floats that are not sums, after a step.
    fn replace_latest(&self, before: &Tensor, values: &[StepValue<'_>]) -> Vec<Tensor> {
        let latest = values.iter().filter(|value| value.kind == SumKind::Latest);
        let mut parts = Vec::new();
        for (i, StepValue { value, rule, taken, .. }) in latest.enumerate() {
            let bits = before.narrow(0, self.latest_start() + i, 1);
            let earlier = bits.bitcast(DType::F32);
            let value = value.broadcast_to([1]);
            let reduced = match rule {
                Rule::Reduce(ReduceFx::Min) => earlier.minimum(&value),
                Rule::Reduce(ReduceFx::Max) => earlier.maximum(&value),
                _ => value.clone(),
            };
            let after = bits.eq(f64::from(NONE)).select(&value, &reduced).bitcast(DType::I32);
            parts.push(taken.map_or(after.clone(), |taken| taken.select(&after, &bits)));
        }
        parts
    }
}

/// A scalar as a word of the vector.
fn bits(value: &Tensor) -> Tensor {
    value.to_dtype(DType::F32).bitcast(DType::I32).broadcast_to([1])
}

/// The elements of all values of a kind.
fn joined(values: &[StepValue<'_>], kind: SumKind) -> Tensor {
    let of_kind = values.iter().filter(|value| value.kind == kind);
    let flat: Vec<Tensor> =
        of_kind.map(|value| value.value.reshape([value.value.shape().num_elements()])).collect();
    Tensor::concatenate(&flat, 0)
}

/// Whether an element is NaN or infinite, a boolean scalar. `None` for integers.
fn has_not_finite(value: &Tensor) -> Option<Tensor> {
    let axes: Vec<isize> = (0..value.rank() as isize).collect();
    value.dtype().is_float().then(|| value.is_finite().not().any(&axes))
}

/// Whether one of these boolean scalars is true. `None` if there are none.
fn any(conditions: &[Tensor]) -> Option<Tensor> {
    conditions.iter().cloned().reduce(|all, one| all.or(one))
}

/// The sums of a logged value over the real samples of a batch. A mean that brings its weight has
/// the sum and the weight, both floats.
pub(crate) fn batch_sums(entry: &LogEntry, batch: &Batch) -> Vec<Tensor> {
    if let Some(branch) = &entry.branch {
        return branch.sums.clone();
    }
    match &entry.value {
        LoggedValue::Media(..) => Vec::new(),
        LoggedValue::Value(value) => {
            let value = value.to_dtype(DType::F32);
            let scalar = value.rank() == 0;
            match entry.reduce_fx() {
                ReduceFx::Mean => {
                    if let Some(weight) = weight::of_logged(&value).filter(|_| scalar) {
                        return vec![weight::weighted(&value, &weight), weight];
                    }
                    let count = batch.mask().sum_all();
                    let sum = if scalar { value * &count } else { batch.sum_and_count(&value).0 };
                    vec![sum, count.to_dtype(DType::I32)]
                }
                _ if scalar => vec![value],
                ReduceFx::Sum => vec![batch.sum_and_count(&value).0],
                ReduceFx::Last => vec![batch.mean(&value)],
                fx => {
                    let neutral =
                        if fx == ReduceFx::Min { f64::INFINITY } else { f64::NEG_INFINITY };
                    let real = batch.mask().gt(0.0).select(&value, &(value.zeros_like() + neutral));
                    vec![if fx == ReduceFx::Min { real.min(0) } else { real.max(0) }]
                }
            }
        }
        LoggedValue::Metric(statistics) => {
            if batch.is_padded() && statistics.samples().first() == Some(&batch.size()) {
                statistics.clone().masked(batch.mask()).tensors()
            } else {
                statistics.tensors()
            }
        }
    }
}
