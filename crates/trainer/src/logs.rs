//! Logged values on the device: sums in one small tensor that goes through every step and is read as one.
//!
//! It is an `i32` vector. Counters are exact in it: 64 bits, in two words. Floats lie in it by their bits, each sum beside
//! what rounding has lost of it, so that an epoch of many steps is as exact as its steps. Which sums a metric needs, and
//! what is made of them, is the metric's own affair (`fulmen_nn::metrics`).

use std::sync::Arc;

use fulmen_nn::metrics::{Metric, Value};
use fulmen_tensor::{DType, Literal, Tensor, TensorType};

use crate::module::{Logged, LoggedValue};
use crate::{Batch, Error, Result};

/// Where in the vector what stands, for one kind of step.
#[derive(Clone, Debug, Default)]
pub(crate) struct LogLayout {
    entries: Vec<Entry>,
    /// Elements of all sums that are floats, and of all that are counters.
    floats: usize,
    counters: usize,
    /// The names of the optimizers of a training step; that of a single one is empty.
    optimizers: Vec<String>,
    /// The names of other numbers of the latest step, and whether each is a counter.
    latest: Vec<(String, bool)>,
}

/// A logged value.
#[derive(Clone, Debug)]
struct Entry {
    name: String,
    /// The name, with the settings of a metric: sums of different metrics do not add up.
    key: String,
    /// `None` for a mean, whose sums are the sum and the number of samples.
    metric: Option<Arc<dyn Metric>>,
    sums: Vec<Sum>,
}

#[derive(Clone, Copy, Debug)]
struct Sum {
    counter: bool,
    len: usize,
}

// The vector starts with the number (from 1) of the first step whose loss was not finite (0: none), for each optimizer the
// latest learning rate and the latest length of the gradients, and other numbers of the latest step, or NONE; then come the
// sums of floats, what they have lost, and the lower and the higher words of counters.

/// Stands for a number that there is not: as a float a NaN that no computation gives.
const NONE: i32 = -1;

/// The name that the learning rate is logged under.
pub(crate) const LEARNING_RATE: &str = "lr";
/// The name that the length of the gradients is logged under, if it is asked for.
pub(crate) const GRAD_NORM: &str = "grad_norm";

/// The name of a value that each of several optimizers has; a single one has no name.
pub(crate) fn of_optimizer(value: &str, optimizer: &str) -> String {
    if optimizer.is_empty() { value.to_owned() } else { format!("{value}-{optimizer}") }
}

/// As [`of_optimizer`], where a value may be that of a group of parameters, `NAME/GROUP`.
pub(crate) fn of_group(value: &str, optimizer: &str) -> String {
    match value.split_once('/') {
        Some((value, group)) => format!("{}/{group}", of_optimizer(value, optimizer)),
        None => of_optimizer(value, optimizer),
    }
}

/// What is logged of a training step besides what the user logs.
pub(crate) struct StepFacts<'a> {
    pub(crate) losses: &'a [&'a Tensor],
    /// The number of steps before it.
    pub(crate) step: &'a Tensor,
    pub(crate) optimizers: Vec<&'a OptimizerFacts>,
}

/// What is logged of an optimizer.
pub(crate) struct OptimizerFacts {
    /// What it stepped with.
    pub(crate) learning_rate: Tensor,
    /// The length of the gradients.
    pub(crate) grad_norm: Option<Tensor>,
    /// What callbacks have logged of it.
    pub(crate) latest: Vec<Latest>,
    /// Whether this is one of its steps, a boolean scalar, where it skips some.
    pub(crate) turn: Option<Tensor>,
    /// Whether a group of batches ends here, a boolean scalar, where there are groups.
    pub(crate) due: Option<Tensor>,
}

/// A number of the latest step that a callback has logged.
pub(crate) struct Latest {
    pub(crate) name: String,
    /// A scalar: a float, or an i32 counter.
    pub(crate) value: Tensor,
    /// Whether it is one of a group of batches, and there only where one ends.
    pub(crate) of_group: bool,
    /// The callback.
    pub(crate) asked_by: &'static str,
}

/// Values by name: those of one number, and those of several.
pub(crate) type Values = (Vec<(String, f64)>, Vec<(String, Value)>);

/// What was read of the vector.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Sums {
    /// The first step, counted from 1, whose loss was not finite.
    pub(crate) bad_step: Option<u64>,
    /// For each optimizer the learning rate and the length of the gradients in its latest step, where there are any.
    pub(crate) optimizers: Vec<[Option<f64>; 2]>,
    /// Other numbers of the latest step, where there are any.
    pub(crate) latest: Vec<Option<f64>>,
    /// For each key the elements of its sums.
    pub(crate) sums: Vec<(String, Vec<Vec<f64>>)>,
}

impl Sums {
    /// The learning rate of the latest step; of several optimizers that of the first.
    pub(crate) fn learning_rate(&self) -> f64 {
        self.optimizers.first().and_then(|[rate, _]| *rate).unwrap_or_default()
    }

    /// Adds the sums of a later stretch of steps.
    pub(crate) fn add(&mut self, later: &Sums) {
        self.bad_step = self.bad_step.or(later.bad_step);
        self.optimizers.resize(later.optimizers.len().max(self.optimizers.len()), [None; 2]);
        for (mine, later) in self.optimizers.iter_mut().flatten().zip(later.optimizers.iter().flatten()) {
            *mine = later.or(*mine);
        }
        for (key, sums) in &later.sums {
            match self.sums.iter_mut().find(|mine| mine.0 == *key) {
                Some(mine) => {
                    mine.1.iter_mut().flatten().zip(sums.iter().flatten()).for_each(|(mine, sum)| *mine += sum)
                }
                None => self.sums.push((key.clone(), sums.clone())),
            }
        }
    }
}

impl LogLayout {
    /// The layout of these logged values.
    ///
    /// # Errors
    /// A poisoned value, a name given twice, a value that is neither a scalar nor one a sample, or a scalar or a metric
    /// that ignores padding.
    pub(crate) fn new(logged: &[Logged], batch: &Batch) -> Result<LogLayout> {
        let mut layout = LogLayout::default();
        for (i, entry) in logged.iter().enumerate() {
            let at =
                |problem: String| Error::usage(format!("log `{}`: {problem}\n  at {}", entry.name, entry.location));
            entry.value.check()?;
            if logged[..i].iter().any(|earlier| earlier.name == entry.name) {
                return Err(at("this name was logged before in the same step; choose another".into()));
            }
            if ["epoch", "step"].contains(&entry.name.as_str()) {
                return Err(at("this name is that of a value which is logged by itself; choose another".into()));
            }
            check_padding(entry, batch).map_err(at)?;
            let sums = sums(entry, batch);
            for sum in &sums {
                sum.check()?;
            }
            let sums: Vec<Sum> = sums
                .iter()
                .map(|sum| Sum { counter: !sum.dtype().is_float(), len: sum.shape().iter().product() })
                .collect();
            for sum in &sums {
                *(if sum.counter { &mut layout.counters } else { &mut layout.floats }) += sum.len;
            }
            let (key, metric) = match &entry.value {
                LoggedValue::Mean(_) => (entry.name.clone(), None),
                LoggedValue::Metric(statistics) => {
                    let metric = statistics.metric().clone();
                    (format!("{} {metric:?}", entry.name), Some(metric))
                }
            };
            layout.entries.push(Entry { name: entry.name.clone(), key, metric, sums });
        }
        Ok(layout)
    }

    /// As [`LogLayout::new`], of a training step with optimizers of these names, and what is logged of them. `grad_norm`
    /// says whether the length of the gradients is logged too.
    ///
    /// # Errors
    /// A name that the user logs too.
    pub(crate) fn of_training(
        logged: &[Logged],
        batch: &Batch,
        optimizers: (Vec<String>, &[&OptimizerFacts]),
        grad_norm: bool,
    ) -> Result<LogLayout> {
        let (optimizers, facts) = optimizers;
        let layout = LogLayout { optimizers, ..LogLayout::new(logged, batch)? };
        let some = [Some(0.0), grad_norm.then_some(0.0)];
        let own = layout.of_optimizers(&Sums { optimizers: vec![some; layout.optimizers.len()], ..Sums::default() });
        let own = own
            .iter()
            .map(|(name, _)| (name.as_str(), "this name is that of a value which is logged by itself".into()));
        let latest = || facts.iter().flat_map(|facts| &facts.latest);
        let asked = latest().map(|l| (l.name.as_str(), format!("{} logs a value of this name", l.asked_by)));
        for (name, why) in own.chain(asked) {
            if let Some(entry) = logged.iter().find(|entry| entry.name == name) {
                let message = format!("log `{name}`: {why}; choose another\n  at {}", entry.location);
                return Err(Error::usage(message));
            }
        }
        let latest = latest().map(|latest| (latest.name.clone(), !latest.value.dtype().is_float())).collect();
        Ok(LogLayout { latest, ..layout })
    }

    /// What stands in the vector, in words: vectors with the same words can go on one from the other.
    pub(crate) fn keys(&self) -> Vec<String> {
        let latest = self.latest.iter().map(|latest| latest.0.clone());
        self.entries.iter().map(|entry| entry.key.clone()).chain(latest).collect()
    }

    /// The names that were logged under.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.iter().map(|entry| entry.name.as_str())
    }

    /// Checks that a step logs the same values for batches of another length.
    pub(crate) fn check_same(&self, other: &LogLayout, step: &str) -> Result<()> {
        match self.keys() == other.keys() && self.ty() == other.ty() {
            true => Ok(()),
            false => Err(Error::usage(format!(
                "{step} logs [{}] for batches of one length and [{}] for those of another; what it logs must not depend on \
                 the length",
                self.keys().join(", "),
                other.keys().join(", ")
            ))),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// The elements before the sums.
    fn head(&self) -> usize {
        1 + 2 * self.optimizers.len() + self.latest.len()
    }

    fn len(&self) -> usize {
        self.head() + 2 * (self.floats + self.counters)
    }

    pub(crate) fn ty(&self) -> TensorType {
        TensorType::new(DType::I32, [self.len()])
    }

    /// The vector before the first step.
    pub(crate) fn start(&self) -> Result<Literal> {
        let mut words = vec![0; self.len()];
        words[1..self.head()].fill(NONE);
        Ok(Literal::from_slice(&words, [self.len()])?)
    }

    /// The vector after a step: `so_far` plus what the step logged. An evaluation has no facts.
    pub(crate) fn accumulate(
        &self,
        so_far: &Tensor,
        logged: &[Logged],
        batch: &Batch,
        facts: Option<&StepFacts<'_>>,
    ) -> Tensor {
        let words = |start: usize, length: usize| so_far.narrow(0, start, length);
        let bits = |value: &Tensor| value.to_dtype(DType::F32).bitcast(DType::I32).broadcast_to([1]);
        let mut parts: Vec<Tensor> = (0..self.head()).map(|i| words(i, 1)).collect();
        if let Some(StepFacts { losses, step, optimizers }) = facts {
            let finite = losses.iter().map(|loss| loss.is_finite()).reduce(|all, one| all.and(one));
            let first = finite.map(|finite| parts[0].eq(0.0).and(finite.not()));
            parts[0] = first.map_or(parts[0].clone(), |first| first.select(&(*step + 1.0), &parts[0]));
            let mut at_latest = 1 + 2 * self.optimizers.len();
            for (i, OptimizerFacts { learning_rate, grad_norm, latest, turn, due }) in optimizers.iter().enumerate() {
                let mut put = |at: usize, value: &Tensor, of_group: bool| {
                    let new = if value.dtype().is_float() { bits(value) } else { value.broadcast_to([1]) };
                    let when =
                        turn.iter().chain(due.iter().filter(|_| of_group)).cloned().reduce(|turn, due| turn.and(due));
                    parts[at] = when.map_or(new.clone(), |when| when.select(&new, &parts[at]));
                };
                put(1 + 2 * i, learning_rate, false);
                if let Some(norm) = grad_norm {
                    put(2 + 2 * i, norm, true);
                }
                for Latest { value, of_group, .. } in latest {
                    put(at_latest, value, *of_group);
                    at_latest += 1;
                }
            }
        }

        let sums: Vec<Tensor> = logged.iter().flat_map(|entry| sums(entry, batch)).collect();
        let joined = |counters: bool| {
            let of_kind = sums.iter().filter(|sum| sum.dtype().is_float() != counters);
            let flat: Vec<Tensor> = of_kind.map(|sum| sum.reshape([sum.shape().iter().product::<usize>()])).collect();
            Tensor::concatenate(&flat.iter().collect::<Vec<_>>(), 0)
        };
        if self.floats > 0 {
            let float = |i: usize| words(self.head() + i * self.floats, self.floats).bitcast(DType::F32);
            let (sum, lost, x) = (float(0), float(1), joined(false));
            // Knuth's sum of two numbers: what rounding loses of it is a float again.
            let total = &sum + &x;
            let part = &total - &sum;
            let loses = (&sum - (&total - &part)) + (&x - &part);
            let loses = loses.is_finite().select(&loses, &loses.zeros_like());
            parts.extend([total, lost + loses].map(|part| part.bitcast(DType::I32)));
        }
        if self.counters > 0 {
            let start = self.head() + 2 * self.floats;
            let (low, high) = (words(start, self.counters), words(start + self.counters, self.counters));
            let low = low.bitcast(DType::U32);
            let total = &low + joined(true).bitcast(DType::U32);
            let carry = total.lt(&low).to_dtype(DType::I32);
            parts.extend([total.bitcast(DType::I32), high + carry]);
        }
        Tensor::concatenate(&parts.iter().collect::<Vec<_>>(), 0)
    }

    /// Checks that sums from a file are those of the values that are logged here. Others are carried along unread.
    pub(crate) fn check(&self, sums: &Sums) -> Result<(), String> {
        for (key, sums) in &sums.sums {
            let Some(entry) = self.entries.iter().find(|entry| entry.key == *key) else { continue };
            if !sums.iter().map(Vec::len).eq(entry.sums.iter().map(|sum| sum.len)) {
                let found: Vec<usize> = sums.iter().map(Vec::len).collect();
                let expected: Vec<usize> = entry.sums.iter().map(|sum| sum.len).collect();
                return Err(format!(
                    "its metadata `epoch_sums` has sums of {found:?} numbers for `{}`, expected {expected:?}",
                    entry.name
                ));
            }
        }
        Ok(())
    }

    /// What the vector says.
    pub(crate) fn read(&self, literal: &Literal) -> Result<Sums> {
        let words = literal.to_vec::<i32>()?;
        if words.len() != self.len() {
            return Err(Error::usage(format!("the logged values are {}, expected {}", literal.ty(), self.ty())));
        }
        let float = |i: usize| f64::from(f32::from_bits(words[i] as u32));
        let (mut at_float, mut at_counter) = (self.head(), self.head() + 2 * self.floats);
        let mut take = |sum: &Sum| -> Vec<f64> {
            let (at, apart) = if sum.counter { (&mut at_counter, self.counters) } else { (&mut at_float, self.floats) };
            let from = *at;
            *at += sum.len;
            (from..from + sum.len)
                .map(|i| match sum.counter {
                    true => (words[i + apart] as u32 as f64) * 2f64.powi(32) + f64::from(words[i] as u32),
                    false => float(i) + float(i + apart),
                })
                .collect()
        };
        let sums = self.entries.iter().map(|entry| (entry.key.clone(), entry.sums.iter().map(&mut take).collect()));
        let sums = sums.collect();
        let bad_step = u64::try_from(words[0]).ok().filter(|&step| step > 0);
        let latest = |i: usize| (words[i] != NONE).then(|| float(i));
        let optimizers: Vec<_> = (0..self.optimizers.len()).map(|i| [latest(1 + 2 * i), latest(2 + 2 * i)]).collect();
        let first = 1 + 2 * optimizers.len();
        let latest = self.latest.iter().zip(first..).map(|((_, counter), i)| match counter {
            true => (words[i] != NONE).then(|| f64::from(words[i])),
            false => latest(i),
        });
        Ok(Sums { bad_step, optimizers, latest: latest.collect(), sums })
    }

    /// The names of all losses, for messages; `loss` is that of the one that the step returns.
    pub(crate) fn losses(&self, loss: &str) -> String {
        let others = self.optimizers.iter().filter(|name| !name.is_empty()).map(|name| of_optimizer("loss", name));
        let others = others.filter(|other| self.names().any(|name| name == other && name != loss));
        [loss.to_owned()].into_iter().chain(others).map(|name| format!("`{name}`")).collect::<Vec<_>>().join(" or ")
    }

    /// Names and values of what is logged of each optimizer.
    pub(crate) fn of_optimizers(&self, sums: &Sums) -> Vec<(String, f64)> {
        let mut values = vec![];
        for (name, [rate, norm]) in self.optimizers.iter().zip(&sums.optimizers) {
            values.extend(rate.map(|rate| (of_optimizer(LEARNING_RATE, name), rate)));
            values.extend(norm.map(|norm| (of_optimizer(GRAD_NORM, name), norm)));
        }
        let latest = self.latest.iter().zip(&sums.latest);
        values.extend(latest.filter_map(|((name, _), value)| Some((name.clone(), (*value)?))));
        values
    }

    /// Names, each followed by `suffix`, and what is made of the sums. A name without samples has no value.
    pub(crate) fn values(&self, sums: &Sums, suffix: &str) -> Values {
        let (mut numbers, mut arrays) = (vec![], vec![]);
        for entry in &self.entries {
            let Some((_, sums)) = sums.sums.iter().find(|(key, _)| *key == entry.key) else { continue };
            let name = format!("{}{suffix}", entry.name);
            let value = match (&entry.metric, &sums[..]) {
                (Some(metric), sums) => metric.compute(sums),
                (None, [sum, count]) if count.first().is_some_and(|&count| count > 0.0) => {
                    Value::Scalar(sum.iter().sum::<f64>() / count.iter().sum::<f64>())
                }
                _ => continue,
            };
            match value {
                Value::Scalar(value) => numbers.push((name, value)),
                value => arrays.push((name, value)),
            }
        }
        (numbers, arrays)
    }
}

/// Whether padding is left out of a logged value, or could be; else what to do.
fn check_padding(entry: &Logged, batch: &Batch) -> Result<(), String> {
    match &entry.value {
        LoggedValue::Mean(value) => {
            let ty = value.ty();
            let per_sample = ty.shape.dims() == [batch.size()];
            if ty.shape.rank() != 0 && !per_sample {
                return Err(format!("the value is {ty}; log a scalar or one value a sample, [{}]", batch.size()));
            }
            if !per_sample && batch.is_padded() && !value.depends_on(batch.mask()) {
                return Err("the last batch is padded, and this scalar does not depend on the batch's mask, so \
                            padding would count as samples; log the values a sample, [batch], or use batch.mean()"
                    .into());
            }
        }
        LoggedValue::Metric(statistics) => {
            let samples = statistics.samples();
            if batch.is_padded() && samples.first() != Some(&batch.size()) && !statistics.mask_depends_on(batch.mask())
            {
                return Err(format!(
                    "the last batch is padded, and the metric's samples {samples:?} are not its {} rows, so padding would \
                     count as samples; give it what has the batch axis first, or a mask made of batch.mask()",
                    batch.size()
                ));
            }
        }
    }
    Ok(())
}

/// The sums of a logged value over the real samples of a batch.
pub(crate) fn sums(entry: &Logged, batch: &Batch) -> Vec<Tensor> {
    if let Some(sums) = &entry.sums {
        return sums.clone();
    }
    match &entry.value {
        LoggedValue::Mean(value) => {
            let count = batch.mask().sum_all();
            let sum = match value.rank() {
                0 => value.to_dtype(DType::F32) * &count,
                _ => batch.sum_and_count(value).0,
            };
            vec![sum, count.to_dtype(DType::I32)]
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
