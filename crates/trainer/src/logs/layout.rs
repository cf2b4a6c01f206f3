//! [`LogLayout`]: the position of each logged value in the vector.

use std::sync::Arc;

use fulmen_nn::metrics::Metric;
use fulmen_tensor::{Anomalies, DType, Literal, Tensor, TensorType};

use crate::logs::index_faults::{self, CheckedIndices};
use crate::logs::log_entry::{LogEntry, LoggedValue, log_error};
use crate::logs::media::MediaKind;
use crate::logs::{OptimizerFacts, Sums, batch_sums, optimizer_value_name};
use crate::rules::weight;
use crate::stage::Stage;
use crate::{Batch, Error, ReduceFx, Result, Sink};

/// The position of each value in the vector, for one kind of step.
#[derive(Clone, Debug, Default)]
pub(crate) struct LogLayout {
    pub(super) entries: Vec<LayoutEntry>,
    /// The number of elements of all float sums, of all counters, and of all others.
    pub(super) floats: usize,
    pub(super) counters: usize,
    pub(super) latest: usize,
    /// The names of a training step's optimizers. The name of a single one is empty.
    pub(super) optimizers: Vec<String>,
    /// For each optimizer, the name of the number of its latest step that epochs have too, if any.
    pub(super) in_epochs: Vec<Option<String>>,
    /// The names of the monitored numbers of the latest step, and whether each is a counter.
    pub(super) monitored: Vec<(String, bool)>,
    /// Traces where NaN and infinity come from, with `detect_anomaly`. The vector ends with the
    /// levels of the first step that is not finite.
    pub(super) anomalies: Option<Arc<Anomalies>>,
    /// The media that the step returns at log points, next to the vector.
    pub(super) media: Vec<(String, MediaKind)>,
    /// The checks of indices, for batches of all shapes.
    pub(super) checks: Vec<CheckedIndices>,
    /// `None` for a training step.
    pub(super) stage: Option<Stage>,
}

/// A logged value.
#[derive(Clone, Debug)]
pub(super) struct LayoutEntry {
    pub(super) name: String,
    /// The name with its reduction or the metric's settings. Sums with different keys cannot be
    /// added.
    pub(super) key: String,
    pub(super) rule: Rule,
    pub(super) sums: Vec<Sum>,
    pub(super) on_step: bool,
    pub(super) on_epoch: bool,
    /// The sinks that do not show the value.
    pub(super) hidden: Vec<Sink>,
}

/// How to compute a value from its sums. A mean has two: the sum, and the number of samples or the
/// weight.
#[derive(Clone, Debug)]
pub(super) enum Rule {
    Reduce(ReduceFx),
    Metric(Arc<dyn Metric>),
}

impl Rule {
    /// Combines an element of two consecutive ranges of steps.
    pub(super) fn join(&self, earlier: f64, later: f64) -> f64 {
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
pub(super) struct Sum {
    pub(super) kind: SumKind,
    pub(super) len: usize,
}

/// How the vector stores an element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SumKind {
    Float,
    Counter,
    /// A float that is not a sum: a minimum, a maximum or the latest value.
    Latest,
}

// The vector starts with the number (from 1) of the first step whose loss was not finite (0: none).
// Then come, for each optimizer, its latest learning rate and the number that epochs have too, and the
// other latest numbers that rules log, or NONE. Then come the float sums, their rounding errors, the low and the
// high words of counters, other floats, or NONE, the first index out of range, and the levels that
// trace NaN.

/// Marks a missing number. As a float, these bits are a NaN that no computation returns.
pub(super) const NONE: i32 = -1;

impl LogLayout {
    /// The layout of the values logged by a step of this stage. `None` is a training step.
    ///
    /// # Errors
    /// A poisoned value, a name used twice, options that make no sense, a shape that cannot be
    /// logged, or a scalar or metric that ignores padding.
    pub(crate) fn new(
        logged: &[LogEntry],
        batch: &Batch,
        stage: Option<Stage>,
    ) -> Result<LogLayout> {
        let mut layout = LogLayout { stage, ..LogLayout::default() };
        for (i, entry) in logged.iter().enumerate() {
            entry.value.check()?;
            if logged[..i].iter().any(|earlier| earlier.name == entry.name) {
                return Err(log_error(
                    entry,
                    "this name was logged before in the same step; choose another",
                ));
            }
            if ["epoch", "step"].contains(&entry.name.as_str()) {
                let message =
                    "this name belongs to a value that the Trainer logs itself; choose another";
                return Err(log_error(entry, message));
            }
            entry.check_choices(stage).map_err(|problem| log_error(entry, problem))?;
            check_value(entry, batch).map_err(|problem| log_error(entry, problem))?;
            let name = entry.name.clone();
            let fx = entry.reduce_fx();
            let tensors = batch_sums(entry, batch);
            for tensor in &tensors {
                tensor.check()?;
            }
            let (key, rule) = match &entry.value {
                LoggedValue::Media(_, kind) => {
                    layout.media.push((name, kind.clone()));
                    continue;
                }
                LoggedValue::Metric(statistics) => (
                    format!("{name} {:?}", statistics.metric()),
                    Rule::Metric(statistics.metric().clone()),
                ),
                LoggedValue::Value(_) if fx == ReduceFx::Mean => {
                    let is_weighted = tensors.iter().all(|sum| sum.dtype().is_float());
                    let suffix = if is_weighted { " by weight" } else { "" };
                    (format!("{name}{suffix}"), Rule::Reduce(fx))
                }
                LoggedValue::Value(_) => (format!("{name} {fx:?}"), Rule::Reduce(fx)),
            };
            let kind = |tensor: &Tensor| match &rule {
                Rule::Reduce(ReduceFx::Min | ReduceFx::Max | ReduceFx::Last) => SumKind::Latest,
                _ if tensor.dtype().is_float() => SumKind::Float,
                _ => SumKind::Counter,
            };
            let sums: Vec<Sum> = tensors
                .iter()
                .map(|tensor| Sum { kind: kind(tensor), len: tensor.shape().iter().product() })
                .collect();
            for sum in &sums {
                *match sum.kind {
                    SumKind::Float => &mut layout.floats,
                    SumKind::Counter => &mut layout.counters,
                    SumKind::Latest => &mut layout.latest,
                } += sum.len;
            }
            let hidden = [(entry.prog_bar, Sink::ProgressBar), (entry.logger, Sink::Logger)]
                .into_iter()
                .filter(|(is_shown, _)| !is_shown)
                .map(|(_, sink)| sink)
                .collect();
            let on_step = entry.on_step();
            let on_epoch = entry.on_epoch();
            layout.entries.push(LayoutEntry { name, key, rule, sums, on_step, on_epoch, hidden });
        }
        Ok(layout)
    }

    /// Like [`LogLayout::new`], for a training step with these optimizers and the values that the
    /// Trainer logs for them.
    ///
    /// # Errors
    /// A name that the user logs too.
    pub(crate) fn of_training(
        logged: &[LogEntry],
        batch: &Batch,
        optimizers: Vec<String>,
        facts: &[&OptimizerFacts],
    ) -> Result<LogLayout> {
        let names = facts.iter().map(|facts| facts.in_epochs.as_ref().map(|own| own.name.clone()));
        let in_epochs = names.collect();
        let layout = LogLayout { optimizers, in_epochs, ..LogLayout::new(logged, batch, None)? };
        let own_values = layout.optimizer_values(&Sums {
            optimizers: facts
                .iter()
                .map(|facts| [Some(0.0), facts.in_epochs.as_ref().map(|_| 0.0)])
                .collect(),
            ..Sums::default()
        });
        let message = "this name belongs to a value that the Trainer logs itself";
        let own_names = own_values.iter().map(|(name, _)| (name.as_str(), message.to_owned()));
        let monitored = || facts.iter().flat_map(|facts| &facts.monitored);
        let monitored_names = monitored().map(|value| {
            (value.name.as_str(), format!("{} logs a value of this name", value.logger))
        });
        for (name, why) in own_names.chain(monitored_names) {
            if let Some(entry) = logged.iter().find(|entry| entry.name == name) {
                return Err(log_error(entry, format!("{why}; choose another")));
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
    pub(super) fn levels(&self) -> usize {
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
    pub(super) fn header_len(&self) -> usize {
        1 + 2 * self.optimizers.len() + self.monitored.len()
    }

    /// The index of the first float that is not a sum.
    pub(super) fn latest_start(&self) -> usize {
        self.header_len() + 2 * (self.floats + self.counters)
    }

    /// The index of the first word about an index out of range.
    pub(super) fn index_words_start(&self) -> usize {
        self.latest_start() + self.latest
    }

    pub(super) fn len(&self) -> usize {
        self.index_words_start() + index_faults::WORDS + self.levels()
    }

    pub(crate) fn ty(&self) -> TensorType {
        TensorType::new(DType::I32, [self.len()])
    }

    /// The vector before the first step.
    pub(crate) fn start(&self) -> Result<Literal> {
        let mut words = vec![0; self.len()];
        words[1..self.header_len()].fill(NONE);
        words[self.latest_start()..][..self.latest].fill(NONE);
        Literal::from_slice(&words, [self.len()])
    }

    /// The names of all losses, for messages. `loss` is the name of the step's own loss.
    pub(crate) fn losses(&self, loss: &str) -> String {
        let others = self
            .optimizers
            .iter()
            .filter(|name| !name.is_empty())
            .map(|name| optimizer_value_name("loss", name))
            .filter(|other| self.names().any(|name| name == other && name != loss));
        [loss.to_owned()]
            .into_iter()
            .chain(others)
            .map(|name| format!("`{name}`"))
            .collect::<Vec<_>>()
            .join(" or ")
    }
}

/// Checks that a value has a shape that can be logged, and that it can leave padding out. The error
/// says what to do.
fn check_value(entry: &LogEntry, batch: &Batch) -> Result<(), String> {
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
            let weight = weight::of_logged(value)
                .filter(|_| !per_sample && entry.reduce_fx() == ReduceFx::Mean);
            if weight.is_some_and(|weight| weight::counts_padding(&weight, batch)) {
                return Err("the last batch is padded, and the weight of this mean does not depend on the batch's mask, so \
                            it would count the padding; multiply the counted elements by batch.mask()"
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
