//! [`Scaled`]: another schedule, times a number.

use std::sync::Arc;

use fulmen_tensor::Tensor;

use super::Schedule;

/// Another schedule, times a number.
#[derive(Clone, Debug)]
pub(crate) struct Scaled {
    schedule: Arc<dyn Schedule>,
    factor: f64,
}

impl Scaled {
    pub(crate) fn new(schedule: Arc<dyn Schedule>, factor: f64) -> Scaled {
        Scaled { schedule, factor }
    }
}

impl Schedule for Scaled {
    fn value(&self, step: &Tensor) -> Tensor {
        self.schedule.value(step) * self.factor
    }
    fn constant(&self) -> Option<f64> {
        self.schedule.constant().map(|value| value * self.factor)
    }
}
