//! [`LearningRateScaling`]: whether the learning rate grows with the number of devices.

use crate::options::named::named;

/// Whether the learning rate grows with the number of devices, for who keeps the batch a device and so trains with a
/// larger global batch on more of them. Off unless asked for.
///
/// ```
/// use fulmen_trainer::LearningRateScaling;
/// assert_eq!("linear".parse::<LearningRateScaling>()?.factor(8), 8.0);
/// # Ok::<(), fulmen_trainer::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum LearningRateScaling {
    /// The optimizer's learning rate as it is.
    #[default]
    None,
    /// Times the number of devices that share a batch (Goyal et al. 2017, <https://arxiv.org/abs/1706.02677>).
    Linear,
    /// Times the square root of that number (Krizhevsky 2014, <https://arxiv.org/abs/1404.5997>).
    Sqrt,
}

const NAMES: [(&str, LearningRateScaling); 3] =
    [("none", LearningRateScaling::None), ("linear", LearningRateScaling::Linear), ("sqrt", LearningRateScaling::Sqrt)];

impl LearningRateScaling {
    /// What the learning rate is multiplied by when this many devices share a batch.
    pub fn factor(self, devices: usize) -> f64 {
        match self {
            LearningRateScaling::None => 1.0,
            LearningRateScaling::Linear => devices as f64,
            LearningRateScaling::Sqrt => (devices as f64).sqrt(),
        }
    }
}

named!(LearningRateScaling, "way to scale the learning rate");
