//! [`WeightAveraging`]: a second set of weights, the average of the weights over many steps. It is
//! part of the training state, and each step updates it. Validation, tests and saved weights use
//! it.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::panic::Location;

use fulmen_nn::optim::pattern::{check_pattern, matches_pattern};
use fulmen_tensor::{DType, Tensor, TensorType};

use crate::rules::epoch::{Epoch, to_counter};
use crate::rules::evaluated_weights::{EvaluatedStep, EvaluatedWeights};
use crate::{Error, Result};

/// How the weights of many steps are averaged: exponentially (EMA), or evenly, as in stochastic
/// weight averaging (SWA; Izmailov et al. 2018, <https://arxiv.org/abs/1803.05407>).
///
/// The average covers the trained parameters and floating-point buffers such as running statistics,
/// unless [`WeightAveraging::use_buffers`] is off. A fit validates with the average, the module
/// holds it after the fit, and a checkpoint stores it under the module's names. The checkpoint
/// stores the weights for further training under `trainer/current/`. Before the first averaged
/// step, the average equals the weights.
///
/// ```
/// use fulmen_trainer::{Trainer, WeightAveraging};
/// let ema = Trainer::builder().weight_averaging(WeightAveraging::ema(0.999).warmup(true));
/// let swa = Trainer::builder().weight_averaging(WeightAveraging::swa(8)); // epochs 8, 9, … counted from 0
/// ```
#[derive(Clone, Debug, PartialEq)]
#[must_use]
pub struct WeightAveraging {
    rule: Rule,
    start: Interval,
    every: Interval,
    use_buffers: bool,
    /// Patterns of the names that have an average; all names if it is empty.
    only: Vec<String>,
    line: &'static Location<'static>,
}

#[derive(Clone, Debug, PartialEq)]
enum Rule {
    Exponential { decay: f64, warmup: bool },
    Even,
}

/// An interval in optimizer steps or in epochs.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Interval {
    Steps(u64),
    Epochs(u64),
}

impl WeightAveraging {
    /// Averages exponentially: `a ← decay·a + (1 − decay)·w` after each step. The first averaged
    /// step sets `a ← w`.
    #[track_caller]
    pub fn ema(decay: f64) -> WeightAveraging {
        let rule = Rule::Exponential { decay, warmup: false };
        WeightAveraging {
            rule,
            start: Interval::Steps(0),
            every: Interval::Steps(1),
            use_buffers: true,
            only: Vec::new(),
            line: Location::caller(),
        }
    }

    /// Averages evenly, at the end of each epoch from `start_epoch` on, counted from 0.
    #[track_caller]
    pub fn swa(start_epoch: u64) -> WeightAveraging {
        WeightAveraging {
            rule: Rule::Even,
            start: Interval::Epochs(start_epoch),
            every: Interval::Epochs(1),
            use_buffers: true,
            only: Vec::new(),
            line: Location::caller(),
        }
    }

    /// Starts with a smaller decay: `min(decay, (1 + n)/(10 + n))` after `n` averaged steps. Has no
    /// effect on an even average.
    pub fn warmup(mut self, on: bool) -> WeightAveraging {
        if let Rule::Exponential { warmup, .. } = &mut self.rule {
            *warmup = on;
        }
        self
    }

    /// Sets the number of optimizer steps before averaging begins.
    pub fn start_step(mut self, step: u64) -> WeightAveraging {
        self.start = Interval::Steps(step);
        self
    }

    /// Sets the number of epochs before averaging begins.
    pub fn start_epoch(mut self, epoch: u64) -> WeightAveraging {
        self.start = Interval::Epochs(epoch);
        self
    }

    /// Averages after every `n` optimizer steps, counted from [`WeightAveraging::start_step`]. With
    /// a start of 4 and `n` = 2, it averages after steps 6, 8, … (counted from 1). With a start in
    /// epochs, it counts all steps of the training.
    pub fn every_n_steps(mut self, steps: u64) -> WeightAveraging {
        self.every = Interval::Steps(steps);
        self
    }

    /// Averages at the end of every `n` epochs, counted from [`WeightAveraging::start_epoch`]. With
    /// a start of 4 and `n` = 2, it averages at the end of epochs 5, 7, … (counted from 0).
    pub fn every_n_epochs(mut self, epochs: u64) -> WeightAveraging {
        self.every = Interval::Epochs(epochs);
        self
    }

    /// Sets whether buffers are averaged too; true by default. Otherwise, the average has the
    /// buffers of the latest step.
    pub fn use_buffers(mut self, use_buffers: bool) -> WeightAveraging {
        self.use_buffers = use_buffers;
        self
    }

    /// Averages only the parameters and buffers whose whole dotted names match this pattern, such
    /// as `generator.*` in a GAN. `*` matches any text, including dots, and `?` matches one
    /// character. A second call adds a pattern. The other values of the module keep those of the
    /// latest step.
    ///
    /// Steps are then the updates of the [optimizer](crate::Optimizers) that trains these
    /// parameters, instead of the steps of the training. All of them must belong to one optimizer.
    ///
    /// ```
    /// use fulmen_trainer::{Trainer, WeightAveraging};
    /// let ema = WeightAveraging::ema(0.999).only("generator.*");
    /// let builder = Trainer::builder().weight_averaging(ema);
    /// ```
    pub fn only(mut self, pattern: impl Into<String>) -> WeightAveraging {
        self.only.push(pattern.into());
        self
    }

    fn error(&self, message: impl Display) -> Error {
        Error::usage(format!("WeightAveraging: {message}\n  at {}", self.line))
    }

    /// Rejects invalid settings.
    pub(crate) fn check(&self) -> Result<()> {
        let wrong = |message: String| Err(self.error(message));
        if matches!(self.every, Interval::Steps(0) | Interval::Epochs(0)) {
            return wrong("the interval must be at least 1 step or epoch, not 0".into());
        }
        match self.rule {
            Rule::Exponential { decay, .. } if !(0.0..=1.0).contains(&decay) => {
                wrong(format!("the decay must be between 0 and 1, not {decay}"))
            }
            _ => Ok(()),
        }
    }
}

impl EvaluatedWeights for WeightAveraging {
    fn name(&self) -> &'static str {
        "averaged"
    }

    /// Checks the patterns of [`only`](WeightAveraging::only) against the module's parameters.
    ///
    /// # Errors
    /// A pattern that matches no parameter; parameters of no optimizer or of several.
    fn check_for(&self, parameters: &[(&str, Option<usize>)], optimizers: &[&str]) -> Result<()> {
        let names = parameters.iter().map(|(name, _)| *name);
        if let Some(message) =
            self.only.iter().find_map(|pattern| check_pattern(pattern, names.clone()))
        {
            return Err(self.error(format_args!("only: {message}")));
        }
        let matching = parameters.iter().filter(|(name, _)| self.includes(name));
        let trained: BTreeSet<usize> = matching.filter_map(|(_, optimizer)| *optimizer).collect();
        if self.only.is_empty() || trained.len() == 1 {
            return Ok(());
        }
        let patterns = quoted(self.only.iter().map(String::as_str));
        if trained.is_empty() {
            return Err(
                self.error(format_args!("only: all parameters that match {patterns} are frozen"))
            );
        }
        let optimizers = quoted(trained.iter().map(|&optimizer| optimizers[optimizer]));
        Err(self.error(format_args!(
            "only: the parameters that match {patterns} belong to the optimizers {optimizers}; an average counts the updates \
             of one optimizer"
        )))
    }

    fn includes(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|pattern| matches_pattern(pattern, name))
    }

    fn counts_updates_of_one_optimizer(&self) -> bool {
        !self.only.is_empty()
    }

    fn has(&self, name: &str, ty: &TensorType, trained: bool, is_buffer: bool) -> bool {
        ty.dtype.is_inexact() && self.includes(name) && (trained || is_buffer && self.use_buffers)
    }

    fn counts_epochs(&self) -> bool {
        matches!(self.start, Interval::Epochs(_)) || matches!(self.every, Interval::Epochs(_))
    }

    fn description(&self) -> String {
        let only = match &self.only[..] {
            [] => String::new(),
            only => format!(" only {only:?}"),
        };
        format!("{:?} from {:?} every {:?}{only}", self.rule, self.start, self.every)
    }

    fn step(
        &self,
        updates: &Tensor,
        count: &Tensor,
        done: Option<&Tensor>,
        epoch: Option<&Epoch>,
    ) -> EvaluatedStep {
        let started = match (self.start, epoch) {
            (Interval::Epochs(first), Some(epoch)) => epoch.number().ge(to_counter(first)),
            (Interval::Steps(steps) | Interval::Epochs(steps), _) => updates.gt(to_counter(steps)),
        };
        let is_due = match (self.every, epoch) {
            (Interval::Epochs(every), Some(epoch)) => {
                let first = if let Interval::Epochs(first) = self.start { first } else { 0 };
                let since = epoch.number() + 1.0 - to_counter(first);
                since.remainder(to_counter(every.max(1))).eq(0.0).and(epoch.ends())
            }
            (Interval::Steps(every) | Interval::Epochs(every), _) => {
                let before = if let Interval::Steps(steps) = self.start { steps } else { 0 };
                let is_due =
                    (updates - to_counter(before)).remainder(to_counter(every.max(1))).eq(0.0);
                done.map_or(is_due.clone(), |done| is_due.and(done))
            }
        };
        let applies = started.and(is_due);
        let n = count.to_dtype(DType::F32);
        let share = match self.rule {
            Rule::Exponential { decay, warmup: false } => Tensor::full(DType::F32, [], 1.0 - decay),
            Rule::Exponential { decay, warmup: true } => {
                1.0 - ((&n + 1.0) / (&n + 10.0)).minimum(decay)
            }
            Rule::Even => 1.0 / (n + 1.0),
        };
        EvaluatedStep {
            next: applies.select(&(count + 1.0), count),
            started: count.gt(0.0),
            applies,
            share,
        }
    }
}

/// Names in backquotes, separated by commas.
fn quoted<'a>(names: impl Iterator<Item = &'a str>) -> String {
    names.map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}
