//! Adds the values that a step logs to the vector, on the device.

use fulmen_tensor::{DType, Tensor};

use crate::logs::index_faults;
use crate::logs::layout::{LogLayout, NONE, Rule, SumKind};
use crate::logs::log_entry::{LogEntry, LoggedValue};
use crate::logs::{MonitoredValue, OptimizerFacts, StepFacts};
use crate::rules::weight;
use crate::{Batch, ReduceFx};

impl LogLayout {
    /// The vector after a step: `sums_before` plus the values that the step logged. `facts` is
    /// `None` for an evaluation. Adds the checks of the step's indices.
    pub(crate) fn accumulate(
        &mut self,
        sums_before: &Tensor,
        logged: &[LogEntry],
        batch: &Batch,
        facts: Option<&StepFacts<'_>>,
    ) -> Tensor {
        let words = |start: usize, length: usize| sums_before.narrow(0, start, length);
        let bits =
            |value: &Tensor| value.to_dtype(DType::F32).bitcast(DType::I32).broadcast_to([1]);
        let mut parts: Vec<Tensor> = (0..self.header_len()).map(|i| words(i, 1)).collect();
        let mut first = parts[0].ne(&parts[0]);
        let mut not_finite = Vec::new();
        if let Some(StepFacts { losses, step, optimizers }) = facts {
            let anomalies =
                self.anomalies.as_ref().map(|anomalies| anomalies.has_anomaly().clone());
            let infinite = losses.iter().map(|loss| loss.is_finite().not()).chain(anomalies);
            not_finite.extend(infinite);
            first = any(&not_finite).map_or(first, |bad| parts[0].eq(0.0).and(bad));
            parts[0] = first.select(&(*step + 1.0), &parts[0]);
            let mut monitored_index = 1 + 2 * self.optimizers.len();
            for (
                i,
                OptimizerFacts { learning_rate, grad_norm, monitored, steps_now, has_group_values },
            ) in optimizers.iter().enumerate()
            {
                let mut put = |index: usize, value: &Tensor, belongs_to_group: bool| {
                    let new = if value.dtype().is_float() {
                        bits(value)
                    } else {
                        value.broadcast_to([1])
                    };
                    let when = steps_now
                        .iter()
                        .chain(has_group_values.iter().filter(|_| belongs_to_group))
                        .cloned()
                        .reduce(|all, one| all.and(one));
                    parts[index] =
                        when.map_or(new.clone(), |when| when.select(&new, &parts[index]));
                };
                put(1 + 2 * i, learning_rate, false);
                if let Some(norm) = grad_norm {
                    put(2 + 2 * i, norm, true);
                }
                for MonitoredValue { value, belongs_to_group, .. } in monitored {
                    put(monitored_index, value, *belongs_to_group);
                    monitored_index += 1;
                }
            }
        }

        let logged = logged.iter().filter(|entry| !matches!(entry.value, LoggedValue::Media(..)));
        let mut values = Vec::new();
        for (entry, logged) in self.entries.iter().zip(logged) {
            let taken = logged.branch.as_ref().map(|branch| &branch.taken);
            let sums = entry.sums.iter().zip(batch_sums(logged, batch));
            values.extend(sums.map(|(sum, value)| (sum, value, &entry.rule, taken)));
        }
        let joined = |kind: SumKind| {
            let of_kind =
                values.iter().filter(|(sum, ..)| sum.kind == kind).map(|(_, value, ..)| value);
            let flat: Vec<Tensor> =
                of_kind.map(|sum| sum.reshape([sum.shape().iter().product::<usize>()])).collect();
            Tensor::concatenate(&flat, 0)
        };
        if self.floats > 0 {
            let float = |i: usize| {
                words(self.header_len() + i * self.floats, self.floats).bitcast(DType::F32)
            };
            let sum = float(0);
            let lost = float(1);
            let x = joined(SumKind::Float);
            // Knuth's two-sum: the rounding error of a floating-point sum is itself a float.
            let total = &sum + &x;
            let part = &total - &sum;
            let error = (&sum - (&total - &part)) + (&x - &part);
            let finite_error = error.is_finite().select(&error, &error.zeros_like());
            parts.extend([total, lost + finite_error].map(|part| part.bitcast(DType::I32)));
        }
        if self.counters > 0 {
            let start = self.header_len() + 2 * self.floats;
            let low = words(start, self.counters).bitcast(DType::U32);
            let high = words(start + self.counters, self.counters);
            let total = &low + joined(SumKind::Counter).bitcast(DType::U32);
            let carry = total.lt(&low).to_dtype(DType::I32);
            parts.extend([total.bitcast(DType::I32), high + carry]);
        }
        let latest = values.iter().filter(|(sum, ..)| sum.kind == SumKind::Latest);
        for (i, (_, value, rule, taken)) in latest.enumerate() {
            let bits = words(self.latest_start() + i, 1);
            let before = bits.bitcast(DType::F32);
            let value = value.broadcast_to([1]);
            let reduced = match rule {
                Rule::Reduce(ReduceFx::Min) => before.minimum(&value),
                Rule::Reduce(ReduceFx::Max) => before.maximum(&value),
                _ => value.clone(),
            };
            let after = bits.eq(f64::from(NONE)).select(&value, &reduced).bitcast(DType::I32);
            parts.push(taken.map_or(after.clone(), |taken| taken.select(&after, &bits)));
        }
        let values: Vec<Tensor> = values.iter().map(|(_, value, ..)| value.clone()).collect();
        let before = words(self.index_words_start(), index_faults::WORDS);
        let checked = [&parts[..], &values[..]].concat();
        if facts.is_none() {
            // In an evaluation, any logged value counts.
            not_finite.extend(values.iter().filter_map(has_not_finite));
        }
        let found = self.check_indices(&checked, any(&not_finite), batch);
        parts.push(LogLayout::index_words(&before, found, facts));
        if let Some(anomalies) = &self.anomalies {
            let levels = words(self.len() - self.levels(), self.levels());
            parts.push(first.broadcast_to([self.levels()]).select(anomalies.levels(), &levels));
        }
        Tensor::concatenate(&parts, 0)
    }
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
