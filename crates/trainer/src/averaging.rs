//! [`WeightAveraging`]: a second set of weights, the average of those that training has gone through. It lies in the
//! training state, a step of the program keeps it up, and it is what is validated, tested and saved.

use std::panic::Location;

use fulmen_tensor::{DType, Tensor, TensorType};

use crate::{Error, Plan, Result};

/// How the weights of many steps are averaged: exponentially, as Lightning's `EMAWeightAveraging`, or evenly, as
/// stochastic weight averaging (Izmailov et al. 2018, <https://arxiv.org/abs/1803.05407>).
///
/// The average is of the parameters that are trained and, unless [`WeightAveraging::use_buffers`] is turned off, of
/// floating-point buffers, such as running statistics. It is what a fit validates with, what the module has when the fit
/// is over, and what a checkpoint has under the module's names; the weights that training goes on with stand beside it
/// under `trainer/current/`. Until the first step that is averaged it follows the weights.
///
/// ```
/// use fulmen_trainer::{Trainer, WeightAveraging};
/// let ema = Trainer::builder().weight_averaging(WeightAveraging::ema(0.999).warmup(true));
/// let swa = Trainer::builder().weight_averaging(WeightAveraging::swa(8)); // epochs 8, 9, … counted from 0
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct WeightAveraging {
    rule: Rule,
    start: Time,
    every: Time,
    use_buffers: bool,
    at: &'static Location<'static>,
}

#[derive(Clone, Debug, PartialEq)]
enum Rule {
    Exponential { decay: f64, warmup: bool },
    Even,
}

/// A number of optimizer steps or of epochs.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Time {
    Steps(u64),
    Epochs(u64),
}

impl Time {
    fn steps(self, plan: &Plan) -> u64 {
        match self {
            Time::Steps(steps) => steps,
            Time::Epochs(epochs) => epochs.saturating_mul(plan.steps_per_epoch),
        }
    }
}

impl WeightAveraging {
    /// After each step `a ← decay·a + (1 − decay)·w`, the first time `a ← w`.
    #[track_caller]
    pub fn ema(decay: f64) -> WeightAveraging {
        let rule = Rule::Exponential { decay, warmup: false };
        WeightAveraging {
            rule,
            start: Time::Steps(0),
            every: Time::Steps(1),
            use_buffers: true,
            at: Location::caller(),
        }
    }

    /// The even average of the weights at the end of each epoch from `start_epoch` on, counted from 0.
    #[track_caller]
    pub fn swa(start_epoch: u64) -> WeightAveraging {
        WeightAveraging {
            rule: Rule::Even,
            start: Time::Epochs(start_epoch),
            every: Time::Epochs(1),
            use_buffers: true,
            at: Location::caller(),
        }
    }

    /// A smaller decay at first: `min(decay, (1 + n)/(10 + n))` after `n` averaged steps. Nothing for an even average.
    pub fn warmup(mut self, on: bool) -> WeightAveraging {
        if let Rule::Exponential { warmup, .. } = &mut self.rule {
            *warmup = on;
        }
        self
    }

    /// Optimizer steps that go by before averaging begins.
    pub fn start_step(mut self, step: u64) -> WeightAveraging {
        self.start = Time::Steps(step);
        self
    }

    /// Epochs that go by before averaging begins.
    pub fn start_epoch(mut self, epoch: u64) -> WeightAveraging {
        self.start = Time::Epochs(epoch);
        self
    }

    /// Averages after every so many optimizer steps.
    pub fn every_n_steps(mut self, steps: u64) -> WeightAveraging {
        self.every = Time::Steps(steps);
        self
    }

    /// Averages at the end of every so many epochs.
    pub fn every_n_epochs(mut self, epochs: u64) -> WeightAveraging {
        self.every = Time::Epochs(epochs);
        self
    }

    /// Whether buffers are averaged too; true at first. Others are those of the latest step.
    pub fn use_buffers(mut self, use_buffers: bool) -> WeightAveraging {
        self.use_buffers = use_buffers;
        self
    }

    /// Says what cannot be.
    pub(crate) fn check(&self) -> Result<()> {
        let wrong = |message: String| Err(Error::usage(format!("WeightAveraging: {message}\n  at {}", self.at)));
        if matches!(self.every, Time::Steps(0) | Time::Epochs(0)) {
            return wrong("it must average every 1 or more steps or epochs, not every 0".into());
        }
        match self.rule {
            Rule::Exponential { decay, .. } if !(0.0..=1.0).contains(&decay) => {
                wrong(format!("the decay is a share between 0 and 1, not {decay}"))
            }
            _ => Ok(()),
        }
    }

    /// Whether a value of the module has an average.
    pub(crate) fn has(&self, ty: &TensorType, trained: bool, is_buffer: bool) -> bool {
        ty.dtype.is_float() && (trained || is_buffer && self.use_buffers)
    }

    /// How the step after `updates` steps of the optimizer averages; `done` says whether it is one of them.
    pub(crate) fn step(&self, updates: &Tensor, count: &Tensor, done: Option<&Tensor>, plan: &Plan) -> Averaging {
        let limit = |steps: u64| steps.min(i32::MAX as u64) as f64;
        let since = updates + 1.0 - limit(self.start.steps(plan));
        let mut due = since.gt(0.0).and(since.remainder(limit(self.every.steps(plan).max(1))).eq(0.0));
        if let Some(done) = done {
            due = due.and(done);
        }
        let n = count.to_dtype(DType::F32);
        let share = match self.rule {
            Rule::Exponential { decay, warmup: false } => Tensor::full(DType::F32, [], 1.0 - decay),
            Rule::Exponential { decay, warmup: true } => 1.0 - ((&n + 1.0) / (&n + 10.0)).minimum(decay),
            Rule::Even => 1.0 / (n + 1.0),
        };
        Averaging { next: due.select(&(count + 1.0), count), begun: count.gt(0.0), due, share }
    }
}

/// The number of averaged steps: i32.
pub(crate) const COUNT: &str = "trainer/averaged";
/// The prefix that averages have in the state. In a file they have the module's names.
pub(crate) const AVERAGE: &str = "average/";
/// The prefix in a file of the weights that training goes on with.
pub(crate) const CURRENT: &str = "trainer/current/";

/// The dtype of an average: at least f32, or small shares would vanish.
pub(crate) fn dtype(of: DType) -> DType {
    if of == DType::F64 { DType::F64 } else { DType::F32 }
}

/// How one step averages.
pub(crate) struct Averaging {
    /// The number of averaged steps after this one.
    pub(crate) next: Tensor,
    begun: Tensor,
    due: Tensor,
    /// How far the average goes to the new value.
    share: Tensor,
}

impl Averaging {
    /// The average after this step of a value that is `new` after it.
    pub(crate) fn of(&self, average: &Tensor, new: &Tensor) -> Tensor {
        let new = new.to_dtype(average.dtype());
        let moved = average + (&new - average) * self.share.to_dtype(average.dtype());
        self.begun.select(&self.due.select(&moved, average), &new)
    }
}
