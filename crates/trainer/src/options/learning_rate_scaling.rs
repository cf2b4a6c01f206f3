//! [`LearningRateScaling`]: whether the learning rate grows with the number of devices.

use crate::options::named_enum::named_enum;

/// Whether the learning rate grows with the number of devices. Use this if the batch of each device
/// stays the same, so that the global batch grows with the number of devices. Off by default.
///
/// ```
/// use fulmen_trainer::LearningRateScaling;
/// assert_eq!("linear".parse::<LearningRateScaling>()?.factor(8), 8.0);
/// # Ok::<(), fulmen_trainer::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum LearningRateScaling {
    /// The optimizer's learning rate, unchanged.
    #[default]
    None,
    /// The learning rate times the number of devices that share a batch (Goyal et al. 2017,
    /// <https://arxiv.org/abs/1706.02677>).
    Linear,
    /// The learning rate times the square root of that number (Krizhevsky 2014,
    /// <https://arxiv.org/abs/1404.5997>).
    Sqrt,
}

const NAMES: [(&str, LearningRateScaling); 3] = [
    ("none", LearningRateScaling::None),
    ("linear", LearningRateScaling::Linear),
    ("sqrt", LearningRateScaling::Sqrt),
];

impl LearningRateScaling {
    /// Returns the factor of the learning rate if this number of devices share a batch.
    pub fn factor(self, devices: usize) -> f64 {
        match self {
            LearningRateScaling::None => 1.0,
            LearningRateScaling::Linear => devices as f64,
            LearningRateScaling::Sqrt => (devices as f64).sqrt(),
        }
    }
}

named_enum!(LearningRateScaling, "learning rate scaling");
