//! [`OneCycle`]: increases to a high learning rate and decreases to almost 0, over a known number
//! of steps.

use fulmen_tensor::{DType, Refusal, Tensor};

use super::{Schedule, cosine};
use crate::library::NN;

/// The curve from one value to another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Anneal {
    /// Half a cosine wave.
    #[default]
    Cos,
    /// A straight line.
    Linear,
}

/// Smith's one-cycle policy, like PyTorch's `OneCycleLR`: from `max_lr/div_factor` up to `max_lr`
/// over the first `pct_start` of the steps, then down to the initial value divided by
/// `final_div_factor`. After `total_steps` it stays at its last value.
///
/// ```
/// use fulmen_nn::schedule::{OneCycle, Schedule};
/// use fulmen_tensor::Tensor;
///
/// let cycle = OneCycle::new(0.1, 1000);
/// let at = |step: i32| cycle.value(&Tensor::scalar(step)).eval().unwrap().to_vec::<f32>().unwrap()[0];
/// assert!((at(0) - 0.004).abs() < 1e-9);
/// assert!((at(299) - 0.1).abs() < 1e-9);
/// assert!((at(999) - 4e-7).abs() < 1e-12);
/// ```
#[derive(Clone, Debug, PartialEq)]
#[must_use]
pub struct OneCycle {
    max_lr: f64,
    total_steps: u64,
    pct_start: f64,
    div_factor: f64,
    final_div_factor: f64,
    anneal: Anneal,
    three_phase: bool,
}

impl OneCycle {
    /// PyTorch's defaults: 30 % of the steps upwards, an initial value of `max_lr/25`, a final one
    /// of that divided by 10⁴, cosine curves.
    pub fn new(max_lr: f64, total_steps: u64) -> OneCycle {
        OneCycle {
            max_lr,
            total_steps,
            pct_start: 0.3,
            div_factor: 25.0,
            final_div_factor: 1e4,
            anneal: Anneal::Cos,
            three_phase: false,
        }
    }

    /// The fraction of the steps, between 0 and 1, in which the rate increases.
    pub fn pct_start(mut self, share: f64) -> OneCycle {
        self.pct_start = share;
        self
    }

    /// The initial value is `max_lr` divided by this.
    pub fn div_factor(mut self, factor: f64) -> OneCycle {
        self.div_factor = factor;
        self
    }

    /// The final value is the initial one divided by this.
    pub fn final_div_factor(mut self, factor: f64) -> OneCycle {
        self.final_div_factor = factor;
        self
    }

    /// The curve between two values.
    pub fn anneal(mut self, anneal: Anneal) -> OneCycle {
        self.anneal = anneal;
        self
    }

    /// Whether to return to the initial value in as many steps as it took upwards, and only then
    /// decrease to the final one.
    pub fn three_phase(mut self, three_phase: bool) -> OneCycle {
        self.three_phase = three_phase;
        self
    }

    /// The mirrored schedule, for a momentum (or Adam's first beta): `max` while the rate is low,
    /// `base` where it is highest. PyTorch's values are 0.85 and 0.95.
    ///
    /// ```
    /// use fulmen_nn::{optim::Sgd, schedule::OneCycle};
    /// let cycle = OneCycle::new(0.1, 1000);
    /// let optimizer = Sgd::new(cycle.clone()).momentum(cycle.momentum(0.85, 0.95));
    /// ```
    pub fn momentum(&self, base: f64, max: f64) -> OneCycleMomentum {
        OneCycleMomentum { cycle: self.clone(), base, max }
    }

    /// What is wrong with the settings, if anything.
    fn check(&self) -> Option<String> {
        let OneCycle { max_lr, total_steps, pct_start, div_factor, final_div_factor, .. } = self;
        if *total_steps == 0 {
            return Some("total_steps must be at least 1".into());
        }
        if !(0.0..=1.0).contains(pct_start) {
            return Some(format!("pct_start must be between 0 and 1, but it is {pct_start}"));
        }
        let factor = |f: &f64| f.is_finite() && *f > 0.0;
        if !max_lr.is_finite() || !factor(div_factor) || !factor(final_div_factor) {
            return Some(format!(
                "max_lr must be finite, div_factor and final_div_factor finite and above 0; they are {max_lr}, \
                 {div_factor} and {final_div_factor}"
            ));
        }
        None
    }

    /// A value that is `low` at the start, `high` at the peak and `end` at the end.
    fn curve(&self, step: &Tensor, low: f64, high: f64, end: f64) -> Result<Tensor, Refusal> {
        if let Some(message) = self.check() {
            return Err(message.into());
        }
        let peak = self.pct_start * self.total_steps as f64 - 1.0;
        let last = self.total_steps as f64 - 1.0;
        let mut phases = vec![(peak, low, high)];
        if self.three_phase {
            phases.push((2.0 * self.pct_start * self.total_steps as f64 - 2.0, high, low));
            phases.push((last, low, end));
        } else {
            phases.push((last, high, end));
        }
        let step = step.to_dtype(DType::F32).minimum(last);
        let mut start = 0.0;
        let mut pieces = Vec::new();
        for (phase_end, from, to) in phases {
            pieces.push((phase_end, self.phase_value(&step, start, phase_end, from, to)));
            start = phase_end;
        }
        // Uses the first phase that has not ended; the last one never ends.
        let (_, mut value) = pieces.pop().unwrap_or((last, step.clone()));
        while let Some((phase_end, piece)) = pieces.pop() {
            value = step.le(phase_end).select(&piece, &value);
        }
        Ok(value)
    }

    /// The value between steps `start` and `end` on the curve from `from` to `to`.
    fn phase_value(&self, step: &Tensor, start: f64, end: f64, from: f64, to: f64) -> Tensor {
        if end <= start {
            return Tensor::full(DType::F32, [], to);
        }
        let elapsed = (step - start) / (end - start);
        let remaining = (end - step) / (end - start);
        match self.anneal {
            Anneal::Linear => remaining * from + elapsed * to,
            Anneal::Cos => cosine(remaining, elapsed, from, to),
        }
    }
}

impl Schedule for OneCycle {
    #[track_caller]
    fn value(&self, step: &Tensor) -> Tensor {
        let first = self.max_lr / self.div_factor;
        NN.record("OneCycle", || {
            self.curve(step, first, self.max_lr, first / self.final_div_factor)
        })
    }
}

/// The momentum that mirrors a [`OneCycle`]; see [`OneCycle::momentum`].
#[derive(Clone, Debug, PartialEq)]
pub struct OneCycleMomentum {
    cycle: OneCycle,
    base: f64,
    max: f64,
}

impl Schedule for OneCycleMomentum {
    #[track_caller]
    fn value(&self, step: &Tensor) -> Tensor {
        NN.record("OneCycle", || self.cycle.curve(step, self.max, self.base, self.max))
    }
}
