//! What a step has logged, and the choices of each value. How values are added up on the device is not here but in
//! `mod.rs`, pictures and their like in `media.rs`.

use std::panic::Location;

use fulmen_nn::metrics::MetricState;
use fulmen_tensor::Tensor;

use crate::logs::media::MediaKind;
use crate::stage::Stage;
use crate::{Error, Result};

/// How the values of a logged name become one, over the samples of a batch and over steps.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum ReduceFx {
    /// The mean over the real samples.
    #[default]
    Mean,
    /// The sum: of one value a sample over the real samples, of a scalar over the steps.
    Sum,
    /// The smallest value.
    Min,
    /// The largest value.
    Max,
    /// The value of the latest step; of one value a sample its mean in that step.
    Last,
}

/// One logged value: what, under which name, and from where in the user's code.
#[derive(Clone, Debug)]
pub(crate) struct Logged {
    pub(crate) name: String,
    pub(crate) value: LoggedValue,
    pub(crate) location: &'static Location<'static>,
    pub(crate) prog_bar: bool,
    pub(crate) logger: bool,
    /// What was chosen, if anything was.
    reduce_fx: Option<ReduceFx>,
    on_step: Option<bool>,
    on_epoch: Option<bool>,
    /// Where a branch has computed it.
    pub(crate) branch: Option<Branch>,
}

/// What a branch has made of a logged value, which has no value outside of it.
#[derive(Clone, Debug)]
pub(crate) struct Branch {
    /// Whether the branch was taken, a boolean scalar.
    pub(crate) taken: Tensor,
    /// The sums; zeros where it was not.
    pub(crate) sums: Vec<Tensor>,
}

#[derive(Clone, Debug)]
pub(crate) enum LoggedValue {
    /// A scalar or one value a sample.
    Value(Tensor),
    Metric(MetricState),
    Media(Tensor, MediaKind),
}

impl LoggedValue {
    /// The first mistake in it, as an error.
    pub(crate) fn check(&self) -> Result<()> {
        match self {
            LoggedValue::Value(value) | LoggedValue::Media(value, _) => Ok(value.check().map(|_| ())?),
            LoggedValue::Metric(statistics) => match statistics.fault() {
                Some(fault) => Err(fulmen_tensor::Error::from(fault.clone()).into()),
                None => Ok(()),
            },
        }
    }
}

impl Logged {
    pub(crate) fn new(name: impl Into<String>, value: LoggedValue, location: &'static Location<'static>) -> Logged {
        let (reduce_fx, on_step, on_epoch, branch) = (None, None, None, None);
        let (name, prog_bar, logger) = (name.into(), true, true);
        Logged { name, value, location, prog_bar, logger, reduce_fx, on_step, on_epoch, branch }
    }

    /// Whether the mean of this very tensor is logged for each epoch.
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

    /// Checks that the choices say something for a value of this kind in a step of this stage; none is a training step.
    pub(crate) fn check_choices(&self, stage: Option<Stage>) -> Result<(), String> {
        if matches!(self.value, LoggedValue::Metric(_)) && self.reduce_fx.is_some() {
            return Err("reduce_fx: a metric computes its value by a rule of its own; leave reduce_fx out".into());
        }
        match stage.map(Stage::step) {
            None if !self.on_step() && !self.on_epoch() => {
                Err("on_step and on_epoch are both off, so the value is never computed; turn one of them on".into())
            }
            Some(step) if self.on_step == Some(true) => {
                Err(format!("on_step: {step} logs once, over all batches, and not at steps; leave on_step out"))
            }
            Some(step) if !self.on_epoch() => {
                Err(format!("on_epoch: {step} logs once, over all batches; without that there is no value"))
            }
            _ => Ok(()),
        }
    }
}

/// The choices of what was just logged, under Lightning's names. What is not chosen stays: everything is shown everywhere,
/// as a mean.
///
/// ```
/// use fulmen_nn::Linear;
/// use fulmen_tensor::Tensor;
/// use fulmen_trainer::{Batch, ReduceFx, StepContext};
///
/// fn training_step(model: &Linear, batch: &Batch, cx: &mut StepContext) -> Tensor {
///     let losses = model.forward(&batch.get("x")).square().mean(&[1]);
///     cx.log("worst", &losses).reduce_fx(ReduceFx::Max).prog_bar(false);
///     cx.log("seen", batch.mask()).reduce_fx(ReduceFx::Sum).on_step(false);
///     batch.mean(losses)
/// }
/// ```
#[derive(Debug)]
pub struct LogOptions<'a>(pub(crate) &'a mut [Logged]);

impl LogOptions<'_> {
    fn set(self, change: impl Fn(&mut Logged)) -> Self {
        self.0.iter_mut().for_each(change);
        self
    }

    /// How values become one; [`ReduceFx::Mean`] unless chosen. A metric has a rule of its own.
    pub fn reduce_fx(self, reduce_fx: ReduceFx) -> Self {
        self.set(|logged| logged.reduce_fx = Some(reduce_fx))
    }

    /// Whether the progress bar shows it. Callbacks see it in any case.
    pub fn prog_bar(self, prog_bar: bool) -> Self {
        self.set(|logged| logged.prog_bar = prog_bar)
    }

    /// Whether loggers get it. Callbacks see it in any case.
    pub fn logger(self, logger: bool) -> Self {
        self.set(|logged| logged.logger = logger)
    }

    /// Whether training logs it at log points, over the steps since the last one, as `NAME`.
    pub fn on_step(self, on_step: bool) -> Self {
        self.set(|logged| logged.on_step = Some(on_step))
    }

    /// Whether training logs it for each epoch, as `NAME_epoch`.
    pub fn on_epoch(self, on_epoch: bool) -> Self {
        self.set(|logged| logged.on_epoch = Some(on_epoch))
    }
}

/// An error about a logged value, with its name and the user's line.
pub(crate) fn refused(logged: &Logged, problem: impl AsRef<str>) -> Error {
    Error::usage(format!("log `{}`: {}\n  at {}", logged.name, problem.as_ref(), logged.location))
}
