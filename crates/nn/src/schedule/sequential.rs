//! [`Sequential`]: one schedule after another.

use std::sync::Arc;

use fulmen_tensor::Tensor;

use super::{Schedule, checked, steps};

/// One schedule after another. Each starts at its milestone and counts from there: PyTorch's
/// `SequentialLR`.
///
/// ```
/// use fulmen_nn::schedule::{Linear, Schedule, Sequential};
/// use fulmen_tensor::Tensor;
///
/// let schedule = Sequential::new(Linear::new(0.8, 4).start_factor(0.5)).then(4, 0.8).then(100, 0.1);
/// let rate = schedule.value(&Tensor::from_slice(&[0i32, 4, 100], [3]));
/// assert_eq!(rate.eval()?.to_vec::<f32>()?, [0.4, 0.8, 0.1]);
/// # Ok::<(), fulmen_tensor::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct Sequential {
    first: Arc<dyn Schedule>,
    later: Vec<(u64, Arc<dyn Schedule>)>,
}

impl Sequential {
    /// Starts with this schedule.
    pub fn new(first: impl Schedule + 'static) -> Sequential {
        Sequential { first: Arc::new(first), later: Vec::new() }
    }

    /// Switches to another schedule at step `milestone`, which must be later than the previous
    /// milestone.
    pub fn then(mut self, milestone: u64, schedule: impl Schedule + 'static) -> Sequential {
        self.later.push((milestone, Arc::new(schedule)));
        self
    }
}

impl Schedule for Sequential {
    #[track_caller]
    fn value(&self, step: &Tensor) -> Tensor {
        let milestones: Vec<u64> = self.later.iter().map(|(milestone, _)| *milestone).collect();
        let grow = milestones.windows(2).all(|pair| pair[0] < pair[1]);
        let error = (!grow).then(|| format!("milestones must grow, but they are {milestones:?}"));
        checked("Sequential", error, || {
            let mut value = self.first.value(step);
            for (milestone, schedule) in &self.later {
                let own_step = (step - steps(*milestone)).maximum(0.0);
                value = step.ge(steps(*milestone)).select(&schedule.value(&own_step), &value);
            }
            value
        })
    }
}
