//! [`LogEntry`]: a logged value and its options. `add.rs` sums it on the device; `media.rs`
//! handles images, texts and histograms.

use std::panic::Location;

use fulmen_nn::metrics::MetricState;
use fulmen_tensor::Tensor;

use crate::logs::media::MediaKind;
use crate::stage::Stage;
use crate::{Error, Result};

/// How a logged name reduces its values over the samples of a batch and over steps.
///
/// ```
/// use fulmen_tensor::Tensor;
/// use fulmen_trainer::{ReduceFx, StepContext};
///
/// /// Logs the largest of the losses of the samples, in a step and in an epoch.
/// fn log_worst(cx: &mut StepContext, losses: &Tensor) {
///     cx.log("worst", losses).reduce_fx(ReduceFx::Max);
/// }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ReduceFx {
    /// The mean over the real samples.
    #[default]
    Mean,
    /// The sum: over the real samples if there is one value per sample, over the steps if it is a
    /// scalar.
    Sum,
    /// The smallest value.
    Min,
    /// The largest value.
    Max,
    /// The value of the latest step. If there is one value per sample, it is their mean in that
    /// step.
    Last,
}

/// One logged value: its name, its options and the line of the user's code.
#[derive(Clone, Debug)]
pub(crate) struct LogEntry {
    pub(crate) name: String,
    pub(crate) value: LoggedValue,
    pub(crate) location: &'static Location<'static>,
    pub(crate) prog_bar: bool,
    pub(crate) logger: bool,
    /// The user's choices, if any.
    reduce_fx: Option<ReduceFx>,
    on_step: Option<bool>,
    on_epoch: Option<bool>,
    /// Set if a branch computed the value.
    pub(crate) branch: Option<Branch>,
}

/// The sums of a logged value that a branch computes. Outside of the branch, the value does not
/// exist.
#[derive(Clone, Debug)]
pub(crate) struct Branch {
    /// Whether the branch was taken, a boolean scalar.
    pub(crate) taken: Tensor,
    /// The sums; zeros if the branch was not taken.
    pub(crate) sums: Vec<Tensor>,
}

#[derive(Clone, Debug)]
pub(crate) enum LoggedValue {
    /// A scalar, or one value per sample.
    Value(Tensor),
    Metric(MetricState),
    Media(Tensor, MediaKind),
}

impl LoggedValue {
    /// Returns the first mistake in the value, as an error.
    pub(crate) fn check(&self) -> Result<()> {
        match self {
            LoggedValue::Value(value) | LoggedValue::Media(value, _) => value.check().map(|_| ()),
            LoggedValue::Metric(statistics) => match statistics.fault() {
                Some(fault) => Err(fault.clone().into()),
                None => Ok(()),
            },
        }
    }
}

impl LogEntry {
    pub(crate) fn new(
        name: impl Into<String>,
        value: LoggedValue,
        location: &'static Location<'static>,
    ) -> LogEntry {
        let reduce_fx = None;
        let on_step = None;
        let on_epoch = None;
        let branch = None;
        let name = name.into();
        let prog_bar = true;
        let logger = true;
        LogEntry { name, value, location, prog_bar, logger, reduce_fx, on_step, on_epoch, branch }
    }

    /// Whether the mean of this tensor is logged for each epoch.
    pub(crate) fn is(&self, tensor: &Tensor) -> bool {
        matches!(&self.value, LoggedValue::Value(value) if value.is(tensor))
            && self.reduce_fx() == ReduceFx::Mean
            && self.on_epoch()
    }

    pub(crate) fn reduce_fx(&self) -> ReduceFx {
        self.reduce_fx.unwrap_or_default()
    }

    pub(crate) fn on_step(&self) -> bool {
        self.on_step.unwrap_or(true)
    }

    pub(crate) fn on_epoch(&self) -> bool {
        self.on_epoch.unwrap_or(true)
    }

    /// Checks that the options make sense for this kind of value in a step of this stage. `None` is
    /// a training step.
    pub(crate) fn check_choices(&self, stage: Option<Stage>) -> Result<(), String> {
        if matches!(self.value, LoggedValue::Metric(_)) && self.reduce_fx.is_some() {
            return Err("reduce_fx: a metric has its own reduction; leave reduce_fx out".into());
        }
        match stage.map(Stage::step) {
            None if !self.on_step() && !self.on_epoch() => {
                Err("on_step and on_epoch are both off, so the value is never computed; turn one of them on".into())
            }
            Some(step) if self.on_step == Some(true) => {
                Err(format!("on_step: {step} logs once, over all batches, not at steps; leave on_step out"))
            }
            Some(step) if !self.on_epoch() => Err(format!(
                "on_epoch: {step} logs once, over all batches, so turning on_epoch off drops the value; leave it on"
            )),
            _ => Ok(()),
        }
    }
}

/// Options of the value that was just logged, under Lightning's names. By default, every value is
/// shown everywhere, as a mean.
///
/// ```
/// use fulmen_nn::Linear;
/// use fulmen_tensor::Tensor;
/// use fulmen_trainer::{Batch, ReduceFx, StepContext};
///
/// fn training_step(model: &Linear, batch: &Batch, cx: &mut StepContext) -> Tensor {
///     let losses = model.forward(&batch.get("x")).square().mean(1);
///     cx.log("worst", &losses).reduce_fx(ReduceFx::Max).prog_bar(false);
///     cx.log("seen", batch.mask()).reduce_fx(ReduceFx::Sum).on_step(false);
///     batch.mean(losses)
/// }
/// ```
#[derive(Debug)]
pub struct LogOptions<'a>(pub(crate) &'a mut [LogEntry]);

#[allow(clippy::return_self_not_must_use)] // Logging with no options is common.
impl LogOptions<'_> {
    fn set(self, change: impl Fn(&mut LogEntry)) -> Self {
        self.0.iter_mut().for_each(change);
        self
    }

    /// Sets how values are reduced; [`ReduceFx::Mean`] by default. Metrics have their own reduction
    /// and reject this option.
    pub fn reduce_fx(self, reduce_fx: ReduceFx) -> Self {
        self.set(|logged| logged.reduce_fx = Some(reduce_fx))
    }

    /// Sets whether the progress bar shows the value. Callbacks always get it.
    pub fn prog_bar(self, prog_bar: bool) -> Self {
        self.set(|logged| logged.prog_bar = prog_bar)
    }

    /// Sets whether loggers get the value. Callbacks always get it.
    pub fn logger(self, logger: bool) -> Self {
        self.set(|logged| logged.logger = logger)
    }

    /// Sets whether training logs the value as `NAME` at log points, over the steps since the last
    /// one.
    pub fn on_step(self, on_step: bool) -> Self {
        self.set(|logged| logged.on_step = Some(on_step))
    }

    /// Sets whether training logs the value as `NAME_epoch` for each epoch.
    pub fn on_epoch(self, on_epoch: bool) -> Self {
        self.set(|logged| logged.on_epoch = Some(on_epoch))
    }
}

/// An error for a logged value, with its name and the user's line.
pub(crate) fn log_error(logged: &LogEntry, problem: impl AsRef<str>) -> Error {
    Error::usage(format!("log `{}`: {}\n  at {}", logged.name, problem.as_ref(), logged.location))
}
