//! Logged values on the device: sums in one small tensor that goes through every step and is read as one.
//!
//! It is an `i32` vector. Counters are exact in it: 64 bits, in two words. Floats are stored by their bits, each sum next to
//! what rounding has lost of it, so that an epoch of many steps is as exact as its steps. Which sums a metric needs, and
//! what is made of them, is the metric's own affair (`fulmen_nn::metrics`).

pub(crate) mod logged;
pub(crate) mod media;

use std::sync::Arc;

use fulmen_nn::metrics::{Metric, Value};
use fulmen_tensor::{Anomalies, DType, Literal, Tensor, TensorType, cond};

use crate::logs::logged::{Logged, LoggedValue, refused};
use crate::logs::media::MediaKind;
use crate::stage::Stage;
use crate::{Batch, Error, LogPoint, Media, ReduceFx, Result, Sink};

/// The place of each value in the vector, for one kind of step.
#[derive(Clone, Debug, Default)]
pub(crate) struct LogLayout {
    entries: Vec<Entry>,
    /// Elements of all sums that are floats, of all that are counters, and of all others.
    floats: usize,
    counters: usize,
    latest: usize,
    /// The names of the optimizers of a training step; that of a single one is empty.
    optimizers: Vec<String>,
    /// The names of other numbers of the latest step, and whether each is a counter.
    monitored: Vec<(String, bool)>,
    /// Where NaN and infinity come from, if that is asked for. Its levels in the first step that is not finite end the vector.
    anomalies: Option<Arc<Anomalies>>,
    /// What the step gives at log points besides the vector.
    media: Vec<(String, MediaKind)>,
}

/// A logged value.
#[derive(Clone, Debug)]
struct Entry {
    name: String,
    /// The name, with its reduction or the settings of a metric: sums of different ones do not add up.
    key: String,
    rule: Rule,
    sums: Vec<Sum>,
    on_step: bool,
    on_epoch: bool,
    /// Where it is not shown.
    hidden: Vec<Sink>,
}

/// What is made of the sums. Those of a mean are the sum and the number of samples.
#[derive(Clone, Debug)]
enum Rule {
    Reduce(ReduceFx),
    Metric(Arc<dyn Metric>),
}

impl Rule {
    /// An element over two stretches of steps, the second being the later.
    fn join(&self, earlier: f64, later: f64) -> f64 {
        match self {
            Rule::Reduce(ReduceFx::Last) => later,
            Rule::Reduce(ReduceFx::Min | ReduceFx::Max) if earlier.is_nan() || later.is_nan() => f64::NAN,
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
    /// A float other than a sum: the largest, the smallest or the latest.
    Latest,
}

/// Over what values are made of the sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Over<'a> {
    /// The steps since the last log point.
    Steps,
    /// A training epoch, or what there is of it.
    Epoch,
    /// A pass over a loader that does not train; the values of the names.
    Pass(&'a str),
}

// The vector starts with the number (from 1) of the first step whose loss was not finite (0: none), for each optimizer the
// latest learning rate and the latest length of the gradients, and what callbacks monitor of the latest step, or NONE. Then
// come the sums of floats, what they have lost, the lower and the higher words of counters, other floats, or NONE,
// and what is watched for NaN.

/// Stands for a number that there is not yet: as a float a NaN that no computation gives.
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
    /// What callbacks monitor of it.
    pub(crate) monitored: Vec<Monitored>,
    /// Whether this is one of its steps, a boolean scalar, where it skips some.
    pub(crate) turn: Option<Tensor>,
    /// Whether what is of a group is there, a boolean scalar: at the end of one, and of each step at its log point. Nothing
    /// where it is there in each step.
    pub(crate) due: Option<Tensor>,
}

/// A number of the latest step that a callback monitors.
pub(crate) struct Monitored {
    pub(crate) name: String,
    /// A scalar: a float, or an i32 counter.
    pub(crate) value: Tensor,
    /// Whether it is one of a group of batches, or of the step of a log point, and there only where one ends.
    pub(crate) of_group: bool,
    /// The callback.
    pub(crate) asked_by: &'static str,
}

/// What was read of the vector.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Sums {
    /// The first step, counted from 1, whose loss was not finite.
    pub(crate) bad_step: Option<u64>,
    /// What made it so, if that is watched.
    pub(crate) anomaly: Option<String>,
    /// For each optimizer the learning rate and the length of the gradients in its latest step, where there are any.
    pub(crate) optimizers: Vec<[Option<f64>; 2]>,
    /// What callbacks monitor of the latest step, where there is any.
    pub(crate) monitored: Vec<Option<f64>>,
    /// For each key the elements of its sums.
    pub(crate) sums: Vec<(String, Vec<Vec<f64>>)>,
}

impl Sums {
    /// The learning rate of the latest step; of several optimizers that of the first.
    pub(crate) fn learning_rate(&self) -> f64 {
        self.optimizers.first().and_then(|[rate, _]| *rate).unwrap_or_default()
    }
}

impl LogLayout {
    /// The layout of what a step of this stage logs; none is a training step.
    ///
    /// # Errors
    /// A poisoned value, a name given twice, choices that say nothing, a value of a shape that cannot be logged, or a
    /// scalar or a metric that ignores padding.
    pub(crate) fn new(logged: &[Logged], batch: &Batch, stage: Option<Stage>) -> Result<LogLayout> {
        let mut layout = LogLayout::default();
        for (i, entry) in logged.iter().enumerate() {
            entry.value.check()?;
            if logged[..i].iter().any(|earlier| earlier.name == entry.name) {
                return Err(refused(entry, "this name was logged before in the same step; choose another"));
            }
            if ["epoch", "step"].contains(&entry.name.as_str()) {
                let message = "this name is that of a value which is logged by itself; choose another";
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
                LoggedValue::Metric(statistics) => {
                    (format!("{name} {:?}", statistics.metric()), Rule::Metric(statistics.metric().clone()))
                }
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
            let sums = sums.iter().map(|sum| Sum { kind: kind(sum), len: sum.shape().iter().product() });
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
        let layout = LogLayout { optimizers, ..LogLayout::new(logged, batch, None)? };
        let some = [Some(0.0), grad_norm.then_some(0.0)];
        let own = layout.of_optimizers(&Sums { optimizers: vec![some; layout.optimizers.len()], ..Sums::default() });
        let by_itself = "this name is that of a value which is logged by itself";
        let own = own.iter().map(|(name, _)| (name.as_str(), by_itself.to_owned()));
        let monitored = || facts.iter().flat_map(|facts| &facts.monitored);
        let asked = monitored().map(|m| (m.name.as_str(), format!("{} logs a value of this name", m.asked_by)));
        for (name, why) in own.chain(asked) {
            if let Some(entry) = logged.iter().find(|entry| entry.name == name) {
                return Err(refused(entry, format!("{why}; choose another")));
            }
        }
        let monitored = monitored().map(|m| (m.name.clone(), !m.value.dtype().is_float())).collect();
        Ok(LogLayout { monitored, ..layout })
    }

    /// What is watched for NaN and infinity too.
    pub(crate) fn with_anomalies(self, anomalies: Option<Anomalies>) -> LogLayout {
        LogLayout { anomalies: anomalies.map(Arc::new), ..self }
    }

    /// How many words the watched values have.
    fn levels(&self) -> usize {
        self.anomalies.as_ref().map_or(0, |anomalies| anomalies.levels().size(0))
    }

    /// The vector's layout as text: vectors with the same text can continue each other.
    pub(crate) fn keys(&self) -> Vec<String> {
        let monitored = self.monitored.iter().map(|monitored| monitored.0.clone());
        self.entries.iter().map(|entry| entry.key.clone()).chain(monitored).collect()
    }

    /// The names that were logged under.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.iter().map(|entry| &entry.name).chain(self.media.iter().map(|media| &media.0)).map(String::as_str)
    }

    /// Checks that a step logs the same values for batches of another length.
    pub(crate) fn check_same(&self, other: &LogLayout, step: &str, of: &str) -> Result<()> {
        let keys = |layout: &LogLayout| -> Vec<String> {
            let media = layout.media.iter().map(|(name, kind)| format!("{name} {kind:?}"));
            layout.keys().into_iter().chain(media).collect()
        };
        match keys(self) == keys(other) && self.ty() == other.ty() {
            true => Ok(()),
            false => Err(Error::usage(format!(
                "{step} logs [{}] in one case and [{}] in another; what it logs must not depend on the {of}",
                self.keys().join(", "),
                other.keys().join(", ")
            ))),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.media.is_empty()
    }

    /// The elements before the sums.
    fn head(&self) -> usize {
        1 + 2 * self.optimizers.len() + self.monitored.len()
    }

    /// Where the floats other than sums begin.
    fn latest_at(&self) -> usize {
        self.head() + 2 * (self.floats + self.counters)
    }

    fn len(&self) -> usize {
        self.latest_at() + self.latest + self.levels()
    }

    pub(crate) fn ty(&self) -> TensorType {
        TensorType::new(DType::I32, [self.len()])
    }

    /// The vector before the first step.
    pub(crate) fn start(&self) -> Result<Literal> {
        let mut words = vec![0; self.len()];
        words[1..self.head()].fill(NONE);
        words[self.latest_at()..][..self.latest].fill(NONE);
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
        let mut first = parts[0].ne(&parts[0]);
        if let Some(StepFacts { losses, step, optimizers }) = facts {
            let anomalies = self.anomalies.as_ref().map(|anomalies| anomalies.found().clone());
            let infinite = losses.iter().map(|loss| loss.is_finite().not()).chain(anomalies);
            first = infinite.reduce(|all, one| all.or(one)).map_or(first, |bad| parts[0].eq(0.0).and(bad));
            parts[0] = first.select(&(*step + 1.0), &parts[0]);
            let mut at_monitored = 1 + 2 * self.optimizers.len();
            for (i, OptimizerFacts { learning_rate, grad_norm, monitored, turn, due }) in optimizers.iter().enumerate()
            {
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
                for Monitored { value, of_group, .. } in monitored {
                    put(at_monitored, value, *of_group);
                    at_monitored += 1;
                }
            }
        }

        let logged = logged.iter().filter(|entry| !matches!(entry.value, LoggedValue::Media(..)));
        let mut values = vec![];
        for (entry, logged) in self.entries.iter().zip(logged) {
            let taken = logged.branch.as_ref().map(|branch| &branch.taken);
            let sums = entry.sums.iter().zip(sums(logged, batch));
            values.extend(sums.map(|(sum, value)| (sum, value, &entry.rule, taken)));
        }
        let joined = |kind: Kind| {
            let of_kind = values.iter().filter(|(sum, ..)| sum.kind == kind).map(|(_, value, ..)| value);
            let flat: Vec<Tensor> = of_kind.map(|sum| sum.reshape([sum.shape().iter().product::<usize>()])).collect();
            Tensor::concatenate(&flat.iter().collect::<Vec<_>>(), 0)
        };
        if self.floats > 0 {
            let float = |i: usize| words(self.head() + i * self.floats, self.floats).bitcast(DType::F32);
            let (sum, lost, x) = (float(0), float(1), joined(Kind::Float));
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
            let total = &low + joined(Kind::Counter).bitcast(DType::U32);
            let carry = total.lt(&low).to_dtype(DType::I32);
            parts.extend([total.bitcast(DType::I32), high + carry]);
        }
        let latest = values.iter().filter(|(sum, ..)| sum.kind == Kind::Latest);
        for (i, (_, value, rule, taken)) in latest.enumerate() {
            let bits = words(self.latest_at() + i, 1);
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
        let mut at_latest = self.latest_at();
        // Nothing for a float that there is not yet.
        let mut take = |sum: &Sum| -> Option<Vec<f64>> {
            let at = match sum.kind {
                Kind::Float => &mut at_float,
                Kind::Counter => &mut at_counter,
                Kind::Latest => &mut at_latest,
            };
            let from = *at;
            *at += sum.len;
            let number = |i: usize| match sum.kind {
                Kind::Float => Some(float(i) + float(i + self.floats)),
                Kind::Counter => {
                    Some(f64::from(words[i + self.counters] as u32) * 2f64.powi(32) + f64::from(words[i] as u32))
                }
                Kind::Latest => (words[i] != NONE).then(|| float(i)),
            };
            (from..from + sum.len).map(number).collect()
        };
        let mut sums = vec![];
        for entry in &self.entries {
            let of_entry: Vec<Option<Vec<f64>>> = entry.sums.iter().map(&mut take).collect();
            sums.extend(of_entry.into_iter().collect::<Option<_>>().map(|of_entry| (entry.key.clone(), of_entry)));
        }
        let bad_step = u64::try_from(words[0]).ok().filter(|&step| step > 0);
        let latest = |i: usize| (words[i] != NONE).then(|| float(i));
        let optimizers: Vec<_> = (0..self.optimizers.len()).map(|i| [latest(1 + 2 * i), latest(2 + 2 * i)]).collect();
        let monitored = self.monitored.iter().zip(1 + 2 * optimizers.len()..).map(|((_, counter), i)| match counter {
            true => (words[i] != NONE).then(|| f64::from(words[i])),
            false => latest(i),
        });
        let monitored = monitored.collect();
        let levels = &words[words.len() - self.levels()..];
        let anomaly =
            self.anomalies.as_ref().and_then(|anomalies| anomalies.origin(levels)).filter(|_| bad_step.is_some());
        Ok(Sums { bad_step, anomaly, optimizers, monitored, sums })
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
        let monitored = self.monitored.iter().zip(&sums.monitored);
        values.extend(monitored.filter_map(|((name, _), value)| Some((name.clone(), (*value)?))));
        values
    }

    /// Adds the sums of a later stretch of steps.
    pub(crate) fn add(&self, sums: &mut Sums, later: &Sums) {
        sums.bad_step = sums.bad_step.or(later.bad_step);
        sums.optimizers.resize(later.optimizers.len().max(sums.optimizers.len()), [None; 2]);
        for (mine, later) in sums.optimizers.iter_mut().flatten().zip(later.optimizers.iter().flatten()) {
            *mine = later.or(*mine);
        }
        for (key, later) in &later.sums {
            let Some(entry) = self.entries.iter().find(|entry| entry.key == *key) else { continue };
            match sums.sums.iter_mut().find(|mine| mine.0 == *key) {
                Some(mine) => mine
                    .1
                    .iter_mut()
                    .flatten()
                    .zip(later.iter().flatten())
                    .for_each(|(mine, &later)| *mine = entry.rule.join(*mine, later)),
                None => sums.sums.push((key.clone(), later.clone())),
            }
        }
    }

    /// The values that are made of the sums, at this epoch and step. A name without samples has none.
    pub(crate) fn point(&self, sums: &Sums, over: Over<'_>, (epoch, global_step): (u64, u64)) -> LogPoint {
        let mut point = LogPoint { epoch, global_step, ..LogPoint::default() };
        for entry in &self.entries {
            let (wanted, suffix) = match over {
                Over::Steps => (entry.on_step, ""),
                Over::Epoch => (entry.on_epoch, "_epoch"),
                Over::Pass(suffix) => (true, suffix),
            };
            let Some((_, sums)) = sums.sums.iter().find(|(key, _)| wanted && *key == entry.key) else { continue };
            let name = format!("{}{suffix}", entry.name);
            let value = match (&entry.rule, &sums[..]) {
                (Rule::Metric(metric), sums) => metric.compute(sums),
                (Rule::Reduce(ReduceFx::Mean), [sum, count]) if count.first().is_some_and(|&count| count > 0.0) => {
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

    /// What a pass over a loader has logged, by what is read of it: the vector, and what its first batch gave besides. The
    /// names get the suffix.
    pub(crate) fn pass(&self, read: &mut &[Literal], suffix: &str, at: (u64, u64)) -> Result<LogPoint> {
        let (own, others) = read.split_at_checked(1 + self.media.len()).unwrap_or_default();
        *read = others;
        let (sums, media) = own.split_first().ok_or_else(|| Error::data("the device gave no values"))?;
        let mut media = self.media(media)?;
        media.iter_mut().for_each(|(name, _)| name.push_str(suffix));
        Ok(LogPoint { media, ..self.point(&self.read(sums)?, Over::Pass(suffix), at) })
    }

    /// Pictures and their like, by what was read of a step's further results.
    pub(crate) fn media(&self, read: &[Literal]) -> Result<Vec<(String, Media)>> {
        self.media.iter().zip(read).map(|((name, kind), literal)| Ok((name.clone(), kind.read(literal)?))).collect()
    }
}

/// The results of a step that the host reads at its log points. Where `at` is given it says whether the step is one: in the
/// others nothing is computed for them.
pub(crate) fn media_outputs(logged: &[Logged], batch: &Batch, at: Option<&Tensor>) -> Result<Vec<(String, Tensor)>> {
    let media: Vec<(&Logged, &Tensor, &MediaKind)> = logged
        .iter()
        .filter_map(|entry| match &entry.value {
            LoggedValue::Media(value, kind) => Some((entry, value, kind)),
            _ => None,
        })
        .collect();
    if media.is_empty() {
        return Ok(vec![]);
    }
    let record = || media.iter().map(|(_, value, kind)| kind.record(value, batch)).collect::<Vec<_>>();
    let tensors = match at {
        Some(at) => cond(at, &[], |_| record(), |_| record().iter().map(Tensor::zeros_like).collect()),
        None => record(),
    };
    let outputs = media.iter().zip(tensors).map(|((entry, ..), tensor)| {
        tensor.check().map_err(|e| refused(entry, e.to_string()))?;
        Ok((entry.name.clone(), tensor))
    });
    outputs.collect()
}

/// Whether a logged value has a shape for that, and padding is left out of it, or could be; else what to do.
fn check_value(entry: &Logged, batch: &Batch) -> Result<(), String> {
    match &entry.value {
        LoggedValue::Media(value, kind) => return kind.check(value, batch),
        LoggedValue::Value(value) => {
            let ty = value.ty();
            let per_sample = ty.shape.dims() == [batch.size()];
            if ty.dtype.is_complex() || ty.shape.rank() != 0 && !per_sample {
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
    if let Some(branch) = &entry.branch {
        return branch.sums.clone();
    }
    match &entry.value {
        LoggedValue::Media(..) => vec![],
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
                    let nothing = if fx == ReduceFx::Min { f64::INFINITY } else { f64::NEG_INFINITY };
                    let real = batch.mask().gt(0.0).select(&value, &(value.zeros_like() + nothing));
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
