//! Logged values on the device: sums in one small vector that passes through every step and is read
//! as one tensor.
//!
//! The vector has dtype `i32`. Counters are exact: 64 bits, in two words. Floats are stored as
//! bits. Each sum has its rounding error next to it, so the sums of a long epoch stay exact. Each
//! metric in `fulmen_nn::metrics` defines its own sums and computes its value from them.

pub(crate) mod logged;
pub(crate) mod media;

use std::sync::Arc;

use fulmen_nn::metrics::{Metric, Value};
use fulmen_tensor::{Anomalies, DType, Literal, Tensor, TensorType, cond};

use crate::logs::logged::{Logged, LoggedValue, refused};
use crate::logs::media::MediaKind;
use crate::stage::Stage;
use crate::{Batch, Error, LogPoint, Media, ReduceFx, Result, Sink};

/// The position of each value in the vector, for one kind of step.
#[derive(Clone, Debug, Default)]
pub(crate) struct LogLayout {
    entries: Vec<Entry>,
    /// The number of elements of all float sums, of all counters, and of all others.
    floats: usize,
    counters: usize,
    latest: usize,
    /// The names of a training step's optimizers. The name of a single one is empty.
    optimizers: Vec<String>,
    /// The names of the monitored numbers of the latest step, and whether each is a counter.
    monitored: Vec<(String, bool)>,
    /// Traces where NaN and infinity come from, if asked for. The vector ends with the levels of
    /// the first step that is not finite.
    anomalies: Option<Arc<Anomalies>>,
    /// The media that the step returns at log points, next to the vector.
    media: Vec<(String, MediaKind)>,
}

/// A logged value.
#[derive(Clone, Debug)]
struct Entry {
    name: String,
    /// The name with its reduction or the metric's settings. Sums with different keys cannot be
    /// added.
    key: String,
    rule: Rule,
    sums: Vec<Sum>,
    on_step: bool,
    on_epoch: bool,
    /// The sinks that do not show it.
    hidden: Vec<Sink>,
}

/// How to compute a value from its sums. A mean has two: the sum and the number of samples.
#[derive(Clone, Debug)]
enum Rule {
    Reduce(ReduceFx),
    Metric(Arc<dyn Metric>),
}

impl Rule {
    /// Combines an element of two consecutive ranges of steps.
    fn join(&self, earlier: f64, later: f64) -> f64 {
        match self {
            Rule::Reduce(ReduceFx::Last) => later,
            Rule::Reduce(ReduceFx::Min | ReduceFx::Max) if earlier.is_nan() || later.is_nan() => {
                f64::NAN
            }
            Rule::Reduce(ReduceFx::Min) => earlier.min(later),
            Rule::Reduce(ReduceFx::Max) => earlier.max(later),
            Rule::Reduce(ReduceFx::Mean | ReduceFx::Sum) | Rule::Metric(_) => earlier + later,
        }
    }
}

#[derive(Clone, Copy, Debug)]
struct Sum {
    kind: Kind,
    len: usize,
}

/// How the vector stores an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Float,
    Counter,
    /// A float that is not a sum: a minimum, a maximum or the latest value.
    Latest,
}

/// The range of steps whose values are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogRange<'a> {
    /// The steps since the last log point.
    Steps,
    /// A training epoch, or the finished part of it.
    Epoch,
    /// A pass over a loader that does not train, with the suffix for the names.
    Pass(&'a str),
}

// The vector starts with the number (from 1) of the first step whose loss was not finite (0: none).
// Then come, for each optimizer, its latest learning rate and gradient norm, and the latest values
// that callbacks monitor, or NONE. Then come the float sums, their rounding errors, the low and the
// high words of counters, other floats, or NONE, and the levels that trace NaN.

/// Stands for a missing number. As a float, it is a NaN that no computation returns.
const NONE: i32 = -1;

/// The name of the logged learning rate.
pub(crate) const LEARNING_RATE: &str = "lr";
/// The name of the logged gradient norm, if asked for.
pub(crate) const GRAD_NORM: &str = "grad_norm";

/// The name of a value of one optimizer: `VALUE-OPTIMIZER`, or `VALUE` if the optimizer has no
/// name.
pub(crate) fn of_optimizer(value: &str, optimizer: &str) -> String {
    if optimizer.is_empty() { value.to_owned() } else { format!("{value}-{optimizer}") }
}

/// Like [`of_optimizer`], for values that may belong to a group of parameters, `NAME/GROUP`.
pub(crate) fn of_group(value: &str, optimizer: &str) -> String {
    match value.split_once('/') {
        Some((value, group)) => format!("{}/{group}", of_optimizer(value, optimizer)),
        None => of_optimizer(value, optimizer),
    }
}

/// The values that the Trainer logs for a training step.
pub(crate) struct StepFacts<'a> {
    pub(crate) losses: &'a [&'a Tensor],
    /// The number of steps before it.
    pub(crate) step: &'a Tensor,
    pub(crate) optimizers: Vec<&'a OptimizerFacts>,
}

/// The values that the Trainer logs for one optimizer.
pub(crate) struct OptimizerFacts {
    /// The learning rate of its step.
    pub(crate) learning_rate: Tensor,
    /// The norm of the gradients.
    pub(crate) grad_norm: Option<Tensor>,
    /// The numbers that callbacks monitor.
    pub(crate) monitored: Vec<Monitored>,
    /// Whether the optimizer steps in this step, a boolean scalar, if it skips some.
    pub(crate) steps_now: Option<Tensor>,
    /// Whether the values of a group of batches exist in this step, a boolean scalar: at the end of
    /// a group, or at the log point of a step. `None` if they exist in each step.
    pub(crate) has_group_values: Option<Tensor>,
}

/// A number of the latest step that a callback monitors.
pub(crate) struct Monitored {
    pub(crate) name: String,
    /// A scalar: a float, or an i32 counter.
    pub(crate) value: Tensor,
    /// Whether the number belongs to a group of batches or to the step of a log point, and exists
    /// only where one ends.
    pub(crate) of_group: bool,
    /// The name of the callback.
    pub(crate) asked_by: &'static str,
}

/// The host's copy of the vector.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Sums {
    /// The first step, counted from 1, whose loss was not finite.
    pub(crate) bad_step: Option<u64>,
    /// The operation that made it so, if traced.
    pub(crate) anomaly: Option<String>,
    /// For each optimizer, the learning rate and the gradient norm of its latest step, if any.
    pub(crate) optimizers: Vec<[Option<f64>; 2]>,
    /// The latest values that callbacks monitor, if any.
    pub(crate) monitored: Vec<Option<f64>>,
    /// The elements of the sums of each key.
    pub(crate) sums: Vec<(String, Vec<Vec<f64>>)>,
}

impl Sums {
    /// The learning rate of the latest step. With several optimizers, the learning rate of the
    /// first one.
    pub(crate) fn learning_rate(&self) -> f64 {
        self.optimizers.first().and_then(|[rate, _]| *rate).unwrap_or_default()
    }
}

impl LogLayout {
    /// The layout of the values logged by a step of this stage. `None` is a training step.
    ///
    /// # Errors
    /// A poisoned value, a name used twice, options that make no sense, a shape that cannot be
    /// logged, or a scalar or metric that ignores padding.
    pub(crate) fn new(logged: &[Logged], batch: &Batch, stage: Option<Stage>) -> Result<LogLayout> {
        let mut layout = LogLayout::default();
        for (i, entry) in logged.iter().enumerate() {
            entry.value.check()?;
            if logged[..i].iter().any(|earlier| earlier.name == entry.name) {
                return Err(refused(
                    entry,
                    "this name was logged before in the same step; choose another",
                ));
            }
            if ["epoch", "step"].contains(&entry.name.as_str()) {
                let message =
                    "this name belongs to a value that the Trainer logs itself; choose another";
                return Err(refused(entry, message));
            }
            entry.check_choices(stage).map_err(|problem| refused(entry, problem))?;
            check_value(entry, batch).map_err(|problem| refused(entry, problem))?;
            let (name, fx) = (entry.name.clone(), entry.reduce_fx());
            let (key, rule) = match &entry.value {
                LoggedValue::Media(_, kind) => {
                    layout.media.push((name, kind.clone()));
                    continue;
                }
                LoggedValue::Metric(statistics) => (
                    format!("{name} {:?}", statistics.metric()),
                    Rule::Metric(statistics.metric().clone()),
                ),
                LoggedValue::Value(_) if fx == ReduceFx::Mean => (name.clone(), Rule::Reduce(fx)),
                LoggedValue::Value(_) => (format!("{name} {fx:?}"), Rule::Reduce(fx)),
            };
            let sums = sums(entry, batch);
            for sum in &sums {
                sum.check()?;
            }
            let kind = |sum: &Tensor| match &rule {
                Rule::Reduce(ReduceFx::Min | ReduceFx::Max | ReduceFx::Last) => Kind::Latest,
                _ if sum.dtype().is_float() => Kind::Float,
                _ => Kind::Counter,
            };
            let sums =
                sums.iter().map(|sum| Sum { kind: kind(sum), len: sum.shape().iter().product() });
            let sums: Vec<Sum> = sums.collect();
            for sum in &sums {
                *match sum.kind {
                    Kind::Float => &mut layout.floats,
                    Kind::Counter => &mut layout.counters,
                    Kind::Latest => &mut layout.latest,
                } += sum.len;
            }
            let hidden = [(entry.prog_bar, Sink::ProgressBar), (entry.logger, Sink::Logger)];
            let hidden = hidden.into_iter().filter(|sink| !sink.0).map(|sink| sink.1).collect();
            let (on_step, on_epoch) = (entry.on_step(), entry.on_epoch());
            layout.entries.push(Entry { name, key, rule, sums, on_step, on_epoch, hidden });
        }
        Ok(layout)
    }

    /// Like [`LogLayout::new`], for a training step with these optimizers and the values that the
    /// Trainer logs for them. `grad_norm` says whether the gradient norm is logged too.
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
        let layout = LogLayout { optimizers, ..LogLayout::new(logged, batch, None)? };
        let some = [Some(0.0), grad_norm.then_some(0.0)];
        let reserved = layout.of_optimizers(&Sums {
            optimizers: vec![some; layout.optimizers.len()],
            ..Sums::default()
        });
        let message = "this name belongs to a value that the Trainer logs itself";
        let reserved = reserved.iter().map(|(name, _)| (name.as_str(), message.to_owned()));
        let monitored = || facts.iter().flat_map(|facts| &facts.monitored);
        let requested = monitored()
            .map(|m| (m.name.as_str(), format!("{} logs a value of this name", m.asked_by)));
        for (name, why) in reserved.chain(requested) {
            if let Some(entry) = logged.iter().find(|entry| entry.name == name) {
                return Err(refused(entry, format!("{why}; choose another")));
            }
        }
        let monitored =
            monitored().map(|m| (m.name.clone(), !m.value.dtype().is_float())).collect();
        Ok(LogLayout { monitored, ..layout })
    }

    /// Adds the words that trace NaN and infinity.
    pub(crate) fn with_anomalies(self, anomalies: Option<Anomalies>) -> LogLayout {
        LogLayout { anomalies: anomalies.map(Arc::new), ..self }
    }

    /// The number of words that trace NaN.
    fn levels(&self) -> usize {
        self.anomalies.as_ref().map_or(0, |anomalies| anomalies.levels().size(0))
    }

    /// The vector's layout as text. Vectors with the same text can continue each other.
    pub(crate) fn keys(&self) -> Vec<String> {
        let monitored = self.monitored.iter().map(|monitored| monitored.0.clone());
        self.entries.iter().map(|entry| entry.key.clone()).chain(monitored).collect()
    }

    /// The names of all logged values.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.entries
            .iter()
            .map(|entry| &entry.name)
            .chain(self.media.iter().map(|media| &media.0))
            .map(String::as_str)
    }

    /// Checks that a step logs the same values in two cases that differ in `varying`.
    pub(crate) fn check_same(&self, other: &LogLayout, step: &str, varying: &str) -> Result<()> {
        let keys = |layout: &LogLayout| -> Vec<String> {
            let media = layout.media.iter().map(|(name, kind)| format!("{name} {kind:?}"));
            layout.keys().into_iter().chain(media).collect()
        };
        if keys(self) == keys(other) && self.ty() == other.ty() {
            return Ok(());
        }
        Err(Error::usage(format!(
            "{step} logs [{}] in one case and [{}] in another; what it logs must not depend on the {varying}",
            self.keys().join(", "),
            other.keys().join(", ")
        )))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.media.is_empty()
    }

    /// The number of elements before the sums.
    fn head(&self) -> usize {
        1 + 2 * self.optimizers.len() + self.monitored.len()
    }

    /// The index of the first float that is not a sum.
    fn latest_start(&self) -> usize {
        self.head() + 2 * (self.floats + self.counters)
    }

    fn len(&self) -> usize {
        self.latest_start() + self.latest + self.levels()
    }

    pub(crate) fn ty(&self) -> TensorType {
        TensorType::new(DType::I32, [self.len()])
    }

    /// The vector before the first step.
    pub(crate) fn start(&self) -> Result<Literal> {
        let mut words = vec![0; self.len()];
        words[1..self.head()].fill(NONE);
        words[self.latest_start()..][..self.latest].fill(NONE);
        Ok(Literal::from_slice(&words, [self.len()])?)
    }

    /// The vector after a step: `so_far` plus the values that the step logged. An evaluation has no
    /// facts.
    pub(crate) fn accumulate(
        &self,
        so_far: &Tensor,
        logged: &[Logged],
        batch: &Batch,
        facts: Option<&StepFacts<'_>>,
    ) -> Tensor {
        let words = |start: usize, length: usize| so_far.narrow(0, start, length);
        let bits =
            |value: &Tensor| value.to_dtype(DType::F32).bitcast(DType::I32).broadcast_to([1]);
        let mut parts: Vec<Tensor> = (0..self.head()).map(|i| words(i, 1)).collect();
        let mut first = parts[0].ne(&parts[0]);
        if let Some(StepFacts { losses, step, optimizers }) = facts {
            let anomalies =
                self.anomalies.as_ref().map(|anomalies| anomalies.has_anomaly().clone());
            let infinite = losses.iter().map(|loss| loss.is_finite().not()).chain(anomalies);
            first = infinite
                .reduce(|all, one| all.or(one))
                .map_or(first, |bad| parts[0].eq(0.0).and(bad));
            parts[0] = first.select(&(*step + 1.0), &parts[0]);
            let mut monitored_index = 1 + 2 * self.optimizers.len();
            for (
                i,
                OptimizerFacts { learning_rate, grad_norm, monitored, steps_now, has_group_values },
            ) in optimizers.iter().enumerate()
            {
                let mut put = |index: usize, value: &Tensor, of_group: bool| {
                    let new = if value.dtype().is_float() {
                        bits(value)
                    } else {
                        value.broadcast_to([1])
                    };
                    let when = steps_now
                        .iter()
                        .chain(has_group_values.iter().filter(|_| of_group))
                        .cloned()
                        .reduce(|all, one| all.and(one));
                    parts[index] =
                        when.map_or(new.clone(), |when| when.select(&new, &parts[index]));
                };
                put(1 + 2 * i, learning_rate, false);
                if let Some(norm) = grad_norm {
                    put(2 + 2 * i, norm, true);
                }
                for Monitored { value, of_group, .. } in monitored {
                    put(monitored_index, value, *of_group);
                    monitored_index += 1;
                }
            }
        }

        let logged = logged.iter().filter(|entry| !matches!(entry.value, LoggedValue::Media(..)));
        let mut values = Vec::new();
        for (entry, logged) in self.entries.iter().zip(logged) {
            let taken = logged.branch.as_ref().map(|branch| &branch.taken);
            let sums = entry.sums.iter().zip(sums(logged, batch));
            values.extend(sums.map(|(sum, value)| (sum, value, &entry.rule, taken)));
        }
        let joined = |kind: Kind| {
            let of_kind =
                values.iter().filter(|(sum, ..)| sum.kind == kind).map(|(_, value, ..)| value);
            let flat: Vec<Tensor> =
                of_kind.map(|sum| sum.reshape([sum.shape().iter().product::<usize>()])).collect();
            Tensor::concatenate(&flat.iter().collect::<Vec<_>>(), 0)
        };
        if self.floats > 0 {
            let float =
                |i: usize| words(self.head() + i * self.floats, self.floats).bitcast(DType::F32);
            let (sum, lost, x) = (float(0), float(1), joined(Kind::Float));
            // Knuth's two-sum: the rounding error of a sum is a float again.
            let total = &sum + &x;
            let part = &total - &sum;
            let error = (&sum - (&total - &part)) + (&x - &part);
            let error = error.is_finite().select(&error, &error.zeros_like());
            parts.extend([total, lost + error].map(|part| part.bitcast(DType::I32)));
        }
        if self.counters > 0 {
            let start = self.head() + 2 * self.floats;
            let (low, high) =
                (words(start, self.counters), words(start + self.counters, self.counters));
            let low = low.bitcast(DType::U32);
            let total = &low + joined(Kind::Counter).bitcast(DType::U32);
            let carry = total.lt(&low).to_dtype(DType::I32);
            parts.extend([total.bitcast(DType::I32), high + carry]);
        }
        let latest = values.iter().filter(|(sum, ..)| sum.kind == Kind::Latest);
        for (i, (_, value, rule, taken)) in latest.enumerate() {
            let bits = words(self.latest_start() + i, 1);
            let (before, value) = (bits.bitcast(DType::F32), value.broadcast_to([1]));
            let after = match rule {
                Rule::Reduce(ReduceFx::Min) => before.minimum(&value),
                Rule::Reduce(ReduceFx::Max) => before.maximum(&value),
                _ => value.clone(),
            };
            let after = bits.eq(f64::from(NONE)).select(&value, &after).bitcast(DType::I32);
            parts.push(taken.map_or(after.clone(), |taken| taken.select(&after, &bits)));
        }
        if let Some(anomalies) = &self.anomalies {
            let levels = words(self.len() - self.levels(), self.levels());
            parts.push(first.broadcast_to([self.levels()]).select(anomalies.levels(), &levels));
        }
        Tensor::concatenate(&parts.iter().collect::<Vec<_>>(), 0)
    }

    /// Checks that sums from a file match the values logged here. Other sums are kept unread.
    pub(crate) fn check(&self, sums: &Sums) -> Result<(), String> {
        for (key, sums) in &sums.sums {
            let Some(entry) = self.entries.iter().find(|entry| entry.key == *key) else { continue };
            if !sums.iter().map(Vec::len).eq(entry.sums.iter().map(|sum| sum.len)) {
                let actual: Vec<usize> = sums.iter().map(Vec::len).collect();
                let expected: Vec<usize> = entry.sums.iter().map(|sum| sum.len).collect();
                return Err(format!(
                    "its metadata `epoch_sums` has sums of {actual:?} numbers for `{}`, expected {expected:?}",
                    entry.name
                ));
            }
        }
        Ok(())
    }

    /// Reads the vector on the host.
    pub(crate) fn read(&self, literal: &Literal) -> Result<Sums> {
        let words = literal.to_vec::<i32>()?;
        if words.len() != self.len() {
            return Err(Error::usage(format!(
                "the logged values are {}, expected {}",
                literal.ty(),
                self.ty()
            )));
        }
        let float = |i: usize| f64::from(f32::from_bits(words[i] as u32));
        let (mut float_index, mut counter_index) = (self.head(), self.head() + 2 * self.floats);
        let mut latest_index = self.latest_start();
        // None for a float without a value yet.
        let mut take = |sum: &Sum| -> Option<Vec<f64>> {
            let next = match sum.kind {
                Kind::Float => &mut float_index,
                Kind::Counter => &mut counter_index,
                Kind::Latest => &mut latest_index,
            };
            let start = *next;
            *next += sum.len;
            let number = |i: usize| match sum.kind {
                Kind::Float => Some(float(i) + float(i + self.floats)),
                Kind::Counter => Some(
                    f64::from(words[i + self.counters] as u32) * 2f64.powi(32)
                        + f64::from(words[i] as u32),
                ),
                Kind::Latest => (words[i] != NONE).then(|| float(i)),
            };
            (start..start + sum.len).map(number).collect()
        };
        let mut sums = Vec::new();
        for entry in &self.entries {
            let elements: Vec<Option<Vec<f64>>> = entry.sums.iter().map(&mut take).collect();
            sums.extend(
                elements
                    .into_iter()
                    .collect::<Option<_>>()
                    .map(|elements| (entry.key.clone(), elements)),
            );
        }
        let bad_step = u64::try_from(words[0]).ok().filter(|&step| step > 0);
        let latest = |i: usize| (words[i] != NONE).then(|| float(i));
        let optimizers: Vec<_> =
            (0..self.optimizers.len()).map(|i| [latest(1 + 2 * i), latest(2 + 2 * i)]).collect();
        let monitored =
            self.monitored.iter().zip(1 + 2 * optimizers.len()..).map(|((_, is_counter), i)| {
                if *is_counter {
                    (words[i] != NONE).then(|| f64::from(words[i]))
                } else {
                    latest(i)
                }
            });
        let monitored = monitored.collect();
        let levels = &words[words.len() - self.levels()..];
        let anomaly = self
            .anomalies
            .as_ref()
            .and_then(|anomalies| anomalies.origin(levels))
            .filter(|_| bad_step.is_some());
        Ok(Sums { bad_step, anomaly, optimizers, monitored, sums })
    }

    /// The names of all losses, for messages. `loss` is the name of the step's own loss.
    pub(crate) fn losses(&self, loss: &str) -> String {
        let others = self
            .optimizers
            .iter()
            .filter(|name| !name.is_empty())
            .map(|name| of_optimizer("loss", name));
        let others = others.filter(|other| self.names().any(|name| name == other && name != loss));
        [loss.to_owned()]
            .into_iter()
            .chain(others)
            .map(|name| format!("`{name}`"))
            .collect::<Vec<_>>()
            .join(" or ")
    }

    /// The names and values that the Trainer logs for each optimizer.
    pub(crate) fn of_optimizers(&self, sums: &Sums) -> Vec<(String, f64)> {
        let mut values = Vec::new();
        for (name, [rate, norm]) in self.optimizers.iter().zip(&sums.optimizers) {
            values.extend(rate.map(|rate| (of_optimizer(LEARNING_RATE, name), rate)));
            values.extend(norm.map(|norm| (of_optimizer(GRAD_NORM, name), norm)));
        }
        let monitored = self.monitored.iter().zip(&sums.monitored);
        values.extend(monitored.filter_map(|((name, _), value)| Some((name.clone(), (*value)?))));
        values
    }

    /// Adds the sums of later steps.
    pub(crate) fn add(&self, sums: &mut Sums, later: &Sums) {
        sums.bad_step = sums.bad_step.or(later.bad_step);
        sums.optimizers.resize(later.optimizers.len().max(sums.optimizers.len()), [None; 2]);
        for (total, later) in
            sums.optimizers.iter_mut().flatten().zip(later.optimizers.iter().flatten())
        {
            *total = later.or(*total);
        }
        for (key, later) in &later.sums {
            let Some(entry) = self.entries.iter().find(|entry| entry.key == *key) else { continue };
            match sums.sums.iter_mut().find(|sum| sum.0 == *key) {
                Some((_, totals)) => totals
                    .iter_mut()
                    .flatten()
                    .zip(later.iter().flatten())
                    .for_each(|(total, &later)| *total = entry.rule.join(*total, later)),
                None => sums.sums.push((key.clone(), later.clone())),
            }
        }
    }

    /// Computes the values from the sums, at this epoch and step. A name without samples gets no
    /// value.
    pub(crate) fn point(
        &self,
        sums: &Sums,
        range: LogRange<'_>,
        (epoch, global_step): (u64, u64),
    ) -> LogPoint {
        let mut point = LogPoint { epoch, global_step, ..LogPoint::default() };
        for entry in &self.entries {
            let (logged, suffix) = match range {
                LogRange::Steps => (entry.on_step, ""),
                LogRange::Epoch => (entry.on_epoch, "_epoch"),
                LogRange::Pass(suffix) => (true, suffix),
            };
            let Some((_, sums)) = sums.sums.iter().find(|(key, _)| logged && *key == entry.key)
            else {
                continue;
            };
            let name = format!("{}{suffix}", entry.name);
            let value = match (&entry.rule, &sums[..]) {
                (Rule::Metric(metric), sums) => metric.compute(sums),
                (Rule::Reduce(ReduceFx::Mean), [sum, count])
                    if count.first().is_some_and(|&count| count > 0.0) =>
                {
                    Value::Scalar(sum.iter().sum::<f64>() / count.iter().sum::<f64>())
                }
                (Rule::Reduce(ReduceFx::Mean), _) => continue,
                (Rule::Reduce(_), sums) => Value::Scalar(sums.iter().flatten().sum()),
            };
            point.hidden.extend(entry.hidden.iter().map(|&sink| (name.clone(), sink)));
            match value {
                Value::Scalar(value) => point.metrics.push((name, value)),
                value => point.arrays.push((name, value)),
            }
        }
        point
    }

    /// The values of a pass over a loader, from its part of `read`: the vector, then the media of
    /// its first batch. `suffix` is appended to the names.
    pub(crate) fn pass(
        &self,
        read: &mut &[Literal],
        suffix: &str,
        position: (u64, u64),
    ) -> Result<LogPoint> {
        let (pass, others) = read.split_at_checked(1 + self.media.len()).unwrap_or_default();
        *read = others;
        let (sums, media) = pass
            .split_first()
            .ok_or_else(|| Error::data("the device returned no logged values"))?;
        let mut media = self.media(media)?;
        media.iter_mut().for_each(|(name, _)| name.push_str(suffix));
        Ok(LogPoint { media, ..self.point(&self.read(sums)?, LogRange::Pass(suffix), position) })
    }

    /// Converts the media that a step returned next to the vector.
    pub(crate) fn media(&self, read: &[Literal]) -> Result<Vec<(String, Media)>> {
        self.media
            .iter()
            .zip(read)
            .map(|((name, kind), literal)| Ok((name.clone(), kind.read(literal)?)))
            .collect()
    }
}

/// The media that a step returns to the host. `at` says whether the step is a log point; other
/// steps compute nothing for them. `None` means always.
pub(crate) fn media_outputs(
    logged: &[Logged],
    batch: &Batch,
    at: Option<&Tensor>,
) -> Result<Vec<(String, Tensor)>> {
    let media: Vec<(&Logged, &Tensor, &MediaKind)> = logged
        .iter()
        .filter_map(|entry| match &entry.value {
            LoggedValue::Media(value, kind) => Some((entry, value, kind)),
            _ => None,
        })
        .collect();
    if media.is_empty() {
        return Ok(Vec::new());
    }
    let record =
        || media.iter().map(|(_, value, kind)| kind.record(value, batch)).collect::<Vec<_>>();
    let tensors = match at {
        Some(at) => {
            cond(at, &[], |_| record(), |_| record().iter().map(Tensor::zeros_like).collect())
        }
        None => record(),
    };
    let outputs = media.iter().zip(tensors).map(|((entry, ..), tensor)| {
        tensor.check().map_err(|e| refused(entry, e.to_string()))?;
        Ok((entry.name.clone(), tensor))
    });
    outputs.collect()
}

/// Checks that a value has a shape that can be logged, and that it can leave padding out. The error
/// says what to do.
fn check_value(entry: &Logged, batch: &Batch) -> Result<(), String> {
    match &entry.value {
        LoggedValue::Media(value, kind) => return kind.check(value, batch),
        LoggedValue::Value(value) => {
            let ty = value.ty();
            let per_sample = ty.shape.dims() == [batch.size()];
            if ty.dtype.is_complex() || ty.shape.rank() != 0 && !per_sample {
                return Err(format!(
                    "the value is {ty}; log a scalar or one value per sample, [{}]",
                    batch.size()
                ));
            }
            if !per_sample && batch.is_padded() && !value.depends_on(batch.mask()) {
                return Err("the last batch is padded, and this scalar does not depend on the batch's mask, so \
                            padding would count as samples; log one value per sample, [batch], or use batch.mean()"
                    .into());
            }
        }
        LoggedValue::Metric(statistics) => {
            let samples = statistics.samples();
            if batch.is_padded()
                && samples.first() != Some(&batch.size())
                && !statistics.mask_depends_on(batch.mask())
            {
                return Err(format!(
                    "the last batch is padded, and the metric's samples {samples:?} are not its {} rows, so padding would \
                     count as samples; update it with tensors that have the batch axis first, or mask it with batch.mask()",
                    batch.size()
                ));
            }
        }
    }
    Ok(())
}

/// The sums of a logged value over the real samples of a batch.
pub(crate) fn sums(entry: &Logged, batch: &Batch) -> Vec<Tensor> {
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
                    vec![if fx == ReduceFx::Min { real.min(&[0]) } else { real.max(&[0]) }]
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
